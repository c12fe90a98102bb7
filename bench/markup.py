"""Check and measure how tags move with the words that they surround.

    python bench/markup.py --data DATA --model MODEL [--lines 5000] [--rounds 5] [--training 29000]

DATA: folder that contains `multi30k`.  MODEL: a model trained on it from English to German.

1. Random trees of tags are put into the lines, as segments and as HTML.  A failure is a result that is not well nested,
   has other tags than its source, or another text than the translation of the plain lines.
2. Time of `translate_segments` and `translate_html` relative to `translate`, on one thread; medians of `--rounds`.
3. Alignment.  A statistical aligner (IBM model 1 with a preference for the diagonal, as Dyer et al. 2013) is trained on
   the training text and on the lines with their translations, in both directions; the links that both directions have
   are the reference.  `links`: how often the largest weight of a target word is at the linked source word.  `tags`: of
   tags around 1 to 5 random words, precision and recall of the linked target words inside of the tag, and the share of
   tags that surround exactly the linked words.  Target words without a link are not counted.
4. `copies`: how often a tagged number or word of four or more letters is inside of its tag, if the text and the
   translation have it once, unchanged.
"""

from __future__ import annotations

import argparse
import gzip
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from dragoman import Translator
from dragoman.markup import Segment, Tag, plain_text, translate_html, translate_segments, word_alignment
from dragoman.markup.word_alignment import Block, Floats, align_regions, find_regions, find_units
from dragoman.pipelines.translation import Translation

Links = set[tuple[int, int]]
"""Pairs of a source word and a target word."""


def read(path: Path) -> list[str]:
    """Return the lines of a file, or of its compressed version (`.gz`)."""
    if path.exists():
        return path.read_text("utf-8").split("\n")[:-1]
    return gzip.decompress(path.with_name(path.name + ".gz").read_bytes()).decode().split("\n")[:-1]


# ------------------------------------------------------------------------------------------------------ 1. properties


def random_tree(text: str, rng: random.Random) -> Segment:
    """Return the text with up to 8 pairs of tags and empty tags at random positions."""
    items: list[str | Tag] = list(text)
    for number in range(rng.randint(1, 8)):
        if rng.random() < 0.3:
            items.insert(rng.randint(0, len(items)), Tag("empty", f"<e{number}/>", number))
            continue
        start = rng.randint(0, len(items))
        ends, depth = [], 0
        for index in range(start, len(items) + 1):  # positions at which a pair that begins at `start` may end
            if depth == 0:
                ends.append(index)
            item = items[index] if index < len(items) else None
            depth += 0 if item is None or isinstance(item, str) else {"open": 1, "close": -1, "empty": 0}[item.kind]
            if depth < 0:
                break
        end = rng.choice(ends)
        items.insert(end, Tag("close", f"</p{number}>", number))
        items.insert(start, Tag("open", f"<p{number}>", number))
    return items


def is_well_nested(segment: Segment) -> bool:
    opened: list[int] = []
    for item in segment:
        if isinstance(item, str) or item.kind == "empty":
            continue
        if item.kind == "open":
            opened.append(item.pair)
        elif not opened or opened.pop() != item.pair:
            return False
    return not opened


def tags_of(segment: Segment) -> Counter[str]:
    return Counter(item.raw for item in segment if not isinstance(item, str))


