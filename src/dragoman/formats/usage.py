"""The README of an exported model: usage without Dragoman."""

from __future__ import annotations

from dragoman.tokenizers.listed_pieces import PieceLists

_CTRANSLATE2 = """# A translation model for CTranslate2

Exported by Dragoman. Requirements: `pip install ctranslate2 sentencepiece`.

```python
import ctranslate2
import sentencepiece

folder = "."  # the folder of this file
translator = ctranslate2.Translator(folder, device="cpu", compute_type="{compute}")
source = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{source}")
target = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{target}")

lines = ["Two dogs run across a field."]
pieces = [source.encode(line, out_type=str) for line in lines]
results = translator.translate_batch(pieces, beam_size=4, length_penalty=0.6, max_batch_size=32)
for result in results:
    print(target.decode(result.hypotheses[0]))
```

CTranslate2 appends the end of sentence to the source if the model needs it (`add_source_eos` of `config.json`). By
default it truncates sources to 1024 pieces and targets to 256 (`max_input_length`, `max_decoding_length`).
`export.json` contains the origin of this model and the parity report.
"""

_CTRANSLATE2_GENERATE = """# A language model for CTranslate2

Exported by Dragoman. Requirements: `pip install ctranslate2 sentencepiece`.

```python
import ctranslate2
import sentencepiece

folder = "."  # the folder of this file
generator = ctranslate2.Generator(folder, device="cpu", compute_type="{compute}")
tokenizer = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{target}")

prompt = ["<s>", *tokenizer.encode("To be, or not", out_type=str)]
(result,) = generator.generate_batch([prompt], max_length=100, sampling_topk=10, include_prompt_in_result=False)
print(tokenizer.decode(result.sequences_ids[0]))
```

Every text starts with `<s>`. `export.json` contains the origin of this model and the parity report.
"""


_HUGGINGFACE = """# A translation model for transformers

Exported by Dragoman{architecture}. Requirements: `pip install transformers torch sentencepiece sacremoses`.

```python
from transformers import AutoModelForSeq2SeqLM, {tokenizer}

folder = "."  # the folder of this file
tokenizer = {tokenizer}.from_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder{code})

lines = ["Two dogs run across a field."]
batch = tokenizer(lines, return_tensors="pt", padding=True)
for row in model.generate(**batch, num_beams=4, max_new_tokens=200):
    print(tokenizer.decode(row, skip_special_tokens=True))
```

{about} `export.json` contains the origin of this model and the parity report.
"""

_MARIAN_ABOUT = "`dragoman import` converts this folder back."
_CUSTOM_ABOUT = """\
`trust_remote_code=True` runs `modeling_dragoman.py` of this folder, because transformers has no class for this model.
The file defines the configuration and the layers of the model, and nothing else."""


_HUGGINGFACE_CAUSAL = """# A language model for transformers

Exported by Dragoman as GPT-2 or Llama. Requirements: `pip install transformers torch`.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # the folder of this file
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)

prompt = tokenizer.bos_token + "To be, or not"
batch = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
for row in model.generate(**batch, max_new_tokens=20, do_sample=True, top_k=10):
    print(tokenizer.decode(row, skip_special_tokens=True))
```

Every text starts with the begin token. `dragoman import` converts this folder back. `export.json` contains the origin
of this model and the parity report.
"""


_MARIAN = """# A translation model for Marian

Exported by Dragoman: `model.npz` contains the settings of the model, `decoder.yml` those of decoding.

```sh
marian-decoder --config decoder.yml < input.txt > output.txt
```

In Python, on Linux (`pip install pymarian`, which contains Marian):

```python
{imports}from pymarian import Translator

folder = "."  # the folder of this file
{loads}translator = Translator(config=f"{{folder}}/decoder.yml", cpu_threads=1, quiet=True)
lines = ["Two dogs run across a field."]
for text in translator.translate({lines}):
    print({text})
```

{note}`dragoman import` converts this folder back. `export.json` contains the origin of this model and the parity
report.
"""
_MARIAN_LISTS = """The vocabulary is a list: `marian-decoder` reads and writes pieces of `source.spm` and `target.spm`.

"""


