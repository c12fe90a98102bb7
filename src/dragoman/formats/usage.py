"""The README of an exported model: usage without Dragoman."""

from __future__ import annotations

from importlib.resources import files


def usage_page(template: str, **values: str | bool) -> str:
    """Return the page in Markdown: the Jinja2 template `readmes/<template>.md` filled with `values`."""
    import jinja2  # here, because few commands write such a page

    text = (files("dragoman") / "formats" / "readmes" / f"{template}.md").read_text("utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return environment.from_string(text).render(values)
