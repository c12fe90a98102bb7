"""Corpus scores of translations with their sacreBLEU signatures, and significance tests between two systems."""

from __future__ import annotations

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import _bootstrap_resample, estimate_ci

from dragoman.data.languages import language_code
from dragoman.errors import DataError, UsageError, clip
from dragoman.registry import registered

if TYPE_CHECKING:
    from dragoman.pipelines.lines import Translation
    from dragoman.pipelines.translation import Translator

References = Sequence[Sequence[str]]
"""One or more lists of references, each with one line per sentence."""

TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none")
COMPARED = {"bleu": "bleu", "chrf": "chrf", "chrf++": "chrfpp", "ter": "ter"}
"""Name of a metric -> attribute of the results."""

_LOG = logging.getLogger(__name__)
_CHINESE = ("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh")
_TOKENIZER_OF = dict.fromkeys(_CHINESE, "zh") | {
    "ja": "ja-mecab", "jpn": "ja-mecab", "ko": "ko-mecab", "kor": "ko-mecab",
}  # fmt: skip
# Japanese is written without spaces, so 13a would treat a sentence as one word; Korean is written with spaces.
_NOT_INSTALLED = {"ja-mecab": ("Japanese", "char"), "ko-mecab": ("Korean", "13a")}


@dataclass(frozen=True)
class Metric:
    """One corpus score, in percent, and the sacreBLEU signature with all settings that affect it."""

    name: str
    score: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f} ({self.signature})"


@dataclass(frozen=True)
class Interval:
    """A score in percent; `half` is half the width of its 95 % bootstrap confidence interval."""

    score: float
    half: float


@dataclass(frozen=True)
class Resampled(Interval):
    """With `samples`, the scores of resamples of the lines, which are the same for every system."""

    samples: np.ndarray = field(repr=False, compare=False)
    metric: str
    signature: str


def resampled(metric: BLEU | CHRF | TER, texts: Sequence[str], references: References, samples: int) -> Resampled:
    """Score `texts` and `samples` resamples of them.  sacreBLEU's seed, set by SACREBLEU_SEED, is in the signature."""
    statistics = metric._extract_corpus_statistics(texts, references)
    metric.n_bootstrap = samples  # with the seed, a part of the signature
    metric.seed, scores = _bootstrap_resample(statistics, metric, samples)
    values = np.array([score.score for score in scores])
    whole = metric._aggregate_and_compute(statistics)
    half = float(estimate_ci(values)[1])
    return Resampled(float(whole.score), half, values, whole.name, str(metric.get_signature()))


def p_value(a: Sequence[Resampled], b: Sequence[Resampled]) -> float:
    """Return the probability of a difference at least as large as that of a and b if they are equally good.

    a, b: systems, each of one or more runs that differ in the seed of the training alone; the difference is that of
    their mean scores.  Its variation over test lines is that of the resamples around their mean (paired bootstrap,
    Koehn 2004).  If a system has several runs, its variation over seeds is added: a Student's t variable, scaled by the
    standard deviation over the seeds of both systems.
    """
    samples = [np.array([run.samples for run in runs]) for runs in (a, b)]
    scores = [np.array([run.score for run in runs]) for runs in (a, b)]
    chance = samples[0].mean(axis=0) - samples[1].mean(axis=0)
    chance -= chance.mean()
    if freedom := len(a) + len(b) - 2:
        share = (1 / len(a) + 1 / len(b)) / freedom
        seeds = share * sum(np.var(values) * len(values) for values in scores)
        # Differences between seeds that depend on the lines are part of both variances; they count once.
        both = share * sum(np.var(values - values.mean(axis=0), axis=1).sum() for values in samples)
        chance *= np.sqrt(max(0, 1 - both / (chance.var() or 1)))
        chance += np.sqrt(seeds) * np.random.default_rng(0).standard_t(freedom, len(chance))
    larger = np.count_nonzero(np.abs(chance) >= abs(scores[0].mean() - scores[1].mean()))
    return (int(larger) + 1) / (len(chance) + 1)


