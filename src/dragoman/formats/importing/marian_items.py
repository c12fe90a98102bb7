"""The files of a model in Marian's own formats.

    model.npz or model.bin      items: weights, and the settings of the model in YAML
    decoder.yml, config.yml     settings of decoding, optional: names of the other files, beam size
    vocab.spm                   a sentencepiece model for both sides, or one per side; its ids are those of the model
    vocab.yml                   or a list of pieces with their ids, beside source.spm and target.spm (OPUS-MT)
    lex.s2t.bin                 a shortlist, made from a lexical translation table, optional

A binary model file has, in little-endian order:

    uint64 version (1), uint64 number of items n
    n headers of four uint64: length of the name, type, number of dimensions, bytes of data
    n names, each ending with a zero byte; n shapes of int32
    uint64 length of the padding, the padding, and the data of the n items

Data are padded, so that an item may have more bytes than its array.  8-bit and 16-bit matrices (types `_INTGEMM`) are
integers with one scale, a float32 behind them: value = integer / scale.  They are stored with rows and columns
exchanged, except for embeddings, although the shape is that of the matrix.

A shortlist has, in little-endian order: uint64 magic, checksum, number F of the first target ids that are always
allowed, number of ids per source id at most, count of offsets, count of ids; the offsets (uint64), one per source id
and the end; the ids (uint32).  The targets of a sentence are the ids below F, the ids of each source token, and, if
both sides have one vocabulary, the source tokens themselves.

Nothing in a file is executed; all lengths are compared with the size of the file before memory is used for them.
"""

from __future__ import annotations

import io
import math
import re
import struct
import tokenize
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import DragomanError, UsageError
from dragoman.extras import extra_package
from dragoman.formats.importing.checkpoint import BinaryReader, Checkpoint, Damaged
from dragoman.io.reading import read_bytes, read_text
from dragoman.tokenizers import EOS, UNK

Array = NDArray[Any]

ADVICE = "Download the file again, completely."
SETTINGS = "special:model.yml"
"""Name of the item that holds the settings."""

_VERSION = struct.pack("<Q", 1)
_HEADER = struct.Struct("<4Q")
_NPY = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_TYPES = {
    0x0101: "<i1", 0x0102: "<i2", 0x0104: "<i4", 0x0108: "<i8", 0x0201: "<u1", 0x0202: "<u2", 0x0204: "<u4",
    0x0208: "<u8", 0x0402: "<f2", 0x0404: "<f4", 0x0408: "<f8",
}  # fmt: skip
_INTGEMM = {0x4101: "<i1", 0x4102: "<i2"}
_MAX_FILE = 1 << 35
_MAX_NAME, _MAX_ITEMS, _MAX_DIMENSIONS = 1 << 10, 1 << 16, 8
_MOST_COMPRESSED = 20
"""Marian does not compress; a file that grows by more than this factor would fill the memory."""


_ERRORS = (
    ValueError, TypeError, SyntaxError, LookupError, OverflowError, MemoryError, RecursionError, EOFError, OSError,
    RuntimeError, NotImplementedError, struct.error, zlib.error, zipfile.BadZipFile, tokenize.TokenError,
)  # fmt: skip
"""What zipfile and the header of .npy raise for bytes without sense."""


