"""`dragoman adapt`: a document of stages that makes a public model smaller and fine-tunes it on a parallel text.

A checkpoint of another program is imported first.  The pruned model is measured before the document is written.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.adapt.pruning import PAIRS, Pruned, Pruning, prune_model
from dragoman.adapt.stage import direction
from dragoman.advice.choice import Setting
from dragoman.advice.finetune import Initial
from dragoman.advice.new import TrainingPlan
from dragoman.errors import check_problems
from dragoman.formats.importing.family import collecting
from dragoman.formats.importing.importer import import_model, plan_import
from dragoman.io.model_files import find_model
from dragoman.tokenizers import Tokenizer


@dataclass(frozen=True)
class Adapted(Initial):
    """A model to adapt.  pruning: with the texts of the user.  pruned: what became of it, in `seconds`."""

    pruning: Pruning = Pruning(Path())  # noqa: RUF009 (frozen)
    is_checkpoint: bool = False
    pruned: Pruned | None = None
    seconds: float = 0.0

    def prepared(
        self,
        languages: tuple[str, str],
        folder: Path,
        scratch: Path,
        path: Path,
        stack: ExitStack,
        log: Callable[[str], None],
    ) -> Adapted:
        model = path.with_name(f"{path.stem}-model") if self.is_checkpoint else find_model(self.path)
        if self.is_checkpoint:
            log("\n".join(import_model(self.path, model).lines()))
            stack.push(lambda kind, error, trace: None if kind is None else shutil.rmtree(model))
        replay = [corpus for corpus in self._corpora(self.data.train) if self.pairs and "source" in corpus]
        sides = zip(("source", "target"), languages, strict=True)
        files = {side: [f"train.{code}", *(corpus[side] for corpus in replay)] for side, code in sides}
        valid, codes = folder / f"valid.{languages[0]}", direction(self.vocabulary, languages)
        texts = [[folder / file for file in paths] for paths in files.values()]
        pair = (valid, valid.with_suffix(f".{languages[1]}")) if valid.is_file() else None
        rules = replace(self.pruning, model=model, source=texts[0], target=texts[1], valid=pair, languages=codes)
        begun = time.monotonic()
        pruned = prune_model(rules, scratch / "small", log, compare=False)
        for line in pruned.lines()[:-1]:
            log(line)
        own: dict[str, Any] = {f"{stack}_layers": count for stack, count in rules.layers.items()}
        own |= {"min_count": rules.min_count, "scripts": list(rules.scripts)}
        small = [Setting("name", "small", "The pruned model."), Setting("prune.model", str(model.resolve()), "")]
        small += [Setting(f"prune.{key}", value, "") for key, value in {**files, **own}.items()]
        final = [Setting("name", "final", "The model of the run."), Setting("train.init_from", "stage:small", "")]
        seconds = time.monotonic() - begun
        return replace(self, path=model, stages=[small, final], measured=pruned.folder, pruned=pruned, seconds=seconds)

    def training(self, seconds: float, validated: int) -> list[Setting]:
        return [setting for setting in super().training(seconds, validated) if setting.key != "train.init_from"]

    def rows(self, plan: TrainingPlan) -> Iterator[tuple[str, ...]]:
        """Yield for each stage its name, what it does, million weights, MB, minutes and GB of memory."""
        assert self.pruned is not None
        before, after = self.pruned.size
        have = {stack: getattr(self.config.model, f"{stack}_layers") for stack in self.pruning.layers}
        removed = sum(have.values()) - sum(self.pruning.layers.values())  # each with the loss of every layer
        tokens = PAIRS * plan.forecast.tokens / plan.forecast.epochs / plan.facts.pairs * removed * sum(have.values())
        compared = tokens / plan.speeds[0].tokens_per_second / 3 * before / after  # a third: the forward passes
        layers = [f"{count} of {have[stack]} {stack} layers" for stack, count in self.pruning.layers.items()]
        what = ", ".join([f"{self.pruned.pieces[0]:,} -> {self.pruned.pieces[1]:,} pieces", *layers])
        sizes = [f"{before / unit:,.1f} -> {after / unit:,.1f}" for unit in (4e6, 1e6)]
        yield "small", what, *sizes, f"{(self.seconds + compared) / 60:.1f}", ""
        how = "all weights" if plan.config.train.lora is None else "LoRA"
        what = f"{how}, {plan.forecast.epochs:.1f} epochs, {plan.forecast.steps:,} steps"
        numbers = after / 4e6, after / 1e6, plan.config.train.budget.amount / 60, plan.memory / 1e9
        yield "final", what, *(f"{number:,.1f}" for number in numbers)


def checked(pruning: Pruning) -> Adapted:
    """Return the model to adapt.  Raises UsageError with all problems that can be found before the text is read."""
    path = pruning.model
    if is_checkpoint := (path / "config.json").exists() and not (path / "meta.json").exists():
        plan = plan_import(path)
        initial = Initial(path, plan.config, True, 0, plan.vocabulary.tokenizer)
    else:
        initial = Initial.of(path)
    problems, codes = list[str](), pruning.languages
    with collecting(problems):
        initial.check((codes[0], codes[1])) if codes[0] and codes[1] else None
    rules = replace(pruning, valid=pruning.valid or (pruning.source[0], pruning.target[0]), languages=(None, None))
    own = initial.vocabulary
    problems += rules.problems(initial.config, own if isinstance(own, Tokenizer) and not any(own.languages) else None)
    check_problems("invalid adaptation:", problems)
    return Adapted(**vars(initial), pruning=pruning, is_checkpoint=is_checkpoint)
