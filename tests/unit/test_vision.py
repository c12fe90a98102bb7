"""Images as patches: their order, the class token, and training on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import VisionConfig
from dragoman.errors import UsageError
from dragoman.models.build import build_model
from dragoman.models.vision import Vision, patches
from dragoman.nn.record import record, tap_names
from small_networks import EXACT, SIZES, VARIANTS, D, H, learn, shaken

B = 4


def vision(**changes: Any) -> Vision:
    sizes = SIZES | {"image_size": 6, "patch": 2, "channels": 3, "order": "pre"}
    network = shaken(build_model(VisionConfig.model_validate(sizes | changes), 12, 5))
    assert isinstance(network, Vision)
    return network


def test_patches_go_from_left_to_right_then_down_and_hold_a_channel_after_the_other() -> None:
    height, width, channels, p = 6, 4, 3, 2
    images = torch.arange(2 * height * width * channels).view(2, height, width, channels)
    cut = patches(images, p)
    assert cut.shape == (2, 6, channels * p * p)
    for b in range(2):
        for n in range(6):
            top, left = n // 2 * p, n % 2 * p
            want = [int(images[b, top + y, left + x, c]) for c in range(channels) for y in range(p) for x in range(p)]
            assert cut[b, n].tolist() == want
    kernel = torch.randn(D, channels, p, p)
    convolved = nn.functional.conv2d(images.float().permute(0, 3, 1, 2), kernel, stride=p).flatten(2).transpose(1, 2)
    torch.testing.assert_close(cut.float() @ kernel.flatten(1).T, convolved, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("shape", "patch"), [((2, 6, 6, 1), 4), ((2, 6, 5, 1), 3), ((2, 6, 6), 2)], ids=str)
def test_images_that_are_not_whole_patches_are_refused(shape: tuple[int, ...], patch: int) -> None:
    with pytest.raises(UsageError, match=f"patches of {patch} x {patch}.*multiples of {patch}"):
        patches(torch.zeros(shape), patch)


@pytest.mark.parametrize("variant", ["paper", "gpt-2", "llama", "linear", "alibi", "shaw"])
def test_the_class_token_sees_all_patches_and_is_what_comes_out(variant: str) -> None:
    changes = {key: value for key, value in VARIANTS[variant].items() if key != "tie"}
    network = vision(**changes | ({"position": {"kind": "learned", "max_len": 10}} if variant == "gpt-2" else {}))
    src, unused = torch.rand(B, 9, 12, dtype=torch.float64), torch.zeros(B, 1, dtype=torch.long)
    out = network.hidden(src, None, unused)
    assert out.shape == (B, 1, D) and network(src, None, unused).shape == (B, 1, 5)
    for place in range(9):
        changed = src.clone()
        changed[:, place] += 1
        assert ((network.hidden(changed, None, unused) - out).abs().amax(-1) > 1e-6).all()
    with torch.no_grad():
        network.class_token[0] += 1
    assert (network.hidden(src, None, unused) - out).abs().max() > 1e-6


def test_only_positions_distinguish_the_order_of_the_patches() -> None:
    src, unused = torch.rand(B, 9, 12, dtype=torch.float64), torch.zeros(B, 1, dtype=torch.long)
    order = torch.randperm(9)
    bag = vision(position={"kind": "none"})
    torch.testing.assert_close(bag(src[:, order], None, unused), bag(src, None, unused), **EXACT)
    for kind in ("learned", "alibi", "rotary"):  # added to the patches, added to the scores, rotating queries and keys
        placed = vision(position={"kind": kind})
        assert (placed(src[:, order], None, unused) - placed(src, None, unused)).abs().max() > 1e-3, kind


def test_the_class_token_is_drawn_from_the_seed() -> None:
    config = VisionConfig.model_validate(SIZES | {"d_model": 600, "image_size": 4, "patch": 2})
    torch.rand(3)
    one, same, other = (build_model(config, 4, 5, seed=seed).get_parameter("class_token") for seed in (7, 7, 8))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert float(one.detach().std()) == pytest.approx(600**-0.5, rel=0.1)


def test_recording_an_image_shows_where_the_class_token_looks() -> None:
    network, src, unused = vision(), torch.rand(B, 9, 12, dtype=torch.float64), torch.zeros(B, 1, dtype=torch.long)
    maps = [name for name in tap_names(network) if name.endswith("_attn.weights")]
    assert maps == [f"layers.{i}.self_attn.weights" for i in range(3)]
    with record(network, "layers.2.*.weights") as seen:
        network(src, None, unused)
    ((weights,),) = seen.values()
    assert weights.shape == (B, H, 10, 10)


@pytest.mark.parametrize("shape", [(2, 4, 12), (2, 9, 27)], ids=str)
def test_an_image_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"this model accepts patches \(B, 9, 12\)"):
        vision()(torch.rand(shape, dtype=torch.float64), None, torch.zeros(2, 1, dtype=torch.long))


def test_it_learns_handwritten_digits() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    src = patches(torch.tensor(digits.images, dtype=torch.float32)[..., None] / 16, 2)
    labels = torch.tensor(digits.target)[:, None] + 1
    order = torch.randperm(len(labels))
    train, test = order[:1500], order[1500:]

    def batch() -> tuple[Tensor, Tensor | None, Tensor]:
        drawn = train[torch.randint(len(train), (64,))]
        return src[drawn], None, labels[drawn]

    sizes = {"d_model": 32, "d_ff": 64, "n_heads": 4, "n_layers": 2, "dropout": 0.0, "order": "pre"}
    network = build_model(VisionConfig.model_validate(sizes), 4, 11)
    learn(network, batch, 250)
    with torch.no_grad():
        right = network(src[test], None, labels[test]).argmax(-1) == labels[test]
    assert float(right.double().mean()) > 0.85