def begins_with(path: Path, magic: bytes) -> bool:
    """Return whether a file can be read and begins with these bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def read_items(path: Path) -> dict[str, Array]:
    """Return the arrays of a model file in the shapes that Marian computes with; `SETTINGS` is an array of bytes.

    Scales of activations (`_QuantMultA`), which only Marian's 8-bit arithmetic needs, are left out.  Raises UsageError
    for a file that is damaged or has other types of numbers.
    """
    content = read_bytes(path, UsageError, ADVICE, _MAX_FILE)
    try:
        if content.startswith(_VERSION):
            return dict(_binary_items(content))
        if content.startswith(b"PK"):
            return dict(_npz_items(content))
        raise Damaged(f"neither a binary model nor an .npz archive (it begins with {content[:8]!r})")
    except DragomanError:
        raise
    except _ERRORS as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UsageError(f"{path}: not a model file of Marian, or damaged: {reason}. {ADVICE}") from None


# --------------------------------------------------------------------------------------------------------------- binary


def _binary_items(content: bytes) -> Iterator[tuple[str, Array]]:
    reader = BinaryReader(content)
    reader.take(len(_VERSION), "the version")
    count = reader.number(8, "the number of items")
    if not 0 < count <= _MAX_ITEMS:
        raise Damaged(f"{count:,} items; accepted: 1 to {_MAX_ITEMS:,}")
    headers = list(_HEADER.iter_unpack(reader.take(count * _HEADER.size, "the headers")))
    names = [_name(reader, length) for length, *_ in headers]
    if len(set(names)) < count:
        raise Damaged("two items have the same name")
    shapes = [_shape(reader, name, dimensions) for name, (_, _, dimensions, _) in zip(names, headers, strict=True)]
    reader.take(reader.number(8, "the length of the padding"), "the padding")
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        data = reader.take(size, name)
        if not name.endswith("_QuantMultA"):
            yield name, _array(name, kind, shape, data)


def _name(reader: BinaryReader, length: int) -> str:
    if not 1 < length <= _MAX_NAME:
        raise Damaged(f"a name of {length:,} bytes; accepted: 2 to {_MAX_NAME:,}")
    return reader.name(length, "a name")


def _shape(reader: BinaryReader, name: str, dimensions: int) -> tuple[int, ...]:
    if not 0 < dimensions <= _MAX_DIMENSIONS:
        raise Damaged(f"{name}: {dimensions:,} dimensions; accepted: 1 to {_MAX_DIMENSIONS}")
    shape = struct.unpack(f"<{dimensions}i", reader.take(4 * dimensions, f"the shape of {name}"))
    if min(shape) < 1:
        raise Damaged(f"{name}: shape {shape}")
    return shape


def _array(name: str, kind: int, shape: tuple[int, ...], data: memoryview) -> Array:
    count = math.prod(shape)
    if kind not in _TYPES and kind not in _INTGEMM:
        raise Damaged(
            f"{name}: numbers of type {kind:#06x} (packed matrices of FBGEMM have such a type); accepted: float32, "
            "float16 and intgemm's 8-bit and 16-bit integers, as marian-conv writes them with -g intgemm8"
        )
    dtype = np.dtype(_TYPES.get(kind) or _INTGEMM[kind])
    needed = count * dtype.itemsize + (4 if kind in _INTGEMM else 0)
    if len(data) < needed:
        raise Damaged(f"{name}: {len(data):,} bytes; shape {shape} needs {needed:,}")
    values = np.frombuffer(data, dtype, count)
    if kind not in _INTGEMM:
        return values.reshape(shape)
    (scale,) = struct.unpack("<f", data[needed - 4 : needed])
    if not 1e-30 < scale < 1e30:
        raise Damaged(f"{name}: the scale of its integers is {scale}")
    floats = values.astype(np.float32) / np.float32(scale)
    if "Wemb" in name:
        return floats.reshape(shape)
    rows = count // shape[-1]
    return floats.reshape(shape[-1], rows).T.reshape(shape)


# ------------------------------------------------------------------------------------------------------------------ npz


def _npz_items(content: bytes) -> Iterator[tuple[str, Array]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if len({member.filename for member in members}) < len(members):
            raise Damaged("two members have the same name")
        if sum(member.file_size for member in members) > _MOST_COMPRESSED * len(content):
            raise Damaged(f"its members have more than {_MOST_COMPRESSED} times the size of the file")
        for member in members:
            yield member.filename.removesuffix(".npy"), _npy_array(member.filename, archive.read(member))


def _npy_array(name: str, data: bytes) -> Array:
    """Read a `.npy` member without objects; the size of its array is that of the bytes that are there."""
    file = io.BytesIO(data)
    version = npy.read_magic(file)
    if version not in _NPY:
        raise Damaged(f"{name}: version {version} of the .npy format")
    shape, by_columns, dtype = _NPY[version](file)
    if dtype.hasobject or dtype.kind not in "iuf":
        raise Damaged(f"{name}: objects of type {dtype}; accepted: numbers")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise Damaged(f"{name}: {len(data) - file.tell():,} bytes for shape {shape} of {dtype}")
    array: Array = np.frombuffer(data, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if by_columns else "C")


# --------------------------------------------------------------------------------------------------------------- folder


_MAX_YAML, _MAX_VOCABULARY = 1 << 20, 1 << 26
_NOT_MODELS = re.compile(r".*\.(optimizer|progress)\.npz")


def find_models(source: Path) -> list[Path]:
    """Return the Marian model files of a folder, or the file itself; [] if there are none."""
    if source.is_file():
        return [source] if source.suffix in (".npz", ".bin") else []
    files = sorted(source.glob("*.npz")) + sorted(source.glob("*.bin"))
    return [
        file for file in files if file.is_file() and not _NOT_MODELS.fullmatch(file.name)
        and (file.suffix == ".npz" or begins_with(file, _VERSION))
    ]  # fmt: skip


class MarianCheckpoint(Checkpoint):
    """A Marian model; each property raises UsageError if its file is missing or damaged."""

    def __init__(self, model: Path) -> None:
        super().__init__(model.parent)
        self.model = model

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the model."""
        characters = self._items.get(SETTINGS)
        if characters is None:
            raise UsageError(f"{self.model}: no item {SETTINGS}, the settings of the model; accepted: models with one")
        try:
            text = bytes(characters.astype(np.uint8)).rstrip(b"\0").decode()
        except UnicodeDecodeError:
            raise UsageError(f"{self.model}: {SETTINGS} is not UTF-8. {ADVICE}") from None
        return parse_yaml(text, f"{self.model}, {SETTINGS}")

    @cached_property
    def generation(self) -> dict[str, Any]:
        """The settings of decoding: the YAML file of the folder that names this model, or is named like it."""
        named, other = [], []
        for path in sorted(self.folder.glob("*.yml")) + sorted(self.folder.glob("*.yaml")):
            if "vocab" in path.name or path.stat().st_size > _MAX_YAML:
                continue
            options = parse_yaml(read_text(path, UsageError, ADVICE, _MAX_YAML), str(path))
            models = map(_file_name, _listed(options.get("models")))
            if self.model.name in models or path.name.startswith(self.model.name):
                named.append(options)
            elif "vocabs" in options and "models" not in options:
                other.append(options)
        return (named or other or [{}])[0]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))
            for name, array in self._items.items()
            if not name.startswith("special:")
        }

    @cached_property
    def vocabularies(self) -> list[Path]:
        """The vocabulary files of the source and of the target; of one file for both, the same path twice."""
        names = [_file_name(name) for name in _listed(self.generation.get("vocabs"))]
        if len(names) == 2:
            return [self.folder / name for name in names]
        # Beside a list of pieces, sentencepiece models have other ids.
        files = [file.name for file in sorted(self.folder.glob("*vocab*.yml"))]
        files = files or [file.name for file in sorted(self.folder.glob("*.spm"))]
        if len(files) == 1 and not files[0].startswith(("src", "trg", "source", "target")):
            return [self.folder / files[0]] * 2
        for source, target in (("src", "trg"), ("source", "target")):
            sides = [[name for name in files if name.startswith(side)] for side in (source, target)]
            if len(files) == 2 and all(len(side) == 1 for side in sides):
                return [self.folder / side[0] for side in sides]
        raise UsageError(
            f"{self.folder}: the vocabularies of source and target are not known ({', '.join(files) or 'no *.spm'}); "
            "accepted: one *.spm for both, srcvocab*.spm and trgvocab*.spm, or two names under 'vocabs' of decoder.yml"
        )

    @cached_property
    def shortlist(self) -> Path | None:
        """The shortlist that the settings of decoding name, or the only one of the folder."""
        names = [_file_name(name) for name in _listed(self.generation.get("shortlist"))[:1]]
        files = [self.folder / name for name in names if (self.folder / name).is_file()]
        files = files or [file for file in sorted(self.folder.glob("*.bin")) if is_lexical_shortlist(file)]
        return files[0] if len(files) == 1 and is_lexical_shortlist(files[0]) else None

    @cached_property
    def _items(self) -> dict[str, Any]:
        return read_items(self.model)

    def pieces(self, path: Path) -> dict[str, Any]:
        """Return the content of a vocabulary in YAML: ids by piece."""
        return parse_yaml(read_text(path, UsageError, ADVICE, _MAX_VOCABULARY), str(path))


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Parse YAML that creates nothing but numbers, texts, lists and mappings."""
    yaml = extra_package("yaml", "formats", "the import of settings in YAML")
    try:
        settings = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{where}: not valid YAML: {reason}. {ADVICE}") from None
    if not isinstance(settings, dict):
        raise UsageError(f"{where}: not a mapping of settings. {ADVICE}")
    return {str(key): value for key, value in settings.items()}


def _listed(value: object) -> Sequence[str]:
    """Return the texts of a setting that is a text or a list."""
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]


def _file_name(path: str) -> str:
    """Return the last part of a path of another machine; the files of a model are in one folder."""
    return re.split(r"[/\\]", path)[-1]


# ------------------------------------------------------------------------------------------------------------ shortlist


_SHORTLIST_MAGIC = struct.pack("<Q", 0xF11A48D5013417F5)
_SHORTLIST_HEADER = struct.Struct("<8s5Q")
_MAX_SHORTLIST = 1 << 30
_MASK = (1 << 64) - 1


def is_lexical_shortlist(path: Path) -> bool:
    """Return whether a file can be read and begins like a shortlist."""
    return begins_with(path, _SHORTLIST_MAGIC)


def read_shortlist(path: Path, source: Sequence[int], target: Sequence[int], shared: bool, weights: str) -> Shortlist:
    """Return the shortlist of a file in our ids.  Raises UsageError if it is damaged or of another vocabulary.

    source, target: for each of our ids that of Marian, -1 if Marian has none.  shared: whether both sides have one
    vocabulary.  weights: sha256 of the weights.
    """
    content = read_bytes(path, UsageError, ADVICE, _MAX_SHORTLIST)
    if len(content) < _SHORTLIST_HEADER.size or not content.startswith(_SHORTLIST_MAGIC):
        raise UsageError(f"{path}: not a binary shortlist of Marian. {ADVICE}")
    _, checksum, first, best, offset_count, id_count = _SHORTLIST_HEADER.unpack_from(content)
    expected = _SHORTLIST_HEADER.size + 8 * offset_count + 4 * id_count
    if expected != len(content):
        raise UsageError(f"{path}: {len(content):,} bytes; its header specifies {expected:,}. {ADVICE}")
    found = 0  # Marian's checksum of whole words of 64 bits
    for (word,) in struct.iter_unpack("<Q", content[16 : 16 + (len(content) - 16) // 8 * 8]):
        found ^= (word + 0x9E3779B9 + (found << 6) + (found >> 2)) & _MASK
    if found != checksum:
        raise UsageError(f"{path}: its checksum does not match. {ADVICE}")
    offsets = np.frombuffer(content, "<u8", offset_count, _SHORTLIST_HEADER.size)
    ids = np.frombuffer(content, "<u4", id_count, _SHORTLIST_HEADER.size + 8 * offset_count)
    sizes = max(source) + 1, max(target) + 1
    if offset_count != sizes[0] + 1 or offsets[-1] != id_count or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise UsageError(f"{path}: its offsets are not those of {sizes[0]:,} source tokens. {ADVICE}")
    if id_count and ids.max() >= sizes[1]:
        raise UsageError(f"{path}: an id of {ids.max():,}, but the target has {sizes[1]:,} tokens. {ADVICE}")
    ours = {theirs: i for i, theirs in enumerate(target) if theirs >= 0}
    starts, listed, longest = array("i", [0]), array("i"), 0
    for theirs in source:
        tokens = set() if theirs < 0 else {ours[token] for token in ids[offsets[theirs] : offsets[theirs + 1]].tolist()}
        if shared and theirs >= 0:
            tokens.add(ours[theirs])
        listed.extend(sorted(tokens))
        starts.append(len(listed))
        longest = max(longest, len(tokens))
    always = sorted({UNK, EOS} | {ours[token] for token in range(min(first, len(ours))) if token in ours})
    most = max(longest, min(best, len(target)))
    return Shortlist(most, len(target), weights, array("i", always), starts, listed)
