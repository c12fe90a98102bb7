"""One input ready to be looked into: what goes into a network, what it says, and how people read both.

A case is the same for every kind of model: ids in, a teacher-forced target, and the rows of the output that answer.

Letters: S source positions, T target positions, n patches.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dragoman.config import Config, EncoderOnlyConfig
from dragoman.data.readers.labelled import tagged_row, text_source
from dragoman.data.readers.trees import penn_word
from dragoman.data.tokenizer import BOS, EOS, Tokenizer
from dragoman.data.vocabulary import LabelVocabulary, Vocabulary
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.retry import has_unusual_length, search_with_retry
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError
from dragoman.interpret.explain.beam_tree import search_tree
from dragoman.io.lines import clip, has_lone_surrogate
from dragoman.models.seq2seq import Model, Network

__all__ = ["MASK", "MOST", "Case", "Loaded", "Side", "read_text_case", "refuse_search"]

Loaded = tuple[Network, Vocabulary, Config]
"""As `model_folder.load_network` gives it."""

MASK = "[MASK]"
"""What stands for a word to be found, in the text given to a model of masked words."""

MOST = 600
"""Positions a side: maps of more would neither fit on a page nor be read by anybody."""

_EXTRA = 50
_SCRIPT_WITHOUT_SPACES = re.compile("[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")


@dataclass(frozen=True)
class Side:
    """One row of tokens as they are shown.  words: which of them make up a word, as lists of places."""

    pieces: list[str]
    words: list[list[int]]

    @classmethod
    def of(cls, pieces: Sequence[str]) -> Side:
        return cls(list(pieces), _words(pieces))

    @classmethod
    def single(cls, pieces: Sequence[str]) -> Side:
        """Each piece a word."""
        return cls(list(pieces), [[place] for place in range(len(pieces))])


@dataclass(frozen=True)
class Case:
    """kind: "translation", "continuation", "tags", "class", "masked" or "image".

    src, tgt_in: what the network reads, (1, S) or (1, n, numbers), and (1, T).  targets: ids of what is said;
    places: the rows of the output that say them.  never: ids below it are no answers.  given: how many of the
    targets, from the first, were given and not said.  sides: "source", and of a model that writes "input" and "output".
    word: id of the output -> how it is shown.  text: what came out.  tree: of the search, `BeamTree.to_json`.
    """

    kind: str
    source: str
    text: str
    src: Tensor
    tgt_in: Tensor
    targets: list[int]
    places: list[int]
    sides: dict[str, Side]
    word: Callable[[int], str]
    never: int = 0
    given: int = 0
    forced: bool = False
    tree: dict[str, Any] | None = None
    flags: tuple[str, ...] = ()
    about: list[str] = field(default_factory=list)
    image: dict[str, Any] | None = None


def read_text_case(loaded: Loaded, source: str, target: str | None, beam: int | None) -> Case:
    """The case of a text and a model that reads text.  Raises UsageError for what the model cannot take."""
    kind = loaded[2].data.kind
    if kind in ("parallel", "trees"):
        return _translation(loaded, source, target, beam)
    if kind == "text":
        return _continuation(loaded, source, target, beam)
    refuse_search(beam, "this model gives labels and searches nothing")
    return {"tagged": _tags, "labelled": _class, "masked": _masked}[kind](loaded, source, target)


def refuse_search(beam: int | None, why: str) -> None:
    """Raise UsageError for a beam where nothing is searched."""
    if beam is not None:
        raise UsageError(f"beam = {beam}: {why}; leave the beam out")


# ------------------------------------------------------------------------------------------------- models that write


def _translation(loaded: Loaded, source: str, target: str | None, beam: int | None) -> Case:
    network, vocabulary, config = loaded
    assert isinstance(network, Model) and isinstance(vocabulary, Tokenizer)
    text = _line(source, "source")
    if config.data.kind == "trees":
        text = " ".join(penn_word(word) for word in text.split())
    ids = vocabulary.encode_source(text)
    _refuse_size("source", text, len(ids) - 1, len(ids), config.data.max_tokens)
    src = torch.tensor([ids], device=network.device)
    sides = {"source": Side.of([vocabulary.source_piece(i) for i in ids])}
    if target is not None:
        refuse_search(beam, "with a target nothing is searched")
        told = vocabulary.encode_target(_line(target, "target"))
        return _written("translation", network, vocabulary, text, src, told, sides, forced=True)
    settings = _settings(config, beam)
    ((found, tree),), (repeated,) = search_with_retry(
        lambda _, used: [search_tree(network, src, used)], [ids], settings, lambda result: result[0][0].tokens
    )
    told = _told(found[0])
    signs = {
        "truncated": found[0].truncated,
        "length": has_unusual_length(len(ids) - 1, len(found[0].tokens)),
        "repetition": repeated,
    }
    return _written(
        "translation", network, vocabulary, text, src, told, sides,
        tree=tree.to_json(vocabulary.target_piece, vocabulary.decode_target),
        flags=tuple(name for name, seen in signs.items() if seen),
    )  # fmt: skip


def _continuation(loaded: Loaded, prompt: str, target: str | None, beam: int | None) -> Case:
    """A prompt may be empty: then the model begins by itself."""
    network, vocabulary, config = loaded
    assert isinstance(network, Model) and isinstance(vocabulary, Tokenizer)
    _refuse_half_pairs(prompt, "source")
    prefix, longest = vocabulary.encode_target(prompt)[:-1], config.data.max_tokens
    nothing = torch.zeros(1, 0, dtype=torch.long, device=network.device)
    if target is not None:
        refuse_search(beam, "with a target nothing is searched")
        _refuse_half_pairs(target, "target")
        told = vocabulary.encode_target(prompt + target)
        if config.data.kind == "text" and config.data.form == "stream":
            told = told[:-1]  # such texts have no end
        if not told:
            raise UsageError("source and target are both empty: there is nothing to explain; give one of them")
        _refuse_size("prompt and target", prompt + target, len(told), len(told), longest)
        given = next((i for i, (a, b) in enumerate(zip(prefix, told, strict=False)) if a != b), len(prefix))
        return _written("continuation", network, vocabulary, prompt, nothing, told, {}, given=given, forced=True)
    _refuse_size("prompt", prompt, 1, len(prefix) + 1, longest)
    settings = _settings(config, beam, max_extra=max(1, min(_EXTRA, longest - len(prefix))))
    found, tree = search_tree(network, nothing, settings, prefix)
    return _written(
        "continuation", network, vocabulary, prompt, nothing, _told(found[0]), {}, given=len(prefix),
        tree=tree.to_json(vocabulary.target_piece, vocabulary.decode_target),
        flags=("truncated",) if found[0].truncated else (),
    )  # fmt: skip


def _written(
    kind: str,
    network: Network,
    tokenizer: Tokenizer,
    source: str,
    src: Tensor,
    told: list[int],
    sides: dict[str, Side],
    **more: Any,
) -> Case:
    """The case of a target `told`, one answer a token."""
    _refuse_size("target", tokenizer.decode_target(told), len(told), len(told), MOST)
    tgt_in = [BOS, *told[:-1]]
    pieces = tokenizer.target_piece
    sides = sides | {"input": Side.of([pieces(i) for i in tgt_in]), "output": Side.of([pieces(i) for i in told])}
    return Case(
        kind=kind,
        source=source,
        text=tokenizer.decode_target(told),
        src=src,
        tgt_in=torch.tensor([tgt_in], device=network.device),
        targets=told,
        places=list(range(len(told))),
        sides=sides,
        word=pieces,
        **more,
    )


def _told(hypothesis: Hypothesis) -> list[int]:
    """Its tokens, and the end of sentence where it was the model that said it."""
    return hypothesis.tokens if hypothesis.truncated and hypothesis.tokens else [*hypothesis.tokens, EOS]


def _settings(config: Config, beam: int | None, **more: int) -> SearchSettings:
    """The model's own search, asked for as many hypotheses as it keeps."""
    settings = SearchSettings.of(config.search, **more, **({} if beam is None else {"beam": beam}))
    return SearchSettings.of(settings, nbest=settings.beam)


