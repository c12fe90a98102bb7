"""`[data]` and `[tokenizer]`: which text, in which form, and how it is cut into tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dragoman.config.section import Section
from dragoman.errors import UsageError

__all__ = [
    "CorpusConfig",
    "DataConfig",
    "FilterConfig",
    "ImageData",
    "LabelledData",
    "MaskedData",
    "ParallelData",
    "TaggedData",
    "TextData",
    "TokenizerConfig",
    "TreeData",
    "resolve_path",
]


def resolve_path(text: str, root: str = "") -> Path:
    """A path of the document as a file: `${NAME}` and `${NAME:-default}` filled in, `~` too, relative ones to root.

    Raises `UsageError` for a variable that is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise UsageError(f"{text!r}: the environment variable {match[1]} is not set; set it or write the path out")
        return found

    def expand(part: str) -> Path:
        return Path(re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", value, part)).expanduser()

    path = expand(text)
    return path if path.is_absolute() or not root else expand(root) / path


class CorpusConfig(Section):
    """One parallel corpus: two plain files, or one TSV or JSONL file; `.gz`, `.zst` and `.xz` are read as they are."""

    source: str | None = None
    target: str | None = None
    path: str | None = None
    source_key: str | int = 0
    target_key: str | int = 1
    weight: float = Field(1.0, gt=0, description="times its pairs are seen in an epoch")

    @model_validator(mode="after")
    def _one_form(self) -> CorpusConfig:
        pair = self.source is not None and self.target is not None
        one = self.source is None and self.target is None and self.path is not None
        if not (pair and self.path is None) and not one:
            raise ValueError("give either source and target (two text files) or path (one .tsv or .jsonl file)")
        return self


class FilterConfig(Section):
    """Which pairs are kept for training; always both sides or neither."""

    min_characters: int = Field(1, ge=1)
    max_characters: int = Field(5000, ge=1)
    max_ratio: float = Field(9.0, gt=1)
    drop_identical: bool = True
    drop_duplicates: bool = True
    max_tokens: int = Field(250, ge=4, description="longest side in tokens, end of sentence included")


class ParallelData(Section):
    """Sentences and their translations."""

    kind: Literal["parallel"] = "parallel"
    root: str = ""
    source_language: str = "source"
    target_language: str = "target"
    train: tuple[CorpusConfig, ...] = Field(min_length=1)
    valid: CorpusConfig | None = None
    test: CorpusConfig | None = None
    filter: FilterConfig = FilterConfig()

    @property
    def max_tokens(self) -> int:
        """The longest side of a pair in tokens, end of sentence included."""
        return self.filter.max_tokens

    def files(self) -> Iterator[tuple[str, str]]:
        """Every file that is named, with its key."""
        corpora = [(f"train.{i}", corpus) for i, corpus in enumerate(self.train)]
        corpora += [(name, corpus) for name, corpus in (("valid", self.valid), ("test", self.test)) if corpus]
        for name, corpus in corpora:
            for key in ("source", "target", "path"):
                if (path := getattr(corpus, key)) is not None:
                    yield f"{name}.{key}", path


class _Files(Section):
    """What the kinds below share: files of one form each."""

    root: str = ""
    train: tuple[str, ...] = Field(min_length=1)
    valid: str | None = None

    def files(self) -> Iterator[tuple[str, str]]:
        """Every file that is named, with its key."""
        yield from ((f"train.{i}", path) for i, path in enumerate(self.train))
        if self.valid is not None:
            yield "valid", self.valid


class TextData(_Files):
    """Plain text for a language model, cut into blocks of a stream, or taken by the line or paragraph."""

    kind: Literal["text"] = "text"
    form: Literal["stream", "lines", "paragraphs"] = "stream"
    max_tokens: int = Field(256, ge=2, description="a block of a stream; the longest line or paragraph")


class MaskedData(_Files):
    """Plain text, a paragraph a sequence, in which masked words are to be found (Devlin et al. 2019)."""

    kind: Literal["masked"] = "masked"
    rate: float = Field(0.15, gt=0, lt=1, description="part of the tokens that are asked for")
    max_tokens: int = Field(256, ge=4)


class TaggedData(_Files):
    """Sentences with a label a word: CoNLL-U (`.conllu`) or text of `word/tag`."""

    kind: Literal["tagged"] = "tagged"
    column: Literal["upos", "xpos"] = Field("upos", description="of CoNLL-U")
    max_tokens: int = Field(256, ge=4)


class LabelledData(_Files):
    """Texts with a label each: `.tsv`, `.csv` (label first), `.jsonl` (`label`, `text`), or lines of `label text`."""

    kind: Literal["labelled"] = "labelled"
    max_tokens: int = Field(256, ge=4)


class TreeData(_Files):
    """Constituency trees in Penn brackets: a sentence is translated into its tree (Vinyals et al. 2015)."""

    kind: Literal["trees"] = "trees"
    max_tokens: int = Field(250, ge=4, description="longest side in tokens, end of sentence included")


class ImageData(Section):
    """Images with a label each: scikit-learn's digits, or `.npz` files with `images` (n, h, w[, c]) and `labels`."""

    kind: Literal["images"] = "images"
    root: str = ""
    dataset: Literal["digits"] | None = None
    train: str | None = None
    valid: str | None = None

    @model_validator(mode="after")
    def _one_form(self) -> ImageData:
        if (self.dataset is None) == (self.train is None) or (self.dataset and self.valid):
            raise ValueError('give either dataset = "digits" or train (and valid), .npz files')
        return self

    @property
    def max_tokens(self) -> int:
        """Patches are counted by the model; nothing is left out."""
        return 1

    def files(self) -> Iterator[tuple[str, str]]:
        """Every file that is named, with its key."""
        yield from ((key, path) for key, path in (("train", self.train), ("valid", self.valid)) if path is not None)


DataConfig = Annotated[
    ParallelData | TextData | MaskedData | TaggedData | LabelledData | TreeData | ImageData, Field(discriminator="kind")
]


class TokenizerConfig(Section):
    """sentencepiece; `shared` is one vocabulary for both sides.  `char` keeps every character as it is."""

    kind: Literal["bpe", "unigram", "char"] = "bpe"
    vocab_size: int = Field(8000, ge=8)
    shared: bool = True
    byte_fallback: bool = True
    normalization: Literal["nmt_nfkc", "nfkc", "identity"] = Field(
        "nmt_nfkc", description="sentencepiece's rule; both nfkc ones write `…` as `...` and ½ as 1⁄2"
    )
    character_coverage: float = Field(1.0, gt=0.9, le=1.0)
    sampling: float = Field(0.0, ge=0, lt=1, description="while training: BPE-dropout, or unigram's temperature")
    sentences: int = Field(2_000_000, ge=1, description="lines (both sides together) the vocabulary is learned from")
