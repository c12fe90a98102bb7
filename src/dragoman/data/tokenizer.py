"""Subword tokenizer: a sentencepiece model per side or for both, trained on raw text."""

from __future__ import annotations

import io
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import sentencepiece as spm

from dragoman.config import SideTokenizerConfig, TokenizerConfig
from dragoman.data.byte_pieces import BYTES_FILE, BytePieces, is_bytes_file
from dragoman.data.directions import Directed
from dragoman.data.frames import FRAMES_FILE
from dragoman.data.ids import BOS, EOS, PAD, UNK
from dragoman.data.json_pieces import TOKEN_IDS_FILE, TOKENIZER_JSON, JsonPieces, is_tokenizer_json
from dragoman.data.pieces import PIECES_FILE, ListedPieces, PieceLists
from dragoman.data.subword_sampling import SubwordSampler
from dragoman.data.tokenizer_problems import explain_failure, missing_characters
from dragoman.errors import DataError, ModelFolderError, UsageError
from dragoman.io.reading import COPY_AGAIN, read_bytes

__all__ = ["BOS", "EOS", "PAD", "UNK", "Tokenizer", "TokenizerFiles", "learn_tokenizer", "train_tokenizer"]

_MAX_MODEL = 1 << 28
"""Largest tokenizer file that is read, in bytes; with 256,000 pieces sentencepiece has about 5 MB and JSON 35 MB."""
Pieces = spm.SentencePieceProcessor | ListedPieces | BytePieces | JsonPieces
Sampler = SubwordSampler | ListedPieces | BytePieces | JsonPieces
_ROLE = "<role:"
_LOSSLESS: dict[str, Any] = {
    "user_defined_symbols": ["\n"],
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
}


TokenizerFiles = tuple[bytes, bytes | None, bytes | None, bytes | None]
"""The arguments of `Tokenizer`."""