class Page(HTMLParser):
    """Tags, text, and whether the tags of pairs are well nested, as the parser of the standard library reads them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.text, self.opened, self.nested = "", list[str](), True
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags[tag] += 1
        self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self.tags[f"/{tag}"] += 1
        self.nested = self.nested and bool(self.opened) and self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def as_html(segment: Segment) -> str:
    encode = str.maketrans({"&": "&amp;", "<": "&lt;"})
    return "".join(item.translate(encode) if isinstance(item, str) else item.raw for item in segment)


def check_properties(translator: Translator, trees: Sequence[Segment]) -> None:
    plain = [translation.text for translation in translator.translate([plain_text(tree) for tree in trees])]
    results = translate_segments(translator, trees)
    failures = Counter[str]()
    for tree, result, text in zip(trees, results, plain, strict=True):
        failures["nesting"] += not is_well_nested(result)
        failures["tags"] += tags_of(result) != tags_of(tree)
        failures["text"] += plain_text(result) != text
    print(f"segments: {len(trees):,} random trees, failures: {dict(failures)}")
    failures.clear()
    sources = [as_html(tree) for tree in trees]
    for source, result, text in zip(sources, translate_html(translator, sources), plain, strict=True):
        page = Page(result)
        failures["nesting"] += not page.nested or bool(page.opened)
        failures["tags"] += page.tags != Page(source).tags
        failures["text"] += "".join(page.text.split()) != "".join(text.split())
    print(f"HTML: {len(trees):,} fragments, failures: {dict(failures)} (text without spaces)")


# ------------------------------------------------------------------------------------------------------------ 2. time


def measure_time(translator: Translator, texts: Sequence[str], trees: Sequence[Segment], rounds: int) -> None:
    rng = random.Random(2)
    single = [tagged_words(text, *random_range(len(find_units(text)), rng)) for text in texts]
    pages = [f"<p>{as_html(segment)}</p>" for segment in single]
    tasks: dict[str, Callable[[], object]] = {
        "plain": lambda: translator.translate(texts),
        "segments without tags": lambda: translate_segments(translator, [[text] for text in texts]),
        "segments, one pair each": lambda: translate_segments(translator, single),
        "HTML, one pair each": lambda: translate_html(translator, pages),
        "random trees": lambda: translate_segments(translator, trees),
    }
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            seconds[name].append(time.process_time() - start)
    for name, found in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(found, seconds["plain"], strict=True))
        print(f"{name}: {statistics.median(found):.2f} s for {len(texts):,} lines, {ratio:.2f} times plain")


# ------------------------------------------------------------------------------------------------------- 3. alignment


def words(text: str) -> list[str]:
    return [text[start:end].casefold() for start, end in find_units(text)]


def best_links(sources: Sequence[list[str]], targets: Sequence[list[str]], rounds: int = 6) -> Iterator[Links]:
    """Train the aligner and yield the source word of each target word of each pair, without those of the null word."""
    source_ids: dict[str, int] = {}
    target_ids: dict[str, int] = {}
    keys, priors, groups, columns = [], [], [], []
    count = 0
    for source, target in zip(sources, targets, strict=True):
        ids = np.array([0, *(source_ids.setdefault(word, len(source_ids) + 1) for word in source)])
        ours = np.array([target_ids.setdefault(word, len(target_ids)) for word in target])
        m, n = len(source), len(target)
        distance = np.abs((np.arange(n)[:, None] + 0.5) / max(n, 1) - (np.arange(m)[None] + 0.5) / max(m, 1))
        prior = np.exp(-4 * distance)
        prior = np.concatenate([np.full((n, 1), 0.08), 0.92 * prior / prior.sum(1, keepdims=True)], 1)
        keys.append((ids[None] * 1_000_000 + ours[:, None]).ravel())
        priors.append(prior.ravel())
        groups.append(np.repeat(np.arange(count, count + n), m + 1))
        columns.append(np.tile(np.arange(-1, m), n))
        count += n
    pairs, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    prior, group, column = np.concatenate(priors), np.concatenate(groups), np.concatenate(columns)
    table = np.ones(len(pairs))
    for _ in range(rounds + 1):
        posterior = table[inverse] * prior
        posterior /= np.bincount(group, posterior, minlength=count)[group]
        expected = np.bincount(inverse, posterior, minlength=len(pairs)) + 1e-4
        table = expected / np.bincount(pairs // 1_000_000, expected)[pairs // 1_000_000]
    order = np.lexsort((posterior, group))
    last = np.flatnonzero(np.append(np.diff(group[order]), 1))
    best = iter(column[order[last]].tolist())
    for target in targets:
        yield {(next(best), index) for index in range(len(target))}


def reference_links(
    sources: Sequence[str], targets: Sequence[str], more: tuple[Sequence[str], Sequence[str]]
) -> list[Links]:
    ours, theirs = [words(text) for text in [*sources, *more[0]]], [words(text) for text in [*targets, *more[1]]]
    forward, backward = best_links(ours, theirs), best_links(theirs, ours)
    both = [a & {(i, j) for j, i in b} for a, b in zip(forward, backward, strict=True)]
    return [{(i, j) for i, j in links if i >= 0 and j >= 0} for links in both[: len(sources)]]


def random_range(count: int, rng: random.Random) -> tuple[int, int]:
    size = min(rng.choice((1, 1, 2, 3, 5)), count)
    start = rng.randint(0, count - size)
    return start, start + size


def tagged_words(text: str, start: int, end: int) -> Segment:
    """Return the text with a pair of tags around words."""
    units = find_units(text)
    first, last = units[start][0], units[end - 1][1]
    items = [text[:first], Tag("open", "<b>", 0), text[first:last], Tag("close", "</b>", 0), text[last:]]
    return [item for item in items if item != ""]


def words_in_tag(segment: Segment) -> set[int]:
    """Return the words of the text that are inside of the pair of tags."""
    tags = [index for index, item in enumerate(segment) if not isinstance(item, str)]
    start, end = (len(plain_text(segment[:index])) for index in tags)
    return {index for index, unit in enumerate(find_units(plain_text(segment))) if start <= unit[0] and unit[1] <= end}


def measure_links(translator: Translator, translations: Sequence[Translation], links: Sequence[Links]) -> None:
    """Compare the weights of `align_regions` with those without its corrections, and with relative positions."""
    lines = [translator.split(translation.source) for translation in translations]
    regions = [find_regions(translator.tokenizer, line, t) for line, t in zip(lines, translations, strict=True)]
    cuts = [[start for start, _ in find_units(translation.source)] for translation in translations]
    original = word_alignment._unit_weights

    def position(attention: Floats, equal: Floats, attends: bool) -> Floats:
        return original(np.ones_like(attention), 0 * equal, False)

    variants = {
        "attention": lambda attention, equal, attends: attention,
        "relative attention": lambda attention, equal, attends: attention / np.maximum(attention.mean(0), 1e-9),
        "dragoman": original,
        "relative position": position,
    }
    for name, variant in variants.items():
        word_alignment._unit_weights = variant
        blocks = align_regions(translator, regions, cuts, 4000)
        right = total = 0
        for found, line in zip(links, blocks, strict=True):
            nearest = [column for block in line for column in _nearest(block, line)]
            right += sum(nearest[j] == i for i, j in found)
            total += len(found)
        print(f"links, {name}: {right / total:.3f} of {total:,}")
    word_alignment._unit_weights = original


def _nearest(block: Block, line: Sequence[Block]) -> list[int]:
    """Return the index in the line of the source word of each target word."""
    before = sum(len(other.source) for other in line[: line.index(block)])
    return (block.weights.argmax(1) + before).tolist() if block.source else [-1] * len(block.target)


def measure_tags(translator: Translator, translations: Sequence[Translation], links: Sequence[Links]) -> None:
    rng = random.Random(3)
    ranges = [random_range(len(find_units(translation.source)), rng) for translation in translations]
    segments = [tagged_words(t.source, *chosen) for t, chosen in zip(translations, ranges, strict=True)]
    inside = outside = missed = exact = tags = 0
    for (start, end), found, result in zip(ranges, links, translate_segments(translator, segments), strict=True):
        chosen = words_in_tag(result)
        linked = {j for i, j in found if start <= i < end}
        others = {j for _, j in found} - linked
        if not linked:
            continue
        inside += len(chosen & linked)
        outside += len(chosen & others)
        missed += len(linked - chosen)
        exact += not (chosen & others or linked - chosen)
        tags += 1
    print(
        f"tags: precision {inside / (inside + outside):.3f}, recall {inside / (inside + missed):.3f}, "
        f"exact {exact / tags:.3f} of {tags:,}"
    )


def measure_copies(translator: Translator, translations: Sequence[Translation]) -> None:
    segments, expected = [], []
    for translation in translations:
        ours, theirs = (
            [text[start:end] for start, end in find_units(text)] for text in (translation.source, translation.text)
        )
        for index, word in enumerate(ours):
            if (word.isdigit() or len(word) > 3) and ours.count(word) == theirs.count(word) == 1:
                segments.append(tagged_words(translation.source, index, index + 1))
                expected.append(theirs.index(word))
    results = translate_segments(translator, segments)
    found = [words_in_tag(result) for result in results]
    inside = sum(word in chosen for word, chosen in zip(expected, found, strict=True))
    print(f"copies: {inside} of {len(found)} are inside of their tag")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--training", type=int, default=29_000, help="lines to train the aligner on")
    arguments = parser.parse_args()
    folder, rng = arguments.data / "multi30k", random.Random(1)
    sources = [line for name in ("test2016.en", "valid.en", "train.en") for line in read(folder / name)]
    sources = [source for source in sources if find_units(source)][: arguments.lines]
    translator = Translator.load(arguments.model, threads=1)
    print(f"{translator.description}, {len(sources):,} lines")
    trees = [random_tree(source, rng) for source in sources]
    check_properties(translator, trees)
    measure_time(translator, sources, trees, arguments.rounds)
    translations = translator.translate(sources)
    more = [read(folder / f"train.{language}")[: arguments.training] for language in ("en", "de")]
    links = reference_links(sources, [translation.text for translation in translations], (more[0], more[1]))
    measure_links(translator, translations, links)
    measure_tags(translator, translations, links)
    measure_copies(translator, translations)


if __name__ == "__main__":
    main()
