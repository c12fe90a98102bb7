"""Text in the target language for `dragoman new`: its lines, and the stages that use it.

A model of the other direction, trained on the pairs, translates the text; the model of the run learns from the pairs
and from these translations, which have a tag (Sennrich et al. 2016; Caswell et al. 2019).  docs/stages.md has the
measurements behind the shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.advice.choice import (
    CorpusFacts,
    Setting,
    Speed,
    choose_size,
    choose_training,
    choose_vocabulary,
    duration,
)
from dragoman.advice.measurement import probe, time_translation, untrained_translator
from dragoman.advice.text import letters_hash
from dragoman.config.stages import TextConfig
from dragoman.data.languages import file_language
from dragoman.data.precheck import likely_language
from dragoman.errors import DataError, UsageError
from dragoman.io.lines import check_text_file, read_lines
from dragoman.training.run import open_run

FILE = "monolingual"
REVERSE_SHARE = 0.2
"""Share of the budget for the model of the other direction."""
_TEXT_SHARE = 0.2
"""Largest share of the budget for the translation of the text."""
_REAL_SHARE = 1 / 3
"""Share of the training pairs that are given pairs, which are repeated to reach it."""
_SAMPLE = 1000
_TEXT = "back-translation"


@dataclass(frozen=True)
class Monolingual:
    """The lines of a text that are used.  seconds: that their translation takes at most."""

    lines: list[str]
    seconds: float = 0.0


def read_monolingual(
    path: Path, languages: tuple[str, str], held_out: Sequence[str], digits: bool, log: Callable[[str], None]
) -> Monolingual:
    """Return the lines of a text in the target language, each once, without near-duplicates of held-out targets.

    digits: see `letters_hash`.  Raises UsageError for a file that does not exist and for another language, DataError if
    no line is left.
    """
    if not path.is_file():
        raise UsageError(f"monolingual = {path}: no such file; specify a text with one sentence per line")
    check_text_file(path, "use a text file with one sentence per line")
    counts, seen, lines = Counter[str](), set[int](), list[str]()
    held = {letters_hash(text, digits) for text in held_out}
    for line in map(str.strip, read_lines(path)):
        key = letters_hash(line, digits)
        reason = "empty" if not line else "duplicate" if key in seen else "held out" if key in held else ""
        counts[reason or "kept"] += 1
        if not reason:
            seen.add(key)
            lines.append(line)
    dropped = "".join(f" + {name} {counts[name]:,}" for name in ("empty", "duplicate", "held out") if counts[name])
    log(f"monolingual: read {counts.total():,} = kept {counts['kept']:,}{dropped}")
    if not lines:
        raise DataError(f"{path}: no line can be used; specify a text with one sentence per line")
    language = file_language(path) or likely_language(lines[:: max(1, len(lines) // _SAMPLE)])
    if language is not None and language != languages[1].partition("-")[0].casefold():
        raise UsageError(
            f"monolingual = {path}: its language is {language}; accepted: text in the target language, {languages[1]}, "
            "which is translated back. For other uses of text, write the stages yourself: see docs/stages.md"
        )
    return Monolingual(lines)


def limit_lines(
    text: Monolingual,
    facts: CorpusFacts,
    vocabulary: Sequence[Setting],
    speed: Speed,
    seconds: float,
    scratch: Path,
    log: Callable[[str], None],
) -> Monolingual:
    """Return the text with as many lines, evenly drawn, as can be translated in a share of `seconds`.

    vocabulary, speed: of the model of the other direction, whose speed of translation is measured.
    """
    run = open_run(probe(facts, vocabulary, speed.size, scratch), scratch / "probe-text")
    translator = untrained_translator(run, scratch / "untrained")
    some = text.lines[:: max(1, len(text.lines) // _SAMPLE)][:_SAMPLE]
    rate = time_translation(translator, some, TextConfig(model="reverse", text=FILE))
    most = max(1, int(rate * _TEXT_SHARE * seconds))
    lines = text.lines
    if len(lines) > most:
        lines = [lines[i * len(lines) // most] for i in range(most)]
        log(f"monolingual: {most:,} lines are used, as many as can be translated in {_TEXT_SHARE:.0%} of the budget")
    log(f"speed: at least {rate:,.0f} lines/s are translated: {len(lines) / rate:,.0f} s for {len(lines):,} lines")
    return Monolingual(lines, len(lines) / rate)


def all_pairs(facts: CorpusFacts, text: Monolingual) -> tuple[CorpusFacts, float]:
    """Return the facts of the given pairs, repeated, and the translations; and how often the given pairs are read."""
    wanted = _REAL_SHARE / (1 - _REAL_SHARE) * len(text.lines) / facts.pairs
    weight = float(f"{min(100.0, max(1.0, wanted)):.2g}")
    growth = ((facts.pairs + len(text.lines)) / facts.pairs) ** 0.5  # of the distinct words
    distinct = round(growth * facts.distinct[0]), round(growth * facts.distinct[1])
    return replace(facts, pairs=round(weight * facts.pairs) + len(text.lines), distinct=distinct), weight


def stages_of(
    base: Sequence[Setting],
    facts: CorpusFacts,
    speeds: Sequence[Speed],
    seconds: float,
    text: Monolingual,
    weight: float,
    validated: int,
) -> list[list[Setting]]:
    """Return the settings of the stages of a document.

    base: the settings of the document, which are those of the last stage.  facts: of the given pairs.  seconds: for
    the model of the other direction.
    """
    source, target = facts.languages
    speed, why = choose_size(facts, speeds, seconds)
    known = {setting.key: setting.value for setting in base}
    own = [*choose_vocabulary(facts), *choose_training(facts, speed, why, seconds, validated)]
    pairs = known["data.train"]
    return [
        [
            Setting("name", "reverse", f"A model from {target} to {source}, trained on the pairs alone."),
            Setting("reverse", True, ""),
            *(setting for setting in own if known.get(setting.key) != setting.value),
        ],
        [
            Setting(
                "name", _TEXT, f"Its translations of the text become sources, in at most {duration(text.seconds)}."
            ),
            Setting("back_translate.model", "stage:reverse", ""),
            Setting("back_translate.text", f"{FILE}.{target}", f"{len(text.lines):,} lines."),
            Setting("back_translate.tag", "<bt>", "Marks these sources, so that they are not taken for real ones."),
        ],
        [
            Setting("name", "final", "The model of the run: it learns from the pairs and the translations."),
            Setting(
                "data.train",
                [{**pairs[0], "weight": weight}, {"path": f"stage:{_TEXT}"}],
                "The pairs are repeated, so that they are not outnumbered.",
            ),
        ],
    ]
