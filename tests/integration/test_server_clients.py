"""Published clients of LibreTranslate and DeepL against the server: as they are, but for the time between requests."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dragoman.markup.html import translate_html
from dragoman.markup.xml import translate_xml
from dragoman.serve.app import create_server
from dragoman.serve.directions import Directions
from served_models import copying_direction, direction_of, serving
from tiny_translator import round_trip, tiny_translator

TEXT = "one two three"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    directions = [copying_direction("en", "de"), copying_direction("de", "en")]
    with serving(create_server(Directions([*directions, direction_of(tiny_translator(), "en", "fr")]))) as opened:
        yield opened


def test_libretranslatepy(address: str) -> None:
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(f"{address}/")
    assert client.translate(TEXT, "en", "de") == round_trip(TEXT)
    assert client.detect("Das Wetter war gestern sehr schön.")[0]["language"] == "de"
    assert [language["code"] for language in client.languages()] == ["de", "en", "fr"]


def test_deep_translator(address: str) -> None:
    translator = pytest.importorskip("deep_translator").LibreTranslator(
        source="en", target="de", api_key="any", use_free_api=False, custom_url=f"{address}/"
    )
    assert translator.translate(TEXT) == round_trip(TEXT)
    assert translator.translate_batch([TEXT, "four"]) == [round_trip(TEXT), round_trip("four")]


def test_translate(address: str) -> None:
    translator = pytest.importorskip("translate").Translator(
        to_lang="de", from_lang="en", provider="libre", base_url=address, secret_access_key=None
    )
    assert translator.translate(TEXT) == round_trip(TEXT)


def test_libretranslate_aio(address: str) -> None:
    module = pytest.importorskip("libretranslate_aio")

    async def use() -> None:
        async with module.AsyncLibreTranslate(address) as client:
            assert (await client.translate(TEXT, "en", "de")).translated_text == round_trip(TEXT)
            several = await client.translate([TEXT, "four"], "en", "de", alternatives=1)
            assert several.translated_text == [round_trip(TEXT), round_trip("four")]
            assert (await client.detect("Das Wetter war gestern schön."))[0].language == "de"
            assert [language.code for language in await client.languages()] == ["de", "en", "fr"]
            assert await client.health()
            document = io.BytesIO(f"{TEXT}\n".encode())
            document.name = "text.txt"
            sent = await client.translate_file(document, "en", "de")
            assert "/download_file/" in sent.translated_file_url

    asyncio.run(use())


@pytest.fixture
def deepl_client(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    deepl = pytest.importorskip("deepl")
    monkeypatch.setattr(deepl.translator, "time", Mock(wraps=time, sleep=lambda seconds: time.sleep(seconds / 100)))
    with closing(deepl.DeepLClient("any key", server_url=address)) as client:
        yield client


def test_deepl_text(deepl_client: Any) -> None:
    result = deepl_client.translate_text(TEXT, source_lang="EN", target_lang="DE")
    assert (result.text, result.detected_source_lang, result.billed_characters) == (round_trip(TEXT), "EN", len(TEXT))
    several = deepl_client.translate_text([TEXT, "four", ""], target_lang="DE", split_sentences="0")
    assert [r.text for r in several][:2] == [round_trip(TEXT), round_trip("four")]
    back = deepl_client.translate_text("Das Wetter war gestern schön.", target_lang="EN-GB")
    assert back.detected_source_lang == "DE"


@pytest.mark.parametrize("kind", ["quality_optimized", "prefer_quality_optimized", "latency_optimized"])
def test_deepl_model_types(deepl_client: Any, kind: str) -> None:
    result = deepl_client.translate_text(TEXT, source_lang="EN", target_lang="DE", model_type=kind)
    assert result.model_type_used == kind.removeprefix("prefer_") and result.text == round_trip(TEXT)


def test_deepl_languages_and_usage(deepl_client: Any) -> None:
    assert [language.code for language in deepl_client.get_source_languages()] == ["DE", "EN"]
    assert [language.code for language in deepl_client.get_target_languages()] == ["DE", "EN-GB", "EN-US", "FR"]
    before = deepl_client.get_usage().character.count
    deepl_client.translate_text("1234567", source_lang="EN", target_lang="DE")
    usage = deepl_client.get_usage()
    assert usage.character.count == before + 7 and not usage.any_limit_reached


def test_deepl_glossaries(deepl_client: Any, address: str) -> None:
    import deepl

    created = deepl_client.create_glossary("terms", "EN", "FR", {"one": "seven", "two": "nine"})
    assert (created.name, created.entry_count, created.source_lang, created.ready) == ("terms", 2, "EN", True)
    assert deepl_client.get_glossary_entries(created) == {"one": "seven", "two": "nine"}
    assert [g.glossary_id for g in deepl_client.list_glossaries()] == [created.glossary_id]
    assert deepl_client.get_glossary(created.glossary_id).creation_time == created.creation_time
    used = deepl_client.translate_text(TEXT, source_lang="EN", target_lang="FR", glossary=created)
    translator = tiny_translator()
    assert used.text == translator.translate([TEXT], glossary={"one": "seven", "two": "nine"})[0].text
    assert used.text != translator.translate([TEXT])[0].text
    with closing(deepl.DeepLClient("another key", server_url=address)) as other:
        assert other.list_glossaries() == []
        with pytest.raises(deepl.GlossaryNotFoundException):
            other.get_glossary(created.glossary_id)
    deepl_client.delete_glossary(created)
    with pytest.raises(deepl.GlossaryNotFoundException):
        deepl_client.get_glossary(created.glossary_id)
    pairs = deepl_client.get_glossary_languages()
    assert [(p.source_lang, p.target_lang) for p in pairs] == [("de", "en"), ("en", "de"), ("en", "fr")]
    for given in ({"source_lang": "EN", "target_lang": "DE"}, {"source_lang": "DE", "target_lang": "FR"}):
        stored = deepl_client.create_glossary("terms", "EN", "FR", {"one": "seven"})
        with pytest.raises(deepl.DeepLException, match=r"no dictionary from .*; it has: en to fr"):
            deepl_client.translate_text(TEXT, glossary=stored.glossary_id, **given)
    for pair, told in (
        (("EN", "XX"), "'target_lang' not"),
        (("FR", "DE"), "'source_lang' not"),
        (("DE", "DE"), "from de to de"),
    ):
        with pytest.raises(deepl.DeepLException, match=told):
            deepl_client.create_glossary("terms", *pair, {"one": "seven"})
    from_csv = deepl_client.create_glossary_from_csv("csv", "EN", "DE", 'one,"a, b"\n')
    assert deepl_client.get_glossary_entries(from_csv) == {"one": "a, b"}


def test_deepl_multilingual_glossaries(deepl_client: Any, address: str) -> None:
    import deepl
    from deepl.api_data import MultilingualGlossaryDictionaryEntries as Entries

    created = deepl_client.create_multilingual_glossary(
        "terms", [Entries("EN", "FR", {"one": "seven"}), Entries("DE", "EN", {"zwei": "two"})]
    )
    translator, texts = tiny_translator(), {"source_lang": "EN", "target_lang": "FR", "glossary": created}
    assert (
        deepl_client.translate_text(TEXT, **texts).text
        == translator.translate([TEXT], glossary={"one": "seven"})[0].text
    )
    with pytest.raises(deepl.DeepLException, match="no dictionary from en to de; it has: en to fr, de to en"):
        deepl_client.translate_text(TEXT, source_lang="EN", target_lang="DE", glossary=created.glossary_id)
    changed = deepl_client.update_multilingual_glossary_dictionary(created, Entries("EN", "FR", {"two": "nine"}))
    assert [(d.source_lang, d.target_lang, d.entry_count) for d in changed.dictionaries] == [
        ("EN", "FR", 2), ("DE", "EN", 1),
    ]  # fmt: skip
    assert deepl_client.update_multilingual_glossary_name(created, "names").dictionaries[0].entry_count == 2
    assert deepl_client.get_multilingual_glossary(created.glossary_id).name == "names"
    assert (
        deepl_client.replace_multilingual_glossary_dictionary(created, Entries("DE", "EN", {"a": "b"})).entry_count == 1
    )
    found = deepl_client.get_multilingual_glossary_entries(created, "DE", "EN").dictionaries[0]
    assert (found.source_lang, found.target_lang, found.entries) == ("de", "en", "a\tb")
    with closing(deepl.DeepLClient("another key", server_url=address)) as other:
        assert other.list_multilingual_glossaries() == []
        with pytest.raises(deepl.GlossaryNotFoundException):
            other.update_multilingual_glossary_name(created, "theirs")
    assert created.glossary_id not in {own.glossary_id for own in deepl_client.list_glossaries()}, "two dictionaries"
    with pytest.raises(deepl.DeepLException, match="2 dictionaries; use /v3/glossaries"):
        deepl_client.get_glossary(created.glossary_id)
    deepl_client.delete_multilingual_glossary_dictionary(created, source_lang="EN", target_lang="FR")
    with pytest.raises(deepl.GlossaryNotFoundException, match="no dictionary from en to fr; it has: de to en"):
        deepl_client.delete_multilingual_glossary_dictionary(created, source_lang="EN", target_lang="FR")
    assert deepl_client.get_glossary(created.glossary_id).entry_count == 1
    deepl_client.delete_multilingual_glossary(created)
    with pytest.raises(deepl.GlossaryNotFoundException):
        deepl_client.get_multilingual_glossary(created.glossary_id)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"target_lang": "ES"}, "'target_lang' not supported: ES"),
        ({"target_lang": "DE", "source_lang": "FR"}, "'source_lang' not supported"),
        ({"target_lang": "DE", "formality": "more"}, "'formality' = more is not supported"),
        ({"target_lang": "DE", "source_lang": "EN", "glossary": "none"}, "Glossary not found"),
        ({"target_lang": "DE", "model_type": "largest"}, "'model_type' not supported: largest; accepted: quality_opt"),
        ({"target_lang": "DE", "custom_instructions": ["Be concise."]}, "'custom_instructions' is not supported"),
        ({"target_lang": "DE", "style_rule": "formal"}, "'style_id' is not supported"),
    ],
)
def test_deepl_errors(deepl_client: Any, settings: dict[str, str], told: str) -> None:
    import deepl

    with pytest.raises(deepl.DeepLException, match=told):
        deepl_client.translate_text(TEXT, **settings)
    with pytest.raises(deepl.DeepLException, match="line 2: 'a' stands before"):
        deepl_client.create_glossary_from_csv("twice", "EN", "DE", "a,b\na,c\n")


def test_deepl_markup(deepl_client: Any) -> None:
    import deepl

    translator = tiny_translator()
    html, xml = "<p>one <b>two</b></p>", "<doc><p>one <b>two</b> three</p><keep>four</keep></doc>"
    used = deepl_client.translate_text(html, source_lang="EN", target_lang="FR", tag_handling="html")
    assert used.text == translate_html(translator, [html])[0]
    options = {"ignore_tags": ["keep"], "splitting_tags": ["p"], "outline_detection": False}
    used = deepl_client.translate_text(xml, source_lang="EN", target_lang="FR", tag_handling="xml", **options)
    assert used.text == translate_xml(translator, [xml], **options)[0] and "<keep>four</keep>" in used.text
    with pytest.raises(deepl.DeepLException, match="Bad request"):
        deepl_client.translate_text("<a><b></a>", source_lang="EN", target_lang="FR", tag_handling="xml")


def test_deepl_documents(deepl_client: Any, tmp_path: Path) -> None:
    import deepl

    source, target = tmp_path / "text.txt", tmp_path / "out.txt"
    source.write_text(f"{TEXT}\n\nfour\n", encoding="utf-8")
    status = deepl_client.translate_document_from_filepath(source, target, source_lang="EN", target_lang="DE")
    assert status.done and status.billed_characters == len(TEXT) + len("four")
    assert target.read_text(encoding="utf-8") == f"{round_trip(TEXT)}\n\n{round_trip('four')}\n"
    damaged = tmp_path / "text.docx"
    damaged.write_bytes(b"PK damaged")
    with pytest.raises(deepl.DocumentTranslationException, match="not a complete zip archive"):
        deepl_client.translate_document_from_filepath(
            damaged, tmp_path / "out.docx", source_lang="EN", target_lang="DE"
        )
    handle = deepl_client.translate_document_upload(
        source.read_bytes(), filename="a.md", source_lang="EN", target_lang="DE"
    )
    with pytest.raises(deepl.DeepLException, match="Document not found"):
        deepl_client.translate_document_get_status(deepl.DocumentHandle(handle.document_id, "another key"))


def test_deepl_documents_whose_language_is_identified(deepl_client: Any, tmp_path: Path) -> None:
    import deepl

    source, target = tmp_path / "text.txt", tmp_path / "out.txt"
    source.write_text("The weather was very nice yesterday.\n", encoding="utf-8")
    assert deepl_client.translate_document_from_filepath(source, target, target_lang="FR").done
    with pytest.raises(deepl.DocumentTranslationException, match=r"target language are equal \(EN") as found:
        deepl_client.translate_document_from_filepath(source, target, target_lang="EN-GB")
    handle = found.value.document_handle
    assert (len(handle.document_id), len(handle.document_key)) == (32, 64)
    assert handle.document_id + handle.document_key == (handle.document_id + handle.document_key).upper()


def test_deepl_documents_that_are_refused(deepl_client: Any, tmp_path: Path) -> None:
    import deepl

    source, target = tmp_path / "text.txt", tmp_path / "out.docx"
    source.write_text(f"{TEXT}\n", encoding="utf-8")
    languages = {"source_lang": "EN", "target_lang": "DE"}
    with pytest.raises(deepl.DeepLException, match=r"'output_format' = docx: .*; accepted: txt"):
        deepl_client.translate_document_from_filepath(source, target, **languages)
    unknown = source.rename(tmp_path / "text.unknown")
    with pytest.raises(deepl.DeepLException, match=r"Invalid file: .*'\.unknown' is not that of a document"):
        deepl_client.translate_document_from_filepath(unknown, tmp_path / "out.unknown", **languages)
    with pytest.raises(deepl.DeepLException, match="'target_lang' not supported: ES"):
        deepl_client.translate_document_upload("one", filename="a.txt", target_lang="ES")
