"""Subword tokenizer: a sentencepiece model per side or for both, trained on raw text."""

from __future__ import annotations

import io
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import sentencepiece as spm

from dragoman.config import SideTokenizerConfig, TokenizerConfig
from dragoman.data.ids import BOS, EOS, PAD, UNK
from dragoman.data.json_pieces import TOKEN_IDS_FILE, TOKENIZER_JSON, JsonPieces, is_tokenizer_json
from dragoman.data.pieces import PIECES_FILE, ListedPieces, PieceLists
from dragoman.data.subword_sampling import SubwordSampler
from dragoman.errors import DataError, ModelFolderError
from dragoman.io.reading import COPY_AGAIN, read_bytes

__all__ = ["BOS", "EOS", "PAD", "UNK", "Tokenizer", "learn_tokenizer", "train_tokenizer"]

_MAX_MODEL = 1 << 28
"""Largest tokenizer file that is read, in bytes; with 256,000 pieces sentencepiece has about 5 MB and JSON 35 MB."""
Pieces = spm.SentencePieceProcessor | ListedPieces | JsonPieces
Sampler = SubwordSampler | ListedPieces | JsonPieces
_ROLE = "<role:"
_LOSSLESS: dict[str, Any] = {
    "user_defined_symbols": ["\n"],
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
}


class Tokenizer:
    """One vocabulary for both sides or one per side.  Encoded sentences end with EOS; decoding adds BOS.

    source, target: serialized sentencepiece models; target None means shared.  pieces: a `PieceLists` file, if the ids
    of an imported model are not those of sentencepiece.  Or, for both sides, source: a `tokenizer.json` of Hugging
    Face, pieces: its `TokenIds` file.
    """

    def __init__(self, source: bytes, target: bytes | None = None, pieces: bytes | None = None) -> None:
        """Raises RuntimeError or ValueError for damaged content."""
        self._models = (source, target, pieces)
        self._source, self._target, self.shared = _sides(source, target, pieces)
        self._target_pieces: dict[int, str] = {}

    @property
    def models(self) -> tuple[bytes, bytes | None, bytes | None]:
        """The arguments of the constructor."""
        return self._models

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

    @cached_property
    def mask(self) -> int:
        """The id in place of a masked token: that of an imported vocabulary, otherwise BOS."""
        mask = self._source.mask_id() if isinstance(self._source, JsonPieces) else None
        return BOS if mask is None else mask

    def masked_source(self, ids: Sequence[int]) -> list[int]:
        """Return the source of a masked text with these ids, which may include EOS: BOS, if it is not the mask, first.

        Imported encoders have a class token before every text; our own have none before masked text.
        """
        return [*([] if self.mask == BOS else [BOS]), *ids]

    def encode_source(self, text: str) -> list[int]:
        return [*self._source.encode(text), EOS]

    def encode_target(self, text: str) -> list[int]:
        return [*self._target.encode(text), EOS]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Return the ids of many pairs, without EOS."""
        source = self._source.encode([source for source, _ in pairs])
        target = self._target.encode([target for _, target in pairs])
        return list(zip(source, target, strict=True))

    def encode_sampled(
        self, pairs: Sequence[tuple[str, str]], rates: tuple[float, float], seed: int
    ) -> list[tuple[list[int], list[int]]]:
        """Return sampled segmentations, the same for the same seed in every process (see `SubwordSampler.draw`).

        rates: of the source and of the target; 0 is the usual segmentation.
        """
        rng = random.Random(seed)
        of_source, of_target = rates

        def source(text: str) -> list[int]:
            return [*self._source_sampler.draw(text, of_source, rng), EOS] if of_source else self.encode_source(text)

        def target(text: str) -> list[int]:
            return [*self._target_sampler.draw(text, of_target, rng), EOS] if of_target else self.encode_target(text)

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
        return pieces if isinstance(pieces, ListedPieces | JsonPieces) else SubwordSampler(pieces)

    def decode_target(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, ignoring special ids."""
        return str(self._target.decode([i for i in ids if i > EOS or i == UNK]))

    def decode_source(self, ids: Sequence[int]) -> str:
        """Return the text of source ids, ignoring special ids: the text that was encoded, normalized."""
        return str(self._source.decode([i for i in ids if i > EOS or i == UNK]))

    def source_spans(self, text: str) -> list[tuple[int, int]]:
        """Return the first and the next character in `text` of each id of `encode_source`, without EOS.

        A span may begin with whitespace; those of bytes of a character are empty except for the last one.
        """
        return list(self._source.encode(text, return_type="offset_mapping")["offsets"])

    def target_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return the same for target ids, which may not include special ids other than UNK, in their text."""
        return list(self._target.decode(list(ids), return_type="offset_mapping")["offsets"])

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
        source, target, pieces = self._models
        if pieces is not None and is_tokenizer_json(source):
            return {TOKENIZER_JSON: source, TOKEN_IDS_FILE: pieces}
        files = {"tokenizer.model": source} if target is None else {"source.model": source, "target.model": target}
        return files if pieces is None else files | {PIECES_FILE: pieces}

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load the tokenizer of a model folder.  Raises ModelFolderError if it is missing or damaged."""
        names, lists = _files_of(folder)
        read = [*names, lists] if lists else names
        contents = {name: read_bytes(folder / name, ModelFolderError, COPY_AGAIN, _MAX_MODEL) for name in read}
        models = [contents[name] for name in names]
        try:
            tokenizer = cls(models[0], models[1] if len(models) > 1 else None, contents.get(lists))
            sizes = tokenizer.source_size, tokenizer.target_size
        except RuntimeError as error:
            raise ModelFolderError(
                f"{folder}: {' and '.join(names)} cannot be read by sentencepiece: {error}. {COPY_AGAIN}"
            ) from None
        except ValueError as error:
            where = folder / lists if lists == PIECES_FILE else folder  # those of JSON name the file
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
    if os.path.lexists(folder / TOKENIZER_JSON):
        return [TOKENIZER_JSON], TOKEN_IDS_FILE
    names = ["tokenizer.model"] if os.path.lexists(folder / "tokenizer.model") else ["source.model", "target.model"]
    if not all(os.path.lexists(folder / name) for name in names):
        raise ModelFolderError(
            f"{folder}: no tokenizer; a model folder contains tokenizer.model, or source.model and target.model, or "
            f"{TOKENIZER_JSON} and {TOKEN_IDS_FILE}"
        )
    return names, PIECES_FILE if os.path.lexists(folder / PIECES_FILE) else ""


