"""P2, P7 and P8 for every architecture and kind: cached = full, reordered too; batch = single; beam search is right.

The one place of these laws: tests of a kind have its formula, not what holds of all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.data.batching import Batch, collate_source
from dragoman.decoding import ModelStepper, SearchSettings, generate
from dragoman.decoding.pytorch.search import beam_search, drain
from dragoman.decoding.pytorch.stepper import SearchRequest
from dragoman.models.seq2seq import Model
from dragoman.models.transformer import DecoderOnly
from dragoman.tokenizers import BOS, EOS, PAD
from dragoman.training.loss import Loss, TokenLoss
from every_kind import (
    LABELLERS,
    LANGUAGE_MODELS,
    TRANSLATORS,
    built,
    built_network,
    covering,
    model_config,
    random_batch,
    readable,
)
from small_networks import EXACT, random_targets
from toy_model import every_target, padded, teacher_forced

B, K, S, T, V = 4, 3, 7, 6, 17
MODELS = TRANSLATORS | LANGUAGE_MODELS
LENGTHS = [(S, 4), (3, T), (5, 5), (1, 3)]
"""Source and target lengths of B pairs."""


@pytest.fixture(params=covering(MODELS))
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODELS[request.param]


@pytest.fixture
def model(document: dict[str, Any]) -> Model:
    return built(document, V)


def batch(model: Model) -> Batch:
    return readable(model, random_batch(LENGTHS, V))


def full(model: Model, data: Batch, sentences: Tensor, tokens: Tensor) -> Tensor:
    """Logits (N, T, V) of one teacher-forced pass; sentences (N,): the source of each row of `tokens`."""
    mask = None if data.src_mask is None else data.src_mask[sentences]
    with torch.no_grad():
        logits: Tensor = model(data.src[sentences], mask, tokens)
    return logits


ALL = torch.arange(B)


@pytest.mark.parametrize("beams", [1, K])
def test_decoding_in_chunks_is_decoding_at_once(model: Model, beams: int) -> None:
    data, ids = batch(model), random_targets(B * beams, T, V)
    want = full(model, data, ALL.repeat_interleave(beams), ids)
    for chunks in ([1] * T, [2, 1, 3], [1, T - 1], [T]):
        with torch.no_grad():
            state = model.start(model.encode(data.src, data.src_mask), beams=beams, max_len=T)
            parts = [model.decode(chunk, state) for chunk in ids.split(chunks, dim=1)]
        assert state.length == T
        torch.testing.assert_close(torch.cat(parts, dim=1), want, **EXACT)


def tensors(of: Any) -> list[Tensor]:
    """All tensors that an object refers to, however deep."""
    if isinstance(of, Tensor):
        return [of]
    parts = of if isinstance(of, (list, tuple)) else vars(of).values() if hasattr(of, "__dict__") else ()
    return [tensor for part in parts for tensor in tensors(part)]


@pytest.mark.parametrize("max_len", [0, 6])
def test_nbytes_counts_every_tensor_of_a_state(model: Model, max_len: int) -> None:
    data = batch(model)
    with torch.no_grad():
        state = model.start(model.encode(data.src, data.src_mask), beams=1, max_len=max_len)
        model.decode(data.tgt_in, state)
    carry = [] if state.carry is None else [state.carry]
    assert state.nbytes() == sum(tensor.nbytes for tensor in [*tensors(state.layers), *carry])
    assert state.nbytes() > 0 or (max_len == 0 and isinstance(model, DecoderOnly)), "it keeps nothing of a whole pass"


@torch.no_grad()
def test_decoding_continues_after_beams_were_reordered_and_sentences_dropped(model: Model) -> None:
    data, ids, sentences = batch(model), random_targets(B * K, T, V), ALL.repeat_interleave(K)
    state = model.start(model.encode(data.src, data.src_mask), beams=K, max_len=T)
    model.decode(ids[:, :2], state)
    before = state.nbytes()
    # Beams are swapped and duplicated, sentence 1 is finished, sentences 3 and 2 are swapped.
    selections = {2: [2, 0, 0, 11, 9, 10, 8, 8, 6], 4: [5, 4, 3, 6, 6, 8]}
    for step in range(2, T):
        if step in selections:
            rows = torch.tensor(selections[step])
            state.select(rows)
            sentences = sentences[rows]
            ids = torch.cat([ids[rows, :step], random_targets(len(rows), T, V)[:, step:]], dim=1)
        logits = model.decode(ids[:, step : step + 1], state)
        whole = full(model, data, sentences, ids[:, : step + 1])
        torch.testing.assert_close(logits[:, 0], whole[:, -1], **EXACT)
    assert sentences.tolist() == [3, 3, 3, 2, 2, 2] and state.nbytes() < before


def parts_of(data: Batch) -> list[Batch]:
    """Each pair of the batch alone, without padding."""
    alone = []
    for row, (s, t) in enumerate(LENGTHS):
        pair = {"src": data.src[[row], :s], "tgt_in": data.tgt_in[[row], :t], "tgt_out": data.tgt_out[[row], :t]}
        alone.append(replace(data, src_mask=None, **pair))
    return alone


def test_padding_and_neighbours_change_nothing(model: Model) -> None:
    data = batch(model)
    together = full(model, data, ALL, data.tgt_in)
    for row, part in enumerate(parts_of(data)):
        alone = full(model, part, ALL[:1], part.tgt_in)
        torch.testing.assert_close(together[row, : alone.size(1)], alone[0], **EXACT)
    if data.src_mask is not None:
        other = torch.where(data.src_mask, data.src, torch.randint(EOS + 1, V, (B, S)))
        wider = replace(data, src=F.pad(other, (0, 2), value=EOS), src_mask=F.pad(data.src_mask, (0, 2)))
        torch.testing.assert_close(full(model, wider, ALL, data.tgt_in), together, **EXACT)


def gradients(model: Model, batches: list[Batch]) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    for data in batches:
        loss: Loss = model(data.src, data.src_mask, data.tgt_in, TokenLoss(data.tgt_out, 0.1))
        loss.smoothed.backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_gradients_of_a_batch_are_the_sums_of_its_pairs(model: Model) -> None:
    data = batch(model)
    for one, other in zip(gradients(model, [data]), gradients(model, parts_of(data)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_no_position_sees_a_later_one(model: Model) -> None:
    data, ids = batch(model), random_targets(B, T, V)
    want = full(model, data, ALL, ids)
    for place in range(1, T):
        changed = ids.clone()
        changed[:, place] = EOS
        got = full(model, data, ALL, changed)
        torch.testing.assert_close(got[:, :place], want[:, :place], **EXACT)
        assert (got[:, place] - want[:, place]).abs().max() > 1e-4


POOLINGS = [
    (name, pooling)
    for name, document in LABELLERS.items()
    for pooling in ("none", "mean", "last" if document["architecture"] == "recurrent_encoder" else "first")
    if name != "pooler" or pooling == "first"
]


@pytest.mark.parametrize(("name", "pooling"), POOLINGS)
def test_labels_do_not_depend_on_padding_and_neighbours(name: str, pooling: str) -> None:
    network = built_network(LABELLERS[name] | {"pooling": pooling}, V, 5)
    src, mask = collate_source([[*range(4, 3 + length), EOS] for length, _ in LENGTHS])
    unused = torch.zeros(B, 1, dtype=torch.long)
    together = network(src, mask, unused)
    assert together.shape == (B, S if pooling == "none" else 1, 5)
    for row, (length, _) in enumerate(LENGTHS):
        alone = network(src[[row], :length], None, unused[:1])
        torch.testing.assert_close(together[row, : alone.size(1)], alone[0], **EXACT)


def greedy(model: Model, source: list[int], prompt: list[int], limit: int) -> list[int]:
    """The prompt and the most probable tokens after it, each from a whole pass, up to the end or `limit` - 1."""
    tokens = list(prompt)
    while len(tokens) < limit - 1:
        with torch.no_grad():
            logits = model(torch.tensor([source], dtype=torch.long), None, torch.tensor([[BOS, *tokens]]))[0, -1]
        logits[[PAD, BOS]] = -torch.inf
        token = int(logits.argmax())
        if token == EOS:
            break
        tokens.append(token)
    return tokens


@pytest.mark.parametrize("name", covering(MODELS))
def test_a_wide_beam_is_brute_force_and_a_beam_of_1_is_greedy(name: str) -> None:
    """Of two sentences, or of the continuations of three prompts."""
    vocab, model = 6, built(MODELS[name], 6)
    if name in LANGUAGE_MODELS:
        sources: list[list[int]] = [[], [], []]
        prompts, (src, mask), new = [[4, 5, 4], [5], []], (torch.zeros(3, 0, dtype=torch.long), None), 3
    else:
        sources, new = [[4, 5, 4, EOS], [5, EOS]], 0
        prompts, (src, mask) = [[], []], padded(sources)
    found = generate(ModelStepper(model), src, mask, SearchSettings(beam=40, max_extra=new, alpha=0.6), prompts)
    for source, prompt, (best, *_) in zip(sources, prompts, found, strict=True):
        scored = {}
        for continuation in every_target(vocab, len(source) + new):
            target = [*prompt, *continuation, EOS]
            scored[tuple(target[:-1])] = sum(teacher_forced(model, source, target)) / ((5 + len(target)) / 6) ** 0.6
        assert best.score == pytest.approx(max(scored.values()), rel=1e-6, abs=1e-5)
        assert best.score == pytest.approx(scored[tuple(best.tokens)], rel=1e-6, abs=1e-5)
    settings = SearchSettings(beam=1, max_extra=3)
    one = generate(ModelStepper(model), src, mask, settings, prompts)
    with torch.no_grad():
        beams = drain(beam_search(ModelStepper(model), SearchRequest.build(src, mask, settings, prompts)))
    for source, prompt, (first,), (other,) in zip(sources, prompts, one, beams, strict=True):
        assert first.tokens == other.tokens == greedy(model, source, prompt, len(source) + len(prompt) + 3)
        assert first.score == pytest.approx(other.score, abs=1e-6)


def test_every_parameter_learns(document: dict[str, Any]) -> None:
    model = built(document, V, shake=False).train()
    data = batch(model)
    gradients(model, [data])
    still = [n for n, p in model.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    # Relative positions of one stack are known to the other by name only; a bias before a softmax moves nothing.
    assert [n for n in still if not n.endswith("qkv.bias")] == []


def test_the_same_seed_gives_the_same_weights(document: dict[str, Any]) -> None:
    torch.manual_seed(1)
    one = built(document, V, shake=False, seed=4).state_dict()
    torch.manual_seed(2)
    same, other = (built(document, V, shake=False, seed=seed).state_dict() for seed in (4, 5))
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


def test_a_dumped_configuration_is_read_back(document: dict[str, Any]) -> None:
    assert model_config(model_config(document).model_dump(mode="json")) == model_config(document)
