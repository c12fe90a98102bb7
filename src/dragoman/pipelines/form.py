"""The forms in which translations are written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from dragoman.errors import UsageError
from dragoman.pipelines.parts import one_line

if TYPE_CHECKING:
    from dragoman.pipelines.translated import Translation

Form = Literal["text", "nbest", "jsonl", "verbose", "row"]
"""Output per line: text; K lines of score, tab and text; JSON; JSON with tokens; the columns of a table."""
_VERBOSE = ("tokens", "token_log_probs")


def output_form(jsonl: bool, nbest: int, verbose: bool = False) -> Form:
    """Return the output form for lines of text.  Raises UsageError for `verbose` without `jsonl`."""
    if verbose and not jsonl:
        raise UsageError("--verbose adds the tokens to the output of --jsonl; add --jsonl, or omit --verbose")
    return "verbose" if verbose else "jsonl" if jsonl else "nbest" if nbest > 1 else "text"


def format_translation(translation: Translation, form: Form) -> str:
    """Format a translation for output, without a final "\\n"."""
    match form:
        case "text":
            return one_line(translation.text)
        case "nbest":
            return "\n".join(f"{one.score:.4f}\t{one_line(one.text)}" for one in translation.nbest)
        case "jsonl" | "verbose":
            fields = translation.to_json()
            if form == "jsonl":
                fields = {name: value for name, value in fields.items() if name not in _VERBOSE}
            return json.dumps(fields, ensure_ascii=False)
        case "row":
            row = {"translation": translation.text, "score": translation.score, "flags": translation.flags}
            return json.dumps(row | {"nbest": [one.text for one in translation.nbest]})
