"""The case of an input: its batch with targets, from a search, from the user or predicted, and its pieces for display.

Letters: S source positions, T target positions, n patches.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.config import Config, ParallelData
from dragoman.data.batching import Batch, collate
from dragoman.data.readers.trees import penn_word
from dragoman.data.sentences import split_sentences
from dragoman.decoding.hypothesis import Hypothesis, before_end
from dragoman.decoding.retry import has_unusual_length, search_with_retry
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError
from dragoman.interpret.explain.beam_tree import BeamTree, search_tree
from dragoman.interpret.inputs import Ids, dialogue_ids, label_row, with_predictions
from dragoman.io.lines import clip
from dragoman.models.seq2seq import Model, Network
from dragoman.pipelines.parts import one_line
from dragoman.pipelines.pipeline import check_text
from dragoman.tokenizers import BOS, EOS, PAD, LabelVocabulary, Tokenizer, Vocabulary

LoadedModel = tuple[Network, Vocabulary, Config]
"""The result of `model_folder.load_network`."""

MASK = "[MASK]"
"""A masked word in the input of a masked language model."""

_MAX_POSITIONS = 600
"""Positions per side; larger maps do not fit on a page."""

_MAX_CONTINUATION = 50
_SPECIAL = ("<s>", "</s>", "<unk>", "<pad>", MASK)
_LETTER = "(?:<0x[0-9A-F]{2}>|[^\\W_\u3000-\u30ff\u3400-\u9fff\uff00-\uffef])"
"""A letter or digit of a script written with spaces, or a byte piece."""


@dataclass(frozen=True)
class Side:
    """A sequence of pieces for display.  words: the indices of the pieces of each word."""

    pieces: list[str]
    words: list[list[int]]

    @classmethod
    def of(cls, pieces: Sequence[str]) -> Side:
        """Group pieces into words: letters and digits without a space ("▁") between them.

        Other characters are words of their own, as is each piece of a script written without spaces.
        """
        words: list[list[int]] = []
        for index, piece in enumerate(pieces):
            if words and _same_word(pieces[index - 1], piece):
                words[-1].append(index)
            else:
                words.append([index])
        return cls(list(pieces), words)


@dataclass(frozen=True)
class Case:
    """An input with its targets, and both for display.

    kind: "translation", "continuation", "tags", "class", "masked" or "image".  batch: one row without padding, src
    (1, S) or (1, n, numbers); PAD in `tgt_out` marks positions without a target.  sides: "source", and "input" and
    "output" of a decoder.  piece: converts an output id.  first_id: lower ids are not outputs.  given: targets that
    belong to the prompt.  forced: the targets come from the user.  tree: `BeamTree.to_json`.  subjects: the word or
    mask that each target labels; empty for tokens.
    """

    kind: str
    source: str
    text: str
    batch: Batch
    sides: dict[str, Side]
    piece: Callable[[int], str]
    first_id: int = 0
    given: int = 0
    forced: bool = False
    tree: dict[str, Any] | None = None
    flags: tuple[str, ...] = ()
    subjects: Sequence[str] = ()
    image: dict[str, Any] | None = None

    @property
    def targets(self) -> list[int]:
        return [target for target in self.batch.tgt_out[0].tolist() if target != PAD]

    @property
    def positions(self) -> list[int]:
        """The output positions of the targets."""
        return [position for position, target in enumerate(self.batch.tgt_out[0].tolist()) if target != PAD]


def read_text_case(loaded: LoadedModel, source: str, target: str | None, beam: int | None) -> Case:
    """Return the case of a text.  Raises UsageError for an input that the model does not accept."""
    data = loaded[2].data
    if data.about.two_sided:
        return _translation(loaded, source, target, beam)
    if data.about.continues:
        return _continuation(loaded, source, target, beam)
    check_no_search(beam, "this model predicts labels, without a search")
    return (_labels if data.about.labels else _masked)(loaded, source, target)


def check_no_search(beam: int | None, reason: str) -> None:
    """Raise UsageError if `beam` is set."""
    if beam is not None:
        raise UsageError(f"beam = {beam}: {reason}; omit the beam")


# ------------------------------------------------------------------------------------------------ models with a decoder


def _translation(loaded: LoadedModel, source: str, target: str | None, beam: int | None) -> Case:
    network, vocabulary, config = loaded
    assert isinstance(network, Model) and isinstance(vocabulary, Tokenizer)
    text = _single_line(source, "source")
    if config.data.kind == "trees":
        text = " ".join(penn_word(word) for word in text.split())
    vocabulary, _, text = vocabulary.directed(text)
    ids, start = vocabulary.encode_source(text), vocabulary.target_start
    _check_size("source", text, len(before_end(ids)), len(ids), config.data.max_tokens)
    if target is not None:
        check_no_search(beam, "a given target needs no search")
        targets = vocabulary.encode_target(_single_line(target, "target"))
        return _decoder_case("translation", vocabulary, text, (ids, targets), forced=True)
    src = torch.tensor([ids], device=network.device)
    settings = _settings(config, beam)
    ((found, tree),), (fault,) = search_with_retry(
        lambda _, used: [search_tree(network, src, used, start)], [ids], settings, lambda result: result[0][0].tokens
    )
    several = isinstance(config.data, ParallelData) and len(split_sentences(text, config.data.source_language)) > 1
    flags = {
        "sentences": several,
        "truncated": found[0].truncated,
        "empty": fault == "empty",
        "length": has_unusual_length(len(before_end(ids)), len(found[0].tokens)),
        "repetition": fault == "repetition",
    }
    set_flags = tuple(name for name, is_set in flags.items() if is_set)
    return _decoder_case("translation", vocabulary, text, (ids, _targets(found[0])), tree=tree, flags=set_flags)


def _continuation(loaded: LoadedModel, prompt: str, target: str | None, beam: int | None) -> Case:
    """Return the case of a prompt, which may be empty; of a dialogue model, turns in lines `ROLE: text`."""
    network, vocabulary, config = loaded
    assert isinstance(network, Model) and isinstance(vocabulary, Tokenizer)
    check_text(prompt, "source")
    prefix, role, limit = vocabulary.encode_target(prompt)[:-1], "", config.data.max_tokens
    if config.data.kind == "dialogue":
        prefix, role = dialogue_ids(vocabulary, prompt)
    if target is not None:
        check_no_search(beam, "a given target needs no search")
        targets = _given_targets(vocabulary, config, prompt, prefix, check_text(target, "target"))
        _check_size("prompt and target", prompt + target, len(targets), len(targets), limit)
        given = next((i for i, (a, b) in enumerate(zip(prefix, targets, strict=False)) if a != b), len(prefix))
        case = _decoder_case("continuation", vocabulary, prompt, ([], targets), given=given, forced=True)
    else:
        _check_size("prompt", prompt, 1, len(prefix) + 1, limit)
        settings = _settings(config, beam, max_extra=max(1, min(_MAX_CONTINUATION, limit - len(prefix))))
        src = torch.zeros(1, 0, dtype=torch.long, device=network.device)
        (best, *_), tree = search_tree(network, src, settings, prefix)
        flags = ("truncated",) if best.truncated else ()
        row: Ids = [], _targets(best)
        case = _decoder_case("continuation", vocabulary, prompt, row, given=len(prefix), tree=tree, flags=flags)
    if not role:
        return case
    reply = vocabulary.decode_target(case.targets[len(prefix) :])
    before = prompt.rstrip().removesuffix(f"{role}:").rstrip()
    return dataclasses.replace(case, text=f"{before}\n{role}: {reply}".lstrip())


def _given_targets(tokenizer: Tokenizer, config: Config, prompt: str, prefix: list[int], target: str) -> list[int]:
    """Return the ids of a prompt, whose ids are `prefix`, and a given target.  Raises UsageError if both are empty."""
    if config.data.kind == "dialogue":
        return [*prefix, *tokenizer.encode_target(target.strip())]
    targets = tokenizer.encode_target(prompt + target)
    if config.data.kind == "text" and config.data.form == "stream":
        targets = targets[:-1]  # a stream has no ends of texts
    if not targets:
        raise UsageError("source and target are both empty; give at least one of them")
    return targets


def _decoder_case(
    kind: str, tokenizer: Tokenizer, source: str, row: Ids, tree: BeamTree | None = None, **fields: Any
) -> Case:
    ids, targets = row
    text = tokenizer.decode_target(targets)
    _check_size("target", text, len(targets), len(targets), _MAX_POSITIONS)
    piece = tokenizer.target_piece
    sides = {"source": Side.of([tokenizer.source_piece(i) for i in ids])} if ids else {}
    sides |= {"input": Side.of(list(map(piece, [BOS, *targets[:-1]]))), "output": Side.of(list(map(piece, targets)))}
    nodes = None if tree is None else tree.to_json(piece, tokenizer.decode_target)
    return Case(kind, source, text, collate([row]), sides, piece, tree=nodes, **fields)


def _targets(hypothesis: Hypothesis) -> list[int]:
    """Return the tokens, with the end of sentence if the model predicted it."""
    return hypothesis.tokens if hypothesis.truncated and hypothesis.tokens else [*hypothesis.tokens, EOS]


def _settings(config: Config, beam: int | None, **overrides: int) -> SearchSettings:
    """Return the search settings of the model, with an n-best list of all beams.

    With `beam_threshold` or `recombine` it has one entry: nothing is dropped until the list is full.
    """
    settings = SearchSettings.of(config.search, **overrides, **({} if beam is None else {"beam": beam}))
    drops = settings.beam_threshold or settings.recombine
    return settings if drops else SearchSettings.of(settings, nbest=settings.beam)


# ------------------------------------------------------------------------------------------ models that predict labels


def _labels(loaded: LoadedModel, source: str, target: str | None) -> Case:
    """Return the case of a sentence to tag or a text to classify."""
    _, vocabulary, config = loaded
    assert isinstance(vocabulary, LabelVocabulary) and vocabulary.tokenizer is not None
    tagged, text = config.data.about.labels == "word", _single_line(source, "source").strip()
    ids, marks = label_row(vocabulary.tokenizer, config, text)
    words = text.split()
    given = None if target is None else target.split() if tagged else [target.strip()]
    if tagged and given is not None and len(given) != len(words):
        raise UsageError(f"{len(given)} tags for {len(words)} words; give one tag per word, separated by spaces")
    content = sum(token not in (BOS, EOS) for token in ids)
    _check_size("source", source, content, len(ids), config.data.max_tokens)
    batch = label_batch(torch.tensor([ids]), marks)
    side = Side.of([vocabulary.tokenizer.source_piece(i) for i in ids])
    if tagged:
        bounds = [*(position for position, mark in enumerate(marks) if mark), len(ids) - 1]
        spans = [list(range(begin, end)) for begin, end in itertools.pairwise(bounds)]
        side = Side(side.pieces, [[0], *spans, [len(ids) - 1]])
        return label_case(loaded, "tags", source, side, batch, given, subjects=words)
    return label_case(loaded, "class", text, side, batch, given)


def label_case(
    loaded: LoadedModel, kind: str, source: str, side: Side, batch: Batch, given: Sequence[str] | None, **fields: Any
) -> Case:
    """Return the case of a batch whose targets are the labels `given`, otherwise the most probable ones."""
    network, vocabulary, _ = loaded
    assert isinstance(vocabulary, LabelVocabulary)
    if given is None:
        batch = with_predictions(network, batch)
    else:
        batch.tgt_out[batch.tgt_out != PAD] = torch.tensor([vocabulary.number(label, "target") for label in given])
    text = " ".join(vocabulary.label(number) for number in batch.tgt_out[0].tolist() if number != PAD)
    sides, forced = {"source": side}, given is not None
    return Case(kind, source, text, batch, sides, vocabulary.label, first_id=1, forced=forced, **fields)


def label_batch(src: Tensor, marks: list[int]) -> Batch:
    """Return a batch of one row with targets at the positions marked with 1."""
    tgt_in = torch.zeros(1, 0, dtype=torch.long)  # not read by networks without a decoder
    return Batch(src, None, tgt_in, torch.tensor([marks]), src.size(1), sum(marks))


def _masked(loaded: LoadedModel, source: str, target: str | None) -> Case:
    """Return the case of the masked words; without any `MASK`, each piece is predicted."""
    network, vocabulary, config = loaded
    assert isinstance(vocabulary, Tokenizer)
    if target is not None:
        raise UsageError(
            f"target = {clip(target)!r}: a masked language model has no target; write the words into the source"
        )
    parts = [vocabulary.encode_source(part)[:-1] for part in _single_line(source, "source").split(MASK)]
    mask = vocabulary.mask
    words = [token for part in parts for token in (mask, *part)][1:]
    ids = [*vocabulary.masked_source(words), EOS]
    _check_size("source", source, len(words), len(ids), config.data.max_tokens)
    marks = [int(token == mask if mask in words else token not in (BOS, EOS)) for token in ids]
    src = torch.tensor([ids])
    batch = with_predictions(network, label_batch(src, marks), first=EOS + 1)
    pieces = [MASK if token == mask else vocabulary.source_piece(token) for token in ids]
    return Case(
        "masked",
        source,
        vocabulary.decode_target(torch.where(batch.tgt_out != PAD, batch.tgt_out, src)[0].tolist()),
        batch,
        {"source": Side.of(pieces)},
        vocabulary.target_piece,
        first_id=EOS + 1,
        subjects=[piece for piece, mark in zip(pieces, marks, strict=False) if mark],
    )


# ----------------------------------------------------------------------------------------------------- checks and words


def _single_line(text: str, name: str) -> str:
    """Return the text with line breaks replaced by spaces, as for translation."""
    return one_line(check_text(text, name))


def _check_size(name: str, text: str, content: int, tokens: int, max_tokens: int) -> None:
    """Raise UsageError if there is no content, or too many tokens for the model or a page."""
    if not content:
        raise UsageError(f"the {name} is empty ({clip(text)!r}); give a text with at least one word")
    limit = min(max_tokens, _MAX_POSITIONS)
    if tokens > limit:
        reason = "of the model" if max_tokens < _MAX_POSITIONS else "of a page"
        raise UsageError(
            f"a {name} of {tokens} tokens ({clip(text, 40)!r}) exceeds the limit {reason}, {limit} tokens; texts are"
            " not truncated: explain one sentence, or a shorter text"
        )


def _same_word(before: str, piece: str) -> bool:
    if piece.startswith("▁") or piece in _SPECIAL:
        return False
    return before == "▁" or bool(re.search(f"{_LETTER}$", before) and re.match(_LETTER, piece))
