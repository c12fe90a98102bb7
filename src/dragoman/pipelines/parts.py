"""The parts into which a line is split before it is translated, and how their translations are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dragoman.data.segment import join_parts
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.retry import Fault
from dragoman.pipelines.pipeline import check_text

__all__ = ["Part", "SplitLine", "clean", "one_line", "valid"]


@dataclass
class Part:
    """The unit of a search: a line, a sentence, or a part of a long one.

    text: source, with the whitespace around it.  ids: source tokens with EOS; none if the text is copied.  sentence:
    index in the line.  found: n-best list.
    """

    text: str
    ids: list[int]
    sentence: int = 0
    prefix: list[int] = field(default_factory=list)
    found: list[Hypothesis] = field(default_factory=list)
    fault: Fault = ""


@dataclass(frozen=True)
class SplitLine:
    """A line and its parts; none if there is nothing to translate.  keep_space: also in the translation."""

    text: str
    parts: list[Part]
    keep_space: bool

    @property
    def searched(self) -> list[Part]:
        """The parts that are translated, not copied."""
        return [part for part in self.parts if part.ids]

    def join(self, targets: Sequence[str]) -> str:
        """Join the translations of the first parts, or of all."""
        joined = join_parts([part.text for part in self.parts[: len(targets)]], targets, keep_space=self.keep_space)
        if not self.keep_space or not joined:
            return joined
        body = self.text.strip()
        start = self.text.index(body)
        return self.text[:start] + joined + (self.text[start + len(body) :] if len(targets) == len(self.parts) else "")


def clean(text: str, name: str) -> str:
    """Return the text on one line, with lone surrogates replaced by "?".  Raises UsageError if it is not a str."""
    return one_line(valid(text, name))


def valid(text: str, name: str) -> str:
    """Return the text with lone surrogates replaced by "?".  Raises UsageError if it is not a str."""
    return check_text(text, name, allow_surrogates=True).encode("utf-8", "replace").decode("utf-8")


def one_line(text: str) -> str:
    """Return the text with line ends replaced by spaces."""
    return text.replace("\n", " ").replace("\r", " ")