class Tokenizer(Directed):
    """One vocabulary for both sides or one per side.  Encoded sentences end with EOS, unless `sources_end` is False.

    source, target: serialized sentencepiece models; target None means shared.  pieces: a `PieceLists` file, if the ids
    of an imported model are not those of sentencepiece.  Or, for both sides, source: a `tokenizer.json` of Hugging
    Face, pieces: its `TokenIds` file; or source: a `BytePieces` file.  frames: a `Frames` file, if texts are surrounded
    by other tokens than EOS, such as languages.  A tokenizer of several languages encodes after `between`, which names
    them, or with the default of the file.
    """

    def __init__(
        self, source: bytes, target: bytes | None = None, pieces: bytes | None = None, frames: bytes | None = None
    ) -> None:
        """Raises RuntimeError or ValueError for damaged content."""
        self._models = (source, target, pieces, frames)
        self._source, self._target, self.shared = _sides(source, target, pieces)
        self._target_pieces: dict[int, str] = {}
        tags = self._source.tags if isinstance(self._source, ListedPieces) else {}
        super().__init__(frames, tags, (self.source_size, self.target_size))

    @property
    def models(self) -> TokenizerFiles:
        """The arguments of the constructor."""
        return self._models

    @cached_property
    def lists(self) -> PieceLists | None:
        """The lists of pieces that determine the ids; None if sentencepiece does, or for another kind of tokenizer."""
        source, _, pieces, _ = self._models
        if pieces is None or is_bytes_file(source) or is_tokenizer_json(source):
            return None
        return PieceLists.parse(pieces)

    @property
    def source_size(self) -> int:
        return int(self._source.get_piece_size())

    @property
    def target_size(self) -> int:
        return int(self._target.get_piece_size())

    @cached_property
    def roles(self) -> dict[str, int]:
        """Role of a dialogue -> its id.  No text is encoded into these ids, and they are decoded to nothing."""
        found = {}
        for token in range(EOS + 1, self.target_size):  # control symbols follow the special ids
            piece = self.target_piece(token)
            if not self._target.is_control(token) or not piece.startswith(_ROLE):
                break
            found[piece.removeprefix(_ROLE).removesuffix(">")] = token
        return found

    @property
    def processors(self) -> tuple[Pieces, Pieces]:
        """The pieces of both sides: sentencepiece models, or the listed, JSON or byte pieces of imported ones."""
        return self._source, self._target

    @cached_property
    def mask(self) -> int:
        """The id that replaces masked tokens: the mask token of an imported vocabulary, otherwise BOS."""
        mask = self._source.mask_id() if isinstance(self._source, JsonPieces) else None
        return BOS if mask is None else mask

    def masked_source(self, ids: Sequence[int]) -> list[int]:
        """Return the source of a masked text with these ids, which may include EOS: BOS, if it is not the mask, first.

        Imported encoders have a class token before every text; our own have none before masked text.
        """
        return [*([] if self.mask == BOS else [BOS]), *ids]

    def encode_source(self, text: str) -> list[int]:
        """Return at least one id: EOS for a source without any token, which no encoder accepts."""
        before, after = self._direction.source
        return [*before, *self._source.encode(text), *after] or [EOS]

    def encode_target(self, text: str) -> list[int]:
        return [*self._direction.target, *self._target.encode(text), EOS]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Return the ids of many pairs, without EOS.  Raises UsageError if other tokens follow the text of a source."""
        source = self._source.encode([source for source, _ in pairs])
        target = self._target.encode([target for _, target in pairs])
        before, after = self._direction.source
        if after not in ([EOS], []):
            raise UsageError(
                "training: sources of this model have the language after the end of sentence; accepted: "
                "models that have it at the start"
            )
        start = self._direction.target
        return [([*before, *src], [*start, *tgt]) for src, tgt in zip(source, target, strict=True)]

    def encode_sampled(
        self, pairs: Sequence[tuple[str, str]], rates: tuple[float, float], seed: int
    ) -> list[tuple[list[int], list[int]]]:
        """Return sampled segmentations, the same for the same seed in every process (see `SubwordSampler.draw`).

        rates: of the source and of the target; 0 is the usual segmentation.
        """
        rng = random.Random(seed)
        of_source, of_target = rates

        def source(text: str) -> list[int]:
            before, after = self._direction.source
            drawn = self._source_sampler.draw(text, of_source, rng) if of_source else self._source.encode(text)
            return [*before, *drawn, *after] or [EOS]

        def target(text: str) -> list[int]:
            drawn = self._target_sampler.draw(text, of_target, rng) if of_target else self._target.encode(text)
            return [*self._direction.target, *drawn, EOS]

        return [(source(src), target(tgt)) for src, tgt in pairs]

    def encode_word(self, word: str) -> list[int]:
        """Return the ids of a single source word, at least one."""
        ids: list[int] = self._source.encode(word)
        return ids or [UNK]

    def sample_sources(self, texts: Iterable[str], rate: float, rng: random.Random) -> list[list[int]]:
        """Return sampled ids of each source word or text, at least one each (see `SubwordSampler.draw`)."""
        return [self._source_sampler.draw(text, rate, rng) or [UNK] for text in texts]

    @cached_property
    def _source_sampler(self) -> Sampler:
        return self._sampler(self._source)

    @cached_property
    def _target_sampler(self) -> Sampler:
        return self._source_sampler if self._target is self._source else self._sampler(self._target)

    @staticmethod
    def _sampler(pieces: Pieces) -> Sampler:
        return SubwordSampler(pieces) if isinstance(pieces, spm.SentencePieceProcessor) else pieces

    def decode_target(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, ignoring special ids."""
        return str(self._target.decode(self._with_text(ids)))

    def decode_source(self, ids: Sequence[int]) -> str:
        """Return the text of source ids, ignoring special ids: the text that was encoded, normalized."""
        return str(self._source.decode(self._with_text(ids)))

    def _with_text(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if (i > EOS or i == UNK) and i not in self._control]

    def source_spans(self, text: str) -> list[tuple[int, int]]:
        """Return the first and the next character in `text` of each id of `encode_source`, without a final EOS.

        A span may begin with whitespace; those of bytes of a character are empty except for the last one, and so are
        those of tokens around the text.
        """
        before, after = self.some_direction._direction.source  # all directions have as many tokens around a text
        spans = self._source.encode(text, return_type="offset_mapping")["offsets"]
        end = spans[-1][1] if spans else 0
        return [*[(0, 0)] * len(before), *spans, *[(end, end)] * (len(after) - 1)]

    def target_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return the same for target ids, which may not include special ids other than UNK, in their text."""
        spans = iter(self._target.decode(self._with_text(ids), return_type="offset_mapping")["offsets"])
        found, end = [], 0
        for token in ids:
            begin, end = (end, end) if token in self._control else next(spans)
            found.append((begin, end))
        return found

    def target_ids(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of `target_piece`."""
        return list(self._target.piece_to_id(list(pieces)))

    def source_piece(self, token: int) -> str:
        return str(self._source.id_to_piece(token))

    def target_piece(self, token: int) -> str:
        piece = self._target_pieces.get(token)
        if piece is None:
            piece = self._target_pieces[token] = str(self._target.id_to_piece(token))
        return piece

    def files(self) -> dict[str, bytes]:
        """Return the files of a model folder: name -> content."""
        source, target, pieces, frames = self._models
        if is_bytes_file(source):
            return {BYTES_FILE: source}
        others = {PIECES_FILE: pieces, FRAMES_FILE: frames}
        files = {"tokenizer.model": source} if target is None else {"source.model": source, "target.model": target}
        if pieces is not None and is_tokenizer_json(source):
            files, others = {TOKENIZER_JSON: source}, {TOKEN_IDS_FILE: pieces, FRAMES_FILE: frames}
        return files | {name: content for name, content in others.items() if content is not None}

    def with_default(self, source: str, target: str) -> Tokenizer:
        """Return a tokenizer whose files name this direction as the default; this one if the model has one direction.

        Raises UsageError, with the languages of the model, for one that it lacks.
        """
        frames = self._models[3]
        if frames is None or not any(self.languages):
            return self
        own = self.between(
            *(code if codes else None for code, codes in zip((source, target), self.languages, strict=True))
        )
        return Tokenizer(*self._models[:3], own._frames.file())

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load the tokenizer of a model folder.  Raises ModelFolderError if it is missing or damaged."""
        names, lists = _files_of(folder)
        frames = [FRAMES_FILE] if os.path.lexists(folder / FRAMES_FILE) else []
        read = [*names, *([lists] if lists else []), *frames]
        contents = {name: read_bytes(folder / name, ModelFolderError, COPY_AGAIN, _MAX_MODEL) for name in read}
        models = [contents[name] for name in names]
        try:
            others = contents.get(lists), contents.get(FRAMES_FILE)
            tokenizer = cls(models[0], models[1] if len(models) > 1 else None, *others)
            sizes = tokenizer.source_size, tokenizer.target_size
        except RuntimeError as error:
            raise ModelFolderError(
                f"{folder}: {' and '.join(names)} cannot be read by sentencepiece: {error}. {COPY_AGAIN}"
            ) from None
        except ValueError as error:
            # The messages about JSON and languages name the file.
            where = folder / (lists or names[0]) if lists != TOKEN_IDS_FILE else folder
            where = folder if str(error).startswith(FRAMES_FILE) else where
            raise ModelFolderError(f"{where}: cannot be read: {error}. {COPY_AGAIN}") from None
        special = [[m.pad_id(), m.unk_id(), m.bos_id(), m.eos_id()] for m in (tokenizer._source, tokenizer._target)]
        if min(sizes) <= EOS or any(ids != [PAD, UNK, BOS, EOS] for ids in special):
            raise ModelFolderError(
                f"{folder}: {' and '.join(names)} cannot be used: the ids of padding, unknown, begin and end are "
                f"{special[0]} and {special[1]}; accepted: {[PAD, UNK, BOS, EOS]}. {COPY_AGAIN}"
            )
        return tokenizer


def _files_of(folder: Path) -> tuple[list[str], str]:
    """Return the tokenizer files of a folder and the file with its ids, "" if there is none; or raise an error."""
    if os.path.lexists(folder / BYTES_FILE):
        return [BYTES_FILE], ""
    if os.path.lexists(folder / TOKENIZER_JSON):
        return [TOKENIZER_JSON], TOKEN_IDS_FILE
    names = ["tokenizer.model"] if os.path.lexists(folder / "tokenizer.model") else ["source.model", "target.model"]
    if not all(os.path.lexists(folder / name) for name in names):
        raise ModelFolderError(
            f"{folder}: no tokenizer; a model folder contains tokenizer.model, or source.model and target.model, or "
            f"{TOKENIZER_JSON} and {TOKEN_IDS_FILE}, or {BYTES_FILE}"
        )
    return names, PIECES_FILE if os.path.lexists(folder / PIECES_FILE) else ""


def _sides(source: bytes, target: bytes | None, pieces: bytes | None) -> tuple[Pieces, Pieces, bool]:
    """Return both sides of the arguments of `Tokenizer`, and whether they share a vocabulary."""
    if is_bytes_file(source):
        in_bytes = BytePieces.parse(source)
        return in_bytes, in_bytes, True
    if pieces is not None and is_tokenizer_json(source):
        both = JsonPieces(source, pieces)
        return both, both, True
    model = spm.SentencePieceProcessor(model_proto=source)
    other = model if target is None else spm.SentencePieceProcessor(model_proto=target)
    if pieces is None:
        return model, other, target is None
    lists = PieceLists.parse(pieces)
    return *lists.applied(model, other), lists.target is None


Log = Callable[[str], None]


def train_tokenizer(
    config: TokenizerConfig, source: Iterable[str], target: Iterable[str], log: Log | None = None
) -> Tokenizer:
    """Train on the sentences of both sides.

    log: receives a warning about characters that the vocabulary lacks.  Raises DataError if the text does not allow
    `vocab_size`.
    """
    sides = iter(source), iter(target)
    if config.shared:
        return Tokenizer(_train(config, chain(*sides), log=log))
    keys = ("tokenizer", "tokenizer.target" if config.target else "tokenizer")
    return Tokenizer(
        *(_train(side, lines, key=key, log=log) for side, lines, key in zip(config.sides, sides, keys, strict=True))
    )


def learn_tokenizer(
    config: TokenizerConfig,
    lines: Iterable[str],
    lossless: bool = False,
    roles: Sequence[str] = (),
    log: Log | None = None,
) -> Tokenizer:
    """Train one vocabulary on lines of text.  Raises DataError as `train_tokenizer` does.

    lossless: preserve every line end and space, for language models.  roles: of a dialogue, see `Tokenizer.roles`.
    log: as for `train_tokenizer`.
    """
    return Tokenizer(_train(config, iter(lines), lossless, roles, log=log))


def _train(
    config: SideTokenizerConfig,
    lines: Iterator[str],
    lossless: bool = False,
    roles: Sequence[str] = (),
    key: str = "tokenizer",
    log: Log | None = None,
) -> bytes:
    """Return a serialized sentencepiece model.  key: the section of the configuration, for error messages."""
    model = io.BytesIO()
    characters = config.kind == "char"
    counts: Counter[str] = Counter()
    if log is not None and characters and not config.byte_fallback:
        lines = _counted(lines, counts)
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity" if characters else config.normalization,
            character_coverage=config.character_coverage,
            input_sentence_size=config.sentences,
            shuffle_input_sentence=True,
            max_sentence_length=1_000_000,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            hard_vocab_limit=True,
            num_threads=1,  # makes the vocabulary deterministic
            minloglevel=2,
            control_symbols=[f"{_ROLE}{role}>" for role in roles],  # unlike user-defined symbols, never found in text
            **(_LOSSLESS if lossless or characters else {}),
        )
    except (RuntimeError, OSError) as error:
        raise DataError(explain_failure(config, key, str(error))) from None
    if log is not None and (missing := missing_characters(config, key, model.getvalue(), counts)):
        log(missing)
    return model.getvalue()


def _counted(lines: Iterator[str], counts: Counter[str]) -> Iterator[str]:
    for line in lines:
        counts.update(line)
        yield line
