"""Commands that use a trained model: translate, score, evaluate, generate, label, parse."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import AsJson, Device, InputFile, Model, Models, OutputFile, Quantize, Source, Tokenize, app
from dragoman.cli.streams import OutputStream, lines_of
from dragoman.errors import UsageError

if TYPE_CHECKING:
    from dragoman.bulk import Job
    from dragoman.pipelines.generation import TextGenerator
    from dragoman.pipelines.translation import Translator

__all__ = ["evaluate", "generate", "label", "parse", "score", "translate"]

Inputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--input", help="Text, a sentence a line; default: standard input. Folders, Parquet, several: in bulk."
    ),
]


def _device(name: str) -> Any:
    """The device of that name; the CPU's stays a name, so that the engine starts without torch."""
    if name == "cpu":
        return name
    from dragoman.device import resolve_device

    return resolve_device(name)


def _translator(model: Path | list[Path], device: str, **options: Any) -> Translator:
    from dragoman.pipelines.translation import Translator

    return Translator.load(model, _device(device), **options)


def _generator(model: Path, device: str, **options: Any) -> TextGenerator:
    from dragoman.pipelines.generation import TextGenerator

    return TextGenerator.load(model, _device(device), **options)


_NO_DRAW = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0}


@app.command()
def translate(
    models: Models,
    input_: Inputs = None,
    output: Annotated[Path | None, typer.Option("--output", help="Where to write, a folder in bulk.")] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept a step; 1 = greedy; default: the model's.")] = None,
    nbest: Annotated[int, typer.Option(help="Translations a line, best first.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw instead of search.")] = False,
    temperature: Annotated[float, typer.Option(help="With --sample: below 1 bolder, above 1 wilder.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="With --sample: only the K most probable words; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(help="With --sample: only the most probable words up to this sum.")] = 1.0,
    seed: Annotated[int, typer.Option(help="With --sample: another seed, another draw.")] = 0,
    alpha: Annotated[float | None, typer.Option(help="Length penalty: 0 favours short, 1 long.")] = None,
    min_length: Annotated[int | None, typer.Option(help="Words (tokens) at least.")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="No N words (tokens) in a row twice; 0 = off.")] = None,
    prefix: Annotated[str | None, typer.Option(help="How every translation must start.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a line: text, score, flags, n best.")] = False,
    quantize: Quantize = "auto",
    engine: Annotated[str, typer.Option(help="auto, native (C++, CPU only) or pytorch.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Of the native engine; default: all cores.")] = None,
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Only words that go with the source's ('dragoman shortlist'): faster.")
    ] = False,
    column: Annotated[str | None, typer.Option(help="In bulk: the column of Parquet that is translated.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="In bulk: over a Ray cluster, or this machine's cores.")] = False,
    device: Device = "cpu",
) -> None:
    """Translate text: N lines in, N lines out, in order (with --nbest K: K lines each, or one with --jsonl).

    In bulk (folders, Parquet, several files): each into a file of the same name; run again, it goes on where it was.
    """
    from dragoman.bulk import Job, format_translation, is_bulk, output_form

    settings = {
        "beam": beam, "nbest": nbest, "sample": sample, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "seed": seed, "alpha": alpha, "min_length": min_length, "no_repeat_ngram": no_repeat_ngram,
    }  # fmt: skip
    given: dict[str, Any] = {k: v for k, v in settings.items() if v is not None}
    drawn = [f"--{name.replace('_', '-')}" for name, off in _NO_DRAW.items() if settings[name] != off]
    if drawn and not sample:
        raise UsageError(f"{', '.join(drawn)}: for drawing only; give --sample too, or leave it out")
    options: dict[str, Any] = {
        "quantize": quantize, "engine": engine, "threads": threads, "shortlist": shortlist
    }  # fmt: skip
    inputs = input_ or []
    if ray or column is not None or is_bulk(inputs, output):
        if len(models) > 1:
            raise UsageError(
                f"an ensemble of {len(models)} models: bulk translation supports one model; translate one file at a "
                "time, without --column and --ray"
            )
        _in_bulk(Job(models[0], {"device": device, **options}, given, prefix, jsonl), inputs, output, column, ray)
        return
    translator = _translator(models, device, **options)
    typer.echo(translator.description, err=True)
    source = inputs[0] if inputs else None
    translations = translator.stream(lines_of(source), prefix=prefix, **given)
    flags: Counter[str] = Counter()
    form = output_form(jsonl, nbest)
    with OutputStream(output, source) as write:
        for translation in translations:
            flags.update(translation.flags)
            write(format_translation(translation, form))
    _tell_flags(flags, jsonl)


def _in_bulk(job: Job, inputs: list[Path], output: Path | None, column: str | None, ray: bool) -> None:
    from dragoman.bulk import translate_bulk

    if not inputs or output is None:
        raise UsageError(
            "in bulk (folders, Parquet, several files, --column, --ray) text comes from files and goes into a folder: "
            "give both --input and --output"
        )
    if not ray:
        _device(job.load["device"])
    done = translate_bulk(job, inputs, output, column=column, ray=ray, log=lambda text: typer.echo(text, err=True))
    typer.echo(f"done: {done.lines:,} lines in {done.shards:,} files", err=True)
    _tell_flags(done.flags, job.jsonl)


def _tell_flags(flags: Mapping[str, int], jsonl: bool) -> None:
    if flags and not jsonl:
        counted = ", ".join(f"{name} {count}" for name, count in sorted(flags.items()))
        typer.echo(f"flags: {counted} (--jsonl shows them line by line)", err=True)


@app.command()
def score(
    model: Model,
    target: Annotated[Path, typer.Option(help="Target text, one sentence a line.")],
    source: Annotated[Path | None, typer.Option(help="Source text; a language model needs none.")] = None,
    quantize: Quantize = "none",
    device: Device = "cpu",
) -> None:
    """Log-probability of given pairs (or texts): a line each, sum of natural logs, number of tokens.

    Computed in float32, unless --quantize asks for int8 or bf16.
    """
    from dragoman.models.model_folder import read_config

    kind = read_config(model).data.kind
    if kind == "parallel" and source is None:
        raise UsageError(f"{model}: a translation has a source: give --source")
    if kind == "text" and source is not None:
        raise UsageError(f"{model}: a language model reads no source: leave --source out")
    with OutputStream(None) as write:
        if source is None:
            generator = _generator(model, device, quantize=quantize)
            for text_score in map(generator.score, lines_of(target)):
                write(f"{text_score.log_prob:.6f}\t{text_score.tokens}")
            return
        from dragoman.data.corpus import CorpusSpec, read_pairs

        pairs = list(read_pairs(CorpusSpec(source, target)))
        translator = _translator(model, device, quantize=quantize)
        for row in translator.score([p.source for p in pairs], [p.target for p in pairs]):
            write(f"{row.log_prob:.6f}\t{len(row.tokens)}")


@app.command()
def evaluate(
    model: Model,
    source: Source,
    reference: Annotated[Path, typer.Option(help="Reference translations, one a line.")],
    against: Annotated[Path | None, typer.Option(help="A second model: is the difference significant?")] = None,
    tokenize: Tokenize = "auto",
    quantize: Quantize = "none",
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """BLEU, chrF and TER with signatures; with --against a paired bootstrap."""
    from dragoman.data.corpus import CorpusSpec, read_pairs
    from dragoman.evaluation.metrics import evaluate_model, overlap_warning
    from dragoman.models.model_folder import read_config

    pairs = list(read_pairs(CorpusSpec(source, reference)))
    sources = [p.source for p in pairs]
    translator = _translator(model, device, quantize=quantize)
    language = read_config(model).parallel.target_language
    evaluation = evaluate_model(
        translator,
        sources,
        [[p.target for p in pairs]],
        against=None if against is None else _translator(against, device, quantize=quantize),
        language=language,
        tokenize=tokenize,
    )
    warning = overlap_warning(model, sources)
    if as_json:
        typer.echo(json.dumps(evaluation.to_json() | {"warning": warning}, ensure_ascii=False, indent=1))
        return
    for line in evaluation.lines():
        typer.echo(line)
    if warning:
        typer.echo(f"warning: {warning}", err=True)


@app.command()
def generate(
    model: Model,
    prompt: Annotated[list[str] | None, typer.Option(help="Where a text begins; may be given again.")] = None,
    input_: InputFile = None,
    output: OutputFile = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 200,
    greedy: Annotated[bool, typer.Option("--greedy", help="The most probable token each time, no drawing.")] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 bolder, above 1 wilder.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Only the K most probable tokens; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Only the most probable tokens up to this sum.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed, another draw.")] = 0,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a prompt.")] = False,
    device: Device = "cpu",
) -> None:
    """A language model goes on where prompts end: --prompt, or one a line."""
    if prompt and input_:
        raise UsageError("--prompt and --input are given both; prompts come from one of them")
    generator = _generator(model, device)
    settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    with OutputStream(output, input_) as write:
        prompts = prompt or lines_of(input_)
        for found in generator.stream(prompts, max_tokens=max_tokens, sample=not greedy, **settings):
            write(json.dumps(found.to_json(), ensure_ascii=False) if jsonl else found.text)


