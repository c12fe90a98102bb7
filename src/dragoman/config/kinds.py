"""What follows from the kind of [data]: one record per kind, which code asks instead of comparing names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_TRANSLATORS = ("transformer", "rnn", "gru", "lstm", "convolutional")
_LANGUAGE_MODELS = ("decoder_only", "recurrent_lm")
_ENCODERS = ("encoder_only", "recurrent_encoder")


@dataclass(frozen=True)
class DataKind:
    """A kind of training data, and what its models are.

    architectures: that can be trained on it, the default first.  metrics: of validation.  used_by: commands or classes
    that use its models.  lacks: what models of other kinds cannot do, for error messages.  writes: whether models
    generate text.  two_sided: whether source and target are different texts.  translates: whether they are sentences of
    two languages, in corpora that are filtered and stored on disk.  labels: what has a label, for models that predict
    labels.  samples: whether `tokenizer.sampling` has an effect.  adds_words: whether `tokenizer.add_words` has one.
    """

    architectures: tuple[str, ...]
    metrics: tuple[str, ...]
    used_by: str
    lacks: str = ""
    writes: bool = False
    two_sided: bool = False
    translates: bool = False
    labels: Literal["", "word", "input"] = ""
    samples: bool = False
    adds_words: bool = True

    @property
    def continues(self) -> bool:
        """Whether its models are language models: the target continues a prompt, and there is no source."""
        return self.writes and not self.two_sided

    @property
    def command(self) -> str:
        """The first of the commands that use its models."""
        return self.used_by.partition(",")[0]


DATA_KINDS = {
    "parallel": DataKind(
        _TRANSLATORS, ("loss", "bleu", "chrf"), "dragoman translate", "does not translate",
        writes=True, two_sided=True, translates=True, samples=True,
    ),
    "trees": DataKind(
        _TRANSLATORS, ("loss", "f1"), "dragoman parse", "does not generate trees",
        writes=True, two_sided=True, samples=True, adds_words=False,
    ),
    "text": DataKind(
        _LANGUAGE_MODELS, ("loss",), "dragoman generate", "does not continue plain text", writes=True,
    ),
    "dialogue": DataKind(
        _LANGUAGE_MODELS, ("loss",), "dragoman chat, dragoman generate --turns", "was not trained on dialogues",
        writes=True,
    ),
    "masked": DataKind(_ENCODERS, ("loss", "accuracy"), "dragoman vectors"),
    "tagged": DataKind(_ENCODERS, ("loss", "accuracy"), "dragoman label", labels="word", samples=True),
    "labelled": DataKind(_ENCODERS, ("loss", "accuracy"), "dragoman label", labels="input", samples=True),
    "images": DataKind(
        ("vision",), ("loss", "accuracy"), "dragoman.Labeller, in Python", labels="input", adds_words=False,
    ),
}  # fmt: skip
