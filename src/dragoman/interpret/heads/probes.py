"""Lines as a network reads them, whatever its architecture: what an atlas is made over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dragoman.config import Config
from dragoman.data.batching import Batch, batches_within, collate
from dragoman.data.readers.labelled import tagged_row, text_source
from dragoman.data.readers.trees import penn_word
from dragoman.data.tokenizer import EOS, PAD, Tokenizer
from dragoman.data.vocabulary import LabelVocabulary, Vocabulary
from dragoman.errors import UsageError
from dragoman.interpret.heads.alignment import Gold, word_count
from dragoman.models.model_folder import load_network, read_config, wrong_model
from dragoman.models.seq2seq import Network
from dragoman.nn.modes import evaluating
from dragoman.pipelines.generation import TextGenerator
from dragoman.pipelines.parsing import Parser
from dragoman.pipelines.translation import Translator

__all__ = ["ProbeBatch", "load_material", "of_language_model", "of_translator"]

_BATCH_TOKENS = 2000
"""Padded source and target tokens in a batch: the weights of all heads are held for one batch at a time."""

Ids = tuple[list[int], list[int]]
"""A source and a target, ends of sentence included; 0 in a target is what does not count."""


@dataclass(frozen=True)
class ProbeBatch:
    """Batches of lines, targets given.

    numbers: of each row of each batch its line, from 0.  source_piece, target_piece: what an id stands for, or None
    (patches of images).  shared: the ids of both sides mean the same.  own: the targets are what the model itself says.
    golds: the alignment of each line, None where there is none to compare with.
    """

    batches: tuple[Batch, ...]
    numbers: tuple[tuple[int, ...], ...]
    source_piece: Callable[[int], str] | None
    target_piece: Callable[[int], str] | None
    shared: bool
    own: bool
    golds: tuple[Gold | None, ...] = ()

    @property
    def lines(self) -> int:
        return sum(map(len, self.numbers))

    @property
    def aligned(self) -> int:
        """How many lines have an alignment that counts."""
        return sum(gold is not None for gold in self.golds)

    def gold(self, line: int) -> Gold | None:
        return self.golds[line] if self.golds else None

    def row(self, line: int) -> Batch:
        """One line as a batch, without padding."""
        for batch, numbers in zip(self.batches, self.numbers, strict=True):
            if line in numbers:
                return _unpadded(_rows(batch, [numbers.index(line)]))
        raise UsageError(f"there is no line {line + 1} among the {self.lines}")

    def sample(self, most: int) -> Iterator[Batch]:
        """At most so many lines, evenly spread, in the batches that they are in."""
        step = max(1, -(-self.lines // most))
        for batch, numbers in zip(self.batches, self.numbers, strict=True):
            chosen = [place for place, number in enumerate(numbers) if number % step == 0]
            if chosen:
                yield _rows(batch, chosen)


def _rows(batch: Batch, places: list[int]) -> Batch:
    mask = None if batch.src_mask is None else batch.src_mask[places]
    src, tgt = batch.src[places], batch.tgt_out[places]
    src_tokens = src.shape[:2].numel() if mask is None else int(mask.sum())
    return Batch(src, mask, batch.tgt_in[places], tgt, src_tokens, int((tgt != PAD).sum()))


def _unpadded(row: Batch) -> Batch:
    source = row.src.size(1) if row.src_mask is None else int(row.src_mask.sum())
    target = max([0, *((row.tgt_out[0] != PAD).nonzero()[:, 0] + 1).tolist()])
    return Batch(
        row.src[:, :source], None, row.tgt_in[:, :target], row.tgt_out[:, :target], row.src_tokens, row.tgt_tokens
    )


def _batches(pairs: Sequence[Ids]) -> tuple[tuple[Batch, ...], tuple[tuple[int, ...], ...]]:
    if not pairs:
        raise UsageError("there are no lines: give a text with at least one")
    places = list(batches_within([len(src) + len(tgt) for src, tgt in pairs], _BATCH_TOKENS))
    return tuple(collate([pairs[i] for i in some]) for some in places), tuple(map(tuple, places))


# ------------------------------------------------------------------------------------------------------ of each kind


def of_translator(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str] | None = None,
    golds: Sequence[Gold] | None = None,
) -> ProbeBatch:
    """Sources with their references, or where there are none with the model's own translations.

    golds: the alignment of each pair; where the tokenizer's normalization made other words of a line, it does not
    count.  Raises UsageError where the numbers of lines differ.
    """
    targets = [t.text for t in translator.translate(sources)] if references is None else references
    if not len(sources) == len(targets) == len(sources if golds is None else golds):
        given = "" if golds is None else f" and {len(golds)} alignments"
        raise UsageError(f"{len(sources)} sources, {len(targets)} references{given}: give one of each for every line")
    tokenizer = translator.tokenizer
    pairs = [
        (tokenizer.encode_source(source), tokenizer.encode_target(target))
        for source, target in zip(sources, targets, strict=True)
    ]
    kept: list[Gold | None] = []
    for pair, source, target, gold in zip(pairs, sources, targets, golds or (), strict=False):
        pieces = [tokenizer.source_piece(i) for i in pair[0]], [tokenizer.target_piece(i) for i in pair[1]]
        same = [word_count(own) == len(text.split()) for own, text in zip(pieces, (source, target), strict=True)]
        kept.append(gold if all(same) else None)
    pieces_of = tokenizer.source_piece, tokenizer.target_piece
    return ProbeBatch(*_batches(pairs), *pieces_of, tokenizer.shared, references is None, tuple(kept))


def of_language_model(generator: TextGenerator, lines: Sequence[str]) -> ProbeBatch:
    """Texts, a line each; where the model learned from one stream, all lines as one, cut to the length it has seen."""
    texts = lines if generator.ends else ["\n".join(lines)]
    most, tokenizer = generator.max_tokens, generator.tokenizer
    encoded = [tokenizer.encode_target(text)[: None if generator.ends else -1] for text in texts]
    pairs: list[Ids] = [([], ids[begin : begin + most]) for ids in encoded for begin in range(0, len(ids), most)]
    return ProbeBatch(*_batches(pairs), tokenizer.source_piece, tokenizer.target_piece, True, False)


def _of_parser(parser: Parser, lines: Sequence[str]) -> ProbeBatch:
    sentences = [[penn_word(word) for word in line.split()] for line in lines]
    tokenizer = parser.tokenizer
    pairs = [
        (tokenizer.encode_source(" ".join(words)), tokenizer.encode_target(tree))
        for words, tree in zip(sentences, parser.predict_linearized(sentences), strict=True)
    ]
    return ProbeBatch(*_batches(pairs), tokenizer.source_piece, tokenizer.target_piece, tokenizer.shared, True)


def _of_encoder(network: Network, vocabulary: Vocabulary, config: Config, lines: Sequence[str]) -> ProbeBatch:
    """Texts for a model that gives labels, or fills in masked words; the targets are the labels that it gives."""
    tokenizer = vocabulary.tokenizer if isinstance(vocabulary, LabelVocabulary) else vocabulary
    assert isinstance(tokenizer, Tokenizer)
    pooling = getattr(config.model, "pooling", "none")
    pairs: list[Ids] = []
    for line in lines:
        if config.data.kind == "tagged":
            words = line.split()
            pairs.append(tagged_row([tokenizer.encode_word(word) for word in words], [1] * len(words)))
            continue
        ids = text_source(tokenizer.encode_source(line.strip()), pooling)
        pairs.append((ids, [1] if pooling != "none" else [int(token != EOS) for token in ids]))
    batches, numbers = _batches(pairs)
    labelled = tuple(_with_labels(network, batch) for batch in batches)
    return ProbeBatch(labelled, numbers, tokenizer.source_piece, None, False, True)


def _with_labels(network: Network, batch: Batch) -> Batch:
    """The batch with the network's own labels where tgt_out is not 0."""
    moved = batch.to(network.device)
    with evaluating(network), torch.no_grad():
        logits: Tensor = network(moved.src, moved.src_mask, moved.tgt_in)
    labels = torch.where(batch.tgt_out != PAD, logits[..., 1:].argmax(-1).cpu() + 1, PAD)
    return Batch(batch.src, batch.src_mask, batch.tgt_in, labels, batch.src_tokens, batch.tgt_tokens)


def load_material(
    path: Path,
    lines: Sequence[str],
    references: Sequence[str] | None = None,
    golds: Sequence[Gold] | None = None,
    device: str | torch.device = "cpu",
) -> tuple[Network, ProbeBatch]:
    """The network of a model folder, of any kind that reads text, and the lines as it reads them.

    Raises ModelFolderError, and UsageError for images, and for references to a model that does not translate.
    """
    config = read_config(path)
    kind = config.data.kind
    if kind == "images":
        raise wrong_model(path, config, "reads no text")
    if kind == "parallel":
        translator = Translator.load(path, device, engine="pytorch")
        return translator.model, of_translator(translator, lines, references, golds)
    if references is not None or golds is not None:
        raise wrong_model(path, config, "does not translate, so that references and alignments mean nothing to it")
    if kind == "text":
        generator = TextGenerator.load(path, device, engine="pytorch")
        return generator.model, of_language_model(generator, lines)
    if kind == "trees":
        parser = Parser.load(path, device, engine="pytorch")
        return parser.model, _of_parser(parser, lines)
    network, vocabulary, config = load_network(path, device)
    return network, _of_encoder(network, vocabulary, config, lines)
