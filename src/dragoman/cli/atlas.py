"""The command that maps what the heads of a model do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import AsJson, Device, Model, app
from dragoman.errors import UsageError

__all__ = ["atlas"]

SPELLED_NUMBERS = "spelled-numbers"


@app.command()
def atlas(
    model: Model,
    source: Annotated[Path, typer.Option(help="Text, one sentence a line.")],
    reference: Annotated[
        Path | None, typer.Option(help="Its translations, one a line; default: the model's own.")
    ] = None,
    alignment: Annotated[
        str | None,
        typer.Option(help=f"Word links of the pairs (0-0 1?2), one pair a line; or {SPELLED_NUMBERS}, of the demo."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where a page goes; default: none, only the table.")] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Remove each head and sub-layer in turn: what does it cost?")
    ] = False,
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """What every head attends to, which ones align, and what each costs to lose; as a table and as a page."""
    from dragoman.cli.progress import RichReporter, console
    from dragoman.data.corpus import CorpusSpec, read_pairs
    from dragoman.device import resolve_device
    from dragoman.interpret.heads.alignment import read_alignment, spelled_numbers_alignment
    from dragoman.interpret.heads.atlas import atlas as atlas_of
    from dragoman.interpret.heads.atlas import examples
    from dragoman.interpret.heads.page import print_atlas, write_atlas
    from dragoman.interpret.heads.probes import load_probe
    from dragoman.io.lines import read_lines

    if alignment is not None and reference is None:
        raise UsageError(f"--alignment {alignment}: links are between two given texts: give --reference too")
    if reference is None:
        lines, targets = list(read_lines(source)), None
    else:
        pairs = list(read_pairs(CorpusSpec(source, reference)))
        lines, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    golds = None
    if alignment == SPELLED_NUMBERS:
        golds = [spelled_numbers_alignment(*pair) for pair in zip(lines, targets or (), strict=True)]
        # Where each side is one unit the only link is right whatever a head does.
        if 2 * sum(len(gold.source) > 1 and bool(gold.sure) for gold in golds) < len(golds):
            raise UsageError(
                f"--alignment {SPELLED_NUMBERS}: {source} is not of the built-in corpus; name a file of links"
            )
    elif alignment is not None:
        golds = read_alignment(Path(alignment), lines, targets or [])
    log = RichReporter().log
    network, probe = load_probe(model, lines, targets, golds, resolve_device(device))
    if golds is not None and probe.aligned < len(lines):
        log(f"alignment: {len(lines) - probe.aligned:,} lines do not count, the tokenizer makes other words of them")
    found = atlas_of(network, probe, cost)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False, indent=1))
    else:
        print_atlas(found, console(stderr=False))
    if out is not None:
        log(f"the page: {write_atlas(out, found, examples(network, probe), _name(model))}")


def _name(model: Path) -> str:
    """What a page calls it: the run, and the checkpoint where one was named."""
    path = model.resolve()
    return f"{path.parents[1].name}, {path.name}" if path.parent.name == "checkpoints" else path.name
