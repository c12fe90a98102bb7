"""One sentence pair through training once, every number on the way: forwards, backwards, and the update.

run          the step itself: what the taps saw, the gradients, the loss of each word, the parameters before, after
quantities   tensors with their names, symbols and the words along their sides
blocks       the story of a Transformer, sub-layer by sub-layer; in_order: of any other model, tap by tap
ending       logits, loss, what positions add to a shared weight, the update
phrases      the words of the story, in English and Chinese
numbers      the story as plain JSON, cut to what a page can hold
"""

from __future__ import annotations

from dragoman.interpret.walkthrough.build import walkthrough
from dragoman.interpret.walkthrough.quantities import Labels

__all__ = ["Labels", "walkthrough"]
