"""P8: gradients are the same, bit by bit, if layers are computed again in the backward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dragoman.errors import ConfigError
from dragoman.models.seq2seq import LanguageModel, Network
from dragoman.models.transformer import Stack
from dragoman.nn.fast.dropout import seed_dropout
from dragoman.training.loss import Loss, TokenLoss
from dragoman.training.trainer import train
from every_kind import LANGUAGE_MODELS, TRANSLATORS, built_network, covering
from small_run import small_config, weights, write_corpus

KINDS = {
    name: document
    for name, document in {**TRANSLATORS, **LANGUAGE_MODELS}.items()
    if document["architecture"] in ("transformer", "decoder_only") and document.get("norm") != {"kind": "batch"}
}


def gradients(network: Network, recomputes: bool) -> tuple[float, list[Tensor | None], int]:
    """Return the loss, the gradients and the bytes that the forward pass stores for the backward pass."""
    network.zero_grad(set_to_none=True)
    for module in network.modules():
        if isinstance(module, Stack):
            module.recomputes = recomputes
    stored = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal stored
        stored += tensor.nbytes
        return tensor

    seed_dropout(3, 1)
    src, tgt = torch.randint(4, 11, (3, 7)), torch.randint(4, 11, (3, 6))
    src = src[:, :0] if isinstance(network, LanguageModel) else src
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss: Loss = network(src, None, tgt, TokenLoss(tgt, 0.1))
    loss.smoothed.backward()  # type: ignore[no-untyped-call]
    return float(loss.smoothed.detach()), [p.grad for p in network.parameters()], stored


@pytest.mark.parametrize("name", covering(KINDS))
def test_gradients_of_every_kind(name: str) -> None:
    network = built_network({**KINDS[name], "dropout": 0.3}, 11, 11).train().float()
    torch.manual_seed(1)
    loss, want, stored = gradients(network, recomputes=False)
    torch.manual_seed(1)
    again, found, less = gradients(network, recomputes=True)
    assert loss == again and less < 0.7 * stored
    for one, other in zip(want, found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


def test_a_training_ends_with_the_same_bytes(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data", train=60)
    settings = ("train.budget=8 steps", "model.dropout=0.2", "model.attention_dropout=0.1")
    for name in ("true", "false"):
        train(small_config(data, *settings, f"train.gradient_checkpointing={name}"), tmp_path / name)
    assert weights(tmp_path / "true") == weights(tmp_path / "false")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.architecture=lstm",), 'needs a Transformer; model.architecture is "lstm": remove the key'),
        (("model.norm.kind=batch",), 'would count each batch twice in model.norm.kind = "batch"'),
    ],
)
def test_gradient_checkpointing_is_refused_where_it_is_unsupported(
    overrides: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        small_config(tmp_path, "train.gradient_checkpointing=true", *overrides)
