"""The README of an exported model: usage without Dragoman."""

from __future__ import annotations

__all__ = ["usage_page"]

_TRANSLATE = """# A translation model for CTranslate2

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

CTranslate2 appends the end of sentence to the source. By default it truncates sources to 1024 pieces and targets to
256 (`max_input_length`, `max_decoding_length`). `export.json` contains the origin of this model and the parity report.
"""

_GENERATE = """# A language model for CTranslate2

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


def usage_page(source: str | None, target: str, compute: str) -> str:
    """Return the page in Markdown.

    source, target: files of the tokenizers, source None for a language model.  compute: compute type of the weights.
    """
    text = _GENERATE if source is None else _TRANSLATE
    return text.format(source=source, target=target, compute=compute)
