"""`[data]`: files of training and held-out data, and their format; and `[tokenizer]`: the segmentation into tokens."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)
from pydantic_core import PydanticKnownError

from dragoman.config import limits
from dragoman.config.section import Section, field, is_stored
from dragoman.errors import UsageError, clip

_TRANSLATORS = ("transformer", "rnn", "gru", "lstm", "convolutional")
_LANGUAGE_MODELS = ("decoder_only", "recurrent_lm")
_ENCODERS = ("encoder_only", "recurrent_encoder")


@dataclass(frozen=True)
class DataKind:
    """A kind of training data, and what its models are.

    architectures: that can be trained on it, the default first.  metrics: of validation.  used_by: commands or classes
    that use its models.  lacks: what models of other kinds cannot do, for error messages.  writes: whether models
    generate text.  two_sided: whether source and target are different texts.  translates: whether they are sentences of
    two languages, in corpora that are filtered and stored on disk.  labels: what has a label, for models that predict
    labels.  samples: whether `tokenizer.sampling` has an effect.  adds_words: whether `tokenizer.add_words` has one.
    """

    architectures: tuple[str, ...]
    metrics: tuple[str, ...]
    used_by: str
    lacks: str = ""
    writes: bool = False
    two_sided: bool = False
    translates: bool = False
    labels: Literal["", "word", "input"] = ""
    samples: bool = False
    adds_words: bool = True

    @property
    def continues(self) -> bool:
        """Whether its models are language models: the target continues a prompt, and there is no source."""
        return self.writes and not self.two_sided

    @property
    def command(self) -> str:
        """The first of the commands that use its models."""
        return self.used_by.partition(",")[0]


DATA_KINDS = {
    "parallel": DataKind(
        _TRANSLATORS, ("loss", "bleu", "chrf", "chrf++"), "dragoman translate", "does not translate",
        writes=True, two_sided=True, translates=True, samples=True,
    ),
    "trees": DataKind(
        _TRANSLATORS, ("loss", "f1"), "dragoman parse", "does not generate trees",
        writes=True, two_sided=True, samples=True, adds_words=False,
    ),
    "text": DataKind(
        _LANGUAGE_MODELS, ("loss",), "dragoman generate", "does not continue plain text", writes=True,
    ),
    "dialogue": DataKind(
        _LANGUAGE_MODELS, ("loss",), "dragoman chat, dragoman generate --turns", "was not trained on dialogues",
        writes=True,
    ),
    "masked": DataKind(_ENCODERS, ("loss", "accuracy"), "dragoman vectors"),
    "tagged": DataKind(_ENCODERS, ("loss", "accuracy"), "dragoman label", labels="word", samples=True),
    "labelled": DataKind(_ENCODERS, ("loss", "accuracy"), "dragoman label", labels="input", samples=True),
    "images": DataKind(
        ("vision",), ("loss", "accuracy"), "dragoman.Labeller, in Python", labels="input", adds_words=False,
    ),
}  # fmt: skip


def resolve_path(text: str, root: str = "") -> Path:
    """Return a path of the document, relative to `root`, with `${NAME}`, `${NAME:-default}` and `~` expanded.

    Raises UsageError for unset variables, unknown users and NUL characters.
    """

    def value(match: re.Match[str]) -> str:
        if not match[0].endswith("}"):
            return match[0]  # not closed
        setting = os.environ.get(match[1], match[2])
        if setting is None:
            raise UsageError(
                f"{text!r}: the environment variable {match[1]} is not set; set it, or write the full path"
            )
        return setting

    def expand(part: str) -> Path:
        filled = re.sub(r"\$\{(\w+)(?::-([^}]*))?(?:\}|\Z)", value, part)
        if "\0" in filled:
            raise UsageError(f"{clip(filled)!r}: a path cannot contain a NUL character; write a file name")
        try:
            return Path(filled).expanduser()
        except RuntimeError:
            raise UsageError(
                f"{clip(filled)!r}: no home folder is known for {clip(filled.split('/')[0])!r}; write the full path, "
                "or ./~name for a folder with that name"
            ) from None

    path = expand(text)
    return path if path.is_absolute() or not root else expand(root) / path


def move_root(root: str, to: Path, start: Path = Path()) -> str:
    """Convert a root relative to the folder `start` to a root relative to the folder `to`.

    A root that begins with `/`, a variable or `~` is returned unchanged.
    """
    if Path(root).is_absolute() or root.startswith(("$", "~")):
        return root
    try:
        target = os.path.realpath(start / root)
        return Path(os.path.relpath(target, os.path.realpath(to))).as_posix()
    except (OSError, ValueError):  # a NUL character; another drive; the current directory was deleted
        return root


# -------------------------------------------------------------------------------------------------------------- [data]


def _key(value: Any) -> Any:
    """Check a column number or key here, so that pydantic reports one error instead of one per accepted type."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 9999):
        return value
    raise ValueError("must be a column number (0 to 9,999) or the name of a key, in quotes")


