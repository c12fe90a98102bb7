"""`[data]`: files of training and held-out data, and their format."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from dragoman.config import limits
from dragoman.config.kinds import DATA_KINDS, DataKind
from dragoman.config.paths import move_root as move_root
from dragoman.config.paths import resolve_path as resolve_path
from dragoman.config.section import Section, is_stored


def _key(value: Any) -> Any:
    """Check a column number or key here, so that pydantic reports one error instead of one per accepted type."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 9999):
        return value
    raise ValueError("must be a column number (0 to 9,999) or the name of a key, in quotes")


Given = TypeVar("Given")
Key = Annotated[str | int, BeforeValidator(_key)]
Root = Annotated[
    str,
    Field(
        description="base folder of relative paths; a relative root is resolved against the folder of the TOML file; "
        "`${NAME}`, `${NAME:-default}` and `~` are expanded",
        examples=["${DRAGOMAN_DATA:-data}"],
    ),
]


class CorpusConfig(Section):
    """One parallel corpus: two text files, or one file or folder with both sides (docs/data.md lists the formats)."""

    source: str | None = Field(None, description="file of source sentences, one per line", examples=["train.en"])
    target: str | None = Field(
        None, description="file of target sentences; line i translates line i of `source`", examples=["train.de"]
    )
    path: str | None = Field(
        None,
        description="file of both sides, instead of `source` and `target`: `.tsv`, `.csv`, `.jsonl`, `.tmx`, "
        "`.parquet`, `.zip` (OPUS in Moses format), or a folder (Parquet files, or written by `save_to_disk` of "
        "Hugging Face `datasets`)",
        examples=["train.tsv"],
    )
    source_key: Key = Field(
        0,
        description="with `path`: column of the source, by number from 0 (TSV, CSV without a header) or by name (CSV, "
        "JSONL, Parquet; `a.b` in a nested object); or language code (TMX, `.zip`; default: `data.source_language`)",
        examples=["en"],
    )
    target_key: Key = Field(
        1,
        description="with `path`: column or language code of the target, as `source_key` (default for TMX and `.zip`: "
        "`data.target_language`)",
        examples=["de"],
    )
    weight: limits.CorpusWeight = Field(1.0, description="passes over the corpus per epoch", examples=[2.0])

    @model_validator(mode="after")
    def _one_form(self) -> CorpusConfig:
        if self.paths().keys() not in ({"source", "target"}, {"path"}):
            raise ValueError(
                "give either source and target (two text files) or path (one file or folder with both sides)"
            )
        return self

    def paths(self) -> dict[str, str]:
        """Return key -> path of the files."""
        return {key: path for key in ("source", "target", "path") if (path := getattr(self, key)) is not None}


def _not_empty(given: tuple[Given, ...], info: ValidationInfo) -> tuple[Given, ...]:
    if not given and not is_stored(info):
        raise PydanticKnownError("too_short", {"field_type": "Tuple", "min_length": 1, "actual_length": 0})
    return given


Corpora = Annotated[tuple[CorpusConfig, ...], AfterValidator(_not_empty)]
"""At least one corpus; imported models have none."""
Files = Annotated[tuple[str, ...], AfterValidator(_not_empty)]
"""At least one file; imported models have none."""


class FilterConfig(Section):
    """Filters of sentence pairs for training."""

    min_characters: limits.Characters = Field(
        1, description="drop pairs with fewer characters on either side", examples=[3]
    )
    max_characters: limits.Characters = Field(
        5000, description="drop pairs with more characters on either side", examples=[1000]
    )
    max_ratio: limits.Ratio = Field(
        9.0,
        description="drop pairs with a larger ratio of lengths in characters, if one side has more than 20 characters",
        examples=[3.0],
    )
    drop_identical: bool = Field(True, description="drop pairs whose source and target are identical", examples=[False])
    drop_duplicates: bool = Field(True, description="drop repeated pairs", examples=[False])
    max_tokens: limits.TokensPerExample = Field(
        250,
        description="drop pairs with more tokens on either side, including `</s>`; `translate` splits longer input",
        examples=[128],
    )

    @model_validator(mode="after")
    def _some_length_is_kept(self) -> FilterConfig:
        if self.min_characters > self.max_characters:
            raise ValueError(
                f"min_characters {self.min_characters} is more than max_characters {self.max_characters}, which "
                "excludes every pair; lower the one or raise the other"
            )
        return self


