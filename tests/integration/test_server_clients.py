"""Published clients of LibreTranslate, unmodified, against the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dragoman.serve.directions import Directions
from dragoman.serve.server import create_server
from running_server import copying_direction, serving
from tiny_translator import round_trip

TEXT = "one two three"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(create_server(Directions([copying_direction("en", "de"), copying_direction("de", "en")]))) as opened:
        yield opened


def test_libretranslatepy(address: str) -> None:
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(f"{address}/")
    assert client.translate(TEXT, "en", "de") == round_trip(TEXT)
    assert client.detect("Das Wetter war gestern sehr schön.")[0]["language"] == "de"
    assert [language["code"] for language in client.languages()] == ["de", "en"]


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
            assert [language.code for language in await client.languages()] == ["de", "en"]
            assert await client.health()

    asyncio.run(use())
