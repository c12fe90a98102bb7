"""Turns of a dialogue as token ids: windows for training, prompts for a reply.

A turn is the id of its role and the ids of its text.  Each id predicts the next one, and the last one predicts EOS:

    input    <s>   <role:A>  are  you  ready  <role:B>  yes
    target    -     are      you  ready  </s>   yes     </s>

EOS is never an input, because the next role already marks the end of a turn.  A search therefore stops at the end of a
turn as it does at the end of any text, in every backend.  A role is never a target: the caller selects who speaks.
The ids of roles are control symbols of sentencepiece, so no text is encoded into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dragoman.tokenizers import BOS, EOS, PAD, Tokenizer

MAX_ROLES = 64
"""Each role takes one entry of the vocabulary; more roles than this are usually texts that were taken for roles."""
_MAX_ROLE = 40
_RESERVED = '<>:,"'


class Turn(NamedTuple):
    """One contribution to a dialogue: the role of the participant, and the text."""

    role: str
    text: str


class TurnIds(NamedTuple):
    """role: its id.  text: ids without EOS.  ends: False for a part of a long turn that continues in the next part."""

    role: int
    text: list[int]
    ends: bool = True

    @property
    def inputs(self) -> list[int]:
        return [self.role, *self.text]

    @property
    def targets(self) -> list[int]:
        """One target per input; PAD where the turn continues in the next part."""
        return [*self.text, EOS if self.ends else PAD]


class Window(NamedTuple):
    """context: turns that are input only.  turns: turns that are predicted."""

    context: list[TurnIds]
    turns: list[TurnIds]

    def row(self, roles: frozenset[int] | None = None) -> tuple[list[int], list[int]]:
        """Return inputs and targets of equal length; roles: ids of the roles whose turns count, None = all."""
        inputs, targets = [BOS], [PAD]
        for turn in (*self.context, *self.turns):
            inputs += turn.inputs
        for turn in self.context:
            targets += [PAD] * len(turn.inputs)
        for turn in self.turns:
            targets += turn.targets if roles is None or turn.role in roles else [PAD] * len(turn.inputs)
        return inputs, targets


class Prompt(NamedTuple):
    """ids: of the turns and of the role that answers, without BOS.  dropped: oldest turns that do not fit.

    shortened: whether the beginning of the oldest turn kept is missing.
    """

    ids: list[int]
    dropped: int
    shortened: bool


def role_problem(role: str) -> str:
    """Return why a text cannot be the name of a role, or an empty string."""
    if not role or len(role) > _MAX_ROLE or role != role.strip() or not role.isprintable() or set(role) & {*_RESERVED}:
        return (
            f"the role {role[:_MAX_ROLE]!r} is not accepted: 1 to {_MAX_ROLE} printable characters without "
            f"{' '.join(_RESERVED)} and without spaces at the ends"
        )
    return ""


def turns_of_text(text: str, roles: Sequence[str]) -> list[Turn]:
    """Return the turns of a text with lines `ROLE: text`; other lines continue the turn before them.

    Text before the first role belongs to `default_speaker(roles)`.
    """
    turns: list[Turn] = []
    for line in text.split("\n"):
        role, colon, rest = line.partition(":")
        if colon and role.strip() in roles:
            turns.append(Turn(role.strip(), rest.strip()))
        elif turns:
            turns[-1] = Turn(turns[-1].role, f"{turns[-1].text}\n{line}".strip())
        elif line.strip():
            turns.append(Turn(default_speaker(roles), line.strip()))
    return turns


def default_speaker(roles: Sequence[str]) -> str:
    """Return the default role of a person: "user" if it exists, otherwise the first role."""
    return "user" if "user" in roles else roles[0]


def encode_turns(tokenizer: Tokenizer, turns: Iterable[Turn]) -> list[TurnIds]:
    """Return the ids of turns, without spaces at the ends of a text.  Raises KeyError for a role without an id."""
    return [TurnIds(tokenizer.roles[role], tokenizer.encode_target(text.strip())[:-1]) for role, text in turns]


def split_turns(turns: Iterable[TurnIds], longest: int) -> Iterator[TurnIds]:
    """Yield turns of at most `longest` ids with the role (at least 2); a longer turn becomes several of its role."""
    size = longest - 1
    for role, text, ends in turns:
        for begin in range(0, max(1, len(text)), size):
            part = text[begin : begin + size]
            yield TurnIds(role, part, ends and begin + size >= len(text))


def windows(turns: Iterable[TurnIds], max_tokens: int, context_tokens: int) -> Iterator[Window]:
    """Yield windows of at most `max_tokens` inputs, BOS included, that start with a turn and predict each turn once.

    A window repeats as many of the turns before it as fit into `context_tokens` and leave room for its first turn.
    max_tokens: at least 3.
    """
    room = max_tokens - 1
    parts = list(split_turns(turns, room))
    sizes = [len(part.inputs) for part in parts]
    index = 0
    while index < len(parts):
        first, start, used = index, index, 0
        context = min(context_tokens, room - sizes[index])
        while start and used + sizes[start - 1] <= context:
            start -= 1
            used += sizes[start]
        while index < len(parts) and used + sizes[index] <= room:
            used += sizes[index]
            index += 1
        yield Window(parts[start:first], parts[first:index])


def prompt_ids(turns: Sequence[TurnIds], role: int, room: int) -> Prompt:
    """Return the newest turns that fit into `room` ids, followed by the id of the role that answers.

    If not even the last turn fits, the end of its text is kept.  room: at least 1, for the role that answers.
    """
    left, start = room - 1, len(turns)
    while start and len(turns[start - 1].inputs) <= left:
        start -= 1
        left -= len(turns[start].inputs)
    kept = [token for turn in turns[start:] for token in turn.inputs]
    shortened = start == len(turns) > 0 and left > 1
    if shortened:
        start -= 1
        kept = [turns[start].role, *turns[start].text[1 - left :]]
    return Prompt([*kept, role], start, shortened)