class _DataSection(Section):
    """The data sets in the fields `train`, `valid` and `test`, and the check that validation data are held out."""

    @property
    def about(self) -> DataKind:
        """What follows from the kind of data."""
        return DATA_KINDS[str(getattr(self, "kind"))]  # noqa: B009 (a field of each subclass)

    def _sets(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the key of every data set and its paths by key, which is empty for a single path."""
        for name in ("train", "valid", "test"):
            value = getattr(self, name, None)
            entries = [(f"{name}.{i}", v) for i, v in enumerate(value)] if isinstance(value, tuple) else [(name, value)]
            for key, entry in entries:
                if entry is not None:
                    yield key, entry.paths() if isinstance(entry, CorpusConfig) else {"": entry}

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the path of every file."""
        return ((f"{name}.{key}".rstrip("."), path) for name, paths in self._sets() for key, path in paths.items())

    def _problems(self) -> Iterator[str]:
        sets = {name: {key: os.path.normpath(path) for key, path in paths.items()} for name, paths in self._sets()}
        for name, paths in sets.items():
            if name.startswith("train") and paths == sets.get("valid"):
                yield (
                    f"valid is the same data as {name}, so that its scores are meaningless; hold out other examples, "
                    "or remove valid"
                )

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> _DataSection:
        if not is_stored(info) and (problems := list(self._problems())):
            raise ValueError("; ".join(problems))
        return self


class ParallelData(_DataSection):
    """Parallel text: source sentences and their translations."""

    kind: Literal["parallel"] = "parallel"
    root: Root = ""
    source_language: str = Field("source", description="language code of the source", examples=["en"])
    target_language: str = Field(
        "target", description="language code of the target, which selects the tokenizer of BLEU", examples=["zh-Hans"]
    )
    train: Corpora = Field(
        description="training corpora",
        examples=[[{"source": "train.en", "target": "train.de"}]],
    )
    valid: CorpusConfig | None = Field(
        None,
        description="validation pairs, which select the best checkpoint; without them, the last checkpoint is selected",
        examples=[{"source": "valid.en", "target": "valid.de"}],
    )
    test: CorpusConfig | None = Field(
        None,
        description="test pairs, which `train` translates and scores at the end",
        examples=[{"source": "test.en", "target": "test.de"}],
    )
    temperature: limits.Temperature = Field(
        1.0,
        description="repeat small corpora: a corpus of n pairs is read in proportion to n^(1/temperature), times its "
        "weight; the largest is read once per epoch (Arivazhagan et al. 2019)",
        examples=[5.0],
    )
    filter: FilterConfig = Field(
        FilterConfig(), description="filters of the training pairs", examples=[{"max_ratio": 3.0}]
    )

    @field_validator("source_language", "target_language")
    @classmethod
    def _language(cls, value: str, info: ValidationInfo) -> str:
        if is_stored(info):
            return value
        if len(value.strip()) > 40 or not re.fullmatch(r"[^\W_]+([-_][^\W_]+)*", value.strip()):
            raise ValueError('accepted: a language code such as "en", "zh" or "pt-BR" (letters, digits, - and _)')
        return value.strip()

    def _problems(self) -> Iterator[str]:
        if self.source_language.casefold() == self.target_language.casefold():
            yield (
                f'source_language and target_language are both "{self.source_language}"; give each side its own code '
                '(within one language, for example "en-original" and "en-simple")'
            )
        yield from super()._problems()

    @property
    def max_tokens(self) -> int:
        """The limit of the longer side of a pair in tokens, with the end of sentence."""
        return self.filter.max_tokens


class _FileData(_DataSection):
    """Data in files of one format."""

    root: Root = ""
    train: Files = Field(description="training files", examples=[["train.txt"]])
    valid: str | None = Field(
        None, description="validation file, which selects the best checkpoint", examples=["valid.txt"]
    )

    def train_paths(self) -> list[Path]:
        return [resolve_path(path, self.root) for path in self.train]

    def valid_path(self) -> Path | None:
        return None if self.valid is None else resolve_path(self.valid, self.root)


class TextData(_FileData):
    """Plain text for a language model: one stream cut into blocks, or separate lines or paragraphs."""

    kind: Literal["text"] = "text"
    form: Literal["stream", "lines", "paragraphs"] = Field(
        "stream",
        description="stream: one text, cut into blocks; lines, paragraphs: one sequence per line or paragraph",
        examples=["lines"],
    )
    max_tokens: limits.TokensPerBlock = Field(
        256, description="maximum tokens per block, line or paragraph", examples=[512]
    )


class DialogueData(_FileData):
    """Dialogues for a language model; a dialogue is a list of turns with role and text."""

    kind: Literal["dialogue"] = "dialogue"
    format: Literal["jsonl", "plain", "switchboard"] = Field(
        "jsonl",
        description='jsonl: chat messages, plain: lines of "ROLE: text", switchboard: Switchboard transcripts',
        examples=["plain"],
    )
    max_tokens: limits.TokensPerExample = Field(
        256, description="maximum tokens per window, including roles", examples=[512]
    )
    context_tokens: limits.ContextTokens = Field(
        64,
        description="tokens of earlier turns at the start of later windows, which do not contribute to the loss",
        examples=[128],
    )
    loss_roles: tuple[str, ...] = Field(
        (), description="roles whose turns contribute to the loss; empty: all roles", examples=[["assistant"]]
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.context_tokens >= self.max_tokens:
            yield (
                f"context_tokens is {self.context_tokens}, but a window has {self.max_tokens} tokens (max_tokens), so "
                f"that few are left to learn; accepted: 0 to {self.max_tokens - 1}, usually a quarter"
            )


class MaskedData(_FileData):
    """Plain text for masked language modelling, one sequence per paragraph (Devlin et al. 2019)."""

    kind: Literal["masked"] = "masked"
    rate: limits.Part = Field(0.15, description="fraction of tokens that are masked and predicted", examples=[0.3])
    max_tokens: limits.TokensPerExample = Field(256, description="maximum tokens per sequence", examples=[512])


class TaggedData(_FileData):
    """Sentences with a tag per word: CoNLL-U (`.conllu`), or lines of `word/tag`."""

    kind: Literal["tagged"] = "tagged"
    column: Literal["upos", "xpos"] = Field(
        "upos", description="tags of CoNLL-U files: universal (upos) or language-specific (xpos)", examples=["xpos"]
    )
    max_tokens: limits.TokensPerExample = Field(256, description="maximum tokens per sentence", examples=[512])


class LabelledData(_FileData):
    """Texts with one label: `.tsv`, `.csv` (label first), `.jsonl` (`label`, `text`), or lines of `label text`."""

    kind: Literal["labelled"] = "labelled"
    max_tokens: limits.TokensPerExample = Field(256, description="maximum tokens per text", examples=[512])


class TreeData(_FileData):
    """Constituency trees in Penn brackets; sentences are translated into trees (Vinyals et al. 2015)."""

    kind: Literal["trees"] = "trees"
    max_tokens: limits.TokensPerExample = Field(
        250, description="maximum tokens per side, including `</s>`", examples=[400]
    )


class PixelConfig(Section):
    """How the values of pixels, from 0 to 1, become the input of a model: (value - mean) / std."""

    mean: limits.PixelMeans = Field((0.5,), description="subtracted, per channel or once for all", examples=[[0.1307]])
    std: limits.PixelDeviations = Field(
        (0.5,), description="divides the difference, per channel or once for all", examples=[[0.3081]]
    )


class ImageData(_DataSection):
    """Images with one label: scikit-learn's digits, or `.npz` files with `images` (n, h, w[, c]) and `labels`."""

    kind: Literal["images"] = "images"
    root: Root = ""
    dataset: Literal["digits"] | None = Field(
        None, description="built-in data set, instead of `train` and `valid`", examples=["digits"]
    )
    train: str | None = Field(None, description="training file (.npz)", examples=["train.npz"])
    valid: str | None = Field(
        None, description="validation file (.npz); default: a fifth of the training images", examples=["valid.npz"]
    )
    pixels: PixelConfig = Field(
        PixelConfig(), description="normalization of pixels; by default from -1 to 1", examples=[{"mean": [0.1307]}]
    )

    @model_validator(mode="after")
    def _one_form(self, info: ValidationInfo) -> ImageData:
        if is_stored(info) and self.dataset is None and self.train is None:
            return self  # an imported model
        if (self.dataset is None) == (self.train is None) or (self.dataset and self.valid):
            raise ValueError('give either dataset = "digits" or train (and optionally valid) as .npz files')
        return self

    @property
    def max_tokens(self) -> int:
        """Unused: the model determines the number of patches."""
        return 1


DataConfig = Annotated[
    ParallelData | TextData | DialogueData | MaskedData | TaggedData | LabelledData | TreeData | ImageData,
    Field(discriminator="kind"),
]
