"""Dialogues: their file formats, and turns as token ids, in windows for training and prompts for a reply.

A turn is the id of its role and the ids of its text.  Each id predicts the next one, and the last one predicts EOS:

    input    <s>   <role:A>  are  you  ready  <role:B>  yes
    target    -     are      you  ready  </s>   yes     </s>

EOS is never an input, because the next role already marks the end of a turn.  A search therefore stops at the end of a
turn as it does at the end of any text, in every backend.  A role is never a target: the caller selects who speaks.
The ids of roles are control symbols of sentencepiece, so no text is encoded into them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import DataError, clip
from dragoman.io.lines import read_lines
from dragoman.io.reading import has_lone_surrogate
from dragoman.tokenizers import BOS, EOS, PAD, Tokenizer

MAX_ROLES = 64
"""Each role takes one entry of the vocabulary; more roles than this are usually texts that were taken for roles."""
_MAX_ROLE = 40
_RESERVED = '<>:,"'

_MAX_SHOWN = 10
_UTTERANCE = re.compile(r"\s*\S+\s+(?P<speaker>[^\W\d_]+)\.(?P<turn>\d+)\s+utt\d+:(?P<text>.*)")
_ACCEPTED = {
    "jsonl": 'one JSON object per line, {"messages": [{"role": "user", "content": "text"}, ...]}',
    "plain": '"ROLE: text" per line, and a blank line between dialogues',
    "switchboard": '"act speaker.turn utt: text" per line, such as "sd A.1 utt1: Hello. /", and a blank line between '
    "calls",
}

# The markup of Switchboard transcripts
_NOTE = re.compile(r"\*\[\[.*?(?:\]\]|$)|<<?[^<>]*>>?")
_REPAIR = re.compile(r"\[([^\[\]+]*)\+([^\[\]]*)\]")
_MAX_NESTED = 20
_MARKS = re.compile(r"\{[A-Z]?|[\[\]{}#/*@+]|\(\(|\)\)|(?<!\S)-+(?!\S)|(?<!\S)-+(?=/)")
_SPACES = re.compile(r"\s+")
_BEFORE_PUNCTUATION = re.compile(r"(?<![\s,])[\s,]+(?=[,.?!;])")


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


class Dialogue(NamedTuple):
    """Turns in order, and the number of the first line (from 1)."""

    turns: tuple[Turn, ...]
    line: int


@dataclass
class DialogueSet:
    """Dialogues, and what was read but not kept.

    empty_turns, joined_turns: turns without text, and turns that were joined with the turn before them because it has
    the same speaker.  empty_dialogues: dialogues without any text.  comments: numbers of lines that are comments of
    the transcriber.
    """

    dialogues: list[Dialogue] = field(default_factory=list)
    empty_turns: int = 0
    joined_turns: int = 0
    empty_dialogues: int = 0
    comments: list[int] = field(default_factory=list)

    @property
    def turns(self) -> int:
        """The number of turns that were kept."""
        return sum(len(dialogue.turns) for dialogue in self.dialogues)

    def roles(self) -> Counter[str]:
        """Return the number of turns of each role, in alphabetical order."""
        turns_of_role = Counter(turn.role for dialogue in self.dialogues for turn in dialogue.turns)
        return Counter(dict(sorted(turns_of_role.items())))

    def extend(self, other: DialogueSet) -> None:
        """Add the dialogues and counts of another file."""
        self.dialogues += other.dialogues
        self.empty_turns += other.empty_turns
        self.joined_turns += other.joined_turns
        self.empty_dialogues += other.empty_dialogues
        self.comments += other.comments

    def account(self) -> str:
        """Return the counts: turns read = kept + dropped by reason."""
        others = {"empty_turns": self.empty_turns, "joined_turns": self.joined_turns}
        read = self.turns + sum(others.values())
        parts = [f"kept {self.turns:,}", *(f"{name} {count:,}" for name, count in others.items() if count)]
        counts = f"{len(self.dialogues):,} dialogues; read {read:,} turns = {' + '.join(parts)}"
        if self.empty_dialogues:
            counts += f"; empty_dialogues {self.empty_dialogues:,}"
        if self.comments:
            shown = ", ".join(f"{line:,}" for line in self.comments[:_MAX_SHOWN])
            more = ", ..." if len(self.comments) > _MAX_SHOWN else ""
            counts += f"; comments {len(self.comments):,} (lines {shown}{more})"
        return counts


def read_dialogues(path: Path, format: str) -> DialogueSet:
    """Read a file; format: "jsonl", "plain" or "switchboard".

    Raises DataError that lists all invalid lines, and the errors of `read_lines`.
    """
    return parse_dialogues(read_lines(path), format, str(path))


def parse_dialogues(lines: Iterable[str], format: str, where: str, keep_empty: bool = False) -> DialogueSet:
    """Read dialogues from lines; where: name of the file for errors.

    keep_empty: for JSON lines, keep turns without text, and return one dialogue per line, including blank ones.
    Raises DataError that lists all invalid lines.
    """
    dialogues, problems = DialogueSet(), list[str]()
    lines = _check_format(iter(lines), format, where)
    if format == "jsonl":
        for number, line in enumerate(lines, start=1):
            try:
                turns = _messages(line) if line.strip() else []
            except ValueError as error:
                problems.append(f"line {number:,}: {error}")
                continue
            if keep_empty:
                dialogues.dialogues.append(Dialogue(tuple(turns), number))
            elif line.strip():
                _keep(turns, number, dialogues)
    else:  # a blank line separates dialogues
        numbered = enumerate(lines, start=1)
        for has_text, group in groupby(numbered, key=lambda pair: bool(pair[1].strip())):
            if has_text:
                rows, transcript = list(group), format == "switchboard"
                turns = _call(rows, dialogues, problems) if transcript else list(_plain_turns(rows, problems))
                _keep(turns, rows[0][0], dialogues, join=transcript)
    if problems:
        count = len(problems)
        shown = "".join(f"\n  - {problem}" for problem in problems[:_MAX_SHOWN])
        more = f"\n  - and {count - _MAX_SHOWN:,} more; correct these first" if count > _MAX_SHOWN else ""
        raise DataError(
            f"{where}: {count:,} invalid line{'s' if count > 1 else ''}; accepted in format {format!r}: "
            f"{_ACCEPTED[format]}{shown}{more}"
        )
    return dialogues


def _check_format(lines: Iterator[str], format: str, where: str) -> Iterator[str]:
    """Return the lines.  Raises DataError if the first one with text has another format."""
    before = []
    for line in lines:
        before.append(line)
        if line.strip():
            other = _other_format(line, format)
            if other:
                raise DataError(
                    f'{where}: line {len(before):,} looks like format "{other}", but is read as "{format}"; set '
                    f'data.format = "{other}" for it, or correct the line: "{clip(line)}"'
                )
            break
    return chain(before, lines)


def _other_format(line: str, format: str) -> str:
    """Return "jsonl" or "plain" if a line has that format and not `format`, else ""."""
    try:
        _messages(line)
        return "" if format == "jsonl" else "jsonl"
    except ValueError:
        pass
    if format != "jsonl" or line.lstrip()[:1] in '{["':
        return ""
    try:
        parse_plain_turn(line)
        return "plain"
    except ValueError:
        return ""


def _messages(line: str) -> list[Turn]:
    """Return the turns of a JSON line.  Raises ValueError."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({clip(str(error))})") from None
    messages = row.get("messages") if isinstance(row, dict) else row
    if not isinstance(messages, list):
        raise ValueError(f'no list "messages" in {clip(line)}')
    turns = []
    for index, message in enumerate(messages, start=1):
        role, text = (message.get(key) if isinstance(message, dict) else None for key in ("role", "content"))
        if not isinstance(role, str) or not isinstance(text, str):
            raise ValueError(f'message {index} needs "role" and "content", both texts: {clip(json.dumps(message))}')
        if problem := _problem(role, text):
            raise ValueError(f"message {index}: {problem}")
        turns.append(Turn(role, text.strip()))
    return turns


