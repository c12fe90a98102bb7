"""The pages of the server and their files; the page at / uses the routes of LibreTranslate's interface."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from dragoman.pages.page import read_assets, render
from dragoman.serve.http import Limits

STYLES = ("colors.css", "page.css", "language.css", "translate.css", "translate_tools.css")
SCRIPTS = (
    "page.js",
    "language.js",
    "translate_languages.js",
    "translate_requests.js",
    "translate_result.js",
    "translate_glossary.js",
    "translate_files.js",
    "translate_suggest.js",
    "translate.js",
)
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Headers of pages and their files: nothing is loaded from elsewhere, and no other page embeds them."""


def page_routes(prefix: str, page: Callable[[], str], styles: Sequence[str], scripts: Sequence[str]) -> list[Route]:
    """Return the routes of a page, at `prefix` and a slash, and of its files.  page: returns its HTML."""

    def html(request: Request) -> Response:
        return HTMLResponse(page(), headers=HEADERS)

    def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in styles and name not in scripts:
            return PlainTextResponse("Not Found", 404, HEADERS)
        return Response(read_assets(name), headers=HEADERS, media_type=TYPES[PurePosixPath(name).suffix])

    return [Route(f"{prefix}/", html), Route(f"{prefix}/web/{{name}}", file)]


def translation_page(limits: Limits, with_viewer: bool) -> list[Route]:
    """Return the routes of the page that translates.  with_viewer: link to the viewer at /viewer/."""

    @functools.cache
    def page() -> str:  # rendered at the first request, because it imports jinja2
        return render("translate.html", styles=STYLES, scripts=SCRIPTS, viewer=with_viewer, most_bytes=limits.body)

    return page_routes("", page, STYLES, SCRIPTS)
