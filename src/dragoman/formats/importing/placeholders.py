"""Placeholders for the unsupported settings and the vocabulary of a checkpoint.

With them, the tensors of a checkpoint that cannot be imported can be compared with its settings, so that one message
contains all reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.errors import DragomanError
from dragoman.formats.importing.family import ImportedVocabulary
from dragoman.formats.importing.labels import label_names
from dragoman.tokenizers import LabelVocabulary, Tokenizer

_ACCEPTED: dict[str, Any] = {
    "activation_function": "relu", "hidden_act": "relu", "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "use_sliding_window": False, "sliding_window": None, "layer_types": None,
    "rope_scaling": None, "rope_parameters": None, "rope_theta": 10_000.0, "partial_rotary_factor": 1.0,
}  # fmt: skip
"""Settings that change neither names nor shapes of tensors -> a value that each family accepts."""
_MAX_SIZE = 1 << 24


def importable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with accepted values of those that do not change the tensors."""
    found = dict(settings) | {key: value for key, value in _ACCEPTED.items() if key in settings}
    if "feed_forward_proj" in found:  # T5: the activation and whether it is gated, which changes the tensors
        gated = str(found["feed_forward_proj"]).startswith("gated-")
        found["feed_forward_proj"] = "gated-relu" if gated else "relu"
        found.pop("dense_act_fn", None)
    return found


def placeholder_vocabulary(settings: Mapping[str, Any]) -> ImportedVocabulary | None:
    """Return a vocabulary of the size that the settings name, None if they name none."""
    source = settings.get("vocab_size")
    target = source if settings.get("decoder_vocab_size") is None else settings["decoder_vocab_size"]
    if any(type(size) is not int or not 4 <= size <= _MAX_SIZE for size in (source, target)):
        return None
    tokenizer = _SizesOnly(int(str(source)), int(str(target)))
    rows = list(range(tokenizer.source_size)), list(range(tokenizer.target_size))
    if "Classification" not in str(settings.get("architectures")):
        return ImportedVocabulary(tokenizer, *rows)
    try:
        labels = label_names(settings)
    except DragomanError:
        return None
    return ImportedVocabulary(LabelVocabulary(labels, tokenizer), rows[0], [-1, *range(len(labels))])


class _SizesOnly(Tokenizer):
    """The sizes of a tokenizer that cannot be read."""

    def __init__(self, source: int, target: int) -> None:
        self._sizes, self.shared = (source, target), source == target

    @property
    def source_size(self) -> int:
        return self._sizes[0]

    @property
    def target_size(self) -> int:
        return self._sizes[1]

    @property
    def default_languages(self) -> tuple[str | None, str | None]:
        return None, None

    def files(self) -> dict[str, bytes]:
        return {}
