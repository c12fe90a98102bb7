"""The files of a CTranslate2 model.

model.bin               variables and the settings that are scalars among them
config.json             special tokens, epsilon of the norms
shared_vocabulary.json, or source_vocabulary.json and target_vocabulary.json; .txt in older models

`model.bin` has, in little-endian order, strings as uint16 length and bytes that end with a zero byte:

    uint32 version, string name of the specification, uint32 its revision, uint32 number of variables
    of each variable: string name, uint8 number of dimensions, dimensions as uint32, uint8 type, uint32 bytes, data
    uint32 number of aliases; of each alias: string name, string name of the variable

Nothing in a file is executed; all lengths are compared with the size of the file before memory is used for them.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import UsageError
from dragoman.formats.importing.checkpoint import BinaryReader, Checkpoint, Damaged
from dragoman.formats.importing.family import NEVER, ProblemList
from dragoman.formats.importing.listed_vocabulary import TokenList
from dragoman.formats.importing.name_tables import STACKS, Naming, Rule, TransformerNames
from dragoman.io.reading import MAX_JSON, read_bytes, read_text

MODEL = "model.bin"
_ADVICE = "Copy the folder again, completely."
_VERSIONS = (4, 5, 6)
"""Of `model.bin`; these have the same layout."""
_TYPES = {0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16, 5: torch.bfloat16}
_MAX_FILE, _MAX_VARIABLES, _MAX_DIMENSIONS = 1 << 36, 1 << 16, 8
_VOCABULARIES = ("shared_vocabulary", "source_vocabulary", "target_vocabulary")


def is_ctranslate2(folder: Path) -> bool:
    """Return whether a folder has the files of a CTranslate2 model."""
    names = [f"{name}{suffix}" for name in (*_VOCABULARIES, "vocabulary") for suffix in (".json", ".txt")]
    return (folder / MODEL).is_file() and any((folder / name).is_file() for name in names)


class CTranslate2Checkpoint(Checkpoint):
    """A CTranslate2 model; each property raises UsageError if its file is missing or damaged."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The name of the specification, its scalars, and the content of `config.json`."""
        name, revision, variables = self._content
        scalars = {key: value.item() for key, value in variables.items() if not value.dim()}
        return {"specification": name, "revision": revision, **scalars, **self.optional_json("config.json")}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        tensors = {name: value for name, value in self._content[2].items() if value.dim()}
        if integers := sorted(name for name, value in tensors.items() if not value.is_floating_point()):
            raise UsageError(
                f"{self.folder / MODEL}: quantized weights ({len(integers)} variables, such as {integers[0]}); "
                "accepted: float32, float16, bfloat16: convert the original model again, without quantization"
            )
        return tensors

    @cached_property
    def vocabularies(self) -> list[tuple[str, list[str]]]:
        """Name and tokens of the list of both sides, or of the source and of the target."""
        shared, source, target = (self._vocabulary(name) for name in _VOCABULARIES)
        if shared is not None:
            return [shared]
        if source is None or target is None:
            raise UsageError(
                f"{self.folder}: no vocabulary; accepted: shared_vocabulary.json, or source_vocabulary.json and "
                "target_vocabulary.json (or .txt)"
            )
        return [source, target]

    def _vocabulary(self, name: str) -> tuple[str, list[str]] | None:
        for suffix in (".json", ".txt"):
            path = self.folder / f"{name}{suffix}"
            if not path.is_file():
                continue
            text = read_text(path, UsageError, _ADVICE, MAX_JSON)
            if suffix == ".txt":
                return path.name, text.removesuffix("\n").split("\n")
            try:
                tokens = json.loads(text)
            except (ValueError, RecursionError):
                tokens = None
            if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
                raise UsageError(f"{path}: not a list of texts in JSON. {_ADVICE}")
            return path.name, tokens
        return None

    @cached_property
    def _content(self) -> tuple[str, int, dict[str, Tensor]]:
        path = self.folder / MODEL
        try:
            return _read(read_bytes(path, UsageError, _ADVICE, _MAX_FILE))
        except Damaged as error:
            raise UsageError(f"{path}: not a model file of CTranslate2, or damaged: {error}. {_ADVICE}") from None


