"""Documents that are zip archives: some members are replaced, all others are copied with their order and compression.

Members are never extracted to files, so their names can do no harm.  Sizes are checked before anything is decompressed.
"""

from __future__ import annotations

import copy
import io
import lzma
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping

from dragoman.documents.xml_spans import Edits, Node, parse_xml
from dragoman.errors import DataError, clip

_MAX_MEMBERS = 10_000
_MAX_TEXT, _MAX_TOTAL = 128 << 20, 2 << 30
_MAX_RATIO, _SMALL, _SMALL_TEXT = 200, 16 << 20, 1 << 20
"""Largest ratio of compression of more than 16 MiB, and of more than 1 MiB that is read as text; XML of real documents
is compressed 5 to 50 times."""
_MAX_ELEMENTS = 1_000_000
"""Elements of all members that are read; two attributes count as one.  An element takes about 400 bytes of memory."""
_ENTRY = b"PK\x01\x02"
"""The beginning of each entry of the table of members."""
_CHUNK = 1 << 20
_COMPOUND_FILE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, ValueError)


class Archive:
    """A document that is a zip archive.  Raises DataError if it is damaged, encrypted or a zip bomb."""

    def __init__(self, data: bytes) -> None:
        if data.startswith(_COMPOUND_FILE):
            raise DataError(
                "is encrypted, or in a binary format of Office 97-2003 (.doc, .ppt, .xls); accepted: documents without "
                "a password, saved as .docx, .pptx or .xlsx"
            )
        if (members := data.count(_ENTRY)) > _MAX_MEMBERS:
            raise DataError(f"{members:,} members; accepted: at most {_MAX_MEMBERS:,} in a document")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except _DAMAGE as error:
            raise DataError(f"not a complete zip archive ({error}). Copy or save the document again.") from None
        infos = self._zip.infolist()
        self._infos = {info.filename: info for info in infos}
        self._edits: dict[str, tuple[Edits, Callable[[bytes], bytes]]] = {}
        self._read: set[str] = set()
        self._packed = self._size = self._elements = 0
        """Bytes of the members that were read, compressed and decompressed, and their elements."""
        if len(self._infos) < len(infos):
            name = Counter(info.filename for info in infos).most_common(1)[0][0]
            raise DataError(f"the member {clip(name)!r} exists several times. Save the document again.")
        total = sum(info.file_size for info in infos)
        if total > _MAX_TOTAL:
            raise DataError(f"{total:,} bytes when decompressed; accepted: at most {_MAX_TOTAL:,}")
        for info in infos:
            if info.flag_bits & 1:
                raise DataError(
                    f"the member {clip(info.filename)!r} is encrypted; save the document without a password"
                )
            _check_ratio(f"the member {clip(info.filename)!r}", info.compress_size, info.file_size, _SMALL)
        _check_ratio("the document", len(data), total, _SMALL)

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def read(self, name: str) -> bytes:
        """Return the content of a member.

        Raises DataError if it is missing or damaged, or if all members that were read have more than 128 MiB or too
        many elements.
        """
        info = self._infos.get(name)
        if info is None:
            raise DataError(f"the member {clip(name)!r} is missing; not a document of this format, or incomplete")
        if is_new := name not in self._read:
            self._packed, self._size = self._packed + info.compress_size, self._size + info.file_size
            self._read.add(name)
        if self._size > _MAX_TEXT:
            raise DataError(f"the parts with text have {self._size:,} bytes; accepted: at most {_MAX_TEXT:,}")
        _check_ratio("the text", self._packed, self._size, _SMALL_TEXT)
        try:
            with self._zip.open(info) as file:
                content = file.read(_MAX_TEXT + 1)
        except _DAMAGE as error:
            raise _damaged(name, error) from None
        if is_new:
            self._elements += content.count(b"<") - content.count(b"</") + content.count(b"=") // 2
        if self._elements > _MAX_ELEMENTS:
            raise DataError(
                f"{self._elements:,} elements of XML; accepted: at most {_MAX_ELEMENTS:,}. Divide the document."
            )
        return content

    def edit(self, name: str, prefixes: Mapping[str, str]) -> tuple[Node, Edits]:
        """Return the root of an XML member, and its replacements, which `edited` writes; see `parse_xml`."""
        content = self.read(name)
        try:
            root, source, encode = parse_xml(content, prefixes)
        except DataError as error:
            raise DataError(f"{clip(name)}: {error}") from None
        edits = Edits(source)
        self._edits[name] = edits, encode
        return root, edits

    def edited(self, others: Mapping[str, bytes] | None = None) -> bytes:
        """Return the archive with the replacements of `edit`, and with other content of the members in `others`.

        Raises DataError if a member is damaged.
        """
        replaced = {name: encode(edits.render()) for name, (edits, encode) in self._edits.items() if edits}
        replaced.update(others or {})
        output = io.BytesIO()
        with zipfile.ZipFile(output, "w") as target:
            target.comment = self._zip.comment
            for info in self._zip.infolist():
                entry = copy.copy(info)
                entry.flag_bits &= 0x800  # UTF-8 names; the other flags describe how the source was written
                if info.filename in replaced:
                    target.writestr(entry, replaced[info.filename])
                    continue
                try:
                    with self._zip.open(info) as source, target.open(entry, "w") as file:
                        shutil.copyfileobj(source, file, _CHUNK)
                except _DAMAGE as error:
                    raise _damaged(info.filename, error) from None
        return output.getvalue()


def decompressed_size(data: bytes) -> int:
    """Return the size of all members of an archive, or of an invalid one itself."""
    try:
        return sum(info.file_size for info in Archive(data)._zip.infolist())
    except DataError:
        return len(data)


def _check_ratio(what: str, packed: int, size: int, small: int) -> None:
    """Raise DataError for more than `small` bytes that are compressed better than documents are."""
    if size > small and size > _MAX_RATIO * packed:
        raise DataError(
            f"{what} expands from {packed:,} to {size:,} bytes; accepted: at most {_MAX_RATIO} times. Such an archive "
            "is refused as a zip bomb."
        )


def _damaged(name: str, error: Exception) -> DataError:
    return DataError(f"{clip(name)}: damaged ({error}). Copy or save the document again.")
