"""The page that goes along with an exported model: how to call it with nothing of Dragoman installed."""

from __future__ import annotations

__all__ = ["usage"]

_TRANSLATE = """# A translation model for CTranslate2

Written by Dragoman. It needs two packages: `pip install ctranslate2 sentencepiece`.

```python
import ctranslate2
import sentencepiece

folder = "."  # where this file is
translator = ctranslate2.Translator(folder, device="cpu", compute_type="{compute}")
source = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{source}")
target = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{target}")

lines = ["Two dogs run across a field."]
pieces = [source.encode(line, out_type=str) for line in lines]
results = translator.translate_batch(pieces, beam_size=4, length_penalty=0.6, max_batch_size=32)
for result in results:
    print(target.decode(result.hypotheses[0]))
```

The end of the source is added by the model itself. CTranslate2 cuts sources after 1024 pieces and targets after 256
unless told otherwise (`max_input_length`, `max_decoding_length`). `export.json` says from which model this one was made
and how closely the two agreed.
"""

_GENERATE = """# A language model for CTranslate2

Written by Dragoman. It needs two packages: `pip install ctranslate2 sentencepiece`.

```python
import ctranslate2
import sentencepiece

folder = "."  # where this file is
generator = ctranslate2.Generator(folder, device="cpu", compute_type="{compute}")
tokenizer = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{target}")

prompt = ["<s>", *tokenizer.encode("To be, or not", out_type=str)]
(result,) = generator.generate_batch([prompt], max_length=100, sampling_topk=10, include_prompt_in_result=False)
print(tokenizer.decode(result.sequences_ids[0]))
```

A text begins with `<s>`. `export.json` says from which model this one was made and how closely the two agreed.
"""


def usage(source: str | None, target: str, compute: str) -> str:
    """The page in Markdown.

    source, target: the tokenizers' files, source None for a language model; compute: how the weights are to be read.
    """
    text = _GENERATE if source is None else _TRANSLATE
    return text.format(source=source, target=target, compute=compute)
