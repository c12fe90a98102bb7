"""The value at each tap equals its formula applied to the preceding taps, on every architecture."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.data.batching import Batch
from dragoman.models.seq2seq import Model
from dragoman.nn.attention import mask_to_bias
from dragoman.nn.record import Recording, record, replace
from dragoman.nn.recurrent import ContextLayer
from every_kind import TRANSFORMERS, TRANSLATORS, built, model_config, random_batch
from small_networks import EXACT

B, S, T, V = 4, 7, 6, 17
SOFTMAX = [name for name, changes in TRANSFORMERS.items() if "attention" not in changes]
LINEAR = [name for name in TRANSFORMERS if name not in SOFTMAX]


def batch() -> Batch:
    return random_batch([(S, 4), (3, T), (5, 5), (2, 3)], V)


def everything(model: Model) -> Recording:
    """All taps of one teacher-forced pass over a padded batch."""
    data = batch()
    with torch.no_grad(), record(model, "*") as seen:
        model(data.src, data.src_mask, data.tgt_in)
    return seen


def in_sight() -> dict[str, Tensor]:
    """True where a query may attend, by kind of attention; (B or 1, 1, Tq or 1, Tk)."""
    mask = batch().src_mask
    assert mask is not None
    words = mask[:, None, None]
    past = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    return {"encoder.self_attn": words, "decoder.self_attn": past, "decoder.cross_attn": words}


def attentions(model: Model) -> list[tuple[str, Tensor]]:
    """The path of every attention and its mask."""
    layers = {"encoder": len(model.encoder.layers), "decoder": len(model.decoder.layers)}  # type: ignore[arg-type, union-attr]
    return [
        (f"{stack}.layers.{layer}.{kind}", seen)
        for (stack, kind), seen in ((place.split("."), seen) for place, seen in in_sight().items())
        for layer in range(layers[stack])
    ]


# ----------------------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("name", SOFTMAX)
def test_recorded_weights_are_the_formula_of_recorded_queries_and_keys(name: str) -> None:
    """To 1e-10 in float64; heads come from the fused implementation, weights from the formula."""
    model = built(TRANSLATORS[name], V, shake=False)
    seen = everything(model)
    for path, sight in attentions(model):
        if "ssru" in name and path.startswith("decoder.") and path.endswith("self_attn"):
            continue  # this decoder has no self-attention
        kinds = ("queries", "keys", "values", "scores", "masked", "weights", "heads")
        q, k, v, scores, masked, weights, heads = (seen.joined(f"{path}.{kind}") for kind in kinds)
        k, v = (x.repeat_interleave(q.size(1) // k.size(1), dim=1) for x in (k, v))
        want = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        torch.testing.assert_close(scores, want, **EXACT)
        bias = masked - scores
        assert torch.equal(bias == -math.inf, ~sight.expand_as(bias)), path
        if "cross" in path or model_config(TRANSLATORS[name]).position.acts_on != "scores":
            assert not bias[sight.expand_as(bias)].any(), path
        torch.testing.assert_close(weights, (want + bias).softmax(-1), **EXACT)
        assert not weights[~sight.expand_as(weights)].any()
        if name != "shaw" or "cross" in path:  # Shaw adds a term to the values
            torch.testing.assert_close(heads, weights @ v, **EXACT)


@pytest.mark.parametrize("name", LINEAR)
def test_recorded_weights_of_linear_attention_make_its_heads(name: str) -> None:
    model = built(TRANSLATORS[name], V)
    seen = everything(model)
    for path, sight in attentions(model):
        weights, values, heads = (seen.joined(f"{path}.{kind}") for kind in ("weights", "values", "heads"))
        torch.testing.assert_close(heads, weights @ values, **EXACT)
        assert not weights[~sight.expand_as(weights)].any()
        if name != "linear rotary" or "cross" in path:  # rotated, weights need not sum to 1
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), **EXACT)


# ------------------------------------------------------------------------------------------- norms, residuals, layers


def normed(norm: Any, seen: Recording, path: str, x: Tensor) -> Tensor:
    """Apply the formula of the norm at `path` to x and compare with its taps."""
    out = seen.joined(f"{path}.normed")
    if f"{path}.mean" in seen:
        mean, std = x.mean(-1), (x.var(-1, unbiased=False) + norm.eps).sqrt()
        torch.testing.assert_close(seen.joined(f"{path}.mean"), mean, **EXACT)
        want = (x - mean[..., None]) / std[..., None] * norm.weight + norm.bias
    elif f"{path}.std" in seen:
        std = (x.square().mean(-1) + norm.eps).sqrt()
        want = x / std[..., None] * norm.weight
    else:
        want = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        std = None
    if std is not None:
        torch.testing.assert_close(seen.joined(f"{path}.std"), std, **EXACT)
    torch.testing.assert_close(out, want, **EXACT)
    return out


def through(model: Model, seen: Recording, layer: str, kind: str, x: Tensor) -> Tensor:
    """Compute one sub-layer of x from its taps."""
    around, path = model.get_submodule(f"{layer}.around_{kind}"), f"{layer}.around_{kind}"
    update, residual = seen.joined(f"{path}.update"), seen.joined(f"{path}.residual")
    torch.testing.assert_close(residual, x + update, **EXACT)
    pre = around.order == "pre"
    after = normed(around.norm, seen, f"{path}.norm", x if pre else residual)
    if kind == "ffn":
        ffn: Any = model.get_submodule(f"{layer}.ffn")
        before, hidden = seen.joined(f"{layer}.ffn.before"), seen.joined(f"{layer}.ffn.hidden")
        torch.testing.assert_close(before, ffn.inner(after if pre else x), **EXACT)
        first, *gate = before.chunk(2, dim=-1) if ffn.gated else (before,)
        torch.testing.assert_close(hidden, ffn.activation(first) * (gate[0] if gate else 1), **EXACT)
        torch.testing.assert_close(update, ffn.outer(hidden), **EXACT)
    else:
        heads = seen.joined(f"{layer}.{kind}.heads")
        of_heads = model.get_submodule(f"{layer}.{kind}.out")(heads.transpose(1, 2).flatten(2))
        torch.testing.assert_close(update, of_heads, **EXACT)
    return residual if pre else after


@pytest.mark.parametrize(
    "name", ["paper", "pre-norm", "modern", "batch norm", "normalized embeddings", "grouped-query", "linear relu"]
)
def test_a_transformer_is_put_together_from_its_taps(name: str) -> None:
    model, data = built(TRANSLATORS[name], V), batch()
    seen = everything(model)
    for stack, ids, kinds in (
        ("encoder", data.src, ("self_attn", "ffn")),
        ("decoder", data.tgt_in, ("self_attn", "cross_attn", "ffn")),
    ):
        module: Any = model.get_submodule(stack)
        torch.testing.assert_close(seen.joined(f"{stack}.embedded"), module.embedding(ids), **EXACT)
        x, _ = module.positions.embed(module.embedding(ids), torch.arange(ids.size(1)), None)
        torch.testing.assert_close(seen.joined(f"{stack}.positioned"), x, **EXACT)
        if not isinstance(module.embedding_norm, nn.Identity):
            x = normed(module.embedding_norm, seen, f"{stack}.embedding_norm", x)
        for layer in range(len(module.layers)):
            for kind in kinds:
                x = through(model, seen, f"{stack}.layers.{layer}", kind, x)
            torch.testing.assert_close(seen.joined(f"{stack}.layers.{layer}.stream"), x, **EXACT)
        if not isinstance(module.final_norm, nn.Identity):
            x = normed(module.final_norm, seen, f"{stack}.final_norm", x)
    logits = x @ model.output.weight.T  # type: ignore[operator, union-attr]
    torch.testing.assert_close(seen.joined("output.logits"), logits, **EXACT)
    torch.testing.assert_close(seen.joined("output.probs"), logits.softmax(-1), **EXACT)


# ----------------------------------------------------------------------------------------- recurrent and convolutional


def before(states: Tensor) -> Tensor:
    """(N, T, D) -> the states before each position, zeros before the first."""
    return nn.functional.pad(states, (0, 0, 1, 0))[:, :-1]


@pytest.mark.parametrize("way", ["ahead", "back"])
@pytest.mark.parametrize("name", ["rnn relu bahdanau", "gru", "lstm luong"])
def test_gates_make_the_hidden_states_that_the_layer_hands_on(name: str, way: str) -> None:
    model = built(TRANSLATORS[name], V)
    seen, path = everything(model), f"encoder.layers.0.{way}"
    tap = {key.rsplit(".", 1)[1]: seen.joined(key) for key in seen if key.startswith(path)}
    hidden = tap["hidden"]
    if name == "gru":
        want = (1 - tap["update_gate"]) * tap["candidate"] + tap["update_gate"] * before(hidden)
        torch.testing.assert_close(hidden, want, **EXACT)
        assert (tap["reset_gate"] > 0).all() and (tap["reset_gate"] < 1).all()
    elif name == "lstm luong":
        cell = tap["forget_gate"] * before(tap["cell"]) + tap["input_gate"] * tap["candidate"]
        torch.testing.assert_close(tap["cell"], cell, **EXACT)
        torch.testing.assert_close(hidden, tap["output_gate"] * torch.tanh(cell), **EXACT)
    half = hidden.size(-1)
    stream, words = seen.joined("encoder.layers.0.stream"), batch().src_mask
    assert stream.size(-1) == 2 * half and words is not None
    for row, length in enumerate(words.sum(1).tolist()):
        said = hidden[row, :length]  # `back` reads from the last word
        of_way = stream[row, :length, :half] if way == "ahead" else stream[row, :length, half:].flip(0)
        torch.testing.assert_close(said, of_way, **EXACT)


@pytest.mark.parametrize("name", ["rnn relu bahdanau", "gru luong dot", "lstm luong", "lstm bahdanau"])
def test_a_recurrent_decoder_looks_with_the_weights_of_its_scores(name: str) -> None:
    model, mask = built(TRANSLATORS[name], V), batch().src_mask
    seen = everything(model)
    path, last = "decoder.layers.0.cross_attn", len(model.encoder.layers) - 1  # type: ignore[arg-type, union-attr]
    memory = seen.joined(f"encoder.layers.{last}.stream")
    scores, weights, context = (seen.joined(f"{path}.{kind}") for kind in ("scores", "weights", "context"))
    assert scores.shape == weights.shape == (B, 1, T, S) and len(seen[f"{path}.weights"]) == T and mask is not None
    want = (scores + mask_to_bias(mask[:, None, None], scores.dtype)).softmax(-1)
    torch.testing.assert_close(weights, want, **EXACT)
    torch.testing.assert_close(context, weights[:, 0] @ memory, **EXACT)
    if name == "gru luong dot":
        hidden = seen.joined("decoder.layers.0.cell.hidden")
        torch.testing.assert_close(scores[:, 0], hidden @ memory.transpose(1, 2), **EXACT)
    ends = mask.sum(1) - 1
    half = memory.size(-1) // 2
    summary = torch.cat([memory[torch.arange(B), ends, :half], memory[:, 0, half:]], dim=-1)
    torch.testing.assert_close(seen.joined("decoder.bridge.summary"), summary, **EXACT)


@pytest.mark.parametrize("name", ["rnn every step", "gru every step", "lstm every step"])
def test_the_context_vector_is_the_last_state_of_each_direction(name: str) -> None:
    model, data = built(TRANSLATORS[name], V), batch()
    seen, mask = everything(model), data.src_mask
    assert mask is not None
    memory, ends = seen.joined("encoder.layers.0.stream"), mask.sum(1) - 1
    c = seen.joined("decoder.layers.0.context")
    half = c.size(-1) // TRANSLATORS[name].get("directions", 2)
    torch.testing.assert_close(c[:, :half], memory[torch.arange(B), ends, :half], **EXACT)
    torch.testing.assert_close(c[:, half:], memory[:, 0, half:], **EXACT)
    torch.testing.assert_close(c, seen.joined("decoder.bridge.summary"), **EXACT)
    # Without its context, a layer computes what it computes without W^c; the initial state remains.
    with torch.no_grad():
        plain = model(data.src, data.src_mask, data.tgt_in)
        with replace(model, {"decoder.layers.0.context": torch.zeros_like}):
            without = model(data.src, data.src_mask, data.tgt_in)
        layer = model.get_submodule("decoder.layers.0")
        assert isinstance(layer, ContextLayer)
        layer.w_context.zero_()
        torch.testing.assert_close(model(data.src, data.src_mask, data.tgt_in), without, **EXACT)
    assert (without - plain).abs().max() > 1e-3


def test_a_convolutional_model_is_put_together_from_its_taps() -> None:
    model, data = built(TRANSLATORS["convolutional"], V), batch()
    seen, mask = everything(model), data.src_mask
    assert mask is not None
    half, place = math.sqrt(0.5), "encoder.embedding"
    embedded = seen.joined(f"{place}.embedded")
    torch.testing.assert_close(embedded, 0.1 * model.get_submodule(f"{place}.embedding")(data.src), **EXACT)
    e = seen.joined(f"{place}.positioned")
    positions = model.get_parameter(f"{place}.positions")
    torch.testing.assert_close(e, embedded + positions[:S], **EXACT)
    x = e
    for layer in range(2):
        hidden = seen.joined(f"encoder.layers.{layer}.conv.hidden")
        x = (hidden + x.masked_fill(~mask[..., None], 0)) * half
        torch.testing.assert_close(seen.joined(f"encoder.layers.{layer}.stream"), x, **EXACT)
    z, values = x, (x + e) * mask.sum(1)[:, None, None].double().sqrt()
    y = seen.joined("decoder.embedding.positioned")
    for layer in range(3):
        path = f"decoder.layers.{layer}"
        kinds = ("queries", "scores", "weights", "context")
        queries, scores, weights, context = (seen.joined(f"{path}.cross_attn.{kind}") for kind in kinds)
        torch.testing.assert_close(scores[:, 0], queries @ z.transpose(1, 2), **EXACT)
        bias = mask_to_bias(mask[:, None, None], scores.dtype)
        torch.testing.assert_close(weights, (scores + bias).softmax(-1), **EXACT)
        torch.testing.assert_close(context, weights[:, 0] @ values, **EXACT)
        y = (context + (seen.joined(f"{path}.conv.hidden") + y) * half) * half
        torch.testing.assert_close(seen.joined(f"{path}.stream"), y, **EXACT)
        gate = seen.joined(f"{path}.conv.gate")
        assert ((gate > 0) & (gate < 1)).all()


# ---------------------------------------------------------------------------------------------------- cached decoding


@pytest.mark.parametrize("name", [name for name in TRANSLATORS if name not in LINEAR])
def test_the_calls_of_a_cached_decoding_are_the_parts_of_the_whole(name: str) -> None:
    model, data = built(TRANSLATORS[name], V), batch()
    whole = everything(model)
    with torch.no_grad():
        state = model.start(model.encode(data.src, data.src_mask), beams=1, max_len=T)
        with record(model, "decoder.*", "output.*") as seen:
            for t in range(T):
                model.decode(data.tgt_in[:, t : t + 1], state)
    checked = 0
    for key, calls in seen.items():
        kind = key.split(".")[-2:]
        if kind[0] == "self_attn" and kind[1] in ("scores", "masked", "weights"):  # one row per step
            got = torch.cat([nn.functional.pad(call, (0, T - call.size(-1))) for call in calls], dim=2)
            want = whole.joined(key).masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), 0)
        elif not calls:  # computed once, before the first position
            once = (
                ["cross_attn", "keys"], ["cross_attn", "values"], ["bridge", "summary"], ["bridge", "initial"],
                ["0", "context"],
            )  # fmt: skip
            assert kind in once, key
            continue
        else:
            got, want = seen.joined(key), whole.joined(key)
        torch.testing.assert_close(got, want, **EXACT)
        checked += 1
    assert checked >= 7
