"""Commands that run a trained model, except `translate`: score, evaluate, generate, label, parse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import (
    AsJson,
    Beam,
    Device,
    Greedy,
    InputFile,
    Jsonl,
    Model,
    OptionalSource,
    OutputFile,
    Quantize,
    ReplyRole,
    Seed,
    Source,
    SourceLanguage,
    Split,
    TargetLanguage,
    Temperature,
    Tokenize,
    TopK,
    TopP,
)
from dragoman.cli.streams import (
    answer_lines,
    log,
    open_output,
    print_json,
    read_input,
    read_parallel,
    read_turns,
    show_progress,
)
from dragoman.errors import UsageError

if TYPE_CHECKING:
    from dragoman.pipelines.generation import Continuation


def score(
    model: Model,
    target: Annotated[Path, typer.Option(help="Target text, one sentence per line.")],
    source: OptionalSource = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    quantize: Quantize = "none",
    device: Device = "cpu",
) -> None:
    """Print the log-probability of each target text.

    The output is one line per text: the sum of natural log-probabilities, a tab, and the number of tokens. Translation
    models require --source; language models do not accept it. The targets of a dialogue model are dialogues: a .jsonl
    file, or a file in the format of its training data. Computed in float32 by default.
    """
    from dragoman.models.model_folder import read_config

    data = read_config(model).data
    if data.about.translates and source is None:
        raise UsageError(f"{model}: a translation model scores pairs; specify the source text with --source")
    if data.about.continues and source is not None:
        raise UsageError(f"{model}: a language model has no source; omit --source")
    if data.about.continues and (source_language or target_language):
        raise UsageError(f"{model}: a language model translates between no languages; omit --from and --to")
    options: dict[str, Any] = {"device": device, "quantize": quantize}
    with open_output(None) as write:
        if data.kind == "dialogue":
            from dragoman.pipelines.dialogue import Chat

            chat = Chat.load(model, **options)
            for dialogue in read_turns(target, model):
                (scores,) = chat.score([dialogue])
                write(f"{sum(turn.log_prob for turn in scores):.6f}\t{sum(turn.tokens for turn in scores)}")
            return
        if source is None:
            from dragoman.pipelines.generation import TextGenerator

            generator = TextGenerator.load(model, **options)
            for text in read_input(target):
                (text_score,) = generator.score([text])
                write(f"{text_score.log_prob:.6f}\t{text_score.tokens}")
            return
        from dragoman.pipelines.translation import Translator

        sources, targets = read_parallel(source, target)
        translator = Translator.load(model, **options)
        for row in translator.score(sources, targets, source_language=source_language, target_language=target_language):
            write(f"{row.log_prob:.6f}\t{len(row.tokens)}")


def evaluate(
    model: Model,
    source: Source,
    reference: Annotated[Path, typer.Option(help="Reference translations, one per line.")],
    against: Annotated[Path | None, typer.Option(help="Second model, for a significance test.")] = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    tokenize: Tokenize = "auto",
    split: Split = None,
    quantize: Quantize = "none",
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Compute BLEU, chrF and TER, with their signatures.

    With --against, also test the difference of two models by paired bootstrap resampling.
    """
    from dragoman.evaluation.metrics import evaluate_model, overlap_warning
    from dragoman.models.model_folder import read_config
    from dragoman.pipelines.translation import Translator

    sources, references = read_parallel(source, reference)
    options: dict[str, Any] = {"device": device, "quantize": quantize}
    languages = {"source_language": source_language, "target_language": target_language}
    evaluation = evaluate_model(
        Translator.load(model, **options),
        sources,
        [references],
        against=None if against is None else Translator.load(against, **options),
        language=target_language or read_config(model).parallel.target_language,
        tokenize=tokenize,
        split=split,
        **{name: code for name, code in languages.items() if code is not None},
        progress=lambda translations: show_progress(translations, "translating", len(sources)),
    )
    warning = overlap_warning(model, sources)
    if as_json:
        print_json(evaluation.to_json() | {"warning": warning})
        return
    typer.echo("\n".join(evaluation.lines()))
    if warning:
        log(f"warning: {warning}")


