"""The table of commands, whose modules are imported when they are needed: a command by its name, all by `--help`."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from dragoman.cli.options import Command
from dragoman.extras import missing_wing, plug_ins

COMMANDS = {
    "demo": "dragoman.interpret.commands:demo",
    "new": "dragoman.advice.commands:new",
    "doctor": "dragoman.advice.commands:doctor",
    "config": "dragoman.cli.config:config",
    "prepare": "dragoman.cli.training:prepare",
    "train": "dragoman.cli.training:train",
    "average": "dragoman.cli.training:average",
    "info": "dragoman.cli.training:info",
    "translate": "dragoman.cli.translate:translate",
    "score": "dragoman.cli.inference:score",
    "evaluate": "dragoman.cli.inference:evaluate",
    "generate": "dragoman.cli.inference:generate",
    "chat": "dragoman.cli.chat:chat",
    "label": "dragoman.cli.inference:label",
    "parse": "dragoman.cli.inference:parse",
    "compare": "dragoman.interpret.commands:compare",
    "explain": "dragoman.interpret.commands:explain",
    "atlas": "dragoman.interpret.commands:atlas",
    "walkthrough": "dragoman.interpret.commands:walkthrough",
    "gallery": "dragoman.interpret.commands:gallery",
    "playground": "dragoman.interpret.commands:playground",
    "serve": "dragoman.serve.command:serve",
    "vectors": "dragoman.vectors.command:vectors",
    "shortlist": "dragoman.cli.training:shortlist",
    "export": "dragoman.formats.commands:export",
    "import": "dragoman.formats.commands:import_",
    "keys": "dragoman.serve.keys_command:app",
}
"""Command -> module and name of its function, or of the `typer.Typer` with its commands, in the order of `--help`.

Other packages add commands in the same form by entry points of the group `dragoman.commands`.
"""


class Commands(TyperGroup):
    """The commands of the installed wings and plug-ins."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names = [name for name, place in COMMANDS.items() if missing_wing(place, name) is None]
        self.commands: dict[str, Any] = dict.fromkeys(names)  # the names, for suggestions

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.commands, *(name for name in plug_ins("commands") if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = COMMANDS.get(cmd_name) or plug_ins("commands").get(cmd_name)
        if place is None:
            return None
        if error := missing_wing(place, f"'dragoman {cmd_name}'"):
            raise error
        module, _, name = place.partition(":")
        found = getattr(importlib.import_module(module), name)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(cmd_name, cls=Command)(function)
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command
