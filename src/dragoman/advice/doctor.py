"""`dragoman doctor`: the diagnosis of a configuration or of two files, and a measured forecast of training."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dragoman.advice.diagnosis import Diagnosis
from dragoman.advice.examine import examine
from dragoman.advice.measurement import busy_machine, time_steps, time_translation, untrained_translator
from dragoman.advice.raw_pairs import single_corpus
from dragoman.advice.text import detect_languages
from dragoman.config import Config, load_config, read_document
from dragoman.config.stages import Stage, load_stages
from dragoman.data.corpus import CorpusSpec, corpus_spec
from dragoman.data.precheck import text_warnings
from dragoman.data.readers.tables import ACCEPTED, table_format
from dragoman.errors import DataError, DragomanError, UsageError
from dragoman.extras import wing
from dragoman.io.lines import read_lines
from dragoman.io.run_log import Messages
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import Tokenizer
from dragoman.training.forecast import Forecast, forecast_problems, plan_warnings
from dragoman.training.regularization import pass_weights
from dragoman.training.run import TrainingRun, check_files, open_run
from dragoman.training.stages import check_stages, without_made

_LINES = 2000
"""Lines of a text whose translation is measured."""


def diagnose(
    config_or_source: Path,
    target: Path | None = None,
    overrides: Sequence[str] = (),
    languages: Sequence[str] | None = None,
) -> Diagnosis:
    """Examine two text files, one file or folder, or the corpora of a configuration; without errors, time a few steps.

    overrides: `key=value` settings of the configuration.  languages: of text files; default: detected.  Raises
    ConfigError, UsageError for files that do not exist, for a single text file, for overrides of text files and
    languages of a configuration, DataError for a file without two columns of text.
    """
    if target is not None:
        if overrides:
            raise UsageError(f"{overrides[0]}: overrides need a configuration: dragoman doctor CONFIG.toml key=value")
        missing = [str(path) for path in (config_or_source, target) if not (path.is_file() or path.is_dir())]
        if missing:
            raise UsageError(f"no such file: {', '.join(missing)}")
    if target is not None or config_or_source.suffix != ".toml":
        spec = _single(config_or_source, languages) if target is None else CorpusSpec(config_or_source, target)
        codes: Sequence[str | None] = languages or (None, None)
        with suppress(DataError):  # a finding of the examination
            codes = languages or detect_languages(spec)
        return examine([spec], valid=None, test=None, source_language=codes[0], target_language=codes[1])
    if languages is not None:
        raise UsageError(f"languages = {' '.join(languages)}: for text; a configuration contains its languages")
    if "stage" in read_document(config_or_source):
        return _diagnose_stages(config_or_source, overrides)
    config = load_config(config_or_source, overrides)
    check_files(config)
    with tempfile.TemporaryDirectory() as scratch:
        return _diagnose_run(config, str(config_or_source), Path(scratch))[0]


def _diagnose_stages(path: Path, overrides: Sequence[str]) -> Diagnosis:
    """Examine the data of all stages, without what they make, and forecast their times."""
    stages = load_stages(path, overrides, run=Path("runs") / path.stem)
    check_stages(stages)
    whole = Diagnosis()
    with tempfile.TemporaryDirectory() as temporary:
        scratch, translators, pruned = Path(temporary), dict[Path, Translator](), dict[str, Path]()
        for stage in stages:
            where = f"{path}, stage {stage.name}"
            if stage.prune is not None:
                if made := wing("dragoman.adapt.stage", where).probe_stage(stage, scratch / stage.name):
                    pruned[str(stage.folder)] = made.folder
                    whole.add("info", "; ".join(made.lines()[:-1]), where, "with the first layers, for the forecast")
                continue
            if stage.text is not None:
                _forecast_text(stage, where, translators, whole)
                continue
            found, run = _diagnose_run(_from_the_start(stage, pruned), where, scratch / stage.name)
            whole.corpora += [corpus for corpus in found.corpora if corpus not in whole.corpora]
            whole.overlaps += [overlap for overlap in found.overlaps if overlap not in whole.overlaps]
            whole.account += f"{'; ' * bool(whole.account)}{stage.name}: {found.account}"
            whole.findings += [finding for finding in found.findings if finding not in whole.findings]
            if run is not None:
                translators[stage.folder] = untrained_translator(run, scratch / f"{stage.name}-untrained")
    return whole


def _from_the_start(stage: Stage, pruned: Mapping[str, Path]) -> Config:
    """Return the configuration of a stage without what earlier stages make, except pruned models, by their folders."""
    config = without_made(stage)
    if not stage.used or not (initial := config.train.init_from):
        return config
    made = str(pruned[initial]) if initial in pruned else None
    return config.model_copy(update={"train": config.train.model_copy(update={"init_from": made})})


def _forecast_text(stage: Stage, where: str, translators: Mapping[Path, Translator], diagnosis: Diagnosis) -> None:
    """Measure the translation of a few lines of the text of a stage; add its expected time."""
    assert stage.text is not None
    lines = [line for path in stage.paths for line in read_lines(path) if line.strip()]
    some = lines[:: max(1, len(lines) // _LINES)][:_LINES]
    model = stage.models[0]
    if model.parent == stage.folder.parent and model not in translators:
        return  # its stage has errors
    translator = translators.get(model) or Translator.load(model, stage.config.train.device)
    seconds = len(lines) / time_translation(translator, some, stage.text) if some else 0.0
    what = f"translating {len(lines):,} lines takes at most about {_duration(seconds)} on this machine"
    diagnosis.add("info" if lines else "error", what, where, "measured with a few lines, before the training")


def _single(path: Path, languages: Sequence[str] | None) -> CorpusSpec:
    """Return the corpus in one file or folder.  languages: of a TMX or an archive; None: its two."""
    try:
        form = table_format(path)
    except UsageError:
        raise UsageError(
            f"{path}: not a configuration; use a .toml file, two files: dragoman doctor SOURCE TARGET, or one "
            f"{ACCEPTED}"
        ) from None
    if not path.exists():
        raise UsageError(f"no such file: {path}")
    try:
        return single_corpus(path, languages, lambda _: None)
    except DataError:
        if form != ".tsv":
            raise
        return CorpusSpec(path=path)  # the examination reports its lines


def _diagnose_run(config: Config, where: str, scratch: Path) -> tuple[Diagnosis, TrainingRun | None]:
    """Return the diagnosis of a configuration, and its run, unless it cannot be opened."""
    problem, run = "", None
    messages = Messages()
    try:
        data = config.data
        if config.data.about.translates:  # the examination reads the validation text
            data = data.model_copy(update={"valid": None, "also_valid": {}})
        run = open_run(config.model_copy(update={"data": data}), scratch / "run", messages)
        run.task.validation()  # refuses what it cannot read
    except DragomanError as error:  # the findings of the examination are more precise
        run, problem = None, str(error)
    if config.data.about.translates:
        diagnosis = _examined(config, run)
    else:
        diagnosis = Diagnosis(account=" ".join(text.removeprefix("data: ") for text in messages.texts))
    if run is not None and diagnosis.healthy:
        forecast(run, where, diagnosis)
    elif problem and diagnosis.healthy:
        diagnosis.add("error", problem, where, "correct this before training")
    return diagnosis, run


def _examined(config: Config, run: TrainingRun | None) -> Diagnosis:
    """Examine the pairs of a configuration; with a run, count their tokens too."""
    data, vocabulary = config.parallel, None if run is None else run.task.vocabulary
    tokenizer = vocabulary if isinstance(vocabulary, Tokenizer) else None
    diagnosis = examine(
        [corpus_spec(config, c) for c in data.train],
        valid=None if data.valid is None else corpus_spec(config, data.valid),
        test=None if data.test is None else corpus_spec(config, data.test), source_language=data.source_language,
        target_language=data.target_language,
        encode=None if tokenizer is None else (tokenizer.encode_source, tokenizer.encode_target), rules=data.filter,
    )  # fmt: skip
    with suppress(DataError):  # the examination reports files that cannot be read
        for key, what, advice in text_warnings(config):
            diagnosis.add("warning", what, key, advice)
    return diagnosis


def forecast(run: TrainingRun, where: str, diagnosis: Diagnosis) -> None:
    """Measure a few training steps; add the estimated cost of training, and warnings about an insufficient plan."""
    timing, train = time_steps(run), run.config.train
    batches, tokens = timing.batches, run.task.tokens()
    steps = batches / train.accumulate
    epoch = tokens / timing.tokens_per_second  # seconds
    budget = train.budget
    seconds = {
        "seconds": budget.amount,
        "epochs": budget.amount * epoch,
        "steps": budget.amount / steps * epoch,
        "tokens": budget.amount / timing.tokens_per_second,
    }[budget.unit]
    expected = Forecast(seconds / epoch, seconds / epoch * steps, tokens, timing.parameters)
    estimate = (
        f"training for {budget} takes about {_duration(seconds)} and {expected.steps:,.0f} steps on this machine: "
        f"{expected.epochs:.1f} epochs of {steps:,.0f} steps, {timing.tokens_per_second:,.0f} tokens/s, "
        f"{timing.memory / 1e9:.1f} GB of memory, {timing.parameters:,} parameters"
    )
    if pass_weights(train.regularizer):
        estimate += "; train.regularizer computes each batch twice, which takes more than half of the time"
    diagnosis.add("info", estimate, where, f"measured over {timing.steps} steps, without validation and saving")
    if problem := busy_machine(timing.cores):
        advice = "training is faster on an idle machine: stop other programs and run this command again"
        diagnosis.add("warning", problem, where, advice)
    for what, advice in forecast_problems(run.config, expected, run.parameters_of):
        diagnosis.add("warning", what, where, advice)
    if budget.unit != "seconds":
        for warning in plan_warnings(train, run.task, batches):
            what, _, advice = warning.partition("; ")
            diagnosis.add("warning", what, where, advice)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 90 else f"{seconds:,.0f} s"