@dataclass(frozen=True)
class Significance:
    """Test of one metric between systems a and b on the same lines, see `p_value`.

    a, b: scores.  a_interval, b_interval: half the width of the 95 % confidence interval over the resamples.
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
    """The tests of all metrics between two systems, with `samples` resamples of the test set."""

    bleu: Significance
    chrf: Significance
    ter: Significance
    samples: int
    chrfpp: Significance

    def to_json(self) -> dict[str, Any]:
        return asdict(self, dict_factory=named)


@dataclass(frozen=True)
class Evaluation:
    """Scores of one system on one test set.

    literature: BLEU of lowercased, tokenized text, see `literature_bleu`.  against: test of this system (a) against
    another (b).  flags: number of translations with each flag of `Translation`.  registered: metrics of other packages
    (`registry.py`).
    """

    bleu: Metric
    chrf: Metric
    ter: Metric
    sentences: int
    chrfpp: Metric
    literature: Metric | None = None
    against: SignificanceTest | None = None
    flags: dict[str, int] | None = None
    registered: tuple[Metric, ...] = ()

    def to_json(self) -> dict[str, Any]:
        items = asdict(self, dict_factory=named).items()
        return {key: value for key, value in items if key != "registered" or value}

    def lines(self) -> list[str]:
        """Return one line per score with its signature, the significance tests and the counts of flags."""
        metrics = (self.bleu, self.chrf, self.chrfpp, self.ter, self.literature, *self.registered)
        lines = [str(metric) for metric in metrics if metric is not None]
        if self.against is not None:
            lines += [str(getattr(self.against, name)) for name in COMPARED.values()]
        if self.flags:
            counted = ", ".join(f"{name} {count}" for name, count in sorted(self.flags.items()))
            lines.append(f"flags among {self.sentences} translations: {counted}")
        return lines


def named(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return attributes by the names of their metrics."""
    names = {attribute: name for name, attribute in COMPARED.items()}
    return {names.get(key, key): value for key, value in items}