@app.command()
def label(
    model: Model,
    input_: InputFile = None,
    output: OutputFile = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a line, with probabilities.")] = False,
    device: Device = "cpu",
) -> None:
    """Tags for words, or a class for texts: N lines in, N lines out, in order."""
    from dragoman.device import resolve_device
    from dragoman.models.model_folder import wrong_model
    from dragoman.pipelines.labelling import Labeller

    labeller = Labeller.load(model, resolve_device(device))
    if labeller.config.data.kind == "images":
        raise wrong_model(model, labeller.config, "reads no text")
    with OutputStream(output, input_) as write:
        for found in labeller.stream(lines_of(input_)):
            write(json.dumps(found.to_json(), ensure_ascii=False) if jsonl else str(found))


@app.command()
def parse(
    model: Model,
    input_: InputFile = None,
    output: OutputFile = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept a step; 1 = greedy; default: the model's.")] = None,
    device: Device = "cpu",
) -> None:
    """Constituency trees in Penn brackets: N lines in (words with spaces between them), N lines out, in order."""
    from dragoman.pipelines.parsing import Parser

    parser = Parser.load(model, _device(device))
    given: dict[str, Any] = {} if beam is None else {"beam": beam}
    mended = 0
    with OutputStream(output, input_) as write:
        for tree, well_formed in parser.stream(lines_of(input_), **given):
            write(str(tree) if tree.children else "")
            mended += bool(tree.children) and not well_formed
    if mended:
        typer.echo(f"mended: {mended} (what the model wrote was no tree over the words)", err=True)
