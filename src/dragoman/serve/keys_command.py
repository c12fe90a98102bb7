"""The commands `keys add`, `keys list` and `keys revoke`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import Command
from dragoman.cli.streams import log, print_json
from dragoman.errors import UsageError

Database = Annotated[Path, typer.Argument(help="SQLite file of the keys; the server reads it with --database.")]

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Manage the API keys of a server."
)


@app.command(cls=Command)
def add(
    database: Database,
    name: Annotated[str, typer.Option(help="Name of the client, for the list.")],
    per_minute: Annotated[int | None, typer.Option(min=1, help="Requests per minute; default: unlimited.")] = None,
    characters: Annotated[
        int | None, typer.Option(min=1, help="Characters of source text per month; default: unlimited.")
    ] = None,
) -> None:
    """Create a key and print it; only its hash is stored."""
    from dragoman.serve.keys import KeyStore

    store = KeyStore(database)
    try:
        key, secret = store.add(name, per_minute, characters)
    finally:
        store.close()
    log(f"created key {key.id} for {key.name}; only its hash is stored, so save the key now:")
    typer.echo(secret)


@app.command("list", cls=Command)
def list_(
    database: Database, as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False
) -> None:
    """Print the keys with their limits and their use in this month, without the keys themselves."""
    from dataclasses import asdict

    from dragoman.serve.keys import KeyStore

    store = KeyStore(database, create=False)
    keys = store.all()
    store.close()
    if as_json:
        print_json([asdict(key) for key in keys])
        return
    for key in keys:
        per_minute = "any number of" if key.per_minute is None else f"{key.per_minute:,}"
        characters = "" if key.characters is None else f" of {key.characters:,}"
        limits = f"{per_minute} requests per minute, {key.used:,}{characters} characters used in this month"
        typer.echo(f"{key.id}  {key.created[:10]}  {key.name}: {limits}")


@app.command(cls=Command)
def revoke(database: Database, key: Annotated[str, typer.Argument(help="Id of the key, as printed by list.")]) -> None:
    """Delete a key; servers that use the file refuse it from now on."""
    from dragoman.serve.keys import KeyStore

    store = KeyStore(database, create=False)
    try:
        if not store.revoke(key):
            known = ", ".join(one.id for one in store.all()) or "none"
            raise UsageError(f"{key}: no such key; known: {known}")
    finally:
        store.close()
    log(f"key {key} is revoked")
