"""The number level of the walkthrough: for every architecture, the terms shown plus the rest are the number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_walkthrough import KINDS, MOST, network_of, numbers, steps_of

from dragoman.interpret.walkthrough import compact, walkthrough
from dragoman.interpret.walkthrough.tiny_preset import tiny_walkthrough
from dragoman.tokenizers import PAD

TRANSFORMERS = [kind for kind in KINDS if kind.startswith(("translator: paper", "translator: modern", "vision"))]


def evaluated(tensors: list[dict[str, Any]], shown: dict[str, Any], i: int, j: int) -> float:
    """The number in row i and column j from the other numbers of the page, as a reader would add them up."""
    cells = shown["cells"]
    if cells.get("function") == "softmax":
        row = numbers(tensors[cells["left"]["of"]])[i]
        return float(row[j].exp() / (row.exp().sum() + cells.get("rest", [0.0] * (i + 1))[i]))
    if cells.get("function") == "softmax gradient":
        a, g = (numbers(tensors[cells[side]["of"]])[i] for side in ("left", "right"))
        return float(a[j] * (g[j] - ((a * g).sum() + cells.get("rest", [0.0] * (i + 1))[i])))
    if cells.get("function") == "norm":
        x = {symbol: numbers(tensors[of]) for symbol, of in cells["quantities"].items()}
        zero = torch.zeros(1, 1)
        at = {s: m.expand(max(m.size(0), i + 1), max(m.size(1), j + 1))[i, j] for s, m in x.items()}
        assert set(at) >= {"γ", "σ", "R"} and zero.numel()
        return float(at["γ"] * (at["R"] - at.get("μ", 0.0)) / at["σ"] + at.get("β", 0.0))
    total = cells.get("rest", [[0.0] * (j + 1)] * (i + 1))[i][j]
    total -= cells.get("minus", [[0.0] * (j + 1)] * (i + 1))[i][j]
    plus = cells.get("plus", [[0.0] * (j + 1)] * (i + 1))[i][j]
    total += -math.inf if plus == "−∞" else plus
    for term in cells["terms"]:
        row, inner, column = term.get("at", (0, 0, 0))
        left, r = factor(tensors, term["left"]), i - row
        if "right" not in term:
            r = 0 if left.size(0) == 1 else r
            if 0 <= r < left.size(0) and j + column < left.size(1):
                total += term.get("factor", 1.0) * float(left[r, j + column])
            continue
        right = factor(tensors, term["right"])
        if 0 <= r < left.size(0) and j + column < right.size(1):
            count = min(left.size(1), max(0, right.size(0) - inner))
            total += term.get("factor", 1.0) * float(left[r, :count] @ right[inner : inner + count, j + column])
    return total


def factor(tensors: list[dict[str, Any]], operand: dict[str, Any]) -> torch.Tensor:
    matrix = numbers(tensors[operand["of"]])
    return matrix.T if operand.get("transposed") else matrix


@pytest.mark.parametrize("kind", KINDS)
def test_the_terms_of_every_number_add_up(kind: str) -> None:
    network, given, words = network_of(kind)
    story = walkthrough(network, *given, words, smoothing=0.1, max_features=MOST)
    tensors = [shown for step in story["steps"] for shown in step["tensors"]]
    checked = 0
    for shown in tensors:
        if "cells" not in shown or shown["cells"].get("function") == "apply":
            continue
        want = numbers(shown)
        scale = max(1e-9, float(want[want.isfinite()].abs().max())) if want.isfinite().any() else 1.0
        for i in range(want.size(0)):
            for j in range(want.size(1)):
                got = evaluated(tensors, shown, i, j)
                assert got == pytest.approx(float(want[i, j]), rel=1e-4, abs=2e-4 * scale), (shown["name"], i, j)
                checked += 1
    assert checked > 20


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_transformer_has_all_its_products(kind: str) -> None:
    network, given, words = network_of(kind)
    steps = walkthrough(network, *given, words, max_features=MOST)["steps"]
    found = {shown["symbol"] for step in steps for shown in step["tensors"] if "cells" in shown}
    assert {"S", "A", "Z", "O", "R", "Y", "U", "F", "P"} <= found
    assert kind == "vision" or "logits" in found  # of the class token alone
    assert {"∂logits", "∂F", "∂H", "∂W₂", "∂O", "∂Z", "∂A", "∂S", "∂V", "∂W_V"} <= found
    if "modern" not in kind:  # rotated queries and keys are no product
        assert {"Q", "K", "V", "X′"} <= found


def test_inputs_have_the_symbols_of_the_formula() -> None:
    """The projections of cross-attention read X from the decoder and M from the encoder, and are written out."""
    steps = {step["id"]: step for step in tiny_walkthrough()["steps"]}
    step = steps["decoder.layers.1.cross_attn.queries"]
    memory, inputs = "encoder.layers.1.around_ffn.norm.normed", "decoder.layers.1.around_self_attn.norm.normed"
    assert step["symbols"] == {inputs: "X", memory: "M"}
    assert {tensor["symbol"] for tensor in step["tensors"] if tensor.get("cells")} == {"Q", "K", "V"}
    residual = steps["encoder.layers.0.around_self_attn.residual"]
    assert residual["symbols"] == {"encoder.positioned": "X", "encoder.layers.0.around_self_attn.update": "f(X)"}


def test_a_number_of_the_tiny_model_needs_no_rest() -> None:
    story = tiny_walkthrough()
    cells = [shown["cells"] for step in story["steps"] for shown in step["tensors"] if "cells" in shown]
    assert len(cells) > 150 and not any("rest" in found for found in cells)


def test_a_formula_that_is_not_the_whole_computation_is_not_written_out() -> None:
    """The scores of Shaw's positions have a term that their formula leaves to the next step."""
    network, given, words = network_of("translator: shaw")
    story = walkthrough(network, *given, words, max_features=MOST)
    tensors = [shown for step in story["steps"] for shown in step["tensors"]]
    heads = [shown for shown in tensors if shown["symbol"] == "Z" and "encoder" in shown["name"]]
    assert heads and not any("cells" in shown for shown in heads)  # Z = A V + Σ A · a_V[distance]