_ONNX = """# A translation model for onnxruntime

Exported by Dragoman. Requirements: `pip install onnxruntime sentencepiece numpy`.

```python
import numpy as np
import onnxruntime as ort
import sentencepiece{imports}

folder = "."  # the folder of this file
encoder, decoder = (ort.InferenceSession(f"{{folder}}/{{name}}.onnx") for name in ("encoder", "decoder"))
source = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{source}")
target = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{target}")
{lists}
line = "Two dogs run across a field."
tokens = np.array([[*{encode}, 3]])  # 3: end of sentence
mask = np.ones(tokens.shape, bool)  # False: padding
memory = dict(zip([each.name for each in encoder.get_outputs()], encoder.run(None, {{"tokens": tokens, "mask": mask}})))
given = ["token", "position", "mask", *memory]
sizes = {{"batch": 1, "past": 0}}
shapes = {{each.name: each.shape for each in decoder.get_inputs() if each.name not in given}}
states = {{name: np.zeros([sizes.get(n, n) for n in shape], np.float32) for name, shape in shapes.items()}}
output = [2]  # 2: begin of sentence
while output[-1] != 3 and len(output) < 200:
    inputs = {{"token": np.array(output[-1:]), "position": np.array(len(output) - 1), "mask": mask}}
    logits, *updated = decoder.run(None, {{**inputs, **memory, **states}})
    states = dict(zip(states, updated))
    logits[:, [0, 2]] = -np.inf  # padding and begin are never generated
    output.append(int(logits[0].argmax()))
print(target.decode({decode}))
```

`encoder.onnx`: tokens and mask (batch, source) -> keys and values of each cross-attention. `decoder.onnx`: the last
token of each row, its position, the mask, these keys and values, and the states of the positions so far -> logits
(batch, vocabulary) and the states for the next position. Several lines form a batch, padded on the right; a beam search
has one row per beam and reorders the states. `export.json` contains the origin of this model and the parity report.
"""
_ONNX_LISTS = """pieces = json.load(open(f"{folder}/pieces.json", encoding="utf-8"))
ids = {piece: token for token, piece in enumerate(pieces["source"])}
names = pieces["target"] or pieces["source"]
"""


def ctranslate2_page(source: str | None, target: str, compute: str) -> str:
    """Return the page in Markdown.

    source, target: files of the tokenizers, source None for a language model.  compute: compute type of the weights.
    """
    text = _CTRANSLATE2_GENERATE if source is None else _CTRANSLATE2
    return text.format(source=source, target=target, compute=compute)


def huggingface_page(kind: str) -> str:
    """Return the page in Markdown.  kind: "marian", "custom" (a class of its own) or "causal" (a language model)."""
    if kind == "causal":
        return _HUGGINGFACE_CAUSAL
    if kind == "marian":
        return _HUGGINGFACE.format(architecture=" as MarianMT", tokenizer="AutoTokenizer", code="", about=_MARIAN_ABOUT)
    code = ", trust_remote_code=True"
    return _HUGGINGFACE.format(architecture="", tokenizer="MarianTokenizer", code=code, about=_CUSTOM_ABOUT)


def marian_page(lists: bool) -> str:
    """Return the page in Markdown.  lists: whether the vocabulary is a list of pieces."""
    if not lists:
        return _MARIAN.format(imports="", loads="", lines="lines", text="text", note="")
    return _MARIAN.format(
        imports="import sentencepiece\n",
        loads="".join(
            f'{side} = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{side}.spm")\n'
            for side in ("source", "target")
        ),
        lines='[" ".join(source.encode(line, out_type=str)) for line in lines]',
        text="target.decode(text.split())",
        note=_MARIAN_LISTS,
    )


def onnx_page(source: str, target: str, lists: PieceLists | None) -> str:
    """Return the page in Markdown.  source, target: files of the tokenizers.  lists: the ids, if not those of files."""
    if lists is None:
        return _ONNX.format(
            source=source, target=target, imports="", lists="", encode="source.encode(line)", decode="output[1:]"
        )
    return _ONNX.format(
        source=source,
        target=target,
        imports="\nimport json",
        lists=_ONNX_LISTS,
        encode="(ids.get(piece, 1) for piece in source.encode(line, out_type=str))",  # 1: unknown
        decode="[names[token] for token in output if token > 3]",
    )
