"""Every quantity of one training step on one sentence pair: forward pass, backward pass and update.

steps.toml     every kind of step: its texts in English and Chinese, formulas, source, and the tensors it shows
training_step  the step itself: values and gradients of the taps, the loss of each token, the update
quantities     tensors with names, symbols and labels
steps          taps and entries -> forward steps, backward steps, and the update
cells          how each number follows from the others
figure         the model as a whole: layers, attention and gradients
build          the whole walkthrough, as JSON that fits into a page
"""

from dragoman.interpret.walkthrough.build import compact, walkthrough
from dragoman.interpret.walkthrough.quantities import Labels

__all__ = ["Labels", "compact", "walkthrough"]
