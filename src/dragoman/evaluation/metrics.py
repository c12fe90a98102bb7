"""Scores of translations, each with the signature that makes it comparable, and significance between two systems."""

from __future__ import annotations

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from dragoman.data.languages import language_code
from dragoman.errors import DataError, UsageError
from dragoman.io.lines import clip

if TYPE_CHECKING:
    from dragoman.pipelines.translation import Translator

__all__ = [
    "Evaluation",
    "Metric",
    "Significance",
    "SignificanceTest",
    "TrainTestOverlap",
    "bleu_tokenizer",
    "compare",
    "corpus_scores",
    "evaluate_model",
    "evaluate_texts",
    "literature_bleu",
    "overlap",
    "warn_of_overlap",
]

References = Sequence[Sequence[str]]
"""One or more references: lists with one line a sentence."""

TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none")
COMPARED = ("bleu", "chrf", "ter")

_LOG = logging.getLogger(__name__)
_CHINESE = ("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh")
_TOKENIZER_OF = dict.fromkeys(_CHINESE, "zh") | {
    "ja": "ja-mecab", "jpn": "ja-mecab", "ko": "ko-mecab", "kor": "ko-mecab",
}  # fmt: skip
# Written Japanese has no spaces, so 13a would take a sentence for one word; written Korean has.
_NOT_INSTALLED = {"ja-mecab": ("Japanese", "char"), "ko-mecab": ("Korean", "13a")}


@dataclass(frozen=True)
class Metric:
    """One score of a corpus, in per cent, and sacreBLEU's signature of everything that could change it."""

    name: str
    score: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f} ({self.signature})"


@dataclass(frozen=True)
class Significance:
    """One metric of a system a against a system b on the same lines (paired bootstrap, Koehn 2004).

    a, b: scores.  a_interval, b_interval: half the width of the 95 % confidence interval over the resamples.
    p_value: how probable a difference as large as this is where the systems are equally good.
    """

    name: str
    a: float
    b: float
    a_interval: float
    b_interval: float
    p_value: float
    signature: str

    def __str__(self) -> str:
        return (
            f"{self.name} {self.a:.2f} ± {self.a_interval:.2f} against {self.b:.2f} ± {self.b_interval:.2f}, "
            f"p = {self.p_value:.4f} ({self.signature})"
        )


@dataclass(frozen=True)
class SignificanceTest:
    """All metrics of two systems; `samples` resamples of the test set."""

    bleu: Significance
    chrf: Significance
    ter: Significance
    samples: int

    def to_json(self) -> dict[str, Any]:
        """All of it, for `json.dumps`."""
        return asdict(self)


@dataclass(frozen=True)
class TrainTestOverlap:
    """How many of `total` test lines are also training lines, and the first of them by number (from 1) and text."""

    seen: int
    total: int
    examples: tuple[tuple[int, str], ...]

    @property
    def warning(self) -> str:
        """One sentence; empty where there is no overlap."""
        if not self.seen:
            return ""
        line, text = self.examples[0]
        return (
            f"{self.seen} of {self.total} test lines ({self.seen / self.total:.1%}) are also in the training text, "
            f"first line {line} ({clip(text)!r}), so the scores flatter the model; take them out of the training text"
        )