def _read(content: bytes) -> tuple[str, int, dict[str, Tensor]]:
    """Return the name of the specification, its revision, and the variables by name, aliases included."""
    reader = BinaryReader(bytearray(content))
    version = reader.number(4, "the version")
    if version not in _VERSIONS:
        raise Damaged(f"version {version}; accepted: {', '.join(map(str, _VERSIONS))}")
    name, revision = _string(reader, "the specification"), reader.number(4, "the revision")
    variables = dict(_variables(reader, _count(reader, "variables")))
    for _ in range(_count(reader, "aliases")):
        alias, origin = _string(reader, "an alias"), _string(reader, "the variable of an alias")
        if origin not in variables:
            raise Damaged(f"{alias} is an alias of {origin}, which does not exist")
        variables[alias] = variables[origin]
    return name, revision, variables


def _string(reader: BinaryReader, what: str) -> str:
    return reader.name(reader.number(2, what), what)


def _count(reader: BinaryReader, what: str) -> int:
    count = reader.number(4, f"the number of {what}")
    if count > _MAX_VARIABLES:
        raise Damaged(f"{count:,} {what}; accepted: up to {_MAX_VARIABLES:,}")
    return count


def _variables(reader: BinaryReader, count: int) -> Iterator[tuple[str, Tensor]]:
    for _ in range(count):
        name = _string(reader, "the name of a variable")
        dimensions = reader.number(1, name)
        if dimensions > _MAX_DIMENSIONS:
            raise Damaged(f"{name}: {dimensions} dimensions; accepted: up to {_MAX_DIMENSIONS}")
        shape = struct.unpack(f"<{dimensions}I", reader.take(4 * dimensions, name))
        kind = reader.number(1, name)
        if kind not in _TYPES:
            raise Damaged(f"{name}: numbers of type {kind}; accepted: {', '.join(map(str, _TYPES))}")
        data, dtype, size = reader.take(reader.number(4, name), name), _TYPES[kind], math.prod(shape)
        if size * dtype.itemsize != len(data) or not size:
            raise Damaged(f"{name}: {len(data):,} bytes for shape {shape} of {dtype}")
        yield name, torch.frombuffer(data, dtype=dtype).clone().reshape(shape)


# --------------------------------------------------------------------------------------------------------------- tokens


TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>"}
"""Special tokens of `config.json`, with their defaults."""
_PADDING = ("<pad>", "<blank>", "[PAD]")


def token_lists(checkpoint: CTranslate2Checkpoint) -> list[TokenList]:
    """Return the list of both sides, or of the source and of the target.  Raises ProblemList."""
    settings = checkpoint.settings
    special = unknown, begin, end, start = [settings.get(key, default) for key, default in TOKENS.items()]
    if not all(isinstance(token, str) for token in special):
        raise ProblemList([])  # reported by `unsupported`
    sides, ends = checkpoint.vocabularies, bool(settings.get("add_source_eos", False))
    lists, problems = [], []
    for index, (name, tokens) in enumerate(sides):
        numbers = {token: i for i, token in enumerate(tokens)}
        if len(numbers) < len(tokens):
            problems.append(f"{name}: the same token twice")
        is_target = index == len(sides) - 1
        required = {"unk_token": unknown, "eos_token": end} | ({"decoder_start_token": start} if is_target else {})
        for key, token in required.items():
            if token not in numbers:
                problems.append(f"{name}: no token {token!r}, the {key} of config.json")
        first = start if is_target else begin
        if settings.get("decoder/start_from_zero_embedding") and is_target:
            first = None  # a vector of zeros
        ids = unk, bos, eos = tuple(numbers.get(token, -1) for token in (unknown, first, end))
        padding = [numbers[token] for token in _PADDING if token in numbers and numbers[token] not in ids]
        lists.append(TokenList(tokens, (padding[0] if padding else -1, unk, bos, eos), name, ends=ends))
    if problems:
        raise ProblemList(problems)
    return lists


# ----------------------------------------------------------------------------------------------------------- name table


MATRICES = ("encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight")
"""Embeddings of source and target, output layer."""
TABLES = tuple(f"{stack}/position_encodings/encodings" for stack in STACKS)
_BIAS = "decoder/projection/bias"


@dataclass(frozen=True)
class Shape:
    """Sizes and kinds that follow from the names and shapes of the variables.  layers: of encoder and decoder."""

    layers: tuple[int, int]
    d_model: int
    d_ff: int
    gated: bool
    bias: bool
    norm: str
    is_pre: bool
    normalizes_embeddings: bool