def _tag(value: str) -> str:
    if not re.fullmatch(r"<[A-Za-z][A-Za-z0-9_-]{0,29}>", value) or value in ("<pad>", "<unk>", "<s>"):
        raise ValueError('accepted: a name of up to 30 letters and digits in angle brackets, such as "<bt>"')
    return value


Entry = TypeVar("Entry")
Tag = Annotated[str, AfterValidator(_tag)]
Key = Annotated[str | int, BeforeValidator(_key)]
Root = Annotated[
    str,
    field(
        ...,
        "base folder of relative paths; a relative root is resolved against the folder of the TOML file; `${NAME}`, "
        "`${NAME:-default}` and `~` are expanded",
        example="${DRAGOMAN_DATA:-data}",
    ),
]


class CorpusConfig(Section):
    """One parallel corpus: two text files, or one file or folder with both sides (docs/data.md lists the formats)."""

    source: str | None = field(
        None, "file of source sentences, one per line, or file or folder of USFM", example="train.en"
    )
    target: str | None = field(
        None, "file of target sentences; line i, or the same verse of USFM, translates `source`", example="train.de"
    )
    path: str | None = field(
        None,
        "file of both sides, instead of `source` and `target`: `.tsv`, `.csv`, `.jsonl`, `.tmx`, `.parquet`, `.zip` "
        "(OPUS in Moses format), or a folder (Parquet files, or written by `save_to_disk` of Hugging Face "
        "`datasets`)",
        example="train.tsv",
    )
    source_key: Key = field(
        0,
        "with `path`: column of the source, by number from 0 (TSV, CSV without a header) or by name (CSV, JSONL, "
        "Parquet; `a.b` in a nested object); or language code (TMX, `.zip`; default: `data.source_language`)",
        example="en",
    )
    target_key: Key = field(
        1,
        "with `path`: column or language code of the target, as `source_key` (default for TMX and `.zip`: "
        "`data.target_language`)",
        example="de",
    )
    weight: limits.CorpusWeight = field(1.0, "passes over the corpus per epoch", example=2.0)
    tag: Tag | None = field(
        None,
        "symbol before every source of the corpus, such as synthetic text or a domain, so that the model knows where "
        "it is from; input has none, unless `search.tag` or `translate --tag` adds it",
        example="<bt>",
    )

    def _problems(self, stored: bool) -> Iterator[str]:
        if self.paths().keys() not in ({"source", "target"}, {"path"}):
            yield "give either source and target (two text files) or path (one file or folder with both sides)"

    def paths(self) -> dict[str, str]:
        """Return key -> path of the files."""
        return {key: path for key in ("source", "target", "path") if (path := getattr(self, key)) is not None}


def _not_empty(entries: tuple[Entry, ...], info: ValidationInfo) -> tuple[Entry, ...]:
    if not entries and not is_stored(info):
        raise PydanticKnownError("too_short", {"field_type": "Tuple", "min_length": 1, "actual_length": 0})
    return entries