# -------------------------------------------------------------------------------------------- models that give labels


def _tags(loaded: Loaded, source: str, target: str | None) -> Case:
    _, vocabulary, config = loaded
    assert isinstance(vocabulary, LabelVocabulary) and vocabulary.tokenizer is not None
    words = _line(source, "source").split()
    asked = [] if target is None else target.split()
    if target is not None and len(asked) != len(words):
        raise UsageError(f"{len(asked)} tags for {len(words)} words: give one tag a word, with spaces between them")
    ids, marks = tagged_row([vocabulary.tokenizer.encode_word(word) for word in words], [1] * len(words))
    _refuse_size("source", source, len(words), len(ids), config.data.max_tokens)
    places = [place for place, mark in enumerate(marks) if mark]
    pieces = [vocabulary.tokenizer.source_piece(i) for i in ids]
    bounds = [*places, len(ids) - 1]
    spans = [list(range(begin, end)) for begin, end in itertools.pairwise(bounds)]
    side = Side(pieces, [[0], *spans, [len(ids) - 1]])
    targets = [vocabulary.number(tag, "target") for tag in asked]
    return _labelled("tags", loaded, source, ids, side, places, targets, words)


def _class(loaded: Loaded, source: str, target: str | None) -> Case:
    _, vocabulary, config = loaded
    assert isinstance(vocabulary, LabelVocabulary) and vocabulary.tokenizer is not None
    assert isinstance(config.model, EncoderOnlyConfig)
    text = _line(source, "source").strip()
    encoded = vocabulary.tokenizer.encode_source(text)
    _refuse_size("source", text, len(encoded) - 1, len(encoded), config.data.max_tokens)
    ids = text_source(encoded, config.model.pooling)
    side = Side.of([vocabulary.tokenizer.source_piece(i) for i in ids])
    targets = [] if target is None else [vocabulary.number(target.strip(), "target")]
    return _labelled("class", loaded, text, ids, side, [0], targets, [])


