"""The checkpoint in `transformers`, which computes what an imported model is compared with."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.data.ids import BOS, EOS, PAD
from dragoman.errors import DragomanError, is_out_of_memory
from dragoman.extras import extra_package
from dragoman.formats.importing.family import NEVER, ImportedVocabulary
from dragoman.formats.parity import ParityCase

__all__ = ["ReferenceTokenizer", "TransformersRuntime", "transformers_package"]

_BATCH = 32


def transformers_package() -> Any:
    """Import and return `transformers`.  Raises UsageError if it is not installed."""
    return extra_package("transformers", "formats", "the parity report of an import")


@contextmanager
def _calling(what: str) -> Iterator[None]:
    """Convert errors of `transformers` into DragomanError, and suppress its progress bars and warnings.

    what: description of the call, for the message.
    """
    log = transformers_package().utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    except Exception as error:  # any: the settings of a checkpoint reach most of its code
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:300]
        raise DragomanError(f"transformers cannot {what}, so that results cannot be compared: {reason}") from error
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


class TransformersRuntime:
    """An encoder-decoder of `transformers` on the ids of the imported model: a `formats.parity.ExternalRuntime`."""

    def __init__(self, folder: Path, vocabulary: ImportedVocabulary, output_bias: Tensor) -> None:
        """output_bias: of the imported model; tokens with the logit NEVER are excluded from the comparison."""
        transformers = transformers_package()
        self.name = f"transformers {transformers.__version__}, float32"
        with _calling(f"load {folder}"):
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
            )
        self.model, self.source, self.target = model.eval(), vocabulary.source, vocabulary.target
        self.ours = {theirs: ours for ours, theirs in enumerate(self.target) if theirs >= 0}
        self.pad = self.target[BOS] if self.target[PAD] < 0 else self.target[PAD]
        # Tokens of ours that the checkpoint does not have: PAD, or BOS if it starts with the end of sentence.
        self.added = [PAD] * (self.target[PAD] < 0) + [BOS] * (self.target[BOS] == self.target[EOS])
        # The start token, if the generation settings of the checkpoint exclude it from the softmax.
        self.excluded = [self.target[BOS]] if output_bias[BOS].item() == NEVER and BOS not in self.added else []
        # Settings of the folder, such as a forced end, are those of its own search.
        self.model.generation_config = transformers.GenerationConfig(
            pad_token_id=self.pad, eos_token_id=self.target[EOS], decoder_start_token_id=self.target[BOS]
        )

    @torch.no_grad()
    def logits(self, source: Sequence[int], target: Sequence[int]) -> Tensor:
        """Return the logits (T, V) of the checkpoint, in our order, after BOS and each token of a target.

        source, target: our ids, the source with EOS.
        """
        tokens = [self.target[token] for token in (BOS, *target)]
        source_ids = torch.tensor([[self.source[token] for token in source]])
        logits: Tensor = self.model(input_ids=source_ids, decoder_input_ids=torch.tensor([tokens])).logits[0]
        logits[:, self.excluded] = NEVER
        ours = logits.index_select(1, torch.tensor(self.target).clamp(min=0))
        ours[:, self.added] = NEVER
        return ours

    def score(self, case: ParityCase, ids: Sequence[int]) -> list[float]:
        log_probs = self.logits(case.source, ids[:-1]).log_softmax(-1)
        row: list[float] = log_probs.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        return row

    def search(
        self, cases: Sequence[ParityCase], width: int, min_length: int, max_length: int
    ) -> list[list[list[int]]]:
        found: list[list[list[int]]] = []
        for begin in range(0, len(cases), _BATCH):
            rows = [[self.source[token] for token in case.source] for case in cases[begin : begin + _BATCH]]
            longest = max(map(len, rows))
            ids = torch.tensor([row + [self.pad] * (longest - len(row)) for row in rows])
            starts = [[self.target[token] for token in (BOS, *case.prefix)] for case in cases[begin : begin + _BATCH]]
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            with _calling("generate"):
                generated = self.model.generate(
                    ids, attention_mask=mask, decoder_input_ids=torch.tensor(starts),
                    do_sample=False, num_beams=width, num_return_sequences=width,
                    min_new_tokens=min_length, max_new_tokens=max_length, length_penalty=0.0, early_stopping=False,
                    bad_words_ids=[[token] for token in {self.pad, self.target[BOS]} - {self.target[EOS]}],
                    renormalize_logits=True,
                )  # fmt: skip
            hypotheses = [self._ours(row) for row in generated[:, len(starts[0]) :].tolist()]
            found += [hypotheses[i : i + width] for i in range(0, len(hypotheses), width)]
        return found

    def _ours(self, row: Sequence[int]) -> list[int]:
        """Return our ids of a generated row up to the end of sentence."""
        end = self.target[EOS]
        return [self.ours[token] for token in (row[: row.index(end)] if end in row else row)]


class ReferenceTokenizer:
    """The tokenizer of `transformers` for a checkpoint, on our ids."""

    def __init__(self, folder: Path, vocabulary: ImportedVocabulary) -> None:
        package = transformers_package()
        with _calling(f"load the tokenizer of {folder}"):
            self.tokenizer = package.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        self.source = {theirs: ours for ours, theirs in enumerate(vocabulary.source)}
        self.target = {theirs: ours for ours, theirs in enumerate(vocabulary.target)}
        self.theirs = vocabulary.target

        # Those of mBART and NLLB convert spaces and, for mBART, characters in another way than sentencepiece.
        self.name = type(self.tokenizer).__name__
        self.end = vocabulary.target[EOS]

    def between(self, source: str | None, target: str | None) -> ReferenceTokenizer:
        """Set the languages of the following texts, if they are not None."""
        if source is not None:
            self.tokenizer.src_lang = source
            first = self.tokenizer.convert_ids_to_tokens(self.theirs[BOS])  # the target language of mBART-25
            self.tokenizer.tgt_lang = first if target is None else target
        return self

    def cleaned(self, text: str) -> str:
        """Return a text that this tokenizer normalizes as sentencepiece does."""
        if self.name not in ("MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer"):
            return text
        return " ".join(unicodedata.normalize("NFKC", text.replace("\N{ZERO WIDTH SPACE}", " ")).split())

    def encode_source(self, text: str) -> list[int]:
        return [self.source[token] for token in self.tokenizer(text).input_ids]

    def encode_target(self, text: str) -> list[int]:
        ids = list(self.tokenizer(text_target=text).input_ids)
        if self.end in ids[:-1]:  # labels, of which the model moves the language to the start of its input
            first = self.theirs[BOS]
            ids = ids[:-1] if ids[-1] == first else [ids[-1], *ids[:-1]]
        return [self.target[token] for token in ids]

    def decode_target(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode([self.theirs[token] for token in ids], skip_special_tokens=True)).strip()
