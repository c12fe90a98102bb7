"""The command `atlas`: what the attention heads of a model do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import AsJson, Device, Model, OptionalReference, PageLanguage, Source
from dragoman.cli.streams import log, print_result, read_input, read_parallel
from dragoman.errors import UsageError

SPELLED_NUMBERS = "spelled-numbers"


def atlas(
    model: Model,
    source: Source,
    reference: OptionalReference = None,
    alignment: Annotated[
        str | None,
        typer.Option(help=f"File of word alignments, one line per pair (0-0 1?2); German demo: {SPELLED_NUMBERS}."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output file for the page (HTML); default: table only.")] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Also measure the loss without each head and sub-layer.")
    ] = False,
    lang: PageLanguage = "auto",
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Describe what the attention heads of a model do.

    The table and the page show the attention pattern of every head, its alignment accuracy and the cost of its removal.
    Without --reference, the output of the model is used as the target.
    """
    from dragoman.device import resolve_device
    from dragoman.interpret.heads.atlas import atlas as atlas_of
    from dragoman.interpret.heads.atlas import examples
    from dragoman.interpret.heads.gold_alignment import read_alignment, spelled_numbers_alignment
    from dragoman.interpret.heads.page import print_atlas, write_atlas
    from dragoman.interpret.heads.probes import load_probe
    from dragoman.pages.page import check_language

    check_language(lang)
    if alignment is not None and reference is None:
        raise UsageError(f"--alignment {alignment}: requires both sides of the text; add --reference")
    lines, targets = read_parallel(source, reference) if reference else (list(read_input(source)), None)
    golds = None
    if alignment == SPELLED_NUMBERS:
        golds = [spelled_numbers_alignment(*pair) for pair in zip(lines, targets or (), strict=True)]
        # Pairs of single words do not identify the corpus: they have only one possible link.
        if 2 * sum(len(gold.source) > 1 and bool(gold.sure) for gold in golds) < len(golds):
            raise UsageError(
                f"--alignment {SPELLED_NUMBERS}: {source} and {reference} are not part of the built-in corpus with "
                "German targets; specify an alignment file"
            )
    elif alignment is not None:
        golds = read_alignment(Path(alignment), lines, targets or [])
    network, probe = load_probe(model, lines, targets, golds, resolve_device(device))
    if golds is not None and probe.aligned < len(lines):
        log(f"alignment: {len(lines) - probe.aligned:,} lines skipped, because the tokenizer changes their words")
    found = atlas_of(network, probe, cost)
    print_result(found, as_json, print_atlas)
    if out is not None:
        log(f"page: {write_atlas(out, found, examples(network, probe), _title(model), lang)}")


def _title(model: Path) -> str:
    """Return the name of the run, and the checkpoint if one was specified."""
    path = model.resolve()
    return f"{path.parents[1].name}, {path.name}" if path.parent.name == "checkpoints" else path.name