Corpora = Annotated[tuple[CorpusConfig, ...], AfterValidator(_not_empty)]
"""At least one corpus; imported models have none."""
ScoreName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$")]
"""The name of a validation set, which begins its columns of the log: `news.bleu`."""
Files = Annotated[tuple[str, ...], AfterValidator(_not_empty)]
"""At least one file; imported models have none."""


class FilterConfig(Section):
    """Filters of sentence pairs for training."""

    min_characters: limits.Characters = field(1, "drop pairs with fewer characters on either side", example=3)
    max_characters: limits.Characters = field(5000, "drop pairs with more characters on either side", example=1000)
    max_ratio: limits.Ratio = field(
        9.0,
        "drop pairs with a larger ratio of lengths in characters, if one side has more than 20 characters",
        example=3.0,
    )
    drop_identical: bool = field(True, "drop pairs whose source and target are identical", example=False)
    drop_duplicates: bool = field(True, "drop repeated pairs", example=False)
    max_tokens: limits.TokensPerExample = field(
        250,
        "drop pairs with more tokens on either side, including `</s>`; `translate` splits longer input",
        example=128,
    )

    def _problems(self, stored: bool) -> Iterator[str]:
        if self.min_characters > self.max_characters:
            yield (
                f"min_characters {self.min_characters} is more than max_characters {self.max_characters}, which "
                "excludes every pair; lower the one or raise the other"
            )


class AugmentConfig(Section):
    """Shares of the training pairs that are changed, anew in each epoch, so that a model translates such input."""

    upper_case: limits.ChangedShare = field(0.0, "source and target in capitals", example=0.01)
    title_case: limits.ChangedShare = field(0.0, "source with a capital at the start of every word", example=0.01)
    lower_case: limits.ChangedShare = field(0.0, "source in lower case", example=0.01)
    no_final_mark: limits.ChangedShare = field(0.0, "source and target without the final full stop", example=0.02)
    typing_errors: limits.ChangedShare = field(
        0.0, "source with letters left out, doubled, replaced or exchanged", example=0.01
    )


