"""Low-rank adapters: no effect at the start, the same output when merged, and everything else frozen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dragoman.config import LoRAConfig
from dragoman.data.batching import Batch, collate
from dragoman.models.model_folder import load_tensors, unique_tensors
from dragoman.models.seq2seq import EncoderOnly, Network, evaluating
from dragoman.nn.lora import LoRALinear, MergedWeights, adapter_size, adapters, add_adapters, without_adapters
from dragoman.training.loss import TokenLoss
from every_kind import LABELLERS, LANGUAGE_MODELS, TRANSFORMERS, TRANSLATORS, built_network, readable

VOCAB, RANK, ALPHA = 23, 3, 5.0
BOTH = ("attention", "feed_forward")
STACKS = {name: TRANSLATORS[name] for name in TRANSFORMERS} | {
    "decoder only": LANGUAGE_MODELS["decoder only"],
    "encoder only": LABELLERS["encoder only"],
}


def batch_for(model: Network) -> Batch:
    batch = readable(model, collate([([4, 5, 6], [7, 8]), ([9], [10, 11, 12, 13])]))
    if isinstance(model, EncoderOnly):
        return Batch(batch.src, batch.src_mask, batch.tgt_in[:, :0], batch.src, batch.src_tokens, batch.src_tokens)
    return batch


def logits(model: Network) -> Tensor:
    batch = batch_for(model)
    with torch.no_grad(), evaluating(model):
        out: Tensor = model(batch.src, batch.src_mask, batch.tgt_in)
    return out


def close(found: Tensor, expected: Tensor) -> None:
    """Equal up to rounding: the address of a tensor may decide how BLAS adds."""
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12 * float(expected.abs().max()))


def with_random_b(model: Network) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("lora_b"):
            torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(len(name)))


@pytest.mark.parametrize("name", STACKS)
def test_adapters_change_nothing_at_first_and_can_be_merged(name: str) -> None:
    model = built_network(STACKS[name], VOCAB, VOCAB)
    before, original = logits(model), {key: value.clone() for key, value in unique_tensors(model).items()}
    expected = adapter_size(model, RANK, BOTH)
    add_adapters(model, RANK, ALPHA, BOTH, seed=1)
    close(logits(model), before)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == expected > 0

    with_random_b(model)
    adapted, weights = logits(model), unique_tensors(model)
    assert not torch.allclose(adapted, before, atol=1e-3)
    plain = built_network(STACKS[name], VOCAB, VOCAB)
    load_tensors(plain, MergedWeights(weights, ALPHA / RANK), None)  # type: ignore[arg-type]
    close(logits(plain), adapted)
    changed = {key for key, value in unique_tensors(plain).items() if not torch.equal(value, original[key])}
    assert changed == {key.replace("lora_a", "weight") for key in adapters(weights) if key.endswith("lora_a")}

    load_tensors(model, without_adapters(model, MergedWeights(weights, ALPHA / RANK)), None)  # type: ignore[arg-type]
    close(logits(model), logits(plain))  # what is validated is what is saved


@pytest.mark.parametrize("name", STACKS)
def test_only_adapters_have_gradients(name: str) -> None:
    model = built_network(STACKS[name], VOCAB, VOCAB)
    add_adapters(model, RANK, ALPHA, BOTH, seed=1)
    with_random_b(model)
    batch = batch_for(model)
    model(batch.src, batch.src_mask, batch.tgt_in, TokenLoss(batch.tgt_out, 0.1)).smoothed.backward()
    learning = 0
    for key, parameter in model.named_parameters():
        assert (parameter.grad is not None) == ("lora_" in key), key
        learning += parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
    assert learning > len(adapters(unique_tensors(model))) // 2  # softmax and ReLU may be flat somewhere


def test_targets_and_seed() -> None:
    def added(targets: tuple[str, ...], seed: int = 1) -> dict[str, Tensor]:
        model = built_network(STACKS["paper"], VOCAB, VOCAB)
        add_adapters(model, RANK, ALPHA, targets, seed)
        return adapters(unique_tensors(model))

    attention, feed_forward, both = added(("attention",)), added(("feed_forward",)), added(BOTH)
    assert attention.keys() | feed_forward.keys() == both.keys() and not attention.keys() & feed_forward.keys()
    assert all("attn" in name for name in attention) and all("ffn" in name for name in feed_forward)
    assert all(torch.equal(value, both[name]) for name, value in added(BOTH).items())
    assert not torch.equal(next(iter(added(BOTH, seed=2).values())), next(iter(both.values())))


def test_the_formula() -> None:
    """W x + alpha / rank * B A x (Hu et al. 2021, equation 3), with the dtype of W."""
    base = built_network(STACKS["paper"], VOCAB, VOCAB).encoder.layers[0].ffn.inner
    layer = LoRALinear(base, rank=2, scale=LoRAConfig(rank=2, alpha=3.0).scale, generator=torch.Generator())
    x = torch.randn(4, base.in_features, dtype=torch.float64)
    assert torch.equal(layer(x), base(x))
    torch.nn.init.normal_(layer.lora_b)
    x = torch.randn(4, base.in_features, dtype=torch.float64)
    expected = base(x) + 1.5 * x @ layer.lora_a.T @ layer.lora_b.T
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)
    assert layer.lora_a.dtype == torch.float64