@dataclass(frozen=True)
class Evaluation:
    """Scores of one system on one test set.

    literature: BLEU of lowercased, tokenized text, see `literature_bleu`.  against: this system (a) and another (b).
    flags: how many translations carry each flag of `Translation`.
    """

    bleu: Metric
    chrf: Metric
    ter: Metric
    sentences: int
    literature: Metric | None = None
    against: SignificanceTest | None = None
    flags: dict[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, for `json.dumps`; what was not asked for is None."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people: a line a score with its signature, then what the comparison and the flags say."""
        metrics = (self.bleu, self.chrf, self.ter, self.literature)
        lines = [str(metric) for metric in metrics if metric is not None]
        if self.against is not None:
            lines += [str(getattr(self.against, name)) for name in COMPARED]
        if self.flags:
            counted = ", ".join(f"{name} {count}" for name, count in sorted(self.flags.items()))
            lines.append(f"flags among {self.sentences} translations: {counted}")
        return lines


@functools.cache
def bleu_tokenizer(language: str, tokenize: str = "auto") -> str:
    """The sacreBLEU tokenizer that BLEU of text in `language` (`zh`, `zh-Hans`, `ja_JP`) is computed with.

    "auto": zh for Chinese, ja-mecab for Japanese, ko-mecab for Korean, 13a for every other language.  Where the package
    of Japanese or Korean is missing, a warning names it, and the tokenizer is char for Japanese and 13a for Korean.
    Any other `tokenize` is returned as it is.  Raises UsageError for an unknown or uninstalled one.
    """
    if tokenize != "auto":
        _check_tokenizer(tokenize)
        return tokenize
    name = _TOKENIZER_OF.get(language_code(language) or "", "13a")
    if _is_installed(name):
        return name
    spoken, fallback = _NOT_INSTALLED[name]
    _LOG.warning(
        "BLEU of %s: sacreBLEU's tokenizer %s is not installed, so %s is used (tok:%s in the signature), and the score "
        "cannot be compared with published ones; install it with: %s",
        *(spoken, name, fallback, fallback, _installation(name)),
    )
    return fallback


def _check_tokenizer(tokenize: str) -> None:
    if tokenize not in TOKENIZERS:
        raise UsageError(f"tokenize = {tokenize!r}: must be one of auto, {', '.join(TOKENIZERS)}")
    if not _is_installed(tokenize):
        raise UsageError(f"tokenize = {tokenize!r}: not installed; install it with: {_installation(tokenize)}")


def _is_installed(tokenize: str) -> bool:
    try:
        BLEU(tokenize=tokenize)
    except (RuntimeError, AssertionError):  # sacreBLEU: its package is missing, or has another dictionary
        return False
    return True


def _installation(tokenize: str) -> str:
    return f"pip install 'sacrebleu[{tokenize[:2]}]'"


def evaluate_texts(
    hypotheses: Sequence[str], references: References, lowercase: bool = False, tokenize: str = "13a"
) -> Evaluation:
    """BLEU, chrF2 and TER by sacreBLEU (Post 2018) of raw text.

    references: one or more lists, each with one line a hypothesis.  lowercase: of BLEU and chrF; TER ignores case
    either way, as sacreBLEU's does by default.  tokenize: BLEU's, one of 13a, intl, zh, ja-mecab, ko-mecab, char, none;
    `bleu_tokenizer` chooses one by language.  Raises UsageError for numbers of lines that differ, no lines, or another
    tokenizer.
    """
    _check(hypotheses, references)
    _check_tokenizer(tokenize)
    bleu, chrf, ter = (_metric(metric, hypotheses, references) for metric in _metrics(lowercase, tokenize))
    return Evaluation(bleu, chrf, ter, len(hypotheses))


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> dict[str, float]:
    """BLEU and chrF2 of raw text in per cent, for a look during training: {"bleu": ..., "chrf": ...}."""
    _check(hypotheses, [references])
    bleu, chrf, _ = _metrics(tokenize=tokenize)
    return {
        "bleu": _metric(bleu, hypotheses, [references]).score,
        "chrf": _metric(chrf, hypotheses, [references]).score,
    }


def literature_bleu(hypotheses: Sequence[str], references: References, language: str) -> Metric:
    """BLEU of text with punctuation normalised, lowercased and tokenized by Moses' rules, as papers on Multi30k report.

    language: code of the language of hypotheses and references.  Not to be compared with BLEU of raw text; the
    signature says how the text was prepared.  Raises UsageError for a language that Moses' tokenizer does not know or,
    like Chinese, does not cut into words.
    """
    _check(hypotheses, references)
    known = _moses_languages()
    if (code := language_code(language)) not in known:
        raise UsageError(
            f"literature BLEU of language {language!r}: Moses' tokenizer does not cut it into words; accepted: "
            f"{', '.join(sorted(known))}; use evaluate_texts, with tokenize=bleu_tokenizer(language)"
        )
    language, prepare = code, _moses(code)
    bleu = BLEU(tokenize="none", force=True)
    plain = _metric(bleu, [prepare(text) for text in hypotheses], [[prepare(t) for t in lines] for lines in references])
    signature = plain.signature.replace("case:mixed", "case:lc").replace("tok:none", f"tok:moses-{language}")
    return Metric("BLEU-literature", plain.score, f"{signature}|norm:moses")


def compare(
    a: Sequence[str], b: Sequence[str], references: References, samples: int = 1000, tokenize: str = "13a"
) -> SignificanceTest:
    """Is a better than b, or was it chance?  Paired bootstrap resampling (Koehn 2004) with `samples` resamples.

    The resamples are the same every time: sacreBLEU's seed, which SACREBLEU_SEED changes and the signatures name.
    tokenize: BLEU's tokenizer.  Raises UsageError for numbers of lines that differ, no lines, or another tokenizer.
    """
    _check_tokenizer(tokenize)
    _check(a, references)
    _check(b, references)
    if samples < 1:
        raise UsageError(f"samples = {samples}: must be at least 1; 1000 is usual")
    metrics = dict(zip(COMPARED, _metrics(tokenize=tokenize), strict=True))
    systems: list[tuple[str, Sequence[str]]] = [("b", list(b)), ("a", list(a))]  # the first is sacreBLEU's baseline
    signatures, results = PairedTest(systems, metrics, [list(r) for r in references], "bs", n_samples=samples)()
    found = {}
    for short, name in zip(COMPARED, signatures, strict=True):
        theirs: Any = results[name][0]
        ours: Any = results[name][1]
        # Where nothing differs, every resample's difference is as large as the real one; sacreBLEU counts none of them.
        p_value = 1.0 if list(a) == list(b) else float(ours.p_value)
        found[short] = Significance(
            name,
            a=float(ours.score),
            b=float(theirs.score),
            a_interval=float(ours.ci),
            b_interval=float(theirs.ci),
            p_value=p_value,
            signature=str(signatures[name]),
        )
    return SignificanceTest(found["bleu"], found["chrf"], found["ter"], samples)


def overlap(train_sources: Iterable[str], test_sources: Sequence[str], examples: int = 5) -> TrainTestOverlap:
    """Test lines that are also training lines, but for spaces and case; blank lines do not count."""
    wanted: dict[str, list[int]] = {}
    for number, text in enumerate(test_sources, start=1):
        wanted.setdefault(_plain(text), []).append(number)
    wanted.pop("", None)
    seen = {plain for text in train_sources if (plain := _plain(text)) in wanted}
    lines = sorted(number for plain in seen for number in wanted[plain])
    first = tuple((number, test_sources[number - 1]) for number in lines[:examples])
    return TrainTestOverlap(len(lines), len(test_sources), first)


def warn_of_overlap(model: str | Path, sources: Sequence[str]) -> str:
    """A sentence where `sources` are in the training text of a model folder; empty where not, or it is not here."""
    from dragoman.data.corpus import (
        corpus_spec,
        read_pairs,  # here, so that scoring text loads neither the trainer nor torch
    )
    from dragoman.models.model_folder import read_config

    config = read_config(model)
    try:
        pairs = itertools.chain.from_iterable(read_pairs(corpus_spec(config, one)) for one in config.parallel.train)
        return overlap((pair.source for pair in pairs), sources).warning
    except (DataError, UsageError):
        return ""  # a model is often scored far from where it was trained


def evaluate_model(
    translator: Translator,
    sources: Sequence[str],
    references: References,
    against: Translator | None = None,
    language: str = "",
    tokenize: str = "auto",
    **search: Any,
) -> Evaluation:
    """Translate `sources` and score the result; `against` is a second model for significance, on the same lines.

    language: of the references (`de`, `zh-Hans`); it chooses BLEU's tokenizer (`bleu_tokenizer`), and one that Moses
    knows adds `literature_bleu`.  tokenize: another tokenizer.  search: settings by name, for both models.  Raises
    UsageError before translating when the numbers of lines differ, or the tokenizer is unknown or not installed.
    """
    _check(sources, references, "sources")
    tokenize = bleu_tokenizer(language, tokenize)
    translations = translator.translate(sources, **search)
    texts = [translation.text for translation in translations]
    flags = Counter(flag for translation in translations for flag in translation.flags)
    comparison = None
    if against is not None:
        others = [other.text for other in against.translate(sources, **search)]
        comparison = compare(texts, others, references, tokenize=tokenize)
    literature = None
    if language_code(language) in _moses_languages():
        literature = literature_bleu(texts, references, language)
    scores = evaluate_texts(texts, references, tokenize=tokenize)
    return replace(scores, literature=literature, against=comparison, flags=dict(flags))


def _check(texts: Sequence[str], references: References, name: str = "translations") -> None:
    if not texts:
        raise UsageError(f"no {name}: give at least 1 line to score")
    if not references:
        raise UsageError("no references: give at least 1 list of lines")
    counts = [len(lines) for lines in references]
    if set(counts) != {len(texts)}:
        listed = ", ".join(map(str, counts))
        raise UsageError(f"{len(texts)} {name} but references of {listed} lines: line i of each must belong together")


def _metrics(lowercase: bool = False, tokenize: str = "13a") -> tuple[BLEU, CHRF, TER]:
    # force: text that looks tokenized is no reason for a warning here, the signature says how it was treated.
    bleu = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    return bleu, CHRF(lowercase=lowercase), TER()


def _metric(metric: BLEU | CHRF | TER, hypotheses: Sequence[str], references: References) -> Metric:
    result = metric.corpus_score(list(hypotheses), [list(lines) for lines in references])
    return Metric(result.name, float(result.score), str(metric.get_signature()))


def _moses_languages() -> frozenset[str]:
    """Those that Moses' tokenizer has rules for; it leaves Chinese text without spaces as one word."""
    from sacremoses.corpus import NonbreakingPrefixes  # type: ignore[import-untyped]

    return frozenset(NonbreakingPrefixes().available_langs.values()) - set(_CHINESE)


def _moses(language: str) -> Callable[[str], str]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # type: ignore[import-untyped]

    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)

    def prepare(text: str) -> str:
        return str(tokenizer.tokenize(normalizer.normalize(text).lower(), return_str=True))

    return prepare


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