def generate(
    model: Model,
    prompt: Annotated[list[str] | None, typer.Option(help="Beginning of a text. Can be repeated.")] = None,
    input_: InputFile = None,
    turns: Annotated[
        Path | None,
        typer.Option(
            help="Dialogues to reply to: JSON lines with messages (- for standard input), or a file in the format of "
            "the training data."
        ),
    ] = None,
    role: ReplyRole = None,
    output: OutputFile = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Maximum number of new tokens; default: 200, and for a reply a quarter of the context."),
    ] = None,
    greedy: Greedy = False,
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    jsonl: Jsonl = False,
    device: Device = "cpu",
) -> None:
    """Continue prompts with a language model, or reply to dialogues.

    The prompts are those of --prompt, or one per input line. With --turns, each dialogue gets one reply on one line.
    """
    if sum(map(bool, (prompt, input_, turns))) > 1:
        raise UsageError("--prompt, --input and --turns exclude each other; use one of them")
    settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    settings["sample"] = not greedy
    if turns is not None:
        _reply(model, turns, role, output, jsonl, device, max_tokens=max_tokens, **settings)
        return
    from dragoman.pipelines.generation import TextGenerator

    if role is not None:
        raise UsageError("--role applies to dialogues; specify them with --turns, or omit --role")
    generator = TextGenerator.load(model, device)
    settings["max_tokens"] = 200 if max_tokens is None else max_tokens

    def stream(prompts: Iterable[str]) -> Iterator[Continuation]:
        return generator.stream(prompts, **settings)

    with open_output(output, input_) as write:
        for found in stream(prompt) if prompt else answer_lines(input_, stream):
            write(json.dumps(found.to_json(), ensure_ascii=False) if jsonl else found.text)


def _reply(
    model: Path, turns: Path, role: str | None, output: Path | None, jsonl: bool, device: str, **settings: Any
) -> None:
    from dragoman.pipelines.dialogue import Chat
    from dragoman.pipelines.parts import one_line

    chat = Chat.load(model, device)
    truncated, roles = 0, set[str]()
    with open_output(output, turns) as write:
        for found in chat.stream(read_turns(turns, model), role, **settings):
            truncated += found.truncated
            roles.add(found.role)
            write(json.dumps(found.to_json(), ensure_ascii=False) if jsonl else one_line(found.text))
    for warning in filter(None, map(chat.role_warning, sorted(roles))):
        log(f"warning: {warning}")
    if truncated:
        log(f"truncated: {truncated:,} dialogues longer than the context; their oldest turns were not read")


def label(
    model: Model,
    input_: InputFile = None,
    output: OutputFile = None,
    jsonl: Jsonl = False,
    device: Device = "cpu",
) -> None:
    """Label words or texts: N lines in, N lines out, in order."""
    from dragoman.device import resolve_device
    from dragoman.models.model_folder import wrong_model
    from dragoman.pipelines.labelling import Labeller

    labeller = Labeller.load(model, resolve_device(device))
    if labeller.config.data.kind == "images":
        raise wrong_model(model, labeller.config, "does not label text")
    with open_output(output, input_) as write:
        for found in answer_lines(input_, labeller.stream):
            write(json.dumps(found.to_json(), ensure_ascii=False) if jsonl else str(found))


def parse(
    model: Model, input_: InputFile = None, output: OutputFile = None, beam: Beam = None, device: Device = "cpu"
) -> None:
    """Parse sentences into trees in Penn brackets.

    N lines in (words separated by spaces), N lines out, in order.
    """
    from dragoman.pipelines.parsing import Parser

    parser = Parser.load(model, device)
    settings: dict[str, Any] = {} if beam is None else {"beam": beam}
    repaired = 0
    with open_output(output, input_) as write:
        for tree, well_formed in answer_lines(input_, lambda lines: parser.stream(lines, **settings)):
            write(str(tree) if tree.children else "")
            repaired += bool(tree.children) and not well_formed
    if repaired:
        log(f"repaired: {repaired} model outputs that were not trees over the words")
