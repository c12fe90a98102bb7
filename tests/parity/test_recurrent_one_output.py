"""Recurrent language models and labels against torch.nn and the written-out formula, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dragoman.config import RecurrentEncoderConfig, RecurrentLMConfig
from dragoman.models.build import build_model
from dragoman.models.recurrent import RecurrentEncoderOnly, RecurrentLM
from dragoman.nn.recurrent import Cell
from dragoman.tokenizers import BOS, PAD
from small_networks import EXACT, shaken

B, T, D, LAYERS, V, LABELS = 4, 6, 8, 2, 13, 5
LENGTHS = [3, 6, 1, 5]
CELLS: dict[str, dict[str, Any]] = {
    "tanh": {"kind": "rnn"}, "relu": {"kind": "rnn", "activation": "relu"}, "gru": {"kind": "gru"},
    "lstm": {"kind": "lstm"},
}  # fmt: skip
STATES = ("zeros", "learned")


def language_model(cell: str, initial_state: str = "learned", tie: str = "none", **changes: Any) -> RecurrentLM:
    config = RecurrentLMConfig.model_validate(
        {"d_model": D, "n_layers": LAYERS, "dropout": 0.0, "tie": tie, "cell": CELLS[cell]}
        | {"initial_state": {"kind": initial_state}} | changes
    )  # fmt: skip
    network = shaken(build_model(config, V, V))
    assert isinstance(network, RecurrentLM)
    return network


def labels_of(cell: str, directions: int, pooling: str = "none", **changes: Any) -> RecurrentEncoderOnly:
    config = RecurrentEncoderConfig.model_validate(
        {"d_model": D, "n_layers": LAYERS, "dropout": 0.0, "directions": directions, "pooling": pooling}
        | {"cell": CELLS[cell], "initial_state": {"kind": "learned"}} | changes
    )  # fmt: skip
    network = shaken(build_model(config, V, LABELS))
    assert isinstance(network, RecurrentEncoderOnly)
    return network


def in_torch(cell: str, cells: list[list[Cell]]) -> tuple[nn.RNNBase, tuple[Tensor, ...]]:
    """PyTorch's module with the weights of cells[layer][direction], and its first state for B rows."""
    size, directions = cells[0][0].d_model, len(cells[0])
    options: dict[str, Any] = {"batch_first": True, "num_layers": len(cells), "bidirectional": directions == 2}
    if cell in ("gru", "lstm"):
        module = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](D, size, **options)
    else:
        module = nn.RNN(D, size, nonlinearity=cell, **options)
    weights = {
        name.replace("_l0", f"_l{layer}") + ("_reverse" if direction else ""): weight
        for layer, both in enumerate(cells)
        for direction, one in enumerate(both)
        for name, weight in one.fused.state_dict().items()
    }
    module.double().load_state_dict(weights)
    nothing = torch.zeros(B, 1, D, dtype=torch.float64)
    states = [one.initial_state(nothing) for both in cells for one in both]
    return module, tuple(torch.stack(part).contiguous() for part in zip(*states, strict=True))


