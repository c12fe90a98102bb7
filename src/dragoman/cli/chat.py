"""`dragoman chat`: a dialogue with a model, at a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Device, Greedy, MaxReply, Model, ReplyRole, Seed, Temperature, TopK, TopP
from dragoman.cli.streams import is_interactive, log, open_output, read_input, typed_lines
from dragoman.errors import UsageError

if TYPE_CHECKING:
    from dragoman.data.turns import Turn
    from dragoman.pipelines.dialogue import Chat

_COMMANDS = "/role NAME (role of the model), /reset (forget all turns), /quit"


def chat(
    model: Model,
    role: ReplyRole = None,
    as_: Annotated[
        str | None, typer.Option("--as", help="Your role; default: of two roles the other one, or 'user'.")
    ] = None,
    max_tokens: MaxReply = None,
    greedy: Greedy = False,
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    device: Device = "cpu",
) -> None:
    """Talk to a model that was trained on dialogues.

    At a terminal, the reply appears while it is generated. From a pipe, each input line is a turn and gets one line of
    output; a blank line or a command gets a blank line. Commands: /role NAME (role of the model), /reset (forget all
    turns), /quit. Begin a turn with // if it should begin with /.
    """
    from dragoman.pipelines.dialogue import Chat
    from dragoman.pipelines.parts import one_line

    settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    loaded = Chat.load(model, device)
    session = Session(loaded, role, as_, {**settings, "sample": not greedy, "max_tokens": max_tokens})
    if warning := loaded.role_warning(session.role):
        log(f"warning: {warning}")
    if is_interactive():
        _terminal(session)
        return
    with open_output(None) as write:
        for line in read_input(None):
            answer = session.answer(line, log)
            if answer is None:
                return
            write(one_line(answer))
            sys.stdout.buffer.flush()


def _terminal(session: Session) -> None:
    """Read turns from the terminal until Ctrl-D or /quit."""
    log(f"You are {session.user}, the model is {session.role}. {_COMMANDS}; or Ctrl-D.")

    def show(piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()

    for line in typed_lines(lambda: f"{session.user}: "):
        try:
            if session.answer(line, log, show) is None:
                return
        except UsageError as error:
            log(str(error))


class Session:
    """A dialogue with a model.

    role: of the model.  user: role of the person.  settings: those of `Chat.reply`.  Raises UsageError if a role does
    not exist or has to be specified.
    """

    def __init__(self, chat: Chat, role: str | None, user: str | None, settings: dict[str, Any]) -> None:
        from dragoman.data.turns import Turn, default_speaker

        self.chat, self.settings = chat, settings
        self.turns: list[Turn] = []
        self._truncated = False
        names = [name for name in chat.roles if role is None or name != chat.check_role(role, "role = ")]
        if user is not None:
            self.user = chat.check_role(user, "as_ = ")
        elif role is not None and len(names) > 1 and "user" not in names:
            raise UsageError(f"your role is not specified; specify --as, one of {', '.join(chat.roles)}")
        else:
            self.user = default_speaker(names or chat.roles)
        self.role = chat.answering_role([Turn(self.user, "")], role)
        chat.check_settings(**settings)

    def answer(self, line: str, note: Callable[[str], None], show: Callable[[str], None] | None = None) -> str | None:
        """Return the reply to a line of input, "" for a blank line and for a command, None for /quit.

        note: receives messages.  show: receives the reply in pieces, after the name of its role.
        """
        if line.startswith("/") and not line.startswith("//"):
            return self._command(line, note)
        text = line.removeprefix("/").strip()
        if not text:
            return ""
        from dragoman.data.turns import Turn

        turns = [*self.turns, Turn(self.user, text)]
        if show is None:
            reply = self.chat.reply(turns, self.role, **self.settings)
        else:
            from dragoman.pipelines.parts import one_line

            pieces = self.chat.stream_reply(turns, self.role, **self.settings)
            show(f"{self.role}: ")
            while True:
                try:
                    show(one_line(next(pieces)))
                except StopIteration as stop:
                    reply = stop.value
                    break
            show("\n")
        if reply.truncated and not self._truncated:
            note(f"truncated: only the newest turns fit into the context of {self.chat.context:,} tokens")
        self._truncated = reply.truncated
        self.turns = [*turns, Turn(self.role, reply.text)][-self.chat.context :]  # more turns never fit
        return reply.text

    def _command(self, line: str, note: Callable[[str], None]) -> str | None:
        name, _, argument = line.strip().partition(" ")
        if name == "/quit":
            return None
        if name == "/reset":
            self.turns = []
            note("all turns are forgotten")
        elif name == "/role":
            try:
                self.role = self.chat.check_role(argument.strip(), "/role ")
                note(f"the model is {self.role}")
                if warning := self.chat.role_warning(self.role):
                    note(f"warning: {warning}")
            except UsageError as error:
                note(str(error))
        else:
            note(f"{name}: no such command; accepted: {_COMMANDS}, or // before a turn that begins with /")
        return ""
