"""Checkpoints in PyTorch's zip format, read by an unpickler that executes nothing.

`torch.load(weights_only=True)` refuses the objects that toolkits store beside tensors, such as their options, and can
only be told to import the classes.  Here no class is imported: each name of a pickle is looked up in the lists of this
module.  Names of tensors become descriptions of tensors, names of known classes become records, which hold what the
pickle puts into them and have no behaviour, and any other name is refused.

Functions that a pickle can call are instances of `_Function`, made for each load, whose state a pickle cannot set.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import UsageError
from dragoman.io.reading import open_regular

_ADVICE = "Copy the file again, completely."
_MAX_PICKLE = 1 << 28
_STORAGES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip
_RECORDS = {
    "argparse": ("Namespace",),
    "builtins": (
        "bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "long", "object", "set", "str",
        "tuple", "unicode",
    ),
    "collections": ("Counter", "defaultdict"),
    "fairseq.meters": ("AverageMeter", "TimeMeter", "StopwatchMeter"),
    "fairseq.logging.meters": ("AverageMeter", "TimeMeter", "StopwatchMeter", "MetersDict"),
    "numpy": ("dtype", "ndarray"),
    "numpy._core.multiarray": ("scalar", "_reconstruct"),
    "numpy.core.multiarray": ("scalar", "_reconstruct"),
    "omegaconf.base": ("ContainerMetadata", "Metadata", "Node"),
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.nodes": (
        "AnyNode", "BooleanNode", "BytesNode", "EnumNode", "FloatNode", "IntegerNode", "PathNode", "StringNode",
    ),
    "pathlib": ("Path", "PosixPath", "PurePosixPath", "WindowsPath"),
    "torch": ("Size", "device"),
    "types": ("SimpleNamespace",),
    "typing": ("Any",),
}  # fmt: skip
"""Module -> names that become records."""
_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Names of modules in pickles of Python 2's protocols."""
_ERRORS = (
    pickle.UnpicklingError, AttributeError, EOFError, LookupError, MemoryError, OverflowError, RecursionError,
    TypeError, UnicodeError, ValueError,
)  # fmt: skip
"""What unpickling raises for bytes without sense."""


class _Refused(ValueError):
    """Why a file is not read."""


class Record:
    """An object of a checkpoint.  name: of its class; arguments: of its constructor; state: what was set on it.

    items: what was appended or set by key, as to a list or dict.
    """

    name = ""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.state = arguments, None
        self.items: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Sequence[Any]) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


class _NewRecord(Record):
    """A record of a class whose constructor a pickle skips (`cls.__new__`)."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> _NewRecord:
        record = super().__new__(cls)
        Record.__init__(record, *arguments)
        return record

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        pass


@dataclass(frozen=True)
class _Stored:
    """A storage: key of its file, and its type."""

    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True)
class _StoredTensor:
    storage: _Stored
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Function:
    """A function that a pickle may call; it has no attributes that a pickle can set."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise _Refused("the pickle sets the state of a function")


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, requires_grad: Any = False, hooks: Any = None, *others: Any
) -> _StoredTensor:
    if not isinstance(storage, _Stored) or not all(isinstance(each, tuple) for each in (shape, strides)):
        raise _Refused("a tensor without storage or shape")
    numbers = (offset, *shape, *strides)
    if any(type(number) is not int or number < 0 for number in numbers) or len(shape) != len(strides):
        raise _Refused(f"a tensor of shape {shape!r}, strides {strides!r} and offset {offset!r}")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and (last >= storage.count or math.prod(shape) > storage.count):
        raise _Refused(f"a tensor of shape {shape} exceeds its storage of {storage.count:,} numbers")
    return _StoredTensor(storage, offset, shape, strides)


def _rebuild_parameter(data: Any, requires_grad: Any = False, hooks: Any = None, *others: Any) -> Any:
    if not isinstance(data, _StoredTensor):
        raise _Refused("a parameter that is not a tensor")
    return data


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Bytes are stored as text by old protocols."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _Refused("bytes that are not stored as Latin-1")
    return text.encode("latin1")


def _reconstruct(kind: Any, base: Any = None, state: Any = None) -> Record:
    """Return an object that protocol 0 or 1 would make with `copyreg._reconstructor`."""
    if not (isinstance(kind, type) and issubclass(kind, Record)):
        raise _Refused("an object of a type that is not a record")
    return kind()


class _OrderedDict(dict[Any, Any]):
    """In place of `collections.OrderedDict`, whose attributes, such as `_metadata` of a state dict, are ignored."""

    def __setstate__(self, state: Any) -> None:
        pass