def _labelled(
    kind: str,
    loaded: Loaded,
    source: str,
    ids: list[int],
    side: Side,
    places: list[int],
    targets: list[int],
    about: list[str],
) -> Case:
    """The case of labels at `places`; without `targets` they are those that the network finds most probable."""
    network, vocabulary, _ = loaded
    assert isinstance(vocabulary, LabelVocabulary)
    src = torch.tensor([ids], device=network.device)
    nothing = torch.zeros(1, 0, dtype=torch.long, device=network.device)
    forced = bool(targets)
    if not forced:
        targets = best_ids(network, src, places, never=1)
    return Case(
        kind=kind,
        source=source,
        text=" ".join(vocabulary.label(number) for number in targets),
        src=src,
        tgt_in=nothing,
        targets=targets,
        places=places,
        sides={"source": side},
        word=vocabulary.label,
        never=1,
        forced=forced,
        about=about,
    )


def _masked(loaded: Loaded, source: str, target: str | None) -> Case:
    """Every `MASK` of the text is a word to be found; without any, each piece is said again."""
    network, vocabulary, config = loaded
    assert isinstance(vocabulary, Tokenizer)
    if target is not None:
        raise UsageError(
            f"target = {clip(target)!r}: a model of masked words has none; write the words into the source"
        )
    parts = [vocabulary.encode_source(part)[:-1] for part in _line(source, "source").split(MASK)]
    ids = [token for part in parts for token in (BOS, *part)][1:]
    _refuse_size("source", source, len(ids), len(ids) + 1, config.data.max_tokens)
    places = [place for place, token in enumerate(ids) if token == BOS] or list(range(len(ids)))
    ids.append(EOS)
    pieces = [MASK if i == BOS else vocabulary.source_piece(i) for i in ids]
    src = torch.tensor([ids], device=network.device)
    targets = best_ids(network, src, places, never=EOS + 1)
    said = dict(zip(places, targets, strict=True))
    return Case(
        kind="masked",
        source=source,
        text=vocabulary.decode_target([said.get(place, token) for place, token in enumerate(ids)]),
        src=src,
        tgt_in=torch.zeros(1, 0, dtype=torch.long, device=network.device),
        targets=targets,
        places=places,
        sides={"source": Side.of(pieces)},
        word=vocabulary.target_piece,
        never=EOS + 1,
        about=[pieces[place] for place in places],
    )


def best_ids(network: Network, src: Tensor, places: Sequence[int], never: int) -> list[int]:
    """The most probable output from id `never` on at each of the places."""
    with torch.no_grad():
        logits = network(src, None, torch.zeros(1, 0, dtype=torch.long, device=src.device))
    found: list[int] = (logits[0, list(places), never:].argmax(-1) + never).tolist()
    return found


# ---------------------------------------------------------------------------------------------------------- checking


def _line(text: str, name: str) -> str:
    """The text with its line ends as spaces, as translation takes it."""
    _refuse_half_pairs(text, name)
    return text.replace("\n", " ").replace("\r", " ")


def _refuse_half_pairs(text: str, name: str) -> None:
    if has_lone_surrogate(text):
        raise UsageError(f"the {name} holds what is no character (half a surrogate pair); give it in UTF-8")


def _refuse_size(name: str, text: str, words: int, tokens: int, longest: int) -> None:
    """Raise UsageError where there is nothing, or more than the model, or a page, can take."""
    if not words:
        raise UsageError(
            f"the {name} is empty ({clip(text)!r}): there is nothing to explain; give a text with a word in it"
        )
    if tokens > min(longest, MOST):
        why = f"the model takes {longest} at once" if longest < MOST else f"a page of maps shows at most {MOST}"
        raise UsageError(
            f"a {name} of {tokens} tokens ({clip(text, 40)!r}), and {why}: nothing is cut here; explain one sentence, "
            "or a shorter text"
        )


def _words(pieces: Sequence[str]) -> list[list[int]]:
    """Which pieces make up a word: letters and digits that follow each other without a space (sentencepiece's "▁").

    What is no letter is a word of its own, and so is each piece of a script that is written without spaces.
    """
    words: list[list[int]] = []
    for place, piece in enumerate(pieces):
        if words and _joins(pieces[place - 1], piece):
            words[-1].append(place)
        else:
            words.append([place])
    return words


def _joins(before: str, piece: str) -> bool:
    if piece.startswith("▁"):
        return False
    if before == "▁":
        return not _is_special(piece)
    return _inside(before[-1:], before) and _inside(piece[:1], piece)


def _inside(character: str, piece: str) -> bool:
    """Whether a word can go on here: a letter, a mark or a digit, or a byte of one (`<0xE4>`)."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return True
    return character.isalnum() and not _is_special(piece) and not _SCRIPT_WITHOUT_SPACES.match(character)


def _is_special(piece: str) -> bool:
    return piece in ("<s>", "</s>", "<unk>", "<pad>", MASK)