def ids(seed: int = 3) -> tuple[Tensor, Tensor]:
    """Token ids (B, T) of four sentences, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    return torch.randint(4, V, (B, T), generator=generator).masked_fill(~mask, PAD), mask


NOTHING = torch.zeros(B, 0, dtype=torch.long)


@pytest.mark.parametrize(("cell", "initial_state"), list(itertools.product(CELLS, STATES)))
def test_a_language_model_is_torchs_layers_between_two_matrices(cell: str, initial_state: str) -> None:
    model, (tokens, _) = language_model(cell, initial_state), ids()
    module, first = in_torch(cell, [[layer.cell] for layer in model.layers])  # type: ignore[list-item]
    embedded = model.embedding.weight[tokens] * D**0.5
    states, _ = module(embedded, first if cell == "lstm" else first[0])
    expected = states @ model.output.weight.T  # type: ignore[operator]
    logits = model(NOTHING, None, tokens)
    torch.testing.assert_close(logits, expected, **EXACT)

    weights = [model.embedding.weight, *[p for layer in model.layers for p in layer.cell.initial.parameters()]]  # type: ignore[union-attr]
    towards = torch.randn(logits.shape, dtype=torch.float64)
    ours = torch.autograd.grad(logits, weights, towards)
    theirs = torch.autograd.grad(expected, weights, towards)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    assert len(weights) == 1 + (LAYERS * len(first) if initial_state == "learned" else 0)


def test_an_lstm_language_model_is_the_formula() -> None:
    """One number after the other, from the embedding to the logits."""
    model, (tokens, _) = language_model("lstm"), ids()
    logits = model(NOTHING, None, tokens)
    for row in range(B):
        state = [tuple(layer.cell.initial[part].detach() for part in ("h", "c")) for layer in model.layers]  # type: ignore[union-attr, index]
        for t, token in enumerate(tokens[row].tolist()):
            x = D**0.5 * model.embedding.weight[token]
            for number, layer in enumerate(model.layers):
                w, u, b, d = layer.cell.weights  # type: ignore[union-attr, misc]
                h, c = state[number]
                i, f, g, o = (w @ x + b + u @ h + d).split(D)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                x = torch.sigmoid(o) * torch.tanh(c)
                state[number] = (x, c)
            torch.testing.assert_close(logits[row, t], model.output.weight @ x, **EXACT)  # type: ignore[operator]


@pytest.mark.parametrize(("cell", "directions"), list(itertools.product(CELLS, (1, 2))))
def test_labels_are_torchs_layers_of_packed_sentences(cell: str, directions: int) -> None:
    network, (src, mask) = labels_of(cell, directions), ids()
    layers = [[layer.ahead, *([] if layer.back is None else [layer.back])] for layer in network.encoder.layers]
    module, first = in_torch(cell, layers)  # type: ignore[arg-type]
    embedded = network.encoder.embedding.weight[src] * D**0.5
    packed = pack_padded_sequence(embedded, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    out, final = module(packed, first if cell == "lstm" else first[0])
    states, _ = pad_packed_sequence(out, batch_first=True)
    final = final[0] if cell == "lstm" else final  # (layers * directions, B, size)
    last = final[-1] if directions == 1 else torch.cat([final[-2], final[-1]], dim=-1)
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    for pooling, hidden in (("last", last[:, None]), ("mean", (states.sum(1) / lengths)[:, None]), ("none", states)):
        network.pooling = pooling  # type: ignore[assignment]
        logits, expected = network(src, mask, NOTHING), hidden @ network.output.weight.T  # type: ignore[operator]
        shown = mask if pooling == "none" else slice(None)
        torch.testing.assert_close(logits[shown], expected[shown], **EXACT)
        weights = list(network.parameters())
        towards = torch.randn(logits[shown].shape, dtype=torch.float64)
        ours = torch.autograd.grad(logits[shown], weights, towards)
        shared = [network.output.weight, network.encoder.embedding.weight]  # the module has copies of the others
        theirs = torch.autograd.grad(expected[shown], shared, towards, retain_graph=True)
        by_name = dict(zip([name for name, _ in network.named_parameters()], ours, strict=True))
        torch.testing.assert_close(by_name["output.weight"], theirs[0], **EXACT)
        torch.testing.assert_close(by_name["encoder.embedding.weight"], theirs[1], **EXACT)


@pytest.mark.parametrize("cell", CELLS)
def test_the_state_has_the_same_size_at_every_length(cell: str) -> None:
    model = language_model(cell)
    sizes = set()
    for max_len, tokens in ((1, 1), (300, 300), (10**12, 7)):
        state = model.start(model.encode(NOTHING, None), beams=3, max_len=max_len)
        with torch.no_grad():
            model.decode(torch.full((3 * B, tokens), BOS), state)
        sizes.add(state.nbytes())
        assert state.length == tokens
    assert sizes == {LAYERS * (2 if cell == "lstm" else 1) * 3 * B * D * 8}


@pytest.mark.parametrize("tie", ["all", "none"])
def test_tied_models_have_one_matrix(tie: str) -> None:
    model = language_model("gru", tie=tie)
    assert (model.output.weight is model.embedding.weight) == (tie == "all")
    tagger = labels_of("lstm", 2)
    assert tagger.output.weight.shape == (LABELS, D)  # type: ignore[union-attr]


def test_dropout_is_before_each_layer_and_after_the_last() -> None:
    src, mask = ids()
    for network, inputs in (
        (language_model("gru", dropout=0.5), (NOTHING, None, src)),
        (labels_of("gru", 2, dropout=0.5), (src, mask, NOTHING)),
    ):
        stack: Any = network if isinstance(network, RecurrentLM) else network.encoder
        calls: list[Tensor] = []
        handle = stack.dropout.register_forward_hook(lambda module, args, out, calls=calls: calls.append(out))
        network.train()
        hidden = network.hidden(*inputs)
        handle.remove()
        assert len(calls) == LAYERS + 1 and calls[-1] is hidden
        assert 0.2 < float((hidden == 0).double().mean()) < 0.8
        assert torch.equal(network.eval().hidden(*inputs), network.hidden(*inputs))
