"""Translation memories: what is read of a TMX file, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dragoman.data.readers.tmx import TmxCount, counted_languages, read_tmx, tmx_languages, tmx_pairs
from dragoman.errors import DataError, UsageError

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'


def unit(**texts: str) -> str:
    variants = "".join(
        f'<tuv xml:lang="{lang.replace("_", "-")}"><seg>{seg}</seg></tuv>' for lang, seg in texts.items()
    )
    return f"<tu>{variants}</tu>"


def write(path: Path, *units: str, source: str = "de", head: str = HEAD) -> Path:
    body = "\n".join(units)
    path.write_text(f'{head}<tmx version="1.4"><header srclang="{source}"/><body>{body}</body></tmx>', encoding="utf-8")
    return path


def test_texts_of_both_languages_in_the_order_of_the_request(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tmx", unit(de="Ein Hund.", en_GB="A dog."), unit(en="A cat.", de="Eine Katze."))
    count = TmxCount()
    assert list(tmx_pairs(file, ("en", "de"), count)) == [("A dog.", "Ein Hund."), ("A cat.", "Eine Katze.")]
    assert (count.read, count.incomplete) == (2, 0)


def test_a_unit_without_one_of_the_languages_is_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tmx", unit(de="Ja", en="Yes"), unit(de="Nein", fr="Non"), unit(de="Gut", en="  "))
    count = TmxCount()
    assert list(tmx_pairs(file, ("de", "en"), count)) == [("Ja", "Yes")]
    assert (count.read, count.incomplete) == (3, 2)


def test_formatting_codes_are_left_out_and_marked_text_is_kept(tmp_path: Path) -> None:
    seg = 'Press <bpt i="1">&lt;b></bpt><hi>the  red</hi>\n<ept i="1">&lt;/b></ept> key <ph>{0}</ph>&amp; wait\u00a0!'
    file = write(tmp_path / "a.tmx", unit(en=seg, fr="x"))
    assert next(read_tmx(file))[0] == ("en", "Press the red key & wait\u00a0!")


@pytest.mark.parametrize(
    ("source", "expected"), [("de", ("de", "en")), ("en-US", ("en", "de")), ("*all*", ("de", "en"))]
)
def test_the_source_language_is_that_of_the_header(tmp_path: Path, source: str, expected: tuple[str, str]) -> None:
    assert tmx_languages(write(tmp_path / "a.tmx", unit(de="Ja", en_GB="Yes"), source=source)) == expected


def test_three_languages_need_a_choice(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tmx", unit(de="Ja", en="Yes", fr="Oui"), unit(de="Nein", en="No"))
    with pytest.raises(UsageError, match=r"de \(2\), en \(2\), fr \(1\); two languages are needed.*--languages de en"):
        tmx_languages(file)


def test_compressed_and_utf_16_files(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.tmx", unit(de="Größe", en="Size"))
    (tmp_path / "b.tmx.gz").write_bytes(gzip.compress(plain.read_bytes()))
    text = plain.read_text(encoding="utf-8").replace("UTF-8", "UTF-16")
    (tmp_path / "c.tmx").write_bytes(text.encode("utf-16"))
    for name in ("b.tmx.gz", "c.tmx"):
        assert list(read_tmx(tmp_path / name)) == [[("de", "Größe"), ("en", "Size")]], name


def test_nested_entities_are_refused_before_they_expand(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 12))
    file = write(tmp_path / "a.tmx", unit(de="&e11;", en="x"), head=f'<!DOCTYPE tmx [<!ENTITY e0 "ha">{entities}]>')
    with pytest.raises(DataError, match="declares the entity 'e0', which is refused because entities can expand"):
        list(read_tmx(file))


def test_an_external_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    head = f'<!DOCTYPE tmx [<!ENTITY x SYSTEM "{tmp_path / "secret"}">]>'
    with pytest.raises(DataError, match="declares the entity 'x'"):
        list(read_tmx(write(tmp_path / "a.tmx", unit(de="&x;", en="y"), head=head)))


def test_entities_of_html_are_characters_and_unknown_ones_an_error(tmp_path: Path) -> None:
    assert next(read_tmx(write(tmp_path / "a.tmx", unit(de="&uuml;ber", en="above"))))[0] == ("de", "über")
    with pytest.raises(DataError, match=r"line 3: the entity &strange; has no declaration"):
        list(read_tmx(write(tmp_path / "b.tmx", unit(de="&strange;", en="x"))))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html></html>", "the root element is <html>; accepted: a TMX file"),
        (b'<tmx version="1.4"><body><tu>', "line 1: not well-formed XML"),
        (b"", "not well-formed XML"),
        (b"\x00\x01", "not well-formed XML"),
        (b'<?xml version="1.0" encoding="klingon"?><tmx/>', "klingon|unknown encoding"),
    ],
)
def test_what_is_no_tmx(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.tmx").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_tmx(tmp_path / "a.tmx"))


def test_a_damaged_archive(tmp_path: Path) -> None:
    packed = gzip.compress(
        write(tmp_path / "a.tmx", *[unit(de=f"Ja {i}", en=f"Yes {i}") for i in range(99)]).read_bytes()
    )
    (tmp_path / "b.tmx.gz").write_bytes(packed[:-40])
    with pytest.raises(DataError, match="compressed data is truncated or damaged"):
        list(read_tmx(tmp_path / "b.tmx.gz"))


def test_codes_of_three_letters(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tmx", unit(ENG="Yes", FRA="Oui"), unit(eng="No", fre="Non"), source="ENG")
    assert tmx_languages(path) == ("en", "fr")
    assert list(tmx_pairs(path, ("fr", "en"), TmxCount())) == [("Oui", "Yes"), ("Non", "No")]
    assert list(tmx_pairs(path, ("fra", "en-GB"), TmxCount())) == []
    count = TmxCount()
    assert list(tmx_pairs(path, ("de", "eng"), count)) == []
    assert counted_languages(count.languages) == "ENG (1), FRA (1), eng (1), fre (1)"
