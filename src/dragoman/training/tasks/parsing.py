"""Constituency parsing as translation (Vinyals et al. 2015; Vaswani et al. 2017, section 6.3): words into brackets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dragoman.config import Config, CorpusConfig, FilterConfig, ParallelData, TreeData
from dragoman.data.corpus import corpus_spec
from dragoman.data.files import train_files, valid_file
from dragoman.data.readers.trees import Tree, bracket_f1, delinearize, linearize, read_trees
from dragoman.errors import DataError, TrainingError
from dragoman.io.reading import RandomAccessFile
from dragoman.io.writing import atomic_file, not_written
from dragoman.models.seq2seq import Model, Network
from dragoman.pipelines.parsing import Parser
from dragoman.training.tasks.task import Score
from dragoman.training.tasks.translation import TranslationTask, Validation
from dragoman.training.validate import mean_loss

__all__ = ["ParsingTask"]


class ParsingTask(TranslationTask):
    """Sentences and their linearized trees, which are written down as a parallel corpus and learned as one."""

    def __init__(self, config: Config, data: TreeData, prepared: Path, log: Callable[[str], None]) -> None:
        paths, valid = train_files(data), valid_file(data)
        trees = [tree for path in paths for tree in read_trees(path)]
        if not trees:
            raise DataError(f"nothing to train on in {', '.join(map(str, paths))}: no tree")
        self.gold = [] if valid is None else list(read_trees(valid))
        if valid is not None and not self.gold:
            raise DataError(f"data.valid: {valid} holds no tree; give some, or leave data.valid out")
        parallel = ParallelData(
            source_language="words",
            target_language="brackets",
            train=(_written(trees, prepared),),
            valid=_written(self.gold, prepared) if self.gold else None,
            filter=_no_filter(data.max_tokens),
        )
        super().__init__(config.model_copy(update={"data": parallel}), prepared, log)

    def validation(self) -> Score | None:
        return BracketValidation(self, self.gold) if self.gold else None


def _written(trees: Iterable[Tree], prepared: Path) -> CorpusConfig:
    """Two files, words and brackets, a tree a line, named after what is in them."""
    trees = list(trees)
    sides = [[" ".join(tree.words()) for tree in trees], [linearize(tree) for tree in trees]]
    return CorpusConfig(source=_file(sides[0], prepared), target=_file(sides[1], prepared))


def _file(lines: list[str], prepared: Path) -> str:
    content = "".join(f"{line}\n" for line in lines).encode()
    path = prepared / "trees" / f"{hashlib.blake2b(content, digest_size=8).hexdigest()}.txt"
    if not _holds(path, content):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as file:
                file.write(content)
        except OSError as error:
            raise TrainingError(not_written(path, error)) from error
    return str(path.resolve())


def _holds(path: Path, content: bytes) -> bool:
    """Whether the file has this content; False where it was damaged."""
    try:
        file = RandomAccessFile(path)
        return len(file) == len(content) and file.read(0, len(content)) == content
    except (OSError, DataError):
        return False


def _no_filter(max_tokens: int) -> FilterConfig:
    """Trees are longer than their sentences, and a sentence said twice is data too."""
    return FilterConfig(
        max_characters=10**9, max_ratio=1e9, drop_identical=False, drop_duplicates=False, max_tokens=max_tokens
    )


class BracketValidation(Validation):
    """Loss, and what real decoding makes of sentences: their trees."""

    def __init__(self, task: ParsingTask, gold: list[Tree]) -> None:
        parallel = task.config.parallel
        assert parallel.valid is not None
        super().__init__(task.config, corpus_spec(task.config, parallel.valid), task.tokenizer, task.log)
        # A model may have no positions for what is longer.
        fits = [len(task.tokenizer.encode_source(words)) <= parallel.max_tokens for words, _ in self.pairs]
        self.gold = [tree for tree, short in zip(gold, fits, strict=True) if short]
        if len(self.gold) < len(gold):
            task.log(f"data.valid: {len(gold) - len(self.gold):,} sentences are too long to be parsed and do not count")

    def __call__(self, network: Network) -> dict[str, Any]:
        """valid_loss, perplexity; of the first train.validate_sentences trees, labelled brackets in percent: precision,
        recall, f1; and well_formed, the percentage of rows that were trees over their words as they stood.
        """
        assert isinstance(network, Model)  # the configuration has seen to it
        network.eval()
        row = mean_loss(network, self._batches)
        gold = self.gold[: self.config.train.validate_sentences]
        parser = Parser(network, self.tokenizer, self.config.search, network.device)
        rows = parser.predict_linearized([tree.words() for tree in gold], beam=1)
        network.train()
        found = [
            delinearize(text, tree.words(), [tag for tag, _ in tree.leaves()])
            for text, tree in zip(rows, gold, strict=True)
        ]
        well_formed = 100 * sum(whole for _, whole in found) / len(found)
        return row | bracket_f1(gold, [tree for tree, _ in found]) | {"well_formed": well_formed}