def _sides(source: bytes, target: bytes | None, pieces: bytes | None) -> tuple[Pieces, Pieces, bool]:
    """Return both sides of the arguments of `Tokenizer`, and whether they share a vocabulary."""
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
        raise DataError(_explain(config, key, str(error))) from None
    if log is not None and (missing := _missing(config, key, model.getvalue(), counts)):
        log(missing)
    return model.getvalue()


def _counted(lines: Iterator[str], counts: Counter[str]) -> Iterator[str]:
    for line in lines:
        counts.update(line)
        yield line


def _missing(config: SideTokenizerConfig, key: str, model: bytes, counts: Counter[str]) -> str:
    """Return a warning about the counted characters that a model maps to <unk>; "" if there are none."""
    processor = spm.SentencePieceProcessor(model_proto=model)
    missing = [character for character in counts if UNK in processor.encode(character)]
    if not missing:
        return ""
    part = sum(counts[character] for character in missing) / counts.total()
    full = processor.get_piece_size() == config.vocab_size
    setting = f"vocab_size (now {config.vocab_size:,})" if full else f"character_coverage ({config.character_coverage})"
    return (
        f"{len(missing):,} of {len(counts):,} characters ({part:.2g} of the text) are not in the vocabulary "
        f"and become <unk>; increase {key}.{setting}, or set {key}.byte_fallback=true"
    )


def _explain(config: SideTokenizerConfig, key: str, message: str) -> str:
    smaller = re.search(r"Please set it to a value <= (\d+)", message)
    if smaller:
        return (
            f"{key}.vocab_size = {config.vocab_size} is more than this text allows; accepted: at most {smaller[1]}."
            f" Set {key}.vocab_size={smaller[1]} or provide more text."
        )
    larger = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", message)
    if larger:
        return (
            f"{key}.vocab_size = {config.vocab_size} is less than the {larger[2]} characters and symbols of this "
            f"text; increase it, or lower {key}.character_coverage (now {config.character_coverage})."
        )
    if config.kind == "char" and config.byte_fallback and "vocab_size" in message:
        return (
            f"{key}.vocab_size = {config.vocab_size} is less than 256 bytes and 5 symbols; accepted: at least 261, and "
            f"one more per character. Increase it, or set {key}.byte_fallback=false."
        )
    return f"[{key}] could not be trained (kind = {config.kind}, vocab_size = {config.vocab_size}): {message}"
