"""Writes the golden model folders of imported checkpoints that are missing, one per family and variant.

    python tests/golden/write_families.py

What exists is left alone: golden files are written once per format version.

families_v<N>/<name>/                 the model folder, imported from a checkpoint with random weights
families_v<N>/expected_<name>.json    ids, log-probabilities and most probable tokens, or labels
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sentencepiece as spm
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from ctranslate2_folders import foreign_folder  # noqa: E402
from dragoman.formats.importing.importer import import_model  # noqa: E402
from dragoman.models.model_folder import FORMAT_VERSION, load_network  # noqa: E402
from dragoman.pipelines.labelling import Labeller  # noqa: E402
from dragoman.tokenizers import BOS  # noqa: E402
from marian_files import marian_model  # noqa: E402
from toolkit_checkpoints import fairseq_checkpoint, joey_checkpoint, opennmt_checkpoint  # noqa: E402
from transformers_checkpoints import bart_checkpoint, bert_checkpoint, language_checkpoint, t5_checkpoint  # noqa: E402

PAIRS = [("a dog runs", "ein hund"), ("Two  people, 漢 12", "zwei leute")]
LINES = ["a dog runs", "two people in the park !"]

MARGIN = 0.5
"""Least lead, in nats, of the best token over the next where tokens are recorded."""

_NARROW = {
    "hidden_size": 6, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 7, "head_dim": 4,
}  # fmt: skip
_TINY = {
    "d_model": 6, "encoder_ffn_dim": 5, "decoder_ffn_dim": 5, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1,
}  # fmt: skip
_SMALL = {"hidden_size": 6, "intermediate_size": 7, "num_attention_heads": 3, "num_hidden_layers": 1}
WRITERS: dict[str, Callable[[Path], object]] = {
    "bart": lambda path: bart_checkpoint(path, "bart odd", **_TINY),
    "mbart-25": lambda path: bart_checkpoint(path, "mbart-25", **_TINY),
    "mbart-50": lambda path: bart_checkpoint(path, "mbart-50", **_TINY),
    "m2m_100": lambda path: bart_checkpoint(path, "m2m odd", **_TINY),
    "nllb": lambda path: bart_checkpoint(path, "nllb", **_TINY),
    "t5": lambda path: t5_checkpoint(path, "v1.0, one layer, wide heads"),
    "t5-1.1": lambda path: t5_checkpoint(path, "v1.1, tied, narrow heads", num_decoder_layers=1),
    "mt5": lambda path: t5_checkpoint(path, "mt5, one layer, tied"),
    "byt5": lambda path: t5_checkpoint(path, "byt5, one layer"),
    "gpt2": lambda path: language_checkpoint(path, "gpt2, one layer, untied", n_embd=6, n_head=2, n_inner=7),
    "llama-3.1": lambda path: language_checkpoint(path, "llama, 3.1", **_NARROW),
    "llama-linear": lambda path: language_checkpoint(path, "llama, linear", **_NARROW, tokenizer="wordpiece"),
    "mistral": lambda path: language_checkpoint(path, "mistral, window, one layer", **_NARROW, tokenizer="wordpiece"),
    "qwen2": lambda path: language_checkpoint(path, "qwen2, tied", **_NARROW),
    "qwen3": lambda path: language_checkpoint(path, "qwen3", **_NARROW, tokenizer="wordpiece"),
    "gemma3": lambda path: language_checkpoint(path, "gemma3", **_NARROW, tokenizer="wordpiece"),
    "gemma3-text": lambda path: language_checkpoint(path, "gemma3_text", **_NARROW, tokenizer="wordpiece"),
    "labels": lambda path: bert_checkpoint(path, "labels", **_SMALL),
    "tags": lambda path: bert_checkpoint(path, "tags", **_SMALL),
    "marian-files": lambda path: marian_model(path, "attention"),
    "marian-ssru": lambda path: marian_model(path, "pre-norm ssru"),
    "ctranslate2": lambda path: foreign_folder(path, "odd"),
    "joeynmt": lambda path: joey_checkpoint(path, "untied"),
    "fairseq": lambda path: fairseq_checkpoint(path, "learned"),
    "opennmt": lambda path: opennmt_checkpoint(path, "biases", "opennmt"),
    "eole": lambda path: opennmt_checkpoint(path, "untied", "eole"),
}
"""By name, the function that writes the checkpoint."""


@contextmanager
def _small_vocabularies(folder: Path) -> Iterator[None]:
    """Train sentencepiece models that normalize tabs to spaces only, without Unicode's tables of 240 kB."""
    (folder / "rules.tsv").write_text("9\t20\n")
    train = partial(spm.SentencePieceTrainer.train, normalization_rule_tsv=str(folder / "rules.tsv"))
    with patch.object(spm.SentencePieceTrainer, "train", train):
        yield


def write_family(name: str, version: int) -> None:
    folder = HERE / f"families_v{version}" / name
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, _small_vocabularies(Path(place)):
        WRITERS[name](Path(place) / "checkpoint")
        import_model(Path(place) / "checkpoint", folder)
    write_json(f"{folder.parent.name}/expected_{name}.json", _labels(folder) if name in LABELS else _rows(folder))


LABELS = ("labels", "tags")


def _labels(folder: Path) -> list[dict[str, Any]]:
    return [
        {"text": text, "labels": found.labels, "probabilities": [round(p, 4) for p in found.probabilities]}
        for text, found in zip(LINES, Labeller.load(folder).label(LINES), strict=True)
    ]


def _rows(folder: Path) -> list[dict[str, Any]]:
    """The ids of pairs, or of texts of a language model, and the log-probabilities of the target."""
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


def write_json(name: str, content: Any) -> None:
    """A JSON file with one line per item of a list, so that numbers do not take a line each."""
    if isinstance(content, list):
        text = "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in content) + "\n]"
    else:
        text = json.dumps(content, indent=1, ensure_ascii=False)
    (HERE / name).write_bytes((text + "\n").encode())


def logits_of(network: Any, source: Sequence[int], target: Sequence[int]) -> list[list[float]]:
    """Logits (T, V) of a target under teacher forcing."""
    with torch.no_grad():
        rows = network.output(network.hidden(torch.tensor([source]), None, torch.tensor([[BOS, *target[:-1]]])))
    return [[round(float(value), 4) for value in row] for row in rows[0]]


def clear_steps(logits: list[list[float]]) -> list[int | None]:
    """Per step the best token, or None where its lead is below `MARGIN`."""
    found: list[int | None] = []
    for row in logits:
        first, second = sorted(range(len(row)), key=lambda token: -row[token])[:2]
        found.append(first if row[first] - row[second] >= MARGIN else None)
    return found


if __name__ == "__main__":
    for name in WRITERS:
        if not (HERE / f"families_v{FORMAT_VERSION}" / name).exists():
            write_family(name, FORMAT_VERSION)