_FUNCTIONS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("_codecs", "encode"): _encode,
    ("copyreg", "_reconstructor"): _reconstruct,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = _MODULES.get(module, module)
        if (function := _FUNCTIONS.get((module, name))) is not None:
            return _Function(function)
        if (module, name) == ("collections", "OrderedDict"):
            return type("OrderedDict", (_OrderedDict,), {})
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if name in _RECORDS.get(module, ()):
            return type(name, (_NewRecord,), {"name": f"{module}.{name}"})
        raise _Refused(
            f"it contains an object of {module}.{name}, which could run code and is not on the list of accepted classes"
        )

    def persistent_load(self, pid: Any) -> _Stored:
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
            raise _Refused("a reference to something other than a storage")
        _, dtype, key, _, count = pid
        if not isinstance(dtype, torch.dtype) or type(count) is not int or count < 0 or not str(key).isdecimal():
            raise _Refused("a storage of an unknown type")
        return _Stored(str(key), dtype, count)


class PickledCheckpoint:
    """The content of a checkpoint file; raises UsageError if it is damaged or contains other classes than accepted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = self._guarded(self._load)

    def tensors(self, names: Mapping[Any, Any]) -> dict[str, Tensor]:
        """Return the tensors of a mapping that is part of the content, by name; other values are left out."""
        stored = {str(name): value for name, value in names.items() if isinstance(value, _StoredTensor)}
        tensors: dict[str, Tensor] = self._guarded(lambda archive: self._read(archive, stored))
        return tensors

    def _guarded(self, function: Callable[[zipfile.ZipFile], Any]) -> Any:
        try:
            with open_regular(self.path) as raw, io.BufferedReader(raw) as file, zipfile.ZipFile(file) as archive:
                return function(archive)
        except FileNotFoundError:
            raise UsageError(f"{self.path}: missing. {_ADVICE}") from None
        except _Refused as error:
            raise UsageError(f"{self.path}: not read: {error}") from None
        except zipfile.BadZipFile as error:
            raise UsageError(
                f"{self.path}: not in PyTorch's zip format, or truncated ({error}); accepted: files of PyTorch 1.6 and "
                "later; load and save older ones once with torch.load and torch.save, where they come from"
            ) from None
        except (OSError, RuntimeError, NotImplementedError, *_ERRORS) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UsageError(f"{self.path}: damaged: {reason}. {_ADVICE}") from None

    def _load(self, archive: zipfile.ZipFile) -> Any:
        self._members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in self._members:
            raise _Refused("no data.pkl; accepted: files that torch.save has written")
        order = self._bytes(archive, "byteorder", 16) if "byteorder" in self._members else b"little"
        if order.decode("ascii") != sys.byteorder:
            raise _Refused(f"its byte order is {order!r}; accepted: {sys.byteorder}")
        return _Unpickler(io.BytesIO(self._bytes(archive, "data.pkl", _MAX_PICKLE))).load()

    def _bytes(self, archive: zipfile.ZipFile, name: str, most: int) -> bytes:
        """Return an uncompressed member of at most `most` bytes."""
        info = self._members.get(name)
        if info is None:
            raise _Refused(f"{name} is missing")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > most:
            raise _Refused(f"{name} has {info.file_size:,} bytes; accepted: up to {most:,}, uncompressed")
        return archive.read(info)

    def _read(self, archive: zipfile.ZipFile, stored: Mapping[str, _StoredTensor]) -> dict[str, Tensor]:
        storages: dict[str, Tensor] = {}
        tensors = {}
        for name, tensor in stored.items():
            storage = tensor.storage
            if storage.key not in storages:
                size = storage.count * storage.dtype.itemsize
                content = bytearray(self._bytes(archive, f"data/{storage.key}", size))
                if len(content) != size:
                    raise _Refused(f"data/{storage.key} has {len(content):,} bytes instead of {size:,}: truncated")
                storages[storage.key] = torch.frombuffer(content, dtype=storage.dtype) if size else torch.empty(0)
            numbers = storages[storage.key]
            if numbers.dtype != storage.dtype:
                raise _Refused(f"data/{storage.key} is used with two types of numbers")
            tensors[name] = numbers.as_strided(tensor.shape, tensor.strides, tensor.offset).contiguous()
        return tensors


def plain(value: Any, depth: int = 20) -> Any:
    """Return options without records: those of argparse and omegaconf as dicts; other objects as None."""
    if depth == 0:
        raise UsageError("options of a checkpoint: nested too deeply")
    if isinstance(value, Record):
        if value.name == "omegaconf.dictconfig.DictConfig" or value.name == "omegaconf.listconfig.ListConfig":
            return plain(value.state.get("_content") if isinstance(value.state, dict) else None, depth - 1)
        if value.name.startswith("omegaconf.nodes."):
            return plain(value.state.get("_val") if isinstance(value.state, dict) else None, depth - 1)
        return plain(value.state, depth - 1) if value.name in ("argparse.Namespace", "types.SimpleNamespace") else None
    if isinstance(value, dict):
        return {str(key): plain(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, depth - 1) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else None
