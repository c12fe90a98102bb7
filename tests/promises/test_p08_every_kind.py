"""P2, P7 and P8 for every architecture and kind: cached = full, reordered too; batch = single; beam search is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.data.batching import Batch, collate, collate_source
from dragoman.decoding import ModelStepper, SearchSettings, generate
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import BOS, EOS, PAD
from dragoman.training.loss import Loss, TokenLoss
from every_kind import LANGUAGE_MODELS, TRANSLATORS, built, model_config, readable
from toy_model import every_target, padded, teacher_forced

V = 17
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}
MODELS = TRANSLATORS | LANGUAGE_MODELS
LENGTHS = [(7, 4), (3, 6), (5, 5), (2, 3)]
"""Source and target lengths of four pairs."""


@pytest.fixture(params=MODELS)
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODELS[request.param]


@pytest.fixture
def model(document: dict[str, Any]) -> Model:
    return built(document, V)


def batch(model: Model) -> Batch:
    generator = torch.Generator().manual_seed(3)

    def sentence(length: int) -> list[int]:
        return [*torch.randint(EOS + 1, V, (length - 1,), generator=generator).tolist(), EOS]

    return readable(model, collate([(sentence(src), sentence(tgt)) for src, tgt in LENGTHS]))


@torch.no_grad()
def full(model: Model, src: Tensor, mask: Tensor | None, tokens: Tensor) -> Tensor:
    """Logits (B, T, V) of one teacher-forced pass."""
    logits: Tensor = model(src, mask, tokens)
    return logits


def test_cached_decoding_is_full_decoding(model: Model) -> None:
    data = batch(model)
    want = full(model, data.src, data.src_mask, data.tgt_in)
    with torch.no_grad():
        state = model.start(model.encode(data.src, data.src_mask), beams=1, max_len=6)
        steps = [model.decode(data.tgt_in[:, t : t + 1], state) for t in range(2)]
        steps.append(model.decode(data.tgt_in[:, 2:5], state))  # several at once, in the middle
        steps.append(model.decode(data.tgt_in[:, 5:], state))
    assert state.length == 6 and state.nbytes() > 0
    torch.testing.assert_close(torch.cat(steps, dim=1), want, **EXACT)


def tensors(of: Any) -> list[Tensor]:
    """All tensors that an object refers to, however deep."""
    if isinstance(of, Tensor):
        return [of]
    parts = of if isinstance(of, (list, tuple)) else vars(of).values() if hasattr(of, "__dict__") else ()
    return [tensor for part in parts for tensor in tensors(part)]


@pytest.mark.parametrize("max_len", [0, 6])
def test_a_state_says_how_many_bytes_it_holds(model: Model, max_len: int) -> None:
    data = batch(model)
    with torch.no_grad():
        state = model.start(model.encode(data.src, data.src_mask), beams=1, max_len=max_len)
        model.decode(data.tgt_in, state)
    carry = [] if state.carry is None else [state.carry]
    assert state.nbytes() == sum(tensor.nbytes for tensor in [*tensors(state.layers), *carry])
    assert state.nbytes() > 0 or (max_len == 0 and isinstance(model, DecoderOnly)), "it keeps nothing of a whole pass"


def test_cached_decoding_after_beams_were_reordered_and_sentences_dropped(model: Model) -> None:
    data = batch(model)
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(EOS + 1, V, (12, 5), generator=generator)  # 4 sentences, 3 beams
    tokens[:, 0] = BOS
    with torch.no_grad():
        state = model.start(model.encode(data.src, data.src_mask), beams=3, max_len=5)
        model.decode(tokens[:, :1], state)
        model.decode(tokens[:, 1:2], state)
        rows = torch.tensor([2, 0, 0, 4, 5, 3, 10, 11, 9])  # reordered, one doubled, the third sentence gone
        state.select(rows)
        history = tokens[rows, :2]
        model.decode(tokens[:9, 2:3], state)
        again = torch.tensor([1, 1, 2, 8, 6, 7])  # the second sentence gone
        state.select(again)
        history = torch.cat([history, tokens[:9, 2:3]], dim=1)[again]
        last = model.decode(tokens[:6, 3:4], state)[:, 0]
    sentences = torch.tensor([0, 0, 0, 3, 3, 3])
    mask = None if data.src_mask is None else data.src_mask[sentences]
    whole = torch.cat([history, tokens[:6, 3:4]], dim=1)
    want = full(model, data.src[sentences], mask, whole)[:, -1]
    torch.testing.assert_close(last, want, **EXACT)


def test_padding_and_neighbours_change_nothing(model: Model) -> None:
    data = batch(model)
    together = full(model, data.src, data.src_mask, data.tgt_in)
    for row, (s, t) in enumerate(LENGTHS):
        alone = full(model, data.src[row : row + 1, :s], None, data.tgt_in[row : row + 1, :t])
        torch.testing.assert_close(together[row, :t], alone[0], **EXACT)


def test_no_position_sees_a_later_one(model: Model) -> None:
    data = batch(model)
    want = full(model, data.src, data.src_mask, data.tgt_in)
    changed = data.tgt_in.clone()
    changed[:, 3:] = (changed[:, 3:] + 5) % V
    got = full(model, data.src, data.src_mask, changed)
    torch.testing.assert_close(got[:, :3], want[:, :3], **EXACT)
    assert not torch.allclose(got[:, 3:], want[:, 3:])


@pytest.mark.parametrize("name", TRANSLATORS)
def test_beam_search_is_brute_force_and_beam_1_is_greedy(name: str) -> None:
    vocab, limit = 6, 4
    model = built(TRANSLATORS[name], vocab)
    sources = [[4, 5, 4, EOS], [5, EOS]]
    src, mask = padded(sources)
    settings = SearchSettings(beam=40, max_extra=0, alpha=0.6)
    found = generate(ModelStepper(model), src[:, :limit], mask[:, :limit], settings)
    for source, (best, *_) in zip(sources, found, strict=True):
        scored = {}
        for target in every_target(vocab, len(source)):
            log_prob = sum(teacher_forced(model, source, [*target, EOS]))
            scored[tuple(target)] = log_prob / ((5 + len(target) + 1) / 6) ** 0.6
        assert best.score == pytest.approx(max(scored.values()), rel=1e-6, abs=1e-5)
        assert best.score == pytest.approx(scored[tuple(best.tokens)], rel=1e-6, abs=1e-5)
    one = generate(ModelStepper(model), src, mask, SearchSettings(beam=1, max_extra=3))
    for row, source in enumerate(sources):
        alone = generate(ModelStepper(model), torch.tensor([source]), None, SearchSettings(beam=1, max_extra=3))
        assert alone[0][0].tokens == one[row][0].tokens


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_the_continuation_of_a_prompt_is_brute_force_and_beam_1_is_greedy(name: str) -> None:
    vocab, new = 6, 3
    model, prompts = built(LANGUAGE_MODELS[name], vocab), [[4, 5, 4], [5], []]
    nothing = torch.zeros(len(prompts), 0, dtype=torch.long)
    found = generate(ModelStepper(model), nothing, None, SearchSettings(beam=40, max_extra=new, alpha=0.6), prompts)
    one = generate(ModelStepper(model), nothing, None, SearchSettings(beam=1, max_extra=new), prompts)
    for row, (prompt, (best, *_)) in enumerate(zip(prompts, found, strict=True)):
        scored = {}
        for continuation in every_target(vocab, new):
            target = [*prompt, *continuation, EOS]
            scored[tuple(target[:-1])] = sum(teacher_forced(model, [], target)) / ((5 + len(target)) / 6) ** 0.6
        assert best.score == pytest.approx(max(scored.values()), rel=1e-6, abs=1e-5)
        assert best.score == pytest.approx(scored[tuple(best.tokens)], rel=1e-6, abs=1e-5)
        alone = generate(ModelStepper(model), nothing[:1], None, SearchSettings(beam=1, max_extra=new), [prompt])
        assert alone[0][0].tokens == one[row][0].tokens
        assert one[row][0].tokens == greedy(model, prompt, new - 1), prompt


@torch.no_grad()
def greedy(model: Model, prompt: list[int], new: int) -> list[int]:
    """The prompt and the `new` most probable tokens, one after the other, each from a whole pass, or up to the end."""
    tokens, nothing = list(prompt), torch.zeros(1, 0, dtype=torch.long)
    for _ in range(new):
        logits = full(model, nothing, None, torch.tensor([[BOS, *tokens]]))[0, -1]
        logits[[PAD, BOS]] = -torch.inf
        token = int(logits.argmax())
        if token == EOS:
            break
        tokens.append(token)
    return tokens


def test_every_parameter_learns(document: dict[str, Any]) -> None:
    model = built(document, V, shake=False).train()
    data = batch(model)
    loss: Loss = model(data.src, data.src_mask, data.tgt_in, TokenLoss(data.tgt_out, 0.1))
    loss.smoothed.backward()  # type: ignore[no-untyped-call]
    still = [n for n, p in model.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    # Relative positions of one stack are known to the other by name only; a bias before a softmax moves nothing.
    assert [n for n in still if not n.endswith("qkv.bias")] == []
    assert int((data.tgt_out != PAD).sum()) == loss.tokens


def test_the_same_seed_gives_the_same_weights(document: dict[str, Any]) -> None:
    torch.manual_seed(1)
    one = built(document, V, shake=False, seed=4).state_dict()
    torch.manual_seed(2)
    same, other = (built(document, V, shake=False, seed=seed).state_dict() for seed in (4, 5))
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


def test_the_document_says_what_was_asked_for(document: dict[str, Any]) -> None:
    assert model_config(model_config(document).model_dump(mode="json")) == model_config(document)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_sources_may_be_of_one_word(name: str) -> None:
    model = built(TRANSLATORS[name], V)
    src, mask = collate_source([[EOS], [4, 5, EOS]])
    tokens = torch.tensor([[BOS, 4], [BOS, 5]])
    alone = full(model, src[:1, :1], None, tokens[:1])
    torch.testing.assert_close(full(model, src, mask, tokens)[:1], alone, **EXACT)
