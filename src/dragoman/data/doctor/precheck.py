"""The cheap checks of `dragoman doctor`, which run before every new training on parallel data.

Misaligned and shifted files are refused; texts in the wrong language and overlaps between the parts are warnings.
Files of more than `_SAMPLE` lines are examined for shifts in blocks spread over the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from dragoman.config import Config
from dragoman.data.alignment import Shift, line_features, shifted_stretch
from dragoman.data.corpus import CorpusSpec, corpus_spec, misalignment, read_pairs
from dragoman.data.languages import FREQUENT_WORDS, SCRIPTS, LanguageCheck, language_code
from dragoman.errors import DataError
from dragoman.io.lines import count_lines, open_lines, plain_suffix

__all__ = ["find_shift", "precheck"]

_SAMPLE, _BLOCK = 50_000, 2_000  # lines examined for shifts, and how many of them are consecutive
_LANGUAGE_LINES = 2_000
_ENOUGH_LINES = 20
_MOST = 0.5
_OVERLAP = 0.01
_WORD = re.compile(r"[^\W\d_]+")


def precheck(config: Config, log: Callable[[str], None]) -> None:
    """Check the corpora of a configuration (kind "parallel"); `log` receives the warnings.

    Raises DataError with every misaligned or shifted corpus.
    """
    data = config.parallel
    train = {f"data.train.{i}": corpus_spec(config, corpus) for i, corpus in enumerate(data.train)}
    held_out = {
        f"data.{name}": corpus_spec(config, corpus)
        for name, corpus in (("valid", data.valid), ("test", data.test))
        if corpus is not None
    }
    problems = []
    for key, spec in (train | held_out).items():
        fatal, text = _alignment(spec)
        if fatal:
            problems.append(f"{key}: {text}")
        elif text:
            log(f"warning: {key}: {text}")
    if problems:
        raise DataError("\n".join(problems))
    for key, spec in train.items():
        for warning in _language_warnings(spec, (data.source_language, data.target_language)):
            log(f"warning: {key}: {warning}")
    for warning in _overlap_warnings(list(train.values()), held_out):
        log(f"warning: {warning}")


# --------------------------------------------------------------------------------------------------------- alignment


def find_shift(source: Path, target: Path) -> Shift | None:
    """The stretch of two files of equal length that fits better when moved by a line or a few; None = none found."""
    lines = count_lines(source)
    blocks = _blocks(lines)
    shift = shifted_stretch(line_features(source, blocks), line_features(target, blocks))
    if shift is None:
        return None
    numbers = [n for block in blocks for n in block]
    return Shift(numbers[shift.first - 1] + 1, numbers[shift.last - 1] + 1, shift.offset, shift.z)


def _blocks(lines: int) -> list[range]:
    """All lines, or consecutive lines in blocks at equal distances, the first and the last lines among them."""
    if lines <= _SAMPLE:
        return [range(lines)]
    count = _SAMPLE // _BLOCK
    starts = [i * (lines - _BLOCK) // (count - 1) for i in range(count)]
    return [range(start, start + _BLOCK) for start in starts]


def _alignment(spec: CorpusSpec) -> tuple[bool, str]:
    """Return whether the pair of files must be refused, and the message; (False, text) is a warning."""
    if spec.source is None or spec.target is None:
        return False, ""
    misaligned = misalignment(spec.source, spec.target)
    if misaligned:
        return True, misaligned[1]
    shift = find_shift(spec.source, spec.target)
    if shift is None:
        return False, ""
    distance = f"{abs(shift.offset)} line{'s' * (abs(shift.offset) > 1)}"
    return shift.certain, (
        f"{spec.name}: lines {shift.first:,} to {shift.last:,} {'are' if shift.certain else 'may be'} shifted: the "
        f"target that fits a source line stands {distance} {'further on' if shift.offset > 0 else 'earlier'}. Compare "
        f"both files at line {shift.first:,}: one lacks a line there, or has one too many. If the files are right, "
        "shuffle the pairs, both files in the same order: only neighbouring lines are compared."
    )


# --------------------------------------------------------------------------------------------------------- languages


def _language_warnings(spec: CorpusSpec, languages: tuple[str, str]) -> Iterator[str]:
    """Warn about sides that are not in their language, or both in the same one, based on a sample of the corpus."""
    pairs = _some_pairs(spec)
    if len(pairs) < _ENOUGH_LINES:
        return
    same = sum(source == target for source, target in pairs)
    if same > _MOST * len(pairs):
        yield f"{spec.name}: source and target are the same text in {same:,} of {len(pairs):,} pairs examined"
        return
    codes = [_code(given, path) for given, path in zip(languages, (spec.source, spec.target), strict=True)]
    texts: list[list[str]] = [list(side) for side in zip(*pairs, strict=True)]
    warned = False
    for i, side in enumerate(("source", "target")):
        check = LanguageCheck(codes[i], codes[1 - i])
        suspects = sum(map(check.suspicious, texts[i]))
        if suspects > _MOST * len(pairs):
            warned = True
            yield (
                f"{spec.name}: {suspects:,} of {len(pairs):,} {side} lines examined do not look like "
                f"{codes[i]!r}; are source and target swapped_weights, or the languages named wrongly?"
            )
    found = [_likely_language(side) for side in texts]
    meant = codes[0] is not None and codes[0] == codes[1]
    if not warned and not meant and found[0] is not None and found[0] == found[1]:
        yield f"{spec.name}: source and target both look like {found[0]!r}; is one of the files the wrong one?"


def _some_pairs(spec: CorpusSpec) -> list[tuple[str, str]]:
    """Up to `_LANGUAGE_LINES` pairs at equal distances; pairs with an empty side are left out."""
    if spec.source is None or spec.target is None:
        rows = islice(read_pairs(spec), _LANGUAGE_LINES)
        found = [(pair.source.strip(), pair.target.strip()) for pair in rows]
    else:
        step = max(1, count_lines(spec.source) // _LANGUAGE_LINES)
        sides = [islice(open_lines(path), 0, None, step) for path in (spec.source, spec.target)]
        found = [(_text(source), _text(target)) for source, target in zip(*sides, strict=True)]
    return [(source, target) for source, target in found if source and target]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip()


def _code(given: str, path: Path | None) -> str | None:
    """The language that the configuration names, or else the suffix of the file; None where neither is known."""
    for code in (language_code(given), plain_suffix(path).removeprefix(".") if path else None):
        if code in SCRIPTS:
            return code
    return None


def _likely_language(texts: list[str]) -> str | None:
    """The language whose frequent words make up most of the texts, if there is a clear one."""
    words = Counter(word for text in texts for word in _WORD.findall(text.casefold()))
    hits = {code: sum(words[word] for word in frequent) for code, frequent in FREQUENT_WORDS.items()}
    (best, most), (_, second) = Counter(hits).most_common(2)
    return best if most > 0.15 * words.total() and most > 1.5 * second else None


# ----------------------------------------------------------------------------------------------------------- overlap


def _overlap_warnings(train: list[CorpusSpec], held_out: dict[str, CorpusSpec]) -> Iterator[str]:
    """Held-out parts of which pairs occur in the training data or in the other held-out part."""
    pairs = {key: set(_keys(spec)) for key, spec in held_out.items()}
    seen: dict[str, set[int]] = {key: set() for key in pairs}
    if any(pairs.values()):
        for spec in train:
            for pair in _keys(spec):
                for key, own in pairs.items():
                    if pair in own:
                        seen[key].add(pair)
    found = [(key, seen[key], "data.train") for key in pairs]
    if len(pairs) == 2:
        found.append(("data.valid", pairs["data.valid"] & pairs["data.test"], "data.test"))
    for key, shared, where in found:
        if len(shared) > _OVERLAP * len(pairs[key]):
            yield (
                f"{key}: {len(shared):,} of {len(pairs[key]):,} pairs are also in {where}; scores on them measure "
                "memory, not translation: take them out of one of the two"
            )


def _keys(spec: CorpusSpec) -> Iterator[int]:
    """A hash of every pair."""
    if spec.source is None or spec.target is None:
        return (hash((pair.source.strip().encode(), pair.target.strip().encode())) for pair in read_pairs(spec))
    sides = [(raw.strip() for raw in open_lines(path)) for path in (spec.source, spec.target)]
    return map(hash, zip(*sides, strict=True))