def read_shape(tensors: Mapping[str, Tensor]) -> Shape:
    """Return the shape of a model; what is missing counts as 1, and is reported with the tensors."""

    def size(name: str, axis: int) -> int:
        tensor = tensors.get(name)
        return tensor.size(axis) if tensor is not None and tensor.dim() > axis else 1

    def layers(stack: str) -> int:
        numbers = [int(match[1]) for name in tensors if (match := re.match(rf"{stack}/layer_(\d{{1,4}})/", name))]
        return max(numbers, default=0) + 1

    return Shape(
        layers=(layers("encoder"), layers("decoder")), d_model=size(MATRICES[0], 1),
        d_ff=size("encoder/layer_0/ffn/linear_0/weight", 0),
        gated="encoder/layer_0/ffn/linear_0_noact/weight" in tensors,
        bias=any(re.fullmatch(r"(encoder|decoder)/layer_\d+/\w+/linear_\w+/bias", name) for name in tensors),
        norm="layer" if "encoder/layer_0/ffn/layer_norm/beta" in tensors else "rms",
        is_pre="encoder/layer_norm/gamma" in tensors,
        normalizes_embeddings="encoder/layernorm_embedding/gamma" in tensors,
    )  # fmt: skip


_RELATIVE = {
    "shaw": {"keys": "relative_position_keys", "values": "relative_position_values"},
    "t5": {"table": "relative_attention_bias"},
}
"""Kind of positions -> our name of a table -> its name in each layer."""


def name_table(shape: Shape, tie: str, position: str, output_bias: bool) -> dict[str, Rule]:
    """Return the rules.  Stacks and layers have the same names as the classes of CTranslate2's specification.

    position: kind of our positions.
    """
    others = dict(zip(("encoder.embedding", "decoder.embedding", "output"), MATRICES, strict=True))
    for stack in STACKS:
        if shape.is_pre:
            others[f"{stack}.final_norm"] = f"{stack}/layer_norm"
        if shape.normalizes_embeddings:
            others[f"{stack}.embedding_norm"] = f"{stack}/layernorm_embedding"
    naming = Naming(
        weight="{}/weight".format, bias="{}/bias".format if shape.bias else None, gain="{}/gamma".format,
        shift="{}/beta".format if shape.norm == "layer" else None,
    )  # fmt: skip
    layers = {stack: _layer_parts(stack, shape) for stack in STACKS}
    rules = TransformerNames(layers, others, naming).rules(shape.layers, tie)
    for stack, count in zip(STACKS, shape.layers, strict=True):
        if position == "learned":
            name = f"{stack}/position_encodings/encodings"
            rules[f"{stack}.positions.table"] = Rule((name,), (f"{stack} positions", ""))
        for ours, theirs in _RELATIVE.get(position, {}).items():
            copies = "|".join(f"{stack}/layer_{i}/self_attention/{theirs}" for i in range(count))
            rules[f"{stack}.positions.{ours}"] = Rule((copies,), ("", ""))
    if output_bias:
        rules["output.bias"] = Rule((_BIAS,), ("logits",), added=NEVER, optional=True)
    return rules


def _layer_parts(stack: str, shape: Shape) -> dict[str, tuple[str, ...]]:
    theirs = f"{stack}/layer_{{}}"
    parts = {
        "self_attn.qkv": (f"{theirs}/self_attention/linear_0",),
        "self_attn.out": (f"{theirs}/self_attention/linear_1",),
        "around_self_attn.norm": (f"{theirs}/self_attention/layer_norm",),
        "ffn.inner": (f"{theirs}/ffn/linear_0", *([f"{theirs}/ffn/linear_0_noact"] if shape.gated else [])),
        "ffn.outer": (f"{theirs}/ffn/linear_1",),
        "around_ffn.norm": (f"{theirs}/ffn/layer_norm",),
    }
    if stack == "decoder":
        parts |= {
            f"cross_attn.{name}": (f"{theirs}/attention/linear_{i}",) for i, name in enumerate(("q", "kv", "out"))
        }
        parts["around_cross_attn.norm"] = (f"{theirs}/attention/layer_norm",)
    return parts
