"""A server with the page that translates, and what all of its tests do there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from tiny_translator import tiny_translator

if TYPE_CHECKING:
    from browser import Page


@contextmanager
def page_server(**limits: Any) -> Iterator[str]:
    """A server that copies between English and German, and to Arabic, and has a search from English to French."""
    pytest.importorskip("starlette", reason="no starlette to serve with: pip install 'dragoman[serve]'")
    from dragoman.serve.app import create_server
    from dragoman.serve.directions import Directions
    from dragoman.serve.http import Limits
    from dragoman.serve.pages import Viewer
    from served_models import copying_direction, direction_of, serving

    copying = [copying_direction(*pair) for pair in [("en", "de"), ("de", "en"), ("en", "ar")]]
    directions = Directions([*copying, direction_of(tiny_translator(beam=3), "en", "fr")])
    viewer = Viewer(directions, {"copy": copying[0]})
    with serving(create_server(directions, Limits(**limits), viewer=viewer)) as opened:
        yield f"{opened}/"


def open_page(
    page: Page, address: str, source: str = "en", target: str = "de", language: str = "en", **more: str
) -> None:
    page.language(language)
    page.open(f"{address}#{urlencode({'source': source, 'target': target, **more})}")
    page.until("return here.languages.length > 0 && byId('source').value !== ''")


def write(page: Page, text: str) -> None:
    page.focus("#text")
    page.press(text)


def translated(page: Page, text: str) -> None:
    """Wait for a translation."""
    page.until(f"return byId('translation').textContent === {text!r} && byId('result').ariaBusy === 'false'")
