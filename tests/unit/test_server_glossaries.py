"""Stored glossaries: requests of DeepL's interface, sizes, and several processes with one database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dragoman.errors import UsageError
from dragoman.serve import database
from dragoman.serve.app import create_server
from dragoman.serve.database import GlossaryStore, StoredGlossary
from dragoman.serve.directions import Directions
from running_server import copying_direction

PAIR = {"source_lang": "en", "target_lang": "de"}
ROW = {**PAIR, "entries": "one\teins"}


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(create_server(Directions([copying_direction("en", "de")]))) as opened:
        yield opened


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"name": "n"}, "'dictionaries' not specified"),
        ({"name": "n", "dictionaries": []}, "'dictionaries' not specified"),
        ({"name": "n", "dictionaries": [1]}, "a list of objects"),
        ({"name": "n", "dictionaries": [ROW, ROW]}, "two dictionaries have the same languages"),
        ({"name": "n", "dictionaries": [{**ROW, "target_lang": "xx"}]}, "'target_lang' not supported: xx"),
        ({"name": "n", "dictionaries": [{**ROW, "target_lang": "en"}]}, "from en to en are not supported"),
        ({"name": "n", "dictionaries": [{**ROW, "entries": "one"}]}, "line 1 has no target term"),
        ({"name": "n", "dictionaries": [{**ROW, "entries": "a\tb\n a\tc"}]}, "line 2: 'a' stands before"),
        ({"name": "n", "dictionaries": [{**ROW, "entries": {}}]}, "'entries' not specified"),
        ({"name": "n", "dictionaries": [{**ROW, "entries_format": "xls"}]}, "accepted: tsv, csv"),
        ({"dictionaries": [ROW]}, "'name' not specified"),
    ],
)
def test_invalid_glossaries(client: TestClient, values: dict[str, Any], told: str) -> None:
    answer = client.post("/v3/glossaries", json=values)
    assert answer.status_code == 400 and told in answer.json()["message"]
    assert client.get("/v3/glossaries").json() == {"glossaries": []}


def test_invalid_changes_change_nothing(client: TestClient) -> None:
    created = client.post("/v3/glossaries", json={"name": "n", "dictionaries": [ROW]}).json()
    path = f"/v3/glossaries/{created['glossary_id']}"
    assert client.patch(path, json={"name": ""}).status_code == 400
    assert client.patch(path, json={"name": "m", "dictionaries": [{**ROW, "entries": "a"}]}).status_code == 400
    assert client.put(f"{path}/dictionaries", json=PAIR).status_code == 400
    assert client.delete(f"{path}/dictionaries", params={"source_lang": "en"}).status_code == 400
    assert client.get(path).json() == created
    answer = client.put("/v3/glossaries/none/dictionaries", json=ROW)
    assert (answer.status_code, answer.json()["message"]) == (404, "Glossary not found")
    assert "message" in client.post("/v3/nowhere").json()


def test_the_time_of_creation_always_has_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepL's client cannot read others."""

    class Whole(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2030, 1, 1, tzinfo=UTC)

    monkeypatch.setattr(database, "datetime", Whole)
    assert GlossaryStore().add("me", "n", {}).created == "2030-01-01T00:00:00.000000+00:00"


def test_changes_of_several_processes_are_all_kept(tmp_path: Path) -> None:
    stores = [GlossaryStore(tmp_path / "glossaries.sqlite") for _ in range(4)]
    identifier = stores[0].add("me", "n", {("en", "de"): {}}).id

    def add_terms(store: GlossaryStore, number: int) -> None:
        def change(stored: StoredGlossary, term: str) -> StoredGlossary:
            return replace(stored, dictionaries={("en", "de"): {**stored.dictionaries["en", "de"], term: "x"}})

        for i in range(20):
            assert store.change("me", identifier, lambda stored, term=f"{number} {i}": change(stored, term))

    threads = [threading.Thread(target=add_terms, args=(store, number)) for number, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stores[0].find("me", identifier)
    assert found is not None and len(found.dictionaries["en", "de"]) == 80
    assert stores[1].change("other", identifier, lambda stored: stored) is None
    for store in stores:
        store.close()


def test_a_glossary_that_grows_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_MOST_BYTES", 100)
    store = GlossaryStore()
    stored = store.add("me", "n", {("en", "de"): {"a": "b"}})
    with pytest.raises(UsageError, match="delete some first"):
        store.change("me", stored.id, lambda found: replace(found, dictionaries={("en", "de"): {"a": "b" * 100}}))
    assert store.find("me", stored.id) == stored and store.change("me", stored.id, lambda found: found) == stored
