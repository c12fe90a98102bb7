"""Batches of a text with targets, for networks of every kind; the input of an atlas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dragoman.data.batching import Batch, collate
from dragoman.data.dialogues import encode_turns, split_turns, turns_of_text
from dragoman.data.readers.trees import penn_word
from dragoman.decoding.backend import batches_within
from dragoman.errors import UsageError
from dragoman.interpret.explain.cases import Ids, label_row, with_predictions
from dragoman.interpret.heads.gold_alignment import GoldAlignment, word_count
from dragoman.models.model_folder import load_network, read_config, wrong_model
from dragoman.models.seq2seq import Network
from dragoman.pipelines.generation import Chat, TextGenerator
from dragoman.pipelines.parsing import Parser
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import EOS, PAD, LabelVocabulary, Tokenizer

_BATCH_TOKENS = 2000
"""Padded source and target tokens per batch, whose attention weights of all heads are in memory at once."""


@dataclass(frozen=True)
class ProbeBatch:
    """The batches of all lines of a text, with targets.

    numbers: line of each row of each batch, from 0.  source_piece, target_piece: the piece of an id, None for patches
    of images and labels.  shared: both sides share a vocabulary.  own: the targets are the model's own output.  golds:
    alignment of each line, None for lines that are not evaluated; empty if there is no alignment.
    """

    batches: tuple[Batch, ...]
    numbers: tuple[tuple[int, ...], ...]
    source_piece: Callable[[int], str] | None
    target_piece: Callable[[int], str] | None
    shared: bool
    own: bool
    golds: tuple[GoldAlignment | None, ...] = ()

    @property
    def lines(self) -> int:
        return sum(map(len, self.numbers))

    @property
    def aligned(self) -> int:
        """The number of lines with an alignment."""
        return sum(gold is not None for gold in self.golds)

    def row(self, line: int) -> Batch:
        """Return one line as a batch without padding."""
        for batch, numbers in zip(self.batches, self.numbers, strict=True):
            if line in numbers:
                row = _rows(batch, [numbers.index(line)])
                s, t = row.src_tokens, max([0, *((row.tgt_out[0] != PAD).nonzero()[:, 0] + 1).tolist()])
                return Batch(row.src[:, :s], None, row.tgt_in[:, :t], row.tgt_out[:, :t], s, row.tgt_tokens)
        raise UsageError(f"line {line + 1} does not exist; accepted: 1 to {self.lines}")

    def sample(self, limit: int) -> Iterator[Batch]:
        """Yield at most `limit` evenly spaced lines in their batches."""
        step = max(1, -(-self.lines // limit))
        for batch, numbers in zip(self.batches, self.numbers, strict=True):
            rows = [row for row, number in enumerate(numbers) if number % step == 0]
            if rows:
                yield _rows(batch, rows)


def _rows(batch: Batch, rows: list[int]) -> Batch:
    mask = None if batch.src_mask is None else batch.src_mask[rows]
    src, tgt_out = batch.src[rows], batch.tgt_out[rows]
    src_tokens = src.shape[:2].numel() if mask is None else int(mask.sum())
    return Batch(src, mask, batch.tgt_in[rows], tgt_out, src_tokens, int((tgt_out != PAD).sum()))


def _batches(pairs: Sequence[Ids]) -> tuple[tuple[Batch, ...], tuple[tuple[int, ...], ...]]:
    if not pairs:
        raise UsageError("the text has no lines; give at least one line")
    parts = list(batches_within([len(src) + len(tgt) for src, tgt in pairs], _BATCH_TOKENS))
    return tuple(collate([pairs[i] for i in part]) for part in parts), tuple(map(tuple, parts))


def translation_probe(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str] | None = None,
    golds: Sequence[GoldAlignment] | None = None,
) -> ProbeBatch:
    """Return sources with their references; without references, with the model's own translations.

    A source of a multilingual model may start with a tag `>>xx<<`.

    golds: one alignment per pair.  It is dropped where the normalization of the tokenizer changes the word boundaries
    of a line.  Raises UsageError if the numbers of lines differ.
    """
    targets = [t.text for t in translator.translate(sources)] if references is None else references
    if not len(sources) == len(targets) == len(sources if golds is None else golds):
        alignments = "" if golds is None else f", {len(golds)} alignments"
        raise UsageError(f"{len(sources)} sources, {len(targets)} references{alignments}; give one of each per line")
    tokenizer = translator.tokenizer
    pairs = []
    for source, target in zip(sources, targets, strict=True):
        directed, _, text = tokenizer.directed(source)
        pairs.append((directed.encode_source(text), directed.encode_target(target)))
    kept: list[GoldAlignment | None] = []
    for (src, tgt), source, target, gold in zip(pairs, sources, targets, golds or (), strict=False):
        same_source = word_count([tokenizer.source_piece(i) for i in src]) == len(source.split())
        same_target = word_count([tokenizer.target_piece(i) for i in tgt]) == len(target.split())
        kept.append(gold if same_source and same_target else None)
    return _probe(tokenizer, pairs, own=references is None, golds=kept)


def _probe(
    tokenizer: Tokenizer, pairs: Sequence[Ids], own: bool, golds: Sequence[GoldAlignment | None] = ()
) -> ProbeBatch:
    pieces = tokenizer.source_piece, tokenizer.target_piece
    return ProbeBatch(*_batches(pairs), *pieces, tokenizer.shared, own, tuple(golds))


def load_probe(
    path: Path,
    lines: Sequence[str],
    references: Sequence[str] | None = None,
    golds: Sequence[GoldAlignment] | None = None,
    device: str | torch.device = "cpu",
) -> tuple[Network, ProbeBatch]:
    """Load a model folder of any kind that reads text; return the network and the lines as its batches.

    Raises ModelFolderError; UsageError for a model of images, or for references if the model does not translate.
    """
    config = read_config(path)
    kind = config.data.kind
    if kind == "images":
        raise wrong_model(path, config, "reads no text")
    if kind == "parallel":
        translator = Translator.load(path, device, engine="pytorch")
        return translator.model, translation_probe(translator, lines, references, golds)
    if references is not None or golds is not None:
        raise wrong_model(path, config, "does not translate and accepts no references or alignments")
    if kind == "text":  # one text per line, or one stream of all lines, in blocks of `max_tokens`
        generator = TextGenerator.load(path, device, engine="pytorch")
        texts = lines if generator.ends else ["\n".join(lines)]
        size, tokenizer = generator.max_tokens, generator.tokenizer
        encoded = [tokenizer.encode_target(text)[: None if generator.ends else -1] for text in texts]
        blocks: list[Ids] = [([], ids[begin : begin + size]) for ids in encoded for begin in range(0, len(ids), size)]
        return generator.model, _probe(tokenizer, blocks, own=False)
    if kind == "dialogue":  # one turn per line, `ROLE: text` or a text of the first role
        chat = Chat.load(path, device, engine="pytorch")
        turns = [turn for line in lines for turn in encode_turns(chat.tokenizer, turns_of_text(line, chat.roles))]
        parts = split_turns(turns, chat.context - 1)
        dialogues: list[Ids] = [([], [*part.inputs, *([EOS] if part.ends else [])]) for part in parts]
        probe = _probe(chat.tokenizer, dialogues, own=False)
        for batch in probe.batches:
            batch.tgt_out[:, 0] = PAD  # a role is not predicted
        return chat.model, probe
    if kind == "trees":
        parser = Parser.load(path, device, engine="pytorch")
        sentences = [[penn_word(word) for word in line.split()] for line in lines]
        trees = parser.predict_linearized(sentences)
        encode, encode_tree = parser.tokenizer.encode_source, parser.tokenizer.encode_target
        pairs = [(encode(" ".join(words)), encode_tree(tree)) for words, tree in zip(sentences, trees, strict=True)]
        return parser.model, _probe(parser.tokenizer, pairs, own=True)
    # With the labels that the model predicts, or the tokens if it is a masked language model.
    network, vocabulary, config = load_network(path, device)
    reader = vocabulary.tokenizer if isinstance(vocabulary, LabelVocabulary) else vocabulary
    assert isinstance(reader, Tokenizer)
    batches, numbers = _batches([label_row(reader, config, line.strip()) for line in lines])
    labelled = tuple(with_predictions(network, batch) for batch in batches)
    return network, ProbeBatch(labelled, numbers, reader.source_piece, None, False, True)
