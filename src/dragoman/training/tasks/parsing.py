"""Constituency parsing as translation (Vinyals et al. 2015; Vaswani et al. 2017, section 6.3): words into brackets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.config import Config, CorpusConfig, FilterConfig, ParallelData, TreeData
from dragoman.data.corpus import corpus_spec
from dragoman.data.readers.trees import Tree, bracket_f1, delinearize, linearize, read_trees
from dragoman.errors import DataError
from dragoman.io.reading import open_regular
from dragoman.io.run_log import Reporter
from dragoman.io.writing import atomic_file, writing
from dragoman.models.seq2seq import Model
from dragoman.pipelines.parsing import Parser
from dragoman.tokenizers import Tokenizer
from dragoman.training.tasks.task import Score, refuse_empty
from dragoman.training.tasks.translation import TranslationTask, TranslationValidation


class ParsingTask(TranslationTask):
    """Sentences and their linearized trees, written to disk and learned as a parallel corpus."""

    def __init__(
        self, config: Config, data: TreeData, prepared: Path, reporter: Reporter, tokenizer: Tokenizer | None = None
    ) -> None:
        paths, valid = data.train_paths(), data.valid_path()
        trees = [tree for path in paths for tree in read_trees(path)]
        refuse_empty(len(trees), paths, "the files contain no trees")
        self.gold = [] if valid is None else list(read_trees(valid))
        if valid is not None and not self.gold:
            raise DataError(f"data.valid: {valid} contains no trees; specify another file, or remove data.valid")
        # No filters: a linearized tree is longer than its sentence, and a repeated sentence is data too.
        unfiltered = FilterConfig(
            max_characters=10**9, max_ratio=1e9, drop_identical=False, drop_duplicates=False, max_tokens=data.max_tokens
        )
        parallel = ParallelData(
            source_language="words",
            target_language="brackets",
            train=(_corpus(trees, prepared),),
            valid=_corpus(self.gold, prepared) if self.gold else None,
            filter=unfiltered,
        )
        super().__init__(config.model_copy(update={"data": parallel}), prepared, reporter, tokenizer)

    def validation(self) -> Score | None:
        return BracketValidation(self) if self.gold else None


def _corpus(trees: Sequence[Tree], prepared: Path) -> CorpusConfig:
    """Write words and brackets, one tree per line, to two files named after their content."""
    words, brackets = [" ".join(tree.words()) for tree in trees], [linearize(tree) for tree in trees]
    return CorpusConfig(source=_written(words, prepared), target=_written(brackets, prepared))


def _written(lines: list[str], prepared: Path) -> str:
    content = "".join(f"{line}\n" for line in lines).encode()
    path = prepared / "trees" / f"{hashlib.blake2b(content, digest_size=8).hexdigest()}.txt"
    with suppress(OSError), open_regular(path) as file:
        if file.read(len(content) + 1) == content:
            return str(path.resolve())
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as new:
            new.write(content)
    return str(path.resolve())


class BracketValidation(TranslationValidation):
    """Scores a network on trees.

    Returns valid_loss and perplexity of all trees; of the first train.validate_sentences trees, decoded greedily, the
    labelled precision, recall and f1 of brackets in percent, and well_formed: the percentage of outputs that were trees
    over their words without repair.
    """

    def __init__(self, task: ParsingTask) -> None:
        parallel = task.config.parallel
        assert parallel.valid is not None
        super().__init__(task.config, corpus_spec(task.config, parallel.valid), task.tokenizer, task.reporter)
        # The model may have no positions for longer sentences.
        fits = [len(task.tokenizer.encode_source(words)) <= parallel.max_tokens for words, _ in self.pairs]
        self.gold = [tree for tree, short in zip(task.gold, fits, strict=True) if short]
        if dropped := len(task.gold) - len(self.gold):
            task.reporter.log(
                f"data.valid: {dropped:,} sentences exceed max_tokens = {parallel.max_tokens} and are not parsed"
            )

    def _decoding_scores(self, network: Model) -> dict[str, Any]:
        gold = self.gold[: self.config.train.validate_sentences]
        parser = Parser(network, self.tokenizer, self.config.search, network.device)
        outputs = parser.predict_linearized([tree.words() for tree in gold], beam=1)
        trees = [
            delinearize(output, tree.words(), [tag for tag, _ in tree.leaves()])
            for output, tree in zip(outputs, gold, strict=True)
        ]
        well_formed = 100 * sum(whole for _, whole in trees) / len(trees)
        return bracket_f1(gold, [tree for tree, _ in trees]) | {"well_formed": well_formed}