def test_heads_have_their_columns_of_the_projections() -> None:
    network, given, words = network_of("translator: paper")
    story = walkthrough(network, *given, words, max_features=MOST)
    name = "encoder.layers.0.self_attn.queries"
    queries = [shown for shown in steps_of(story, name) if shown["symbol"] == "W_Q"]
    weight = network.get_parameter("encoder.layers.0.self_attn.qkv.weight")
    module = network.get_submodule("encoder.layers.0.self_attn")
    size = module.parts[0] // module.n_heads
    assert [shown["head"] for shown in queries] == list(range(module.n_heads)) and len(queries) > 1
    for shown in queries:
        first = shown["head"] * size
        want = weight.detach().T[:MOST, first : first + min(size, MOST)].double()
        torch.testing.assert_close(numbers(shown), want, rtol=1e-5, atol=1e-9)


def test_the_compact_form_keeps_everything() -> None:
    network, given, words = network_of("translator: paper")
    story = walkthrough(network, *given, words, max_features=MOST)
    for step, short in zip(story["steps"], compact(story)["steps"], strict=True):
        restored: list[dict[str, Any]] = []
        for tensor in short["tensors"]:
            restored.append({**restored[-1], **tensor} if tensor.get("head") else dict(tensor))
        assert restored == step["tensors"]


# ------------------------------------------------------------------------------------------------ the figure, updates


@pytest.mark.parametrize("kind", ["translator: paper", "translator: lstm bahdanau", "decoder only: llama", "vision"])
def test_the_figure_has_the_recorded_weights_and_gradients(kind: str) -> None:
    from test_walkthrough import recorded

    network, given, words = network_of(kind)
    figure = walkthrough(network, *given, words, smoothing=0.1)["figure"]
    network.eval()
    seen = recorded(network, given, 0.1)
    assert {column["layer"] for column in figure["columns"]} >= {0, 1}
    for column in figure["columns"]:
        want = seen.gradient(column["name"])[0].norm(dim=-1)
        torch.testing.assert_close(
            torch.tensor(column["gradient"]), want.double(), rtol=1e-6, atol=1e-12, check_dtype=False
        )
    assert len(figure["attention"]) == len([name for name in seen if name.endswith("_attn.weights")])
    for attention in figure["attention"]:
        weights = seen.joined(attention["name"])[0].detach()
        weights = weights if weights.dim() == 3 else weights[None]
        mean = unpacked(attention["weights"])
        torch.testing.assert_close(mean, weights.mean(0), rtol=0, atol=0.5 / 255 + 1e-6, check_dtype=False)
        result = attention["name"].replace("weights", "heads")
        gradient = seen.gradient(result if result in seen else attention["name"].replace("weights", "context"))[0]
        gradient = gradient if gradient.dim() == 3 else gradient[None]
        flow = torch.einsum("hqk,hqd->qkhd", weights, gradient).flatten(2).norm(dim=-1)
        assert attention["largest"] == pytest.approx(float(flow.max()), rel=1e-6)
        shares = unpacked(attention["gradient"])
        torch.testing.assert_close(shares, flow / flow.max(), rtol=0, atol=0.5 / 255 + 1e-6, check_dtype=False)


def unpacked(packed: dict[str, Any]) -> torch.Tensor:
    import base64

    numbers = torch.frombuffer(bytearray(base64.b64decode(packed["data"])), dtype=torch.uint8).float() / 255
    return numbers.view(packed["shape"])[0]


def test_the_losses_of_the_words_add_up_and_padding_is_no_output() -> None:
    network, (src, mask, tgt_in, targets), words = network_of("translator: paper")
    targets = targets.clone()
    targets[0, 1] = PAD
    story = walkthrough(network, src, mask, tgt_in, targets, words, smoothing=0.1)
    outputs = story["figure"]["outputs"]
    assert [output["position"] for output in outputs] == [0, 2, 3]
    assert sum(output["loss"] for output in outputs) == pytest.approx(story["loss"], rel=1e-9)
    probabilities = network(src, mask, tgt_in)[0].softmax(-1).detach()
    for output in outputs:
        target = int(targets[0, output["position"]])
        assert output["probability"] == pytest.approx(float(probabilities[output["position"], target]), rel=1e-6)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_updates_are_those_of_the_optimizers(rule: str) -> None:
    from dragoman.training.loss import TokenLoss

    network, given, words = network_of("translator: paper")
    story = walkthrough(network, *given, words, learning_rate=0.02)
    update = next(u for u in story["updates"] if u["rule"] == rule and u["rate"] == 0.02)
    network.eval()
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[rule](network.parameters(), lr=0.02)
    network(*given[:3], TokenLoss(given[3], 0.0)).smoothed.backward()
    optimizer.step()
    with torch.no_grad():
        logits = network(*given[:3])[0]
    targets = given[3][0]
    want = logits.softmax(-1).gather(1, targets[:, None])[:, 0]
    assert update["probabilities"] == pytest.approx(want.tolist(), rel=1e-5)
    assert update["loss"] == pytest.approx(float(-want.log().sum()), rel=1e-5)
    name, row, column = story["parameter"]
    assert update["element"] == pytest.approx(float(network.get_parameter(name).detach()[row, column]), rel=1e-5)
    assert len({u["rate"] for u in story["updates"]}) == 10 and len(story["updates"]) == 20
