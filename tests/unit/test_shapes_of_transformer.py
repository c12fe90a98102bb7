"""Decoder-only and encoder-only Transformers."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import DecoderOnlyConfig, EncoderOnlyConfig
from dragoman.decoding import Hypothesis, ModelStepper, SearchSettings, generate, length_penalty
from dragoman.decoding.pytorch.beam import beam_search
from dragoman.decoding.pytorch.generate import drain
from dragoman.decoding.request import SearchRequest
from dragoman.errors import UsageError
from dragoman.models.build import build_model
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.encoder_only import EncoderOnly
from dragoman.nn.attention import causal_bias
from dragoman.tokenizers import BOS, EOS, PAD
from dragoman.training.loss import TokenLoss
from small_networks import EXACT, SIZES, VARIANTS, D, learn, shaken
from toy_model import every_target

B, K, S, T, V = 4, 3, 7, 6, 19


def nothing(count: int) -> Tensor:
    """The empty source of a decoder-only model."""
    return torch.zeros(count, 0, dtype=torch.long)


# ------------------------------------------------------------------------------------------------------ decoder only


def decoder_only(variant: str = "paper", vocab: int = V, **changes: Any) -> DecoderOnly:
    config = DecoderOnlyConfig.model_validate(SIZES | VARIANTS[variant] | changes)
    model = shaken(build_model(config, vocab, vocab))
    assert isinstance(model, DecoderOnly)
    return model


@pytest.fixture(params=VARIANTS)
def model(request: pytest.FixtureRequest) -> DecoderOnly:
    return decoder_only(request.param)


def texts(rows: int, length: int = T) -> Tensor:
    ids = torch.randint(EOS + 1, V, (rows, length))
    ids[:, 0] = BOS
    return ids


@pytest.mark.parametrize("chunks", [[1] * T, [2, 1, 3], [1, T - 1]], ids=str)
@pytest.mark.parametrize("beams", [1, K])
def test_decoding_in_chunks_is_decoding_at_once(model: DecoderOnly, beams: int, chunks: list[int]) -> None:
    ids = texts(B * beams)
    state = model.start(model.encode(nothing(B), None), beams=beams, max_len=T)
    parts = [model.decode(chunk, state) for chunk in torch.split(ids, chunks, dim=1)]
    assert state.length == T
    torch.testing.assert_close(torch.cat(parts, dim=1), model(nothing(B * beams), None, ids), **EXACT)


def test_decoding_goes_on_rightly_after_reordering_and_dropping(model: DecoderOnly) -> None:
    ids = texts(B * K)
    state = model.start(model.encode(nothing(B), None), beams=K, max_len=T)
    model.decode(ids[:, :2], state)
    before = state.nbytes()
    # Beams are swapped and duplicated, text 1 is finished, texts 3 and 2 are swapped.
    selections = {2: [2, 0, 0, 11, 9, 10, 8, 8, 6], 4: [5, 4, 3, 6, 6, 8]}
    for step in range(2, T):
        if step in selections:
            rows = torch.tensor(selections[step])
            state.select(rows)
            ids = torch.cat([ids[rows, :step], texts(rows.numel())[:, step:]], dim=1)
        logits = model.decode(ids[:, step : step + 1], state)
        whole = model(nothing(ids.size(0)), None, ids[:, : step + 1])
        torch.testing.assert_close(logits[:, 0], whole[:, -1], **EXACT)
    assert ids.size(0) == 6 and state.nbytes() < before


def test_a_later_token_changes_nothing_before_it_and_padding_nothing_at_all(model: DecoderOnly) -> None:
    ids = texts(B)
    plain = model(nothing(B), None, ids)
    for place in range(1, T):
        changed = ids.clone()
        changed[:, place] = EOS
        logits = model(nothing(B), None, changed)
        torch.testing.assert_close(logits[:, :place], plain[:, :place], **EXACT)
        assert (logits[:, place] - plain[:, place]).abs().max() > 1e-3
    for row, length in enumerate((T, 2, 5, 3)):
        padded = ids.clone()
        padded[row, length:] = PAD
        together = model(nothing(B), None, padded)
        alone = model(nothing(1), None, ids[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], **EXACT)


@pytest.mark.parametrize("variant", ["paper", "gpt-2", "llama"])
def test_it_is_the_layers_of_an_encoder_under_a_causal_mask(variant: str) -> None:
    model, ids, pos = decoder_only(variant), texts(B), torch.arange(T)
    x, _ = model.positions.embed(model.embedding(ids), pos, None)
    for layer in model.layers:
        x = layer(x, model.positions, pos, causal_bias(pos, pos, x.dtype))
    torch.testing.assert_close(model(nothing(B), None, ids), model.output(model.final_norm(x)), **EXACT)


def test_a_source_is_refused_and_the_prompt_named() -> None:
    model = decoder_only()
    with pytest.raises(UsageError, match=r"a source of 5 tokens.*\(2, 0\).*prompt.*prefix"):
        model.encode(torch.full((2, 5), EOS), None)
    memory = model.encode(nothing(2), None)
    assert memory.states.shape == (2, 0, D) and memory.mask is None


def go_on(model: DecoderOnly, prefixes: list[list[int]], **settings: Any) -> list[list[Hypothesis]]:
    return generate(ModelStepper(model), nothing(len(prefixes)), None, SearchSettings(**settings), prefixes)


def token_log_probs(model: DecoderOnly, target: list[int]) -> list[float]:
    with torch.no_grad():
        logits = model(nothing(1), None, torch.tensor([[BOS, *target[:-1]]]))[0]
    return torch.log_softmax(logits, -1)[torch.arange(len(target)), torch.tensor(target)].tolist()


@pytest.mark.parametrize("variant", ["paper", "llama", "linear"])
def test_a_wide_beam_is_brute_force_over_all_that_begins_with_the_prompt(variant: str) -> None:
    model, prefixes = decoder_only(variant, vocab=6), [[4], [], [5, 5]]
    found = go_on(model, prefixes, beam=130, nbest=4, max_extra=3, alpha=0.6)
    for prefix, hypotheses in zip(prefixes, found, strict=True):
        scored = []
        for target in every_target(6, len(prefix) + 3):
            if target[: len(prefix)] == prefix:
                log_prob = math.fsum(token_log_probs(model, [*target, EOS]))
                scored.append((log_prob / length_penalty(len(target) + 1, 0.6), target))
        best = sorted(scored, reverse=True)[:4]
        assert [hypothesis.tokens for hypothesis in hypotheses] == [target for _, target in best]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in best], abs=1e-5)


def test_greedy_is_a_beam_of_1_and_a_text_does_not_depend_on_its_batch(model: DecoderOnly) -> None:
    prefixes = [[4, 9], [], [11, 12, 5]]
    settings = SearchSettings(beam=1, max_extra=5)
    greedy = go_on(model, prefixes, beam=1, max_extra=5)
    with torch.no_grad():
        beams = drain(beam_search(ModelStepper(model), SearchRequest.build(nothing(3), None, settings, prefixes)))
    for prefix, (one,), (other,) in zip(prefixes, greedy, beams, strict=True):
        assert one.tokens == other.tokens and one.score == pytest.approx(other.score, abs=1e-6)
        assert one.tokens[: len(prefix)] == prefix and len(one.tokens) <= len(prefix) + 5
        assert one.token_log_probs == pytest.approx(token_log_probs(model, [*one.tokens, EOS]), abs=1e-5)
        ((alone,),) = go_on(model, [prefix], beam=1, max_extra=5)
        assert alone.tokens == one.tokens and alone.score == pytest.approx(one.score, abs=1e-5)


def test_it_learns_to_go_on_with_a_pattern() -> None:
    """A text counts up from any digit, in steps of 1 or 2 as given by its first two tokens."""
    rng, first = random.Random(1), EOS + 1

    def text(begin: int, step: int) -> list[int]:
        return [first + (begin + step * i) % 10 for i in range(8)]

    def batch() -> tuple[Tensor, Tensor | None, Tensor]:
        return nothing(32), None, torch.tensor([text(rng.randrange(10), rng.randint(1, 2)) for _ in range(32)])

    config = DecoderOnlyConfig(d_model=32, d_ff=64, n_heads=4, n_layers=2, dropout=0.0, order="pre")
    model = build_model(config, first + 10, first + 10)
    assert isinstance(model, DecoderOnly)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        src, _, targets = batch()
        inputs = torch.cat([torch.full_like(targets[:, :1], BOS), targets[:, :-1]], dim=1)
        loss = model(src, None, inputs, TokenLoss(targets, 0.0))
        optimizer.zero_grad()
        (loss.smoothed / loss.tokens).backward()
        optimizer.step()
    whole = [text(begin, step) for begin in range(10) for step in (1, 2)]
    found = go_on(model.eval(), [one[:2] for one in whole], beam=1, max_extra=7)
    assert [best.tokens[:8] for (best,) in found] == whole


def test_its_logits_are_those_of_gpt2() -> None:
    transformers = pytest.importorskip("transformers")
    places, heads, width, vocab = 16, 4, 32, 50
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocab, n_positions=places, n_embd=width, n_layer=2, n_head=heads,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS, eos_token_id=EOS,
        )
    ).double().eval()  # fmt: skip
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    config = DecoderOnlyConfig.model_validate(
        SIZES
        | VARIANTS["gpt-2"]
        | {"d_model": width, "d_ff": 4 * width, "n_heads": heads, "n_layers": 2, "tie": "none"}
        | {"position": {"kind": "learned", "max_len": places}}
    )
    ours = build_model(config, vocab, vocab).double().eval()
    weights = {name: value.detach() for name, value in theirs.transformer.named_parameters()}
    copied = {
        "embedding.weight": weights["wte.weight"] / math.sqrt(width),
        "output.weight": weights["wte.weight"],
        "positions.table": weights["wpe.weight"],
        "final_norm.weight": weights["ln_f.weight"],
        "final_norm.bias": weights["ln_f.bias"],
    }
    for i in range(2):
        for mine, their in (
            ("around_self_attn.norm", "ln_1"),
            ("self_attn.qkv", "attn.c_attn"),
            ("self_attn.out", "attn.c_proj"),
            ("around_ffn.norm", "ln_2"),
            ("ffn.inner", "mlp.c_fc"),
            ("ffn.outer", "mlp.c_proj"),
        ):
            copied[f"layers.{i}.{mine}.weight"] = weights[f"h.{i}.{their}.weight"].t()  # theirs are (in, out)
            copied[f"layers.{i}.{mine}.bias"] = weights[f"h.{i}.{their}.bias"]
    ours.load_state_dict(copied)
    ids = torch.randint(0, vocab, (B, S))
    torch.testing.assert_close(ours(nothing(B), None, ids), theirs(ids).logits, rtol=0.0, atol=1e-8)


# ------------------------------------------------------------------------------------------------------ encoder only

ENCODERS = [*VARIANTS, "t5"]


def encoder_only(variant: str, pooling: str) -> EncoderOnly:
    kind = {"position": {"kind": "t5", "buckets": 8, "max_distance": 20}} if variant == "t5" else VARIANTS[variant]
    config = EncoderOnlyConfig.model_validate(SIZES | kind | {"pooling": pooling})
    network = shaken(build_model(config, V, 5))
    assert isinstance(network, EncoderOnly)
    return network


def sentences() -> tuple[Tensor, Tensor]:
    src = torch.randint(EOS + 1, V, (B, S))
    mask = torch.arange(S) < torch.tensor([S, 3, 5, 1])[:, None]
    return src.masked_fill(~mask, PAD), mask


@pytest.mark.parametrize("variant", ENCODERS)
@pytest.mark.parametrize("pooling", ["none", "first", "mean"])
def test_padding_changes_no_number(pooling: str, variant: str) -> None:
    network, (src, mask) = encoder_only(variant, pooling), sentences()
    unused = torch.zeros(B, 1, dtype=torch.long)
    together = network(src, mask, unused)
    assert together.shape == (B, S if pooling == "none" else 1, 5)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = network(src[row : row + 1, :length], None, unused[:1])
        torch.testing.assert_close(together[row, : alone.size(1)], alone[0], **EXACT)


def test_pooling_takes_the_first_vector_or_the_mean_over_words() -> None:
    network, (src, mask) = encoder_only("paper", "none"), sentences()
    unused = torch.zeros(B, 1, dtype=torch.long)
    words = network.hidden(src, mask, unused)
    network.pooling = "first"
    torch.testing.assert_close(network.hidden(src, mask, unused), words[:, :1], **EXACT)
    network.pooling = "mean"
    means = torch.stack([words[row, :length].mean(0) for row, length in enumerate((S, 3, 5, 1))])
    torch.testing.assert_close(network.hidden(src, mask, unused)[:, 0], means, **EXACT)
    whole = network.hidden(src[:1], None, unused[:1])
    torch.testing.assert_close(whole[0, 0], words[0].mean(0), **EXACT)


def test_a_tagger_is_learned_that_needs_both_neighbours() -> None:
    """Label 1 + (previous word + next word) mod 3, with 0 outside the sentence."""
    rng, words = random.Random(3), 5

    def batch() -> tuple[Tensor, Tensor | None, Tensor]:
        rows = [[rng.randrange(words) for _ in range(rng.randint(3, S))] for _ in range(48)]
        src, targets = torch.full((48, S), PAD), torch.full((48, S), PAD)
        for i, row in enumerate(rows):
            around = [0, *row, 0]
            src[i, : len(row)] = torch.tensor(row) + EOS + 1
            targets[i, : len(row)] = torch.tensor([1 + (a + b) % 3 for a, b in zip(around, around[2:], strict=False)])
        return src, src != PAD, targets

    config = EncoderOnlyConfig.model_validate(
        {"d_model": 48, "d_ff": 96, "n_heads": 4, "n_layers": 2, "dropout": 0.0, "order": "pre"}
        | {"position": {"kind": "rotary"}}
    )
    network = build_model(config, EOS + 1 + words, 4)
    learn(network, batch, 350)
    src, mask, targets = batch()
    right = network(src, mask, targets).argmax(-1) == targets
    assert int(right[targets != PAD].sum()) >= 0.97 * int((targets != PAD).sum())