class _DataSection(Section):
    """The data sets in the fields `train`, `valid`, `also_valid`, `test`, and the check that validation is held out."""

    @property
    def about(self) -> DataKind:
        """What follows from the kind of data."""
        return DATA_KINDS[str(getattr(self, "kind"))]  # noqa: B009 (a field of each subclass)

    @property
    def translates(self) -> bool:
        """Whether the models translate: those of parallel text, and language models with a prompt."""
        return self.about.translates or getattr(self, "prompt", None) is not None

    def _sets(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the key of every data set and its paths by key, which is empty for a single path."""
        for name in ("train", "valid", "also_valid", "test"):
            value = getattr(self, name, None)
            numbered = enumerate(value) if isinstance(value, tuple) else None
            named = value.items() if isinstance(value, dict) else numbered
            entries = [(name, value)] if named is None else [(f"{name}.{key}", v) for key, v in named]
            for key, entry in entries:
                if entry is not None:
                    yield key, entry.paths() if isinstance(entry, CorpusConfig) else {"": entry}

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the path of every file."""
        return ((f"{name}.{key}".rstrip("."), path) for name, paths in self._sets() for key, path in paths.items())

    def _problems(self, stored: bool) -> Iterator[str]:
        if stored:
            return
        sets = {name: {key: os.path.normpath(path) for key, path in paths.items()} for name, paths in self._sets()}
        for train, valid in itertools.product(sets, sets):
            if train.startswith("train") and "valid" in valid and sets[train] == sets[valid]:
                yield (
                    f"{valid} is the same data as {train}, so that its scores are meaningless; hold out other "
                    f"examples, or remove {valid}"
                )


class ParallelData(_DataSection):
    """Parallel text: source sentences and their translations."""

    kind: Literal["parallel"] = "parallel"
    root: Root = ""
    source_language: str = field("source", "language code of the source", example="en")
    target_language: str = field(
        "target", "language code of the target, which selects the tokenizer of BLEU", example="zh-Hans"
    )
    train: Corpora = field(..., "training corpora", example=[{"source": "train.en", "target": "train.de"}])
    valid: CorpusConfig | None = field(
        None,
        "validation pairs, which select the best checkpoint; without them, the last checkpoint is selected",
        example={"source": "valid.en", "target": "valid.de"},
    )
    also_valid: dict[ScoreName, CorpusConfig] = field(
        {},
        "further validation pairs by name, which are scored at each validation and select nothing, such as the text "
        "that a fine-tuned model shall not forget",
        example={"general": {"source": "general.en", "target": "general.de"}},
    )
    test: CorpusConfig | None = field(
        None,
        "test pairs, which `train` translates and scores at the end",
        example={"source": "test.en", "target": "test.de"},
    )
    temperature: limits.Temperature = field(
        1.0,
        "repeat small corpora: a corpus of n pairs is read in proportion to n^(1/temperature), times its weight; "
        "the largest is read once per epoch (Arivazhagan et al. 2019)",
        example=5.0,
    )
    filter: FilterConfig = field(FilterConfig(), "filters of the training pairs", example={"max_ratio": 3.0})
    context: limits.Lines = field(
        1,
        "groups of up to this many consecutive lines of a corpus are also learned as one text, so that the model "
        "translates paragraphs; a line that is empty on both sides separates documents; 1 = none",
        example=4,
    )
    protect: limits.ChangedShare = field(
        0.0,
        "share of the training pairs in which words that both sides share become symbols, so that the model puts URLs, "
        "{name} and the like to their place",
        example=0.05,
    )
    augment: AugmentConfig = field(
        AugmentConfig(), "changes of the training pairs", example={"upper_case": 0.01, "no_final_mark": 0.02}
    )

    @field_validator("source_language", "target_language")
    @classmethod
    def _language(cls, value: str, info: ValidationInfo) -> str:
        if is_stored(info):
            return value
        if len(value.strip()) > 40 or not re.fullmatch(r"[^\W_]+([-_][^\W_]+)*", value.strip()):
            raise ValueError('accepted: a language code such as "en", "zh" or "pt-BR" (letters, digits, - and _)')
        return value.strip()

    def _problems(self, stored: bool) -> Iterator[str]:
        if self.also_valid and self.valid is None:
            yield "also_valid is scored together with valid, which is not set; set valid, or remove also_valid"
        if not stored and self.source_language.casefold() == self.target_language.casefold():
            yield (
                f'source_language and target_language are both "{self.source_language}"; give each side its own code '
                '(within one language, for example "en-original" and "en-simple")'
            )
        yield from super()._problems(stored)

    @property
    def max_tokens(self) -> int:
        """The limit of the longer side of a pair in tokens, with the end of sentence."""
        return self.filter.max_tokens


_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_LANGUAGES = ("source_language", "target_language")


class PromptConfig(Section):
    """How a language model translates: it continues a template with the source in it, up to the end of the line."""

    template: str = field(
        ...,
        "text before a translation, with `{source}` in it, and optionally `{source_language}` and `{target_language}`, "
        "the English names of the languages",
        example="Translate to English: {source} =>",
    )
    source_language: str = field("source", "language code of the source", example="de")
    target_language: str = field("target", "language code of the target", example="en")

    def _problems(self, stored: bool) -> Iterator[str]:
        found = _PLACEHOLDER.findall(self.template)
        if found.count("source") != 1:
            yield f"template contains {{source}} {found.count('source')} times; it must contain it exactly once"
        if unknown := sorted(set(found) - {"source", *_LANGUAGES}):
            shown = ", ".join(f"{{{name}}}" for name in unknown)
            yield f"template contains {clip(shown)}; accepted: {{source}}, {{source_language}}, {{target_language}}"
        for name in _LANGUAGES:
            if name in found and name not in self.model_fields_set:
                yield f'template contains {{{name}}}, but {name} is not set; set it, such as to "de"'


class FileData(_DataSection):
    """Data in files of one format."""

    root: Root = ""
    train: Files = field(..., "training files", example=["train.txt"])
    valid: str | None = field(None, "validation file, which selects the best checkpoint", example="valid.txt")

    def train_paths(self) -> list[Path]:
        return [resolve_path(path, self.root) for path in self.train]

    def valid_path(self) -> Path | None:
        return None if self.valid is None else resolve_path(self.valid, self.root)


class TextData(FileData):
    """Plain text for a language model: one stream cut into blocks, or separate lines or paragraphs."""

    kind: Literal["text"] = "text"
    form: Literal["stream", "lines", "paragraphs"] = field(
        "stream",
        "stream: one text, cut into blocks; lines, paragraphs: one sequence per line or paragraph",
        example="lines",
    )
    max_tokens: limits.TokensPerBlock = field(256, "maximum tokens per block, line or paragraph", example=512)
    prompt: PromptConfig | None = field(
        None, "how the model translates, if it does", example={"template": "German: {source}\nEnglish:"}
    )


class DialogueData(FileData):
    """Dialogues for a language model; a dialogue is a list of turns with role and text."""

    kind: Literal["dialogue"] = "dialogue"
    format: Literal["jsonl", "plain", "switchboard"] = field(
        "jsonl",
        'jsonl: chat messages, plain: lines of "ROLE: text", switchboard: Switchboard transcripts',
        example="plain",
    )
    max_tokens: limits.TokensPerExample = field(256, "maximum tokens per window, including roles", example=512)
    context_tokens: limits.ContextTokens = field(
        64, "tokens of earlier turns at the start of later windows, which do not contribute to the loss", example=128
    )
    loss_roles: tuple[str, ...] = field(
        (), "roles whose turns contribute to the loss; empty: all roles", example=["assistant"]
    )

    def _problems(self, stored: bool) -> Iterator[str]:
        yield from super()._problems(stored)
        if not stored and self.context_tokens >= self.max_tokens:
            yield (
                f"context_tokens is {self.context_tokens}, but a window has {self.max_tokens} tokens (max_tokens), so "
                f"that few are left to learn; accepted: 0 to {self.max_tokens - 1}, usually a quarter"
            )


class MaskedData(FileData):
    """Plain text for masked language modelling, one sequence per paragraph (Devlin et al. 2019)."""

    kind: Literal["masked"] = "masked"
    rate: limits.MaskedFraction = field(0.15, "fraction of tokens that are masked and predicted", example=0.3)
    max_tokens: limits.TokensPerExample = field(256, "maximum tokens per sequence", example=512)


class TaggedData(FileData):
    """Sentences with a tag per word: CoNLL-U (`.conllu`), or lines of `word/tag`."""

    kind: Literal["tagged"] = "tagged"
    column: Literal["upos", "xpos"] = field(
        "upos", "tags of CoNLL-U files: universal (upos) or language-specific (xpos)", example="xpos"
    )
    max_tokens: limits.TokensPerExample = field(256, "maximum tokens per sentence", example=512)


class LabelledData(FileData):
    """Texts with one label: `.tsv`, `.csv` (label first), `.jsonl` (`label`, `text`), or lines of `label text`."""

    kind: Literal["labelled"] = "labelled"
    max_tokens: limits.TokensPerExample = field(256, "maximum tokens per text", example=512)


class TreeData(FileData):
    """Constituency trees in Penn brackets; sentences are translated into trees (Vinyals et al. 2015)."""

    kind: Literal["trees"] = "trees"
    max_tokens: limits.TokensPerExample = field(250, "maximum tokens per side, including `</s>`", example=400)


class PixelConfig(Section):
    """How the values of pixels, from 0 to 1, become the input of a model: (value - mean) / std."""

    mean: limits.PixelMeans = field((0.5,), "subtracted, per channel or once for all", example=[0.1307])
    std: limits.PixelDeviations = field((0.5,), "divides the difference, per channel or once for all", example=[0.3081])


class ImageData(_DataSection):
    """Images with one label: scikit-learn's digits, or `.npz` files with `images` (n, h, w[, c]) and `labels`."""

    kind: Literal["images"] = "images"
    root: Root = ""
    dataset: Literal["digits"] | None = field(
        None, "built-in data set, instead of `train` and `valid`", example="digits"
    )
    train: str | None = field(None, "training file (.npz)", example="train.npz")
    valid: str | None = field(
        None, "validation file (.npz); default: a fifth of the training images", example="valid.npz"
    )
    pixels: PixelConfig = field(
        PixelConfig(), "normalization of pixels; by default from -1 to 1", example={"mean": [0.1307]}
    )

    def _problems(self, stored: bool) -> Iterator[str]:
        yield from super()._problems(stored)
        imported = stored and self.dataset is None and self.train is None
        if not imported and ((self.dataset is None) == (self.train is None) or (self.dataset and self.valid)):
            yield 'give either dataset = "digits" or train (and optionally valid) as .npz files'

    @property
    def max_tokens(self) -> int:
        """Unused: the model determines the number of patches."""
        return 1


DataConfig = Annotated[
    ParallelData | TextData | DialogueData | MaskedData | TaggedData | LabelledData | TreeData | ImageData,
    Field(discriminator="kind"),
]


# --------------------------------------------------------------------------------------------------------- [tokenizer]


class SideTokenizerConfig(Section):
    """A sentencepiece model, or single characters (kind `char`, without normalization)."""

    kind: Literal["bpe", "unigram", "char"] = field(
        "bpe",
        "byte-pair encoding (Sennrich et al. 2016), unigram language model (Kudo 2018), or characters",
        example="unigram",
    )
    vocab_size: limits.VocabularySize = field(
        8000, "vocabulary size, including 4 special tokens; for characters, a maximum", example=16_000
    )
    byte_fallback: bool = field(True, "encode unknown characters as UTF-8 bytes instead of `<unk>`", example=False)
    normalization: Literal["nmt_nfkc", "nfkc", "identity"] = field(
        "nmt_nfkc",
        "normalization of sentencepiece; nfkc and nmt_nfkc replace `…` by `...` and `？` by `?`",
        example="identity",
    )
    character_coverage: limits.Coverage = field(
        1.0, "fraction of the characters of the training text that the vocabulary covers", example=0.9995
    )
    sampling: limits.Dropout = field(
        0.0,
        "subword regularization in training: rate of BPE-dropout (Provilkov et al. 2020), or smoothing exponent of "
        "the unigram model (Kudo 2018); 0 = none",
        example=0.1,
    )
    sentences: limits.Sentences = field(
        2_000_000, "maximum number of lines from which the vocabulary is learned", example=500_000
    )

    @model_serializer(mode="wrap")
    def _effective(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the normalization of characters, so that a written document is accepted again."""
        document: dict[str, Any] = serialize(self)
        if self.kind == "char":
            document.pop("normalization", None)
        return document


class TokenizerConfig(SideTokenizerConfig):
    """The tokenizer of both sides, or of the source if `target` is set."""

    shared: bool = field(True, "use one vocabulary for both sides", example=False)
    corpora: limits.Corpora | None = field(
        None,
        "learn from the first corpora of `data.train` only, so that corpora added later do not change the "
        "vocabulary, and prepared data are kept",
        example=1,
    )
    tags: tuple[Tag, ...] = field(
        (),
        "symbols that a source may begin with, in addition to the tags of `data.train`: for a vocabulary that later "
        "stages use",
        example=["<bt>"],
    )
    add_words: tuple[str, ...] = field(
        (),
        "words that become single tokens in addition to the tokens of the model in `train.init_from`",
        example=["Dragoman"],
    )
    target: SideTokenizerConfig | None = field(
        None, "settings of the target, if they differ; requires `shared = false`", example={"kind": "char"}
    )

    def _problems(self, stored: bool) -> Iterator[str]:
        if self.target is not None and self.shared:
            yield (
                "tokenizer.target requires separate vocabularies, but shared is true; set tokenizer.shared = false, "
                "or remove tokenizer.target"
            )

    @property
    def sides(self) -> tuple[SideTokenizerConfig, SideTokenizerConfig]:
        """The settings of the source and of the target."""
        return self, self.target or self