@functools.cache
def bleu_tokenizer(language: str, tokenize: str = "auto") -> str:
    """Return the sacreBLEU tokenizer for BLEU of text in `language` (`zh`, `zh-Hans`, `ja_JP`).

    "auto" is zh for Chinese, ja-mecab for Japanese, ko-mecab for Korean and 13a otherwise.  If the package for Japanese
    or Korean is missing, char (Japanese) or 13a (Korean) is returned with a warning.  Any other `tokenize` is returned
    unchanged.  Raises UsageError if it is unknown or not installed.
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
        "is not comparable to published ones; install it with: %s",
        *(spoken, name, fallback, fallback, _installation(name)),
    )
    return fallback


def _check_tokenizer(tokenize: str) -> None:
    if tokenize not in TOKENIZERS:
        raise UsageError(f"tokenize = {tokenize!r}; accepted: auto, {', '.join(TOKENIZERS)}")
    if not _is_installed(tokenize):
        raise UsageError(f"tokenize = {tokenize!r}: not installed; install it with: {_installation(tokenize)}")


def _is_installed(tokenize: str) -> bool:
    try:
        BLEU(tokenize=tokenize)
    except (RuntimeError, AssertionError):  # the package is missing, or has another dictionary
        return False
    return True


def _installation(tokenize: str) -> str:
    return f"pip install 'sacrebleu[{tokenize[:2]}]'"


def evaluate_texts(
    hypotheses: Sequence[str],
    references: References,
    lowercase: bool = False,
    tokenize: str = "13a",
    sources: Sequence[str] | None = None,
) -> Evaluation:
    """Compute BLEU, chrF2, chrF2++ and TER of raw text with sacreBLEU (Post 2018), and the registered metrics.

    references: one or more lists with one line per hypothesis.  lowercase: ignore case in BLEU and chrF; TER always
    does, as in sacreBLEU.  tokenize: tokenizer of BLEU (13a, intl, zh, ja-mecab, ko-mecab, char or none); see
    `bleu_tokenizer`.  sources: the lines that were translated, which some registered metrics need; those are left out
    without them.  Raises UsageError if the numbers of lines differ or are 0, or the tokenizer is unknown.
    """
    _check(hypotheses, references)
    if sources is not None:
        _check(sources, [hypotheses], "sources")
    _check_tokenizer(tokenize)
    bleu, chrf, chrfpp, ter = (_metric(metric, hypotheses, references) for metric in _metrics(lowercase, tokenize))
    others = tuple(_registered(hypotheses, references, sources))
    return Evaluation(bleu, chrf, ter, len(hypotheses), chrfpp, registered=others)


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", sources: Sequence[str] | None = None
) -> dict[str, float]:
    """Compute BLEU, chrF2, chrF2++ and the registered metrics of raw text, for validation: {"bleu": ..., ...}."""
    _check(hypotheses, [references])
    metrics: dict[str, BLEU | CHRF | TER] = dict(zip(COMPARED, _metrics(tokenize=tokenize), strict=True))
    del metrics["ter"]  # it takes longer
    scores = {name: _metric(one, hypotheses, [references]).score for name, one in metrics.items()}
    return scores | {other.name: other.score for other in _registered(hypotheses, [references], sources)}


def _registered(hypotheses: Sequence[str], references: References, sources: Sequence[str] | None) -> Iterator[Metric]:
    for name, part in registered("metric").items():
        if not part.details.get("sources"):
            yield Metric(name, float(part.make(hypotheses, references)), part.signature)
        elif sources is not None:
            yield Metric(name, float(part.make(hypotheses, references, sources)), part.signature)


def literature_bleu(hypotheses: Sequence[str], references: References, language: str) -> Metric:
    """Compute BLEU of normalized, lowercased, Moses-tokenized text, as in papers on Multi30k.

    language: code of the language of hypotheses and references.  Not comparable to BLEU of raw text; the signature
    records the preprocessing.  Raises UsageError if Moses does not support the language or, as for Chinese, does not
    segment it into words.
    """
    _check(hypotheses, references)
    known = _moses_languages()
    if (code := language_code(language)) not in known:
        raise UsageError(
            f"literature BLEU: Moses' tokenizer does not segment language {language!r}; accepted: "
            f"{', '.join(sorted(known))}; use evaluate_texts with tokenize=bleu_tokenizer(language)"
        )
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # type: ignore[import-untyped]

    language, normalizer, tokenizer = code, MosesPunctNormalizer(lang=code), MosesTokenizer(lang=code)
    bleu = BLEU(tokenize="none", force=True)
    prepared = [
        [str(tokenizer.tokenize(normalizer.normalize(text).lower(), return_str=True)) for text in lines]
        for lines in (hypotheses, *references)
    ]
    metric = _metric(bleu, prepared[0], prepared[1:])
    signature = metric.signature.replace("case:mixed", "case:lc").replace("tok:none", f"tok:moses-{language}")
    return Metric("BLEU-literature", metric.score, f"{signature}|norm:moses")


def compare_systems(
    a: Sequence[str], b: Sequence[str], references: References, samples: int = 1000, tokenize: str = "13a"
) -> SignificanceTest:
    """Test whether systems a and b differ by paired bootstrap resampling (Koehn 2004) with `samples` resamples.

    The resamples are reproducible: sacreBLEU's seed, set by SACREBLEU_SEED, is part of the signatures.  tokenize:
    tokenizer of BLEU.  Raises UsageError if the numbers of lines differ or are 0, or the tokenizer is unknown.
    """
    _check_tokenizer(tokenize)
    _check(a, references)
    _check(b, references)
    if samples < 1:
        raise UsageError(f"samples = {samples}; accepted: at least 1 (usually 1000)")
    tests = []
    for metric in _metrics(tokenize=tokenize):
        one, other = (resampled(metric, texts, references, samples) for texts in (a, b))
        scores = one.score, other.score, one.half, other.half
        tests.append(Significance(one.metric, *scores, p_value([one], [other]), one.signature))
    bleu, chrf, chrfpp, ter = tests
    return SignificanceTest(bleu, chrf, ter, samples, chrfpp)


def train_test_overlap(train_sources: Iterable[str], test_sources: Sequence[str]) -> str:
    """Return a warning if test lines are also training lines, ignoring case, whitespace and blank lines, or ""."""
    wanted: dict[str, list[int]] = {}
    for number, text in enumerate(test_sources, start=1):
        wanted.setdefault(_normalized(text), []).append(number)
    wanted.pop("", None)
    seen = {key for text in train_sources if (key := _normalized(text)) in wanted}
    lines = sorted(number for key in seen for number in wanted[key])
    if not lines:
        return ""
    first, total = lines[0], len(test_sources)
    return (
        f"{len(lines)} of {total} test lines ({len(lines) / total:.1%}) are also in the training text (first: line "
        f"{first}, {clip(test_sources[first - 1])!r}), so scores are too optimistic; remove them from the training text"
    )


def overlap_warning(model: str | Path, sources: Sequence[str]) -> str:
    """Return a warning if `sources` are in the training text of a model, or "" if not or if the text is unavailable."""
    # Imported here so that scoring text does not load torch.
    from dragoman.data.corpus import corpus_spec, read_pairs
    from dragoman.models.model_folder import read_config

    config = read_config(model)
    try:
        pairs = itertools.chain.from_iterable(read_pairs(corpus_spec(config, one)) for one in config.parallel.train)
        return train_test_overlap((pair.source for pair in pairs), sources)
    except (DataError, UsageError):
        return ""  # a model is often evaluated on another machine than it was trained on


def evaluate_model(
    translator: Translator,
    sources: Sequence[str],
    references: References,
    against: Translator | None = None,
    language: str = "",
    tokenize: str = "auto",
    progress: Callable[[Iterator[Translation]], Iterator[Translation]] = iter,
    **search: Any,
) -> Evaluation:
    """Translate `sources` and score the translations, optionally with a significance test against a second model.

    language: code of the references' language (`de`, `zh-Hans`), which determines the tokenizer of BLEU and whether
    `literature_bleu` is added.  tokenize: another tokenizer.  progress: wraps the iterator of the translations of each
    model.  search: search settings by name, and `split` of `Translator.translate`, for both models.  Raises UsageError
    before translating if the numbers of lines differ, or the tokenizer is unknown or not installed.
    """
    _check(sources, references, "sources")
    tokenize = bleu_tokenizer(language, tokenize)
    translations = list(progress(translator.stream(sources, **search)))
    texts = [translation.text for translation in translations]
    flags = Counter(flag for translation in translations for flag in translation.flags)
    scores = replace(evaluate_texts(texts, references, tokenize=tokenize, sources=sources), flags=dict(flags))
    if against is not None:
        others = [other.text for other in progress(against.stream(sources, **search))]
        scores = replace(scores, against=compare_systems(texts, others, references, tokenize=tokenize))
    if language_code(language) in _moses_languages():
        scores = replace(scores, literature=literature_bleu(texts, references, language))
    return scores


def _check(texts: Sequence[str], references: References, name: str = "translations") -> None:
    _check_lines(texts, name)
    if not texts:
        raise UsageError(f"no {name}: give at least 1 line to score")
    if not references:
        raise UsageError("no references: give at least 1 list of lines")
    if isinstance(references, str | bytes) or not isinstance(references, Sequence):
        raise UsageError(f"references: {references!r:.60}; accepted: a list of lists of texts, [references]")
    for number, lines in enumerate(references, start=1):
        _check_lines(lines, f"references, list {number}")
    counts = [len(lines) for lines in references]
    if set(counts) != {len(texts)}:
        listed = ", ".join(map(str, counts))
        raise UsageError(
            f"{len(texts)} {name} but references of {listed} lines; give one reference line per line of {name}"
        )


def _check_lines(lines: object, name: str) -> None:
    """Raise UsageError unless `lines` is a list of texts."""
    if isinstance(lines, str | bytes) or not isinstance(lines, Sequence):
        raise UsageError(f"{name}: {lines!r:.60} is of type {type(lines).__name__}; accepted: a list of texts")
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, str):
            raise UsageError(f"{name}, item {number}: {line!r:.60} is of type {type(line).__name__}; accepted: str")


def _metrics(lowercase: bool = False, tokenize: str = "13a") -> tuple[BLEU, CHRF, CHRF, TER]:
    """Return the metrics in the order of `COMPARED`."""
    # force: do not warn about text that looks tokenized; the signature states the tokenizer.
    bleu = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    # Without spaces between words, TER counts Chinese characters, and runs of kana as one word.
    ter = TER(normalized=True, asian_support=True) if tokenize in ("zh", "ja-mecab") else TER()
    return bleu, CHRF(lowercase=lowercase), CHRF(lowercase=lowercase, word_order=2), ter


def _metric(metric: BLEU | CHRF | TER, hypotheses: Sequence[str], references: References) -> Metric:
    result = metric.corpus_score(list(hypotheses), [list(lines) for lines in references])
    return Metric(result.name, float(result.score), str(metric.get_signature()))


def _moses_languages() -> frozenset[str]:
    """Return the languages with rules in Moses' tokenizer, except Chinese, which it does not segment."""
    from sacremoses.corpus import NonbreakingPrefixes  # type: ignore[import-untyped]

    return frozenset(NonbreakingPrefixes().available_langs.values()) - set(_CHINESE)


def _normalized(text: str) -> str:
    return " ".join(text.casefold().split())
