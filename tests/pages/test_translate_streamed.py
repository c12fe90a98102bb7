"""The page at / of `dragoman serve` while a text is translated: each sentence is shown as soon as it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from translate_page import open_page, page_server, translated, write

from dragoman.serve.app import create_server
from dragoman.serve.directions import Directions
from served_models import copying_direction, of_sentences, serving

if TYPE_CHECKING:
    from browser import Page

TEXT = "One two. Three four! Nine?"
SENDING = """
const real = window.fetch;
window.sent = [];
window.fetch = (path, options) => {
  if (path !== 'translate') return real(path, options);
  const body = new ReadableStream({ start(controller) {
    options.signal.addEventListener('abort', () => controller.error(options.signal.reason));
    const encoder = new TextEncoder();
    window.send = (text) => controller.enqueue(encoder.encode(text));
    window.event = (name, data) => send(`event: ${name}\\ndata: ${JSON.stringify(data)}\\n\\n`);
    window.end = () => controller.close();
  } });
  sent.push(JSON.parse(options.body));
  return Promise.resolve(new Response(body, { headers: { 'content-type': 'text/event-stream' } }));
};
"""
"""Answers requests with the events that a test sends."""

SHOWN = "return [byId('translation').textContent, byId('result').ariaBusy]"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with page_server() as opened:
        yield opened


def test_sentences_appear_one_after_the_other(page: Page, address: str) -> None:
    open_page(page, address)
    page.run(SENDING)
    write(page, TEXT)
    page.until("return sent.length === 1")
    assert page.run("return [sent[0].q, sent[0].stream]") == [TEXT, True]
    page.run("send(': translating\\n\\n'); event('part', { index: 0, text: 'Eins zwei.' })")
    page.until("return byId('translation').textContent === 'Eins zwei.'")
    assert page.run(SHOWN) == ["Eins zwei.", "true"] and not page.find("#copy").is_enabled()
    page.run('send(\'event: part\\nda\'); send(\'ta: {"index": 0, "text": " Drei \\\\n vier!"}\\n\\n\')')
    page.until("return byId('translation').textContent === 'Eins zwei. Drei \\n vier!'")
    page.run("event('done', { translatedText: 'Eins zwei. Drei \\n vier! Neun?' })")
    translated(page, "Eins zwei. Drei \n vier! Neun?")
    assert page.find("#copy").is_enabled() and page.errors() == []


def test_the_translation_before_it_stays_as_long_as_it_begins_in_the_same_way(page: Page, address: str) -> None:
    open_page(page, address)
    page.run("byId('translation').textContent = 'Eins zwei. Drei.';" + SENDING)
    write(page, TEXT)
    page.until("return sent.length === 1")
    page.run("event('part', { index: 0, text: 'Eins zwei.' })")
    page.run("return new Promise((done) => setTimeout(done, 50))")
    assert page.run(SHOWN) == ["Eins zwei. Drei.", "true"]
    page.run("event('part', { index: 0, text: ' Vier!' })")
    page.until("return byId('translation').textContent === 'Eins zwei. Vier!'")


def test_a_text_that_has_changed_shows_no_sentences_of_the_one_before(page: Page, address: str) -> None:
    open_page(page, address)
    page.run(SENDING)
    write(page, TEXT)
    page.until("return sent.length === 1")
    page.run("window.first = send; here.delay = 1e9")
    page.press(" four.")
    page.run("translateText()")
    page.until("return sent.length === 2")
    old = 'event: part\\ndata: {"index": 0, "text": "old"}\\n\\n'
    page.run(f"try {{ first('{old}') }} catch {{ /* aborted */ }}")
    page.run("event('part', { index: 0, text: 'new' })")
    page.until("return byId('translation').textContent === 'new'")
    page.run("event('done', { translatedText: 'new' })")
    translated(page, "new")
    assert page.errors() == []


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("event('error', { error: 'too slow', status: 503 })", "The translation took longer than the server allows."),
        ("end()", "The server does not answer."),
    ],
)
def test_an_error_after_some_sentences(last: str, message: str, page: Page, address: str) -> None:
    open_page(page, address)
    page.run(SENDING)
    write(page, TEXT)
    page.until("return sent.length === 1")
    page.run("event('part', { index: 0, text: 'Eins zwei.' })")
    page.until("return byId('translation').textContent !== ''")
    page.run(last)
    page.until("return !byId('failure').hidden")
    assert page.text("#failure").startswith(message)
    assert page.run(SHOWN) == ["", "false"]


def test_the_server_streams_to_the_page(page: Page) -> None:
    directions = [of_sentences(copying_direction("en", "de")), copying_direction("de", "en")]
    with serving(create_server(Directions(directions))) as address:
        open_page(page, f"{address}/")
        page.run("window.pieces = []; const real = showBeginning;"
                 "showBeginning = (text, target) => { pieces.push(text); real(text, target) }")  # fmt: skip
        write(page, TEXT)
        translated(page, TEXT)
        assert page.run("return pieces.at(-1)") == TEXT
        assert len(page.run("return pieces")) == 3
        assert page.errors() == []
