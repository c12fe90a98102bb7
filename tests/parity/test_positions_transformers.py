"""Positions against another implementation: T5, Llama and Bloom of `transformers`."""

from __future__ import annotations

import pytest
import torch

from dragoman.nn.positions import Alibi, Rotary, t5_bucket

N, H, T, DH = 2, 3, 40, 16


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (64, 300), (16, 100)])
def test_buckets_are_those_of_t5(bidirectional: bool, buckets: int, max_distance: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.arange(-2000, 2001)
    want = t5.T5Attention._relative_position_bucket(distances, bidirectional, buckets, max_distance)
    assert torch.equal(t5_bucket(distances, bidirectional, buckets, max_distance), want)


def test_rotary_is_llamas_with_the_pairs_permuted() -> None:
    """Llama pairs k with k + Dh/2 and not neighbours, so its features are permuted."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=H * DH, num_attention_heads=H)
    base = float(config.rope_parameters["rope_theta"] if hasattr(config, "rope_parameters") else config.rope_theta)
    q, k, pos = torch.randn(N, H, T, DH), torch.randn(N, H, T, DH), torch.arange(T)
    order = torch.cat([torch.arange(0, DH, 2), torch.arange(1, DH, 2)])
    cosine, sine = llama.LlamaRotaryEmbedding(config)(q, pos[None])
    want = llama.apply_rotary_pos_emb(q[..., order], k[..., order], cosine, sine)
    for got, other in zip(Rotary(DH, base).rotate(q, k, pos), want, strict=True):
        torch.testing.assert_close(got[..., order], other, rtol=0, atol=2e-5)  # its angles are float32


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 6, 7, 8, 12, 16, 20])
def test_alibi_is_blooms_up_to_a_number_a_query(n_heads: int) -> None:
    """Bloom adds m j where the paper has -m (i - j); m i is constant per query and cancels in the softmax."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    want = bloom.build_alibi_tensor(torch.ones(1, T), n_heads, torch.float32)  # (H, 1, T)
    bias = Alibi(n_heads).static_bias(torch.arange(T), torch.arange(T))
    assert bias is not None
    past = torch.ones(T, T, dtype=torch.bool).tril()
    from_first = bias - bias[..., :1]  # (H, T, T)
    torch.testing.assert_close(from_first[:, past], want.expand(-1, T, -1)[:, past], rtol=1e-6, atol=1e-5)
