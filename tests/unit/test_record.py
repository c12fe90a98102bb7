"""`record` and `replace`: names, axes, joined calls, gradients, replacements and errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dragoman.errors import UsageError
from dragoman.nn.record import ReadOnlyTap, Recording, Tap, any_active, any_intervened, record, replace, tap_names
from every_kind import TRANSLATORS, built

V = 17


class Doubling(nn.Module):
    """y = 2 x with taps before and after, and a read-only tap."""

    def __init__(self) -> None:
        super().__init__()
        self.x = Tap("row", "position")
        self.y = Tap("row", "position")
        self.sum = ReadOnlyTap("row")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.y(2 * self.x(x))
        self.sum(y.sum(-1))
        return y


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Doubling(), Doubling()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


# -------------------------------------------------------------------------------------------------------------- record


def test_names_are_paths_and_patterns_select_them() -> None:
    model = Two()
    assert tap_names(model) == [f"layers.{i}.{name}" for i in range(2) for name in ("x", "y", "sum")]
    with record(model, "layers.1.[xy]", "*.sum") as seen:
        model(X)
    assert list(seen) == ["layers.0.sum", "layers.1.x", "layers.1.y", "layers.1.sum"]  # in the order of the model
    assert seen.axes["layers.1.x"] == ("row", "position") and seen.axes["layers.0.sum"] == ("row",)
    assert torch.equal(seen.joined("layers.1.x"), 2 * X) and torch.equal(seen.joined("layers.1.sum"), 4 * X.sum(-1))


def test_hooks_are_removed_after_the_block_even_after_an_error() -> None:
    model = Two()
    with pytest.raises(ZeroDivisionError), record(model, "*"), replace(model, {"layers.0.x": X}):
        raise ZeroDivisionError
    with record(model, "*") as seen:
        pass
    assert torch.equal(model(X), 4 * X) and not any(seen.values())
    taps = [model.get_submodule(name) for name in tap_names(model)]
    assert not any_active(*taps) and not any_intervened(*taps)  # type: ignore[arg-type]
    assert {tap.observers for tap in taps} == {0}


def test_only_recording_does_not_intervene() -> None:
    model = Two()
    tap = model.get_submodule("layers.0.x")
    assert isinstance(tap, Tap) and not tap.active and not tap.is_intervened
    with record(model, "layers.0.x"):
        assert tap.active and not tap.is_intervened
        with record(model, "layers.0.x", gradients=True):
            assert tap.is_intervened
        assert not tap.is_intervened
        handle = tap.register_forward_hook(lambda module, inputs, output: None)
        assert tap.is_intervened
        handle.remove()
    with replace(model, {"layers.0.x": lambda x: x}):
        assert tap.is_intervened and not model.get_submodule("layers.1.x").active


def test_calls_are_joined_along_position_query_or_key() -> None:
    seen = Recording()
    for name, axes, shapes, want in (
        ("position", ("row", "position", "feature"), [(2, 3, 4), (2, 1, 4)], (2, 4, 4)),
        ("query", ("row", "head", "query", "key"), [(2, 1, 3, 5), (2, 1, 2, 5)], (2, 1, 5, 5)),
        ("key", ("row", "head", "key", "feature"), [(2, 1, 3, 5), (2, 1, 2, 5)], (2, 1, 5, 5)),
        ("alone", ("row", "feature"), [(2, 3)], (2, 3)),
    ):
        seen[name], seen.axes[name] = [torch.rand(shape) for shape in shapes], axes
        assert seen.joined(name).shape == want
    first, second = seen["query"]
    assert torch.equal(seen.joined("query")[:, :, 3:], second) and torch.equal(seen.joined("query")[:, :, :3], first)


@pytest.mark.parametrize(
    ("axes", "shapes", "problem"),
    [
        (("row", "head", "query", "key"), [(1, 1, 1, 1), (1, 1, 1, 2)], r"2 calls of shapes .*\(1, 1, 1, 2\).* list"),
        (("row", "feature"), [(2, 3), (2, 3)], "2 calls of shapes"),
        (("row", "position"), [], "no calls were recorded"),
    ],
)
def test_calls_that_cannot_be_joined_are_refused(
    axes: tuple[str, ...], shapes: list[tuple[int, ...]], problem: str
) -> None:
    seen = Recording()
    seen["a.b"], seen.axes["a.b"] = [torch.rand(shape) for shape in shapes], axes
    with pytest.raises(UsageError, match=rf"^a\.b: {problem}"):
        seen.joined("a.b")


def test_a_name_without_recording_is_refused_with_a_suggestion() -> None:
    with record(Two(), "layers.0.*") as seen:
        pass
    with pytest.raises(UsageError, match=r"'layers\.0\.summ' was not recorded \(did you mean 'layers\.0\.sum'\?\)"):
        seen.joined("layers.0.summ")


def test_all_unknown_names_are_refused_with_suggestions() -> None:
    model = built(TRANSLATORS["paper"], V)
    unknown = ["decoder.layers.0.cross_attn.weigths", "*.cross_attn.weights", "nothing.of.the.kind"]
    for use in (lambda: record(model, *unknown), lambda: replace(model, dict.fromkeys(unknown, torch.zeros(())))):
        with pytest.raises(UsageError) as caught, use():
            pass
        text = str(caught.value)
        assert "no tap matches 'decoder.layers.0.cross_attn.weigths' (did you mean 'decoder.layers." in text
        assert "no tap matches 'nothing.of.the.kind'" in text and "'*.cross_attn.weights'" not in text
        assert "encoder.layers.*.self_attn.queries" in text and "encoder.layers.1.self_attn" not in text
        assert not any_active(*(model.get_submodule(name) for name in tap_names(model)))  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- gradients


def test_gradients_per_call_and_joined() -> None:
    model, x = Two(), X.clone().requires_grad_()
    with record(model, "layers.*.[xy]", gradients=True) as seen:
        (model(x[:, :1]).sum() + 3 * model(x[:, 1:]).sum()).backward()
    assert [g.tolist() for g in seen.gradients("layers.1.x")] == [[[2.0]] * 2, [[6.0, 6.0]] * 2]
    assert seen.gradient("layers.0.x").tolist() == [[4.0, 12.0, 12.0]] * 2
    assert x.grad is not None and torch.equal(x.grad, seen.gradient("layers.0.x"))
    assert torch.equal(seen.joined("layers.0.y"), 2 * X)


def test_a_gradient_excludes_other_uses_of_the_tensor() -> None:
    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tap = Tap("row", "position")

        def forward(self, x: Tensor) -> Tensor:
            h = 2 * x
            out: Tensor = 3 * self.tap(h) + 5 * h
            return out

    model = Shortcut()
    with record(model, "tap", gradients=True) as seen:
        model(X.clone().requires_grad_()).sum().backward()
    assert torch.equal(seen.gradient("tap"), torch.full_like(X, 3.0))


@pytest.mark.parametrize("how", ["not recorded", "no graph", "no backward", "read-only"])
def test_a_missing_gradient_is_refused(how: str) -> None:
    model, x = Two(), X.clone().requires_grad_(how != "no graph")
    name = "layers.0.sum" if how == "read-only" else "layers.0.y"
    with record(model, "*", gradients=how != "not recorded") as seen:
        out = model(x).sum()
    if out.requires_grad and how != "no backward":
        out.backward()
    with pytest.raises(UsageError, match=rf"^{name} has no gradient: .*gradients=True.*backward\(\)"):
        seen.gradient(name)


def test_a_read_only_tap_never_intervenes() -> None:
    model = Two()
    with record(model, "layers.0.sum", gradients=True) as seen:
        assert not model.get_submodule("layers.0.sum").is_intervened
        model(X)
    assert torch.equal(seen.joined("layers.0.sum"), 2 * X.sum(-1))


# ------------------------------------------------------------------------------------------------------------- replace


def test_a_tensor_replaces_every_call_and_is_broadcast() -> None:
    model = Two()
    with replace(model, {"layers.1.x": torch.tensor([7, 8, 9])}):  # integers, one row
        assert model(X).tolist() == model(X + 1).tolist() == [[14.0, 16.0, 18.0]] * 2
    assert torch.equal(model(X), 4 * X)


def test_a_list_has_one_tensor_per_call() -> None:
    model = Two()
    with record(model, "layers.0.y") as seen:
        model(X)
        model(10 * X)
    with replace(model, seen):
        assert torch.equal(model(0 * X), 4 * X) and torch.equal(model(0 * X), 40 * X)
        with pytest.raises(UsageError, match=r"^layers\.0\.y: 2 tensors for call 3; give one tensor per call"):
            model(X)


def test_functions_are_applied_in_order() -> None:
    model = Two()
    with replace(model, {"*.x": lambda x: x + 1, "layers.1.x": lambda x: -x}):
        assert torch.equal(model(X), 2 * -(2 * (X + 1) + 1))
    with replace(model, {"layers.0.x": lambda x: x + 1}), record(model, "layers.0.x") as seen:
        model(X)
    assert torch.equal(seen.joined("layers.0.x"), X + 1)  # hooks run in the order in which they were opened
    with record(model, "layers.0.x") as seen, replace(model, {"layers.0.x": lambda x: x + 1}):
        model(X)
    assert torch.equal(seen.joined("layers.0.x"), X)


def test_a_gradient_flows_into_the_replacement() -> None:
    model, scale = Two(), torch.tensor(1.5, requires_grad=True)
    with replace(model, {"layers.1.x": lambda x: scale * x}):
        model(X).sum().backward()
    assert scale.grad is not None and float(scale.grad) == float(4 * X.sum())


@pytest.mark.parametrize(("change", "shape"), [(torch.zeros(2, 2), r"\(2, 2\)"), (lambda x: None, "None")])
def test_an_incompatible_shape_is_refused(change: object, shape: str) -> None:
    model = Two()
    with (
        replace(model, {"layers.0.y": change}),  # type: ignore[dict-item]
        pytest.raises(UsageError, match=rf"^layers\.0\.y: {shape} cannot replace a tensor of shape \(2, 3\)"),
    ):
        model(X)


def test_a_read_only_tap_is_not_replaced() -> None:
    model = built(TRANSLATORS["paper"], V)
    refused = pytest.raises(UsageError, match=r"output\.probs .* read-only.* replace output\.logits")
    with refused, replace(model, {"output.*": torch.zeros(())}):
        pass
    assert not any_active(*(model.get_submodule(name) for name in tap_names(model)))  # type: ignore[arg-type]
