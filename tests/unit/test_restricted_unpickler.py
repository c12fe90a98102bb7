"""Checkpoints with objects beside tensors are read without executing anything."""

from __future__ import annotations

import argparse
import collections
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.errors import UsageError
from dragoman.formats.importing.unpickler import PickledCheckpoint, plain
from imported_checks import ATTACKS, Attack


def read(path: Path, content: Any, **options: Any) -> PickledCheckpoint:
    torch.save(content, path, **options)
    return PickledCheckpoint(path)


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None], compression: int = zipfile.ZIP_STORED) -> Path:
    """Change or drop members of a checkpoint."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            if (new := change(name, content)) is not None:
                archive.writestr(name, new)
    return path


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_tensors_of_every_type_and_layout(protocol: int, tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tensors = collections.OrderedDict(
        base=base, rows=base[1:3], transposed=base.T, half=base.half(), wide=base.double(), whole=base.long(),
        short=base.bfloat16(), flags=base > 3, scalar=torch.tensor(2.5), none=torch.empty(0, 3),
        parameter=torch.nn.Parameter(base * 2),
    )  # fmt: skip
    found = read(tmp_path / "a.pt", {"model": tensors, "step": 7}, pickle_protocol=protocol)
    assert found.content["step"] == 7
    own = found.tensors(found.content["model"])
    assert own.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert own[name].dtype == tensor.dtype and torch.equal(own[name], tensor.detach())


@pytest.mark.parametrize("protocol", [2, 4])
def test_options_become_plain_values(protocol: int, tmp_path: Path) -> None:
    options = argparse.Namespace(heads=4, names=["a", "b"], inner=argparse.Namespace(deep={"x": 0.5}), none=None)
    content = {
        "opt": options, "score": np.float64(3.5), "count": collections.Counter("aab"), "path": Path("a"),
        "default": collections.defaultdict(list, {"k": [1]}), "set": {1, 2}, "bytes": b"ab", "size": torch.Size([2]),
        "dtype": np.dtype("float32"),
    }  # fmt: skip
    found = read(tmp_path / "a.pt", content, pickle_protocol=protocol).content
    assert plain(found["opt"]) == {"heads": 4, "names": ["a", "b"], "inner": {"deep": {"x": 0.5}}, "none": None}
    assert plain(found["score"]) is None  # a record without behaviour


def test_options_of_omegaconf(tmp_path: Path) -> None:
    omegaconf = pytest.importorskip("omegaconf", reason="needs: pip install omegaconf")
    options = omegaconf.OmegaConf.create({"model": {"heads": 4, "names": ["a", "b"], "none": None}, "rate": 0.5})
    found = read(tmp_path / "a.pt", {"cfg": options}).content
    assert plain(found["cfg"]) == {"model": {"heads": 4, "names": ["a", "b"], "none": None}, "rate": 0.5}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_a_crafted_pickle_does_not_execute(name: str, protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "executed"
    attack: Attack = ATTACKS[name](target)
    path = tmp_path / "a.pt"
    torch.save({"model": {}}, path)
    content = attack.pickle(protocol)
    rewritten(path, lambda member, old: content if member.endswith("data.pkl") else old)
    with pytest.raises(UsageError, match="not read: it contains an object of " + attack.refused):
        PickledCheckpoint(path)
    assert not target.exists()
    attack.succeed(content)
    assert target.exists()  # the attack works where pickles are executed


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00aX\x01\x00\x00\x00bsb.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x09\x00\x00\x00_functionX\x01\x00\x00\x00bs\x86b.",
        b"\x80\x02cargparse\nNamespace\n}X\x0c\x00\x00\x00__setstate__X\x01\x00\x00\x00bsb.",
    ],
)
def test_a_pickle_cannot_change_what_it_calls(pickled: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"model": {"w": torch.ones(2)}}, path)
    rewritten(path, lambda member, old: pickled if member.endswith("data.pkl") else old)
    with pytest.raises(UsageError):
        PickledCheckpoint(path)
    found = read(tmp_path / "b.pt", {"model": {"w": torch.ones(2)}, "opt": argparse.Namespace(a=1)})
    assert torch.equal(found.tensors(found.content["model"])["w"], torch.ones(2))
    assert plain(found.content["opt"]) == {"a": 1}


def tensor_pickle(offset: int, shape: tuple[int, ...], strides: tuple[int, ...], count: int = 4) -> bytes:
    """A pickle of {"w": tensor} whose storage has `count` numbers."""

    storage = object()

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", count) if value is storage else None

    class Tensor:
        def __reduce__(self) -> Any:
            arguments = (storage, offset, shape, strides, False, collections.OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump({"w": Tensor()})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("offset", "shape", "strides", "count"),
    [
        (0, (5,), (1,), 4), (1, (2, 2), (2, 1), 4), (0, (10**9,), (0,), 4), (-1, (2,), (1,), 4), (0, (2,), (-1,), 4),
        (0, (2, 2), (1,), 4), (0, (4,), (1,), 10**12), (0, (4,), (1,), 5),
    ],
)  # fmt: skip
def test_tensors_outside_of_their_storage(offset: int, shape: Any, strides: Any, count: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(4)}, path)
    content = tensor_pickle(offset, shape, strides, count)
    rewritten(path, lambda member, old: content if member.endswith("data.pkl") else old)
    with pytest.raises(UsageError):
        checkpoint = PickledCheckpoint(path)
        checkpoint.tensors(checkpoint.content)


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(400)}, path)
    whole = path.read_bytes()
    for content in (b"", b"PK\3\4", whole[: len(whole) // 2], whole[:-30], b"\x80\x02]q\x00."):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="not in PyTorch's zip format, or truncated"):
            PickledCheckpoint(path)
    for change, reason in (
        (lambda name, old: None if name.endswith("data.pkl") else old, "no data.pkl"),
        (lambda name, old: old[:-4] if name.endswith("data/0") else old, "1,596 bytes instead of 1,600"),
        (lambda name, old: None if name.endswith("data/0") else old, "data/0 is missing"),
        (lambda name, old: b"big" if name.endswith("byteorder") else old, "byte order"),
        (lambda name, old: old[:-5] if name.endswith("data.pkl") else old, "damaged"),
    ):
        path.write_bytes(whole)
        rewritten(path, change)
        with pytest.raises(UsageError, match=reason):
            checkpoint = PickledCheckpoint(path)
            checkpoint.tensors(checkpoint.content)
    path.write_bytes(whole)
    rewritten(path, lambda name, old: old, zipfile.ZIP_DEFLATED)
    with pytest.raises(UsageError, match="uncompressed"):
        PickledCheckpoint(path)


def test_old_formats_and_missing_files(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(UsageError, match=r"files of PyTorch 1\.6 and later"):
        PickledCheckpoint(tmp_path / "a.pt")
    with pytest.raises(UsageError, match="missing"):
        PickledCheckpoint(tmp_path / "b.pt")
    os.mkfifo(tmp_path / "c.pt")
    with pytest.raises(UsageError):
        PickledCheckpoint(tmp_path / "c.pt")
