"""Golden model folders of imported checkpoints, one per family and variant; `write_golden.py` calls `write_family`.

families_v<N>/<name>/                 the model folder, imported from a checkpoint with random weights
families_v<N>/expected_<name>.json    ids, log-probabilities and most probable tokens, or labels
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sentencepiece as spm

HERE = Path(__file__).parent
PAIRS = [("a dog runs", "ein hund"), ("Two  people, 漢 12", "zwei leute")]
LINES = ["a dog runs", "two people in the park !"]

Write = Callable[[Path], object]


def _bart(name: str, **changes: Any) -> Write:
    from transformers_checkpoints import bart_checkpoint

    return lambda path: bart_checkpoint(path, name, **changes)


def _t5(name: str, **changes: Any) -> Write:
    from transformers_checkpoints import t5_checkpoint

    return lambda path: t5_checkpoint(path, name, **changes)


def _language(name: str, **changes: Any) -> Write:
    from transformers_checkpoints import language_checkpoint

    return lambda path: language_checkpoint(path, name, **changes)


def _bert(name: str) -> Write:
    from transformers_checkpoints import bert_checkpoint

    sizes = {"hidden_size": 6, "intermediate_size": 7, "num_attention_heads": 3, "num_hidden_layers": 1}
    return lambda path: bert_checkpoint(path, name, **sizes)


def _marian(name: str) -> Write:
    from marian_files import marian_model

    return lambda path: marian_model(path, name)


def _ctranslate2(name: str) -> Write:
    from ctranslate2_folders import foreign_folder

    return lambda path: foreign_folder(path, name)


def _joeynmt(name: str) -> Write:
    from toolkit_checkpoints import joey_checkpoint

    return lambda path: joey_checkpoint(path, name)


def _fairseq(name: str) -> Write:
    from toolkit_checkpoints import fairseq_checkpoint

    return lambda path: fairseq_checkpoint(path, name)


def _opennmt(toolkit: str, name: str) -> Write:
    from toolkit_checkpoints import opennmt_checkpoint

    return lambda path: opennmt_checkpoint(path, name, toolkit)


_NARROW = {
    "hidden_size": 6, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 7, "head_dim": 4,
}  # fmt: skip
_TINY = {
    "d_model": 6, "encoder_ffn_dim": 5, "decoder_ffn_dim": 5, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1,
}  # fmt: skip
WRITERS: dict[str, Callable[[], Write]] = {
    "bart": partial(_bart, "bart odd", **_TINY),
    "mbart-25": partial(_bart, "mbart-25", **_TINY),
    "mbart-50": partial(_bart, "mbart-50", **_TINY),
    "m2m_100": partial(_bart, "m2m odd", **_TINY),
    "nllb": partial(_bart, "nllb", **_TINY),
    "t5": partial(_t5, "v1.0, one layer, wide heads"),
    "t5-1.1": partial(_t5, "v1.1, tied, narrow heads", num_decoder_layers=1),
    "mt5": partial(_t5, "mt5, one layer, tied"),
    "byt5": partial(_t5, "byt5, one layer"),
    "gpt2": partial(_language, "gpt2, one layer, untied", n_embd=6, n_head=2, n_inner=7),
    "llama-3.1": partial(_language, "llama, 3.1", **_NARROW),
    "llama-linear": partial(_language, "llama, linear", **_NARROW, tokenizer="wordpiece"),
    "mistral": partial(_language, "mistral, window, one layer", **_NARROW, tokenizer="wordpiece"),
    "qwen2": partial(_language, "qwen2, tied", **_NARROW),
    "labels": partial(_bert, "labels"),
    "tags": partial(_bert, "tags"),
    "marian-files": partial(_marian, "attention"),
    "marian-ssru": partial(_marian, "pre-norm ssru"),
    "ctranslate2": partial(_ctranslate2, "odd"),
    "joeynmt": partial(_joeynmt, "untied"),
    "fairseq": partial(_fairseq, "learned"),
    "opennmt": partial(_opennmt, "opennmt", "biases"),
    "eole": partial(_opennmt, "eole", "untied"),
}
"""By name, what returns the function that writes the checkpoint."""


@contextmanager
def _small_vocabularies(folder: Path) -> Iterator[None]:
    """Train sentencepiece models that normalize tabs to spaces only, without Unicode's tables of 240 kB."""
    (folder / "rules.tsv").write_text("9\t20\n")
    train = partial(spm.SentencePieceTrainer.train, normalization_rule_tsv=str(folder / "rules.tsv"))
    with patch.object(spm.SentencePieceTrainer, "train", train):
        yield


def write_family(name: str, version: int) -> None:
    from dragoman.formats.importing.importer import import_model

    folder = HERE / f"families_v{version}" / name
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, _small_vocabularies(Path(place)):
        WRITERS[name]()(Path(place) / "checkpoint")
        import_model(Path(place) / "checkpoint", folder)
    from write_golden import write_json

    write_json(f"{folder.parent.name}/expected_{name}.json", _labels(folder) if name in LABELS else _rows(folder))


LABELS = ("labels", "tags")


def _labels(folder: Path) -> list[dict[str, Any]]:
    from dragoman.pipelines.labelling import Labeller

    return [
        {"text": text, "labels": found.labels, "probabilities": [round(p, 4) for p in found.probabilities]}
        for text, found in zip(LINES, Labeller.load(folder).label(LINES), strict=True)
    ]


def _rows(folder: Path) -> list[dict[str, Any]]:
    """The ids of pairs, or of texts of a language model, and the log-probabilities of the target."""
    import torch
    from write_golden import clear_steps, logits_of

    from dragoman.models.model_folder import load_network

    network, tokenizer, config = load_network(folder)
    bound: Any = tokenizer.some_direction  # type: ignore[union-attr]
    languages = list(bound.default_languages)
    rows: list[dict[str, Any]] = []
    for source, target in PAIRS:
        pair = [source if config.data.kind == "parallel" else "", target]
        ids = bound.encode_source(source) if pair[0] else [], bound.encode_target(target)
        logits = logits_of(network, *ids)
        picked = torch.tensor(logits).log_softmax(1)[range(len(ids[1])), ids[1]]
        rows.append(
            {"pair": pair, "languages": languages, "ids": ids, "log_probs": [round(p, 4) for p in picked.tolist()],
             "best": clear_steps(logits)}
        )  # fmt: skip
    return rows
