"""Precision and recall of the quality flags on injected faults, and the cost of the flags.

    python bench/flags.py --data DATA --model MODEL [--pair en fr] [--lines 2000] [--rounds 9]
    python bench/flags.py --data DATA                # `language` only, for several sources and without a model

MODEL: a translation model trained on Tatoeba (folder `tatoeba_en_fr` or `tatoeba_en_de` of DATA; see docs/data.md).

Faults of the input are injected into the lines of the test set, or lines of other corpora replace them; `translate`
sets the flags.  Faults of the output are injected into human translations, or into the output of the search for
`empty`.  Every fault is injected into every line that allows it.  False positives are counted on the same lines without
faults; for output flags on human translations, some of which contain such faults.

The last lines report the cost: the CPU time of translating the same text with and without flags, on one thread.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from dragoman import Translator
from dragoman.data.profile import TrainingProfile
from dragoman.decoding.hypothesis import Hypothesis, complete
from dragoman.pipelines.quality import FLAGS, QualityCheck

NEWS = ("newstest2008", "newstest2009", "newstest2010", "newstest2011", "newstest2012", "newstest2013")
FOREIGN = {
    "de": "tatoeba_en_de/test.de",
    "fr": "tatoeba_en_fr/test.fr",
    "cs": "multi30k/test2016.cs",
    "zh": "tatoeba_en_zh/test.zh",
    "ru": "mt_scoring/newstest2015_100.en-ru.ref.ru",
}
SYMBOLS = "😀🙈🚀❤️✓★→∑Ωжמم字語かक"
URLS = ("https://example.org/a/{0}?id={0}7", "www.site{0}.net/page", "user.{0}@mail.example.com", "{{name{0}}}")

Pair = tuple[str, str]


def read(path: Path) -> list[str]:
    """Return the lines of a file, or of its compressed version (`.gz`)."""
    if path.exists():
        return path.read_text("utf-8").split("\n")[:-1]
    return gzip.decompress(path.with_name(path.name + ".gz").read_bytes()).decode().split("\n")[:-1]


def table_row(fault: str, flag: str, found: Sequence[bool], clean: Sequence[bool]) -> str:
    recall, false = sum(found) / max(1, len(found)), sum(clean) / max(1, len(clean))
    return f"| {fault} | `{flag}` | {len(found):,} | {100 * recall:.1f} | {100 * false:.2f} ({len(clean):,}) |"


# -------------------------------------------------------------------------------------------------- faults of the input


def joined(lines: Sequence[str], count: int, draw: random.Random) -> str:
    """Return one line of `count` random lines, joined without final marks so that it is not split into sentences."""
    parts = [line.rstrip(".!?。 ") for line in draw.sample(lines, count)]
    return ", ".join([parts[0], *(part[:1].lower() + part[1:] for part in parts[1:])]) + "."


def with_symbol(line: str, draw: random.Random) -> str:
    words = line.split(" ")
    words.insert(draw.randrange(1, max(2, len(words))), draw.choice(SYMBOLS))
    return " ".join(words)


def input_rows(translator: Translator, lines: list[str], data: Path, language: str, count: int) -> Iterator[str]:
    draw = random.Random(1)

    def flagged(texts: Sequence[str], flag: str) -> list[bool]:
        return [flag in translation.flags for translation in translator.translate(texts, beam=1)]

    clean = [translation.flags for translation in translator.translate(lines, beam=1)]
    for joint in (2, 3, 4, 6):
        texts = [joined(lines, joint, draw) for _ in range(count)]
        yield table_row(f"{joint} lines joined into one", "long", flagged(texts, "long"), ["long" in f for f in clean])
    foreign = {code: read(data / path) for code, path in FOREIGN.items() if code != language}
    for code, texts in foreign.items():
        texts = [text for text in texts if text.strip()]
        texts = draw.sample(texts, min(len(texts), count // len(foreign)))
        found = flagged(texts, "language")
        yield table_row(f"input in another language: {code}", "language", found, ["language" in f for f in clean])
    symbols = [with_symbol(line, draw) for line in lines]
    flag = "unknown_characters"
    yield table_row("emoji, symbol or foreign letter", flag, flagged(symbols, flag), [flag in f for f in clean])
    news = read(data / f"wmt_news/newstest2013.{language}")[:count]
    yield f"\nnews in the same language: {shares(translator, news)}\n"


def shares(translator: Translator, lines: Sequence[str]) -> str:
    """Return the percentage of lines with each flag."""
    found = Counter(flag for translation in translator.translate(lines) for flag in translation.flags)
    return ", ".join(f"{flag} {100 * found[flag] / len(lines):.1f} %" for flag in FLAGS if found[flag])


# ------------------------------------------------------------------------------------------------- faults of the output


def with_changed_digit(target: str, draw: random.Random) -> str | None:
    digits = list(re.finditer(r"[0-9]", target))
    if not digits:
        return None
    at = draw.choice(digits)
    return target[: at.start()] + draw.choice([d for d in "123456789" if d != at[0]]) + target[at.end() :]


def with_shifted_point(target: str, draw: random.Random) -> str | None:
    """Return the target with a number of one digit, or a decimal fraction, multiplied or divided by ten."""
    numbers = list(re.finditer(r"(?<![\d.,:])\d(?:[.,]\d)?(?![\d.,:]*\d)", target))
    if not numbers:
        return None
    at = draw.choice(numbers)
    new = f"{at[0]}0" if len(at[0]) == 1 else at[0][0].strip("0") + at[0][2]
    return (
        target[: at.start()] + (f"0.{at[0]}" if len(at[0]) == 1 and draw.random() < 0.5 else new) + target[at.end() :]
    )


def without_time_or_fraction(target: str) -> str | None:
    """Return the target without its times and decimal fractions; None if it has none."""
    changed = re.sub(r"(?<![\d.,:])\d{1,2}[.,:]\d{1,2}(?![.,:]?\d)", "", target)
    return None if changed == target else changed


def without_end(target: str, share: float) -> str | None:
    words = target.split()
    return " ".join(words[: len(words) - round(share * len(words))]) if len(words) >= 6 else None


def output_rows(quality: QualityCheck, pairs: list[Pair], numbers: list[Pair]) -> Iterator[str]:
    draw = random.Random(2)

    def rows(
        name: str, flag: str, some: list[Pair], fault: Callable[[str], str | None], check: Callable[[str, str], bool]
    ) -> str:
        faulty = [(source, changed) for source, target in some if (changed := fault(target)) is not None]
        return table_row(name, flag, [check(*pair) for pair in faulty], [check(*pair) for pair in some])

    def has(flag: str) -> Callable[[str, str], bool]:
        return lambda source, target: flag in quality.changed_parts(source, target)

    def digit(target: str) -> str | None:
        return with_changed_digit(target, draw)

    yield rows("a digit changed, news", "numbers", numbers, digit, has("numbers"))
    with_digits = [pair for pair in numbers if re.search("[0-9]", "".join(pair))]
    yield rows("the same, only lines with digits", "numbers", with_digits, digit, has("numbers"))
    other = random.Random(4)
    name = "a number times or divided by ten"
    yield rows(name, "numbers", numbers, lambda text: with_shifted_point(text, other), has("numbers"))
    yield rows("times and decimal fractions dropped", "numbers", numbers, without_time_or_fraction, has("numbers"))
    for share in (0.3, 0.5, 0.7):
        name = f"the last {share:.0%} of the words dropped"
        yield rows(name, "coverage", pairs, lambda text, share=share: without_end(text, share), quality.lacks_content)  # type: ignore[misc]
    literals = [draw.choice(URLS).format(draw.randrange(100, 999)) for _ in pairs]
    with_url = [(f"{s} {url}", f"{t} {url}") for (s, t), url in zip(pairs, literals, strict=True)]

    def changed_url(target: str) -> str:
        text, _, url = target.rpartition(" ")
        at = draw.randrange(len(url))
        return text if draw.random() < 0.3 else f"{text} {url[:at]}{url[at + 1 :]}"

    yield rows("URL, address or {name} changed or lost", "placeholders", with_url, changed_url, has("placeholders"))


def empty_row(translator: Translator, lines: list[str]) -> str:
    """Return the row of `empty`; the first search returns an empty hypothesis for every second line."""
    lines = list(dict.fromkeys(lines))
    backend = translator.backend
    search, silenced = backend.search, {tuple(translator.tokenizer.encode_source(line)) for line in lines[::2]}

    def faulty(sources: Any, prefixes: Any, settings: Any, batch_tokens: int) -> list[list[Hypothesis]]:
        found = search(sources, prefixes, settings, batch_tokens)
        blank = complete([], [-0.1], settings.alpha, False)
        if settings.min_length:
            return found
        return [[blank] if tuple(ids) in silenced else row for ids, row in zip(sources, found, strict=True)]

    backend.search = faulty  # type: ignore[method-assign]
    try:
        done = translator.translate(lines, beam=1, split=False)
    finally:
        del backend.search
    found, clean = ["empty" in t.flags for t in done[::2]], ["empty" in t.flags for t in done[1::2]]
    returned = sum(not t.text.strip() for t in done)
    return table_row(f"empty output of the search ({returned} returned)", "empty", found, clean)


# ----------------------------------------------------------------------------------------------------------------- cost


class NoCheck(QualityCheck):
    """A check that sets no flags."""

    def source_flags(self, text: str, ids: Any) -> list[str]:
        return []

    changed_parts = source_flags

    def lacks_content(self, source: str, target: str) -> bool:
        return False


def cost(translator: Translator, lines: list[str], rounds: int, beam: int) -> str:
    checks = {"with": translator.quality, "without": NoCheck(translator.tokenizer, None, (None, None))}
    spent: dict[str, list[float]] = {name: [] for name in checks}
    for _ in range(rounds):
        for name, check in checks.items():
            translator.quality = check
            start = time.process_time()
            translator.translate(lines, beam=beam)
            spent[name].append(time.process_time() - start)
    translator.quality = checks["with"]
    ratios = sorted(a / b for a, b in zip(spent["with"], spent["without"], strict=True))
    per_line = {name: 1e6 * statistics.median(times) / len(lines) for name, times in spent.items()}
    low, high = ratios[rounds // 4], ratios[-1 - rounds // 4]
    return (
        f"beam {beam}: {per_line['with']:.0f} µs per line with flags, {per_line['without']:.0f} without; "
        f"{100 * statistics.median(ratios) - 100:+.1f} % ({100 * low - 100:+.1f} to {100 * high - 100:+.1f})"
    )


# ------------------------------------------------------------------------------------------------------------ languages

TRAINED = {  # folder, source, target, test set
    "de, Tatoeba": ("tatoeba_en_de", "de", "en", "test"),
    "fr, Tatoeba": ("tatoeba_en_fr", "fr", "en", "test"),
    "zh, Tatoeba": ("tatoeba_en_zh", "zh", "en", "test"),
    "cs, Multi30k": ("multi30k", "cs", "en", "test2016"),
    "en, Multi30k": ("multi30k", "en", "de", "test2016"),
    "de, TED": ("iwslt17_en_de_small", "de", "en", "test2013"),
    "en, TED": ("iwslt17_en_de_small", "en", "de", "test2013"),
}
OTHERS = {
    "ru, news": "mt_scoring/newstest2015_100.en-ru.ref.ru",
    "sk, TED": "mt_scoring/ted.sk-en.src.sk",
    "de, news": "wmt_news/newstest2013.de",
    "fr, news": "wmt_news/newstest2013.fr",
    "en, news": "wmt_news/newstest2013.en",
}


class Corpus:
    """Sentence pairs in memory, with the methods of `Store` that a profile needs; tokens are words."""

    def __init__(self, sources: list[str], targets: list[str]) -> None:
        self.pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if s.strip() and t.strip()]

    def __len__(self) -> int:
        return len(self.pairs)

    def text(self, number: int) -> Pair:
        return self.pairs[number]

    def alphabets(self, at_least: int) -> tuple[str, str]:
        return "", ""

    def lengths(self) -> tuple[Any, Any]:
        source, target = (np.array([len(text.split()) + 1 for text in side]) for side in zip(*self.pairs, strict=True))
        return source, target


def language_rows(data: Path) -> Iterator[str]:
    """Yield a row per training text with the percentage of lines flagged `language` in each test text."""
    tested = {name: read(data / folder / f"{test}.{code}") for name, (folder, code, _, test) in TRAINED.items()}
    tested |= {name: read(data / path) for name, path in OTHERS.items()}
    lines = {name: [line for line in some if line.strip()] for name, some in tested.items()}
    lines = {name: random.Random(1).sample(some, min(500, len(some))) for name, some in lines.items()}
    yield "| training text | " + " | ".join(lines) + " |\n|---" + "|---" * len(lines) + "|"
    for name, (folder, code, other, _) in TRAINED.items():
        corpus: Any = Corpus(*(read(data / folder / f"train.{side}") for side in (code, other)))
        check = QualityCheck(cast(Any, None), TrainingProfile.of(corpus, code), (code, other))
        shares = [sum(map(check.is_foreign, some)) / len(some) for some in lines.values()]
        yield f"| {name} | " + " | ".join(f"{100 * share:.1f}" for share in shares) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--pair", nargs=2, default=("en", "fr"))
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    if given.model is None:
        print("\n".join(language_rows(given.data)))
        return
    source = given.pair[0]
    folder = next(given.data / f"tatoeba_{a}_{b}" for a, b in (given.pair, given.pair[::-1]) if a == "en")
    lines, references = (read(folder / f"test.{code}")[: given.lines] for code in given.pair)
    pairs = list(zip(lines, references, strict=True))
    news = [zip(*(read(given.data / f"wmt_news/{n}.{c}") for c in given.pair), strict=True) for n in NEWS]
    numbers = random.Random(3).sample([pair for some in news for pair in some], given.lines)

    translator = Translator.load(given.model, threads=1)
    print("| fault | flag | lines | recall, % | false positives, % (lines) |\n|---|---|---|---|---|")
    for row in input_rows(translator, lines, given.data, source, given.lines):
        print(row, flush=True)
    for row in [*output_rows(translator.quality, pairs, numbers), empty_row(translator, lines)]:
        print(row, flush=True)
    print("\nthe model's own output:", shares(translator, lines))
    for beam in (1, 4):
        print(cost(translator, lines, given.rounds, beam), flush=True)


if __name__ == "__main__":
    main()
