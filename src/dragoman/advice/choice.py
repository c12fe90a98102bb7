"""Choice of settings for a corpus, measured speeds and a budget of time, and the commented configuration with them.

Nothing is read or measured here.

docs/guides/size_and_budget.md describes the rules and the measurements on which they are based.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from dragoman.config import Share
from dragoman.training.forecast import PARAMETERS_PER_TOKEN, overfits

TOKENS_PER_WEIGHT = 4.1
"""Training tokens per weight of the layers that a size needs to be better than the next smaller one, with Muon."""
SHORT_PAIR = 30
"""Tokens per pair above which a size needs more: alignments of longer sentences are learned later."""
SHARE_TRAINED = 0.93
"""Share of the budget that is used for steps; validation and saving use the rest."""
_STEPS = 5000
_ENOUGH_PAIRS = 100
"""Validation pairs with which chrF orders two checkpoints as 1,000 pairs do (docs/guides/size_and_budget.md)."""
_BYTES = 260  # and the special tokens


@dataclass(frozen=True)
class Setting:
    """A key of the configuration, its value, and the reason for it."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Size:
    """Sizes of a Transformer; its feed-forward network is gated, so d_ff = 2 d_model suffices."""

    d_model: int
    layers: int

    @property
    def d_ff(self) -> int:
        return 2 * self.d_model

    @property
    def n_heads(self) -> int:
        return max(4, self.d_model // 64)

    @property
    def weights(self) -> int:
        """Weights of the layers without embeddings: 10 d_model² per encoder layer, 14 d_model² per decoder layer."""
        return 24 * self.layers * self.d_model**2

    def __str__(self) -> str:
        return f"width {self.d_model}, {self.layers} + {self.layers} layers"


SIZES = tuple(Size(*size) for size in ((128, 1), (128, 2), (128, 4), (192, 4), (256, 4), (384, 5), (512, 6)))
"""Sizes in increasing order."""


@dataclass(frozen=True)
class CorpusFacts:
    """Statistics of the training pairs.

    bytes_per_pair: of both sides, UTF-8.  tokens_per_pair: of both sides, with the chosen vocabulary.  distinct: words
    of source and target in the sample.  characters: distinct characters of source and target.  common_script: whether
    the two sides share letters.  replaced: whether the default normalization changes many target lines.
    """

    pairs: int
    languages: tuple[str, str]
    distinct: tuple[int, int]
    characters: tuple[int, int]
    common_script: bool
    bytes_per_pair: float
    replaced: bool = False
    tokens_per_pair: float = 0.0

    @property
    def tokens(self) -> float:
        """Tokens per epoch."""
        return self.pairs * self.tokens_per_pair

    @property
    def megabytes(self) -> float:
        """Size of the text in UTF-8, in which a Chinese character counts as three letters."""
        return self.pairs * self.bytes_per_pair / 1e6


@dataclass(frozen=True)
class Speed:
    """Measured training speed of a size in source + target tokens per second, and its number of parameters."""

    size: Size
    tokens_per_second: float
    parameters: int


@dataclass(frozen=True)
class Training:
    """Expected tokens, epochs and steps of a training, and its batch size."""

    tokens: float
    epochs: float
    batch_tokens: int
    steps: int


def choose_vocabulary(facts: CorpusFacts) -> list[Setting]:
    """Return the settings of the section [tokenizer]."""
    table = ((0.3, 2000), (1.5, 4000), (30, 8000), (300, 16000))
    usual = next((size for megabytes, size in table if facts.megabytes < megabytes), 32000)
    why = f"For {facts.megabytes:,.1f} MB of text: each token must occur often enough to be learned."
    settings = [Setting("tokenizer.kind", "bpe", "Subwords: frequent words are one token, rare words are several.")]
    if facts.common_script:
        size = _vocabulary_size(usual, max(facts.distinct), max(facts.characters))
        settings += [
            Setting("tokenizer.shared", True, "Both languages use the same letters, so one vocabulary serves both."),
            Setting("tokenizer.vocab_size", size, why),
        ]
    else:
        sizes = [_vocabulary_size(usual, facts.distinct[i], facts.characters[i]) for i in (0, 1)]
        settings += [
            Setting("tokenizer.shared", False, "The languages have different letters: one vocabulary for each."),
            Setting("tokenizer.vocab_size", sizes[0], why),
            Setting("tokenizer.target.kind", "bpe", "Settings of the target's vocabulary."),
            Setting("tokenizer.target.vocab_size", sizes[1], why),
        ]
    if facts.replaced:
        key = f"tokenizer.{'' if facts.common_script else 'target.'}normalization"
        why = "The default normalization would change many target lines, for example full-width punctuation."
        settings.append(Setting(key, "identity", why))
    return settings


def augment_settings() -> list[Setting]:
    """Return the settings of the section [data.augment]; docs/data.md has the measurements."""
    why = "Shares of the pairs that are changed, others in each epoch: people also type like this."
    return [
        Setting("data.augment.lower_case", 0.005, why),
        Setting("data.augment.no_final_mark", 0.01, ""),
        Setting("data.augment.typing_errors", 0.005, ""),
    ]


def _vocabulary_size(usual: int, distinct: int, characters: int) -> int:
    """Return a size that covers all characters and does not exceed one token per word, character and byte."""
    needed = characters + _BYTES
    size = min(max(usual, needed + needed // 2), needed + distinct)
    return size - size % 100 if size >= 1000 else size


def enough_tokens(size: Size, tokens_per_pair: float) -> float:
    """Return the number of training tokens that a size needs to be better than the next smaller one."""
    return TOKENS_PER_WEIGHT * size.weights * max(1.0, math.sqrt(tokens_per_pair / SHORT_PAIR))


def choose_size(facts: CorpusFacts, speeds: Sequence[Speed], seconds: float) -> tuple[Speed, str]:
    """Return the largest size that sees enough tokens in the time, and the reason.  speeds: by increasing size."""
    chosen = speeds[0]
    rank = "the smallest model of the list"
    for speed in speeds[1:]:
        if overfits(speed.parameters, facts.tokens):
            return chosen, (
                f"{rank} for this text; {speed.size} would overfit: {speed.parameters / 1e6:,.1f} M "
                f"parameters for {facts.tokens / 1e6:,.2f} M tokens (at most {PARAMETERS_PER_TOKEN:g} per token)"
            )
        tokens = seconds * SHARE_TRAINED * speed.tokens_per_second
        needed = enough_tokens(speed.size, facts.tokens_per_pair)
        if tokens < needed:
            return chosen, (
                f"{rank} for this time; {speed.size} would see {tokens / 1e6:,.1f} M tokens, and "
                f"needs about {needed / 1e6:,.1f} M"
            )
        chosen, rank = speed, "the largest model"
    if chosen.size == SIZES[-1]:
        return chosen, "the largest size of the list, for which the time suffices"
    return chosen, f"{rank}: no larger one could be measured"


def expect(facts: CorpusFacts, speed: Speed, seconds: float) -> Training:
    """Return the expected tokens, epochs and steps of a training of `seconds`."""
    tokens = seconds * SHARE_TRAINED * speed.tokens_per_second
    wanted = tokens / _STEPS
    batch = next((size for size in (1536, 2048, 3072, 4096, 6144) if wanted <= size), 8192)
    return Training(tokens, tokens / max(1.0, facts.tokens), batch, max(1, round(tokens / batch)))


def choose_training(
    facts: CorpusFacts, speed: Speed, why: str, seconds: float, validated: int = _ENOUGH_PAIRS
) -> list[Setting]:
    """Return the settings of the sections [model], [train] and [search].  validated: pairs of the validation set."""
    size, forecast = speed.size, expect(facts, speed, seconds)
    rate = 0.1 if forecast.epochs < 5 else 0.2 if forecast.epochs < 20 else 0.3
    dropout = f"{forecast.epochs:.1f} epochs: the more often each pair is seen, the more dropout is needed."
    beam = "Hypotheses per step; 1 is faster, more than 4 rarely improve translations."
    return [
        *model_settings(size, why), Setting("model.dropout", rate, dropout),
        *_train(size, forecast, seconds, validated), Setting("search.beam", 4, beam),
        Setting("search.alpha", 1.0, "Length penalty; with 0.6, as in the paper, more words are left out."),
    ]  # fmt: skip


def model_settings(size: Size, why: str = "") -> list[Setting]:
    """Return the settings of the section [model] without dropout; why: the reason for the size."""
    return [
        Setting("model.architecture", "transformer", "Encoder and decoder with attention (Vaswani et al. 2017)."),
        Setting("model.d_model", size.d_model, f"Size: {why}."),
        Setting("model.d_ff", size.d_ff, "Twice d_model; with gating it costs as much as three times without."),
        Setting("model.n_heads", size.n_heads, f"{size.d_model // size.n_heads} features per attention head."),
        Setting("model.encoder_layers", size.layers, "Chosen with d_model."),
        Setting("model.decoder_layers", size.layers, "Chosen with d_model."),
        Setting("model.order", "pre", "Normalization before each sub-layer allows high learning rates from the start."),
        Setting("model.norm.kind", "rms", "As good as layer normalization, and cheaper."),
        Setting("model.position.kind", "rotary", "Relative positions; learned faster than sinusoids."),
        Setting("model.activation", "silu", "With gated = true: SwiGLU, which learns faster at equal cost."),
        Setting("model.gated", True, "See activation."),
        Setting("model.bias", False, "Fewer operations per step."),
    ]


def optimizer_settings() -> list[Setting]:
    """Return the settings of the section [train.optimizer]."""
    return [Setting("train.optimizer.kind", "muon", "Learns more per step than Adam; each step takes slightly longer.")]


def validation_settings(seconds: float, validated: int) -> list[Setting]:
    """Return when a training of this time is validated, and by what.  validated: pairs of the validation set."""
    short = seconds < 900
    every = "25%" if short else "12.5%"
    if not validated:
        why = "Share of the budget between checkpoints; there is no validation set."
        return [Setting("train.validate_every", every, why)]
    why = "Selects the best checkpoint: translations become better while the loss rises; chrF is less noisy."
    if validated < _ENOUGH_PAIRS:
        why = f"Selects the best checkpoint: the translations of {validated} pairs are too few for chrF or BLEU."
    return [
        Setting("train.validate_every", every, "Share of the budget between two validations."),
        Setting("train.validate_sentences", 200 if short else 500, "Sentences translated per validation."),
        Setting("train.metric", "chrf" if validated >= _ENOUGH_PAIRS else "loss", why),
    ]


def _train(size: Size, forecast: Training, seconds: float, validated: int) -> list[Setting]:
    warmup = min(4000, max(10, 0.05 * forecast.steps), forecast.steps)
    share = 100 * warmup / forecast.steps
    peak = float(f"{1.024 / size.d_model:.1e}")
    return [
        Setting("train.budget", duration(seconds), "Training time; the learning rate reaches zero at its end."),
        Setting("train.expected_speed", round(forecast.tokens / seconds), "Tokens per second, including validations."),
        Setting(
            "train.batch_tokens",
            forecast.batch_tokens,
            f"Small batches: about {forecast.steps:,} steps, which learn more.",
        ),
        Setting("train.label_smoothing", 0.1, "Improves BLEU (Vaswani et al. 2017)."),
        Setting("train.clip_norm", 1.0, "Limits the effect of batches with large gradients."),
        *validation_settings(seconds, validated),
        *optimizer_settings(),
        Setting("train.schedule.kind", "budget", "Warm-up, constant rate, then linear decay to zero."),
        Setting("train.schedule.peak", peak, "Wider models need lower learning rates: 1.024 / d_model."),
        Setting("train.schedule.warmup", str(Share(amount=max(0.01, round(share, 2)))), f"About {warmup:,.0f} steps."),
        Setting("train.schedule.decay", 0.8, "Share of the budget during which the learning rate decays."),
    ]


def duration(seconds: float) -> str:
    """Format a time for the configuration, in whole hours, minutes or seconds."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length and math.isclose(seconds % length, 0, abs_tol=1e-6):
            return f"{round(seconds / length)} {unit}"
    return f"{round(seconds)} s"


_WIDTH = 100
_TABLES = ("data", "data.valid", "data.test", "data.augment", "tokenizer", "tokenizer.target", "model", "train",
    "train.lora", "train.optimizer", "train.schedule", "search", "translate", "back_translate", "prune")  # fmt: skip


def nested(settings: Iterable[Setting]) -> dict[str, Any]:
    """Return settings with dotted keys as nested tables."""
    document: dict[str, Any] = {}
    for setting in settings:
        *tables, key = setting.key.split(".")
        table = document
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = setting.value
    return document


def render(title: Sequence[str], settings: Sequence[Setting], stages: Sequence[Sequence[Setting]] = ()) -> str:
    """Return a TOML document with a comment above each setting.

    title: paragraphs of the comment at its top.  stages: settings of each, with keys as in [[stage]].
    """
    parts = ["\n#\n".join(_comment(paragraph) for paragraph in title), *_tables(settings)]
    for stage in stages:
        parts += _tables(stage, "stage.")
    return "\n\n".join(parts) + "\n"


def _tables(settings: Sequence[Setting], prefix: str = "") -> Iterator[str]:
    for table in ("", *_TABLES):
        inside = [setting for setting in settings if _table(setting.key) == table]
        if inside:
            lines = [f"[{prefix}{table}]" if table else "[[stage]]"]
            for setting in inside:
                if setting.reason:
                    lines.append(_comment(setting.reason))
                lines.append(f"{setting.key.removeprefix(f'{table}.')} = {_toml(setting.value)}")
            yield "\n".join(lines)


def _toml(value: Any) -> str:
    """Return a value on the right side of a key; lists of tables, such as corpora, have a table per line."""
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        tables = [", ".join(f"{key} = {_toml(inner)}" for key, inner in entry.items()) for entry in value]
        return "\n".join(["[", *(f"    {{ {table} }}," for table in tables), "]"])
    return tomli_w.dumps({"key": value}).partition(" = ")[2].strip()


def _table(key: str) -> str:
    """Return the innermost table that contains a key; "" for a key of a stage itself."""
    return max((table for table in _TABLES if key.startswith(f"{table}.")), key=len, default="")


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