def _plain_turns(rows: list[tuple[int, str]], problems: list[str]) -> Iterator[Turn]:
    for number, line in rows:
        try:
            yield parse_plain_turn(line)
        except ValueError as error:
            problems.append(f"line {number:,}: {error}")


def parse_plain_turn(line: str) -> Turn:
    """Return the turn of a line `ROLE: text`.  Raises ValueError."""
    role, colon, text = (part.strip() for part in line.partition(":"))
    if not colon:
        raise ValueError(f'no role and colon in "{clip(line)}"')
    if problem := _problem(role, text):
        raise ValueError(problem)
    return Turn(role, text)


def _call(rows: list[tuple[int, str]], found: DialogueSet, problems: list[str]) -> list[Turn]:
    """Return the turns of a Switchboard call: the utterances with one number belong to one turn.

    A last line without the format of an utterance is a comment of the transcriber, which ends many calls.
    """
    utterances = []
    for index, (number, line) in enumerate(rows, start=1):
        match = _UTTERANCE.fullmatch(line)
        if match:
            utterances.append((match["speaker"], int(match["turn"]), spoken_text(match["text"])))
        elif index == len(rows) > 1:
            found.comments.append(number)
        else:
            problems.append(f'line {number:,}: not an utterance: "{clip(line)}"')
    groups = groupby(utterances, key=lambda utterance: utterance[:2])
    return [Turn(key[0], " ".join(text for _, _, text in group if text).strip(" ,")) for key, group in groups]


def _keep(turns: list[Turn], line: int, found: DialogueSet, join: bool = False) -> None:
    """Add a dialogue without its empty turns; join: unite turns of one speaker that follow each other."""
    spoken = [turn for turn in turns if turn.text]
    found.empty_turns += len(turns) - len(spoken)
    kept: list[Turn] = []
    for turn in spoken:
        if join and kept and kept[-1].role == turn.role:
            kept[-1] = Turn(turn.role, f"{kept[-1].text} {turn.text}")
            found.joined_turns += 1
        else:
            kept.append(turn)
    if kept:
        found.dialogues.append(Dialogue(tuple(kept), line))
    else:
        found.empty_dialogues += 1


def _problem(role: str, text: str) -> str:
    return role_problem(role) or ("invalid Unicode (lone surrogate) in the text" if has_lone_surrogate(text) else "")


def spoken_text(text: str) -> str:
    """Return the words of a Switchboard utterance without the markup of Meteer et al. 1995.

    Removed: transcriber's notes (`*[[...]]`), noises (`<laughter>`), the marks of overlaps (`#`), of unclear words
    (`((...))`) and of the ends and breaks of utterances (`/`, `-/`, `--`).  A repair `[ I, + I ]` is reduced to the
    words after `+`, if there are any.  Fillers and discourse markers (`{F uh, }`) keep their words.  The result
    is empty if no word is left.
    """
    text = _NOTE.sub(" ", text)
    for _ in range(_MAX_NESTED):
        text, count = _REPAIR.subn(lambda match: f" {match[2] if match[2].strip() else match[1]} ", text)
        if not count:
            break
    text = _SPACES.sub(" ", _MARKS.sub(" ", text))
    return _BEFORE_PUNCTUATION.sub("", text).strip() if re.search(r"\w", text) else ""
