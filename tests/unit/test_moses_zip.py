"""OPUS archives: which members are read, and one clear message per invalid situation."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from dragoman.advice.doctor import diagnose
from dragoman.config import parse_config
from dragoman.data.precheck import precheck
from dragoman.errors import DataError
from pair_files import moses_members, pairs_of, refusal, write_zip
from small_run import digit_pairs

PAIRS = [('A "dog", really.', "Ein Hund."), ("Two; <cats> & more", "Zwei\u2028Katzen"), ("ü", "日本")]
NAMES = {"source_key": "en", "target_key": "de"}


def test_languages_of_an_archive(tmp_path: Path) -> None:
    members = moses_members(PAIRS)
    members["A.de-en.pt_BR"] = members.pop("A.de-en.en")
    path = write_zip(tmp_path / "a.zip", members)
    for language in ("pt_BR", "pt", "pt-BR"):
        assert pairs_of(path, source_key="de", target_key=language)[0] == ("Ein Hund.", 'A "dog", really.')
    reverse = dict(reversed(moses_members(PAIRS).items()))
    assert pairs_of(write_zip(tmp_path / "b.zip", reverse))[0] == ("Ein Hund.", 'A "dog", really.')


def test_archives_without_exactly_one_pair(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", moses_members(PAIRS))
    message = refusal(path, source_key="en", target_key="fr")
    assert f"{path}: contains no pair of files in 'en' and 'fr' (files: A.de-en.de, A.de-en.en" in message
    assert "no pair of files in two languages (files: a.txt)" in refusal(write_zip(tmp_path / "b.zip", {"a.txt": "x"}))
    two = moses_members(PAIRS) | {f"B/{name}": text for name, text in moses_members(PAIRS).items()}
    message = refusal(write_zip(tmp_path / "c.zip", two), **NAMES)
    assert "contains 2 pairs of files in 'en' and 'de' (A.de-en.en, B/A.de-en.en); accepted: one." in message


def test_misaligned_and_shifted_members_are_refused_as_text_files_are(tmp_path: Path) -> None:
    lengths = [3 + (7 * n * n) % 41 for n in range(420)]
    members = {
        "a.en-de.en": "".join("dog " * length + "\n" for length in lengths),
        "a.en-de.de": "".join("hund " * length + "\n" for length in [*lengths[:100], *lengths[101:]]),
    }
    path = write_zip(tmp_path / "a.zip", members)
    message = refusal(path, **NAMES)
    assert f"{path}/a.en-de.en has 420 lines but {path}/a.en-de.de has 419" in message and "line 101" in message
    assert "misaligned: 420 and 419 lines" in [finding.what for finding in diagnose(path).findings]
    members["a.en-de.de"] += "hund\n"
    write_zip(path, members)
    data = {"source_language": "en", "target_language": "de", "train": [{"path": str(path)}]}
    with pytest.raises(DataError, match="the target that matches a source line is 1 line earlier"):
        precheck(parse_config({"data": data}), print)


def test_damaged_archives(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", moses_members(digit_pairs(999)))
    content = path.read_bytes()
    for damaged in (content[:-30], content[: len(content) // 2], b"", b"text\n"):
        path.write_bytes(damaged)
        message = refusal(path, **NAMES)
        assert message.startswith(f"{path}: not a complete zip archive (")
        assert message.endswith("Copy or download the archive again.")
    with zipfile.ZipFile(write_zip(path, moses_members(digit_pairs(999)))) as archive:
        start = archive.getinfo("A.de-en.en").header_offset
    altered = bytearray(path.read_bytes())
    altered[start + 60 : start + 64] = b"\xff\0\xff\0"
    path.write_bytes(altered)
    assert f"{path}/A.de-en.en: the compressed data is truncated or damaged after line" in refusal(path, **NAMES)
    with zipfile.ZipFile(path, "w") as archive:  # not compressed, so that only the checksum reveals the damage
        for name, text in moses_members(digit_pairs(99)).items():
            archive.writestr(name, text)
    path.write_bytes(path.read_bytes().replace(b"seven", b"eleven"[1:]))
    assert "truncated or damaged after line 0 (Bad CRC-32 for file 'A.de-en.en')" in refusal(path, **NAMES)


def set_field(path: Path, offset: int, value: int) -> None:
    """Change a field of two bytes in all entries of the central directory."""
    content = bytearray(path.read_bytes())
    at = content.find(b"PK\x01\x02")
    while at >= 0:
        struct.pack_into("<H", content, at + offset, value)
        at = content.find(b"PK\x01\x02", at + 4)
    path.write_bytes(content)


def test_encrypted_archives_and_unknown_methods(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", moses_members(PAIRS))
    set_field(path, 8, 1)
    assert f"{path}/A.de-en.en: is encrypted; accepted: archives without a password" in refusal(path, **NAMES)
    set_field(path, 8, 0)
    set_field(path, 10, 97)
    assert "is compressed by the method 97; accepted: deflate, bzip2, LZMA or none" in refusal(path, **NAMES)


def test_a_member_that_expands_without_bound_is_refused_by_its_lines(tmp_path: Path) -> None:
    bomb = "a" * (65 << 20)
    path = write_zip(tmp_path / "a.zip", {"a.en-de.en": bomb, "a.en-de.de": "x\n"})
    assert path.stat().st_size < 1 << 18
    assert f"{path}/a.en-de.en, line 1: longer than 64 MiB" in refusal(path, **NAMES)


def test_invalid_utf8_in_a_member(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.en-de.en", b"good\nna\xefve\n")
        archive.writestr("a.en-de.de", b"gut\nnaiv\n")
    assert f"{path}/a.en-de.en, line 2: byte 0xef at byte 2 of the line is not valid UTF-8" in refusal(path, **NAMES)
    assert "invalid UTF-8" in str(diagnose(path).findings)
