"""Unusual values in requests: answers without internal errors, in both interfaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from dragoman.serve.app import create_server
from dragoman.serve.directions import Directions
from running_server import copying_direction


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    directions = Directions([copying_direction("en", "de"), copying_direction("de", "en")])
    with TestClient(create_server(directions)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/translate", r'{"q": "one\ud800", "source": "de", "target": "de"}', 200),
        ("/translate", r'{"q": "one\uDC00", "source": "de", "target": "de", "stream": true}', 200),
        ("/translate", r'{"q": "one", "source": "\ud800", "target": "de"}', 400),
        ("/translate", r'{"q": "one", "source": "en", "target": "de", "format": "\ud800"}', 400),
        ("/v2/translate", r'{"text": ["\ud800"], "source_lang": "de", "target_lang": "de"}', 200),
        ("/v2/translate", r'{"text": ["one"], "target_lang": "de", "formality": "\ud800"}', 400),
        ("/v2/translate", r'{"text": ["a"], "target_lang": "de", "source_lang": "en", "glossary_id": "\ud800"}', 404),
        ("/v2/glossaries", r'{"name": "\ud800", "source_lang": "en", "target_lang": "de", "entries": "a\tb"}', 201),
    ],
)
def test_lone_surrogates_are_replaced(client: TestClient, path: str, body: str, status: int) -> None:
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert "?" in answer.text or status == 404


def test_surrogate_pairs_are_kept_and_surrogates_in_utf8_are_refused(client: TestClient) -> None:
    body = r'{"q": "\ud83d\ude00 \ud83d", "source": "de", "target": "de"}'
    assert client.post("/translate", content=body).json() == {"translatedText": "\U0001f600 ?"}
    raw = b'{"q": "\xed\xa0\x80", "source": "de", "target": "de"}'
    answer = client.post("/translate", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "not valid JSON" in answer.json()["error"]


def test_surrogates_in_the_glossary_of_a_form(client: TestClient) -> None:
    fields = {"source": "en", "target": "de", "glossary": r'{"one": "\ud800"}'}
    answer = client.post("/translate_file", data=fields, files={"file": ("a.txt", b"one two")})
    assert answer.status_code == 200 and answer.json()["glossary"][0]["target"] == "?"


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", '"x"', "[]", "17", "-1"])
def test_invalid_numbers_of_alternatives(client: TestClient, value: str) -> None:
    body = f'{{"q": "one", "source": "en", "target": "de", "alternatives": {value}}}'
    answer = client.post("/translate", content=body)
    assert answer.status_code == (200 if value == "[]" else 400), answer.text
