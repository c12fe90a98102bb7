"""OpenNMT-py, eole and JoeyNMT as contestants of train.py: their own programs, which report each step.

All read the sentences as tokens of Dragoman's tokenizer, with its vocabulary, so that the models have the same size.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

__all__ = ["TOOLKITS", "write_tokens"]


class Complete(BaseException):
    """The measurement is complete; not an Exception, so that no program catches it."""


def write_tokens(folder: Path, pairs: list[tuple[list[int], list[int]]], size: int) -> None:
    """Write the sentences as tokens <id> in train.src and train.tgt, without EOS, and the vocabulary in vocab."""
    for side, name in enumerate(("train.src", "train.tgt")):
        lines = (" ".join(f"t{i}" for i in pair[side][:-1]) for pair in pairs)
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    names = [f"t{i}" for i in range(4, size)]  # all but the special tokens
    (folder / "vocab").write_text("".join(f"{name}\t1\n" for name in names), encoding="utf-8")
    (folder / "vocab.joey").write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *names]) + "\n", encoding="utf-8")
    for side in ("src", "tgt"):
        lines = (folder / f"train.{side}").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / f"valid.{side}").write_text("".join(lines[:10]), encoding="utf-8")


def _run(module: str, arguments: list[str]) -> None:
    """Run a program of a package, as by `python -m module arguments`, until the measurement is complete."""
    sys.argv = [module, *arguments]
    with suppress(Complete):
        runpy.run_module(module, run_name="__main__")


def _reports(trainer: type, meter: Any, tokens: Callable[[Any], int]) -> None:
    """Make the trainer of OpenNMT-py or eole count its steps; tokens: statistics of a step -> tokens."""
    report = trainer._maybe_report_training  # type: ignore[attr-defined]

    def counted(self: Any, step: int, total: int, rate: float, stats: Any) -> Any:
        if meter.step(tokens(stats)):
            raise Complete
        return report(self, step, total, rate, stats)

    trainer._maybe_report_training = counted  # type: ignore[attr-defined]


def _files(folder: Path) -> dict[str, Any]:
    data = {"corpus": {"path_src": str(folder / "train.src"), "path_tgt": str(folder / "train.tgt"), "transforms": []}}
    vocabularies = dict.fromkeys(("src_vocab", "tgt_vocab"), str(folder / "vocab"))
    return {"data": data, **vocabularies, "share_vocab": True, "skip_empty_level": "silent"}


def _write(options: dict[str, Any], name: str, content: dict[str, Any]) -> str:
    path = Path(options["folder"]) / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def run_opennmt(options: dict[str, Any], meter: Any, shape: dict[str, int]) -> None:
    from onmt.trainer import Trainer

    _reports(Trainer, meter, lambda stats: stats.n_src_words + stats.n_words)
    config = _files(Path(options["folder"])) | {
        "src_vocab_size": 10**5, "tgt_vocab_size": 10**5, "save_model": str(Path(options["folder"]) / "opennmt"),
        "encoder_type": "transformer", "decoder_type": "transformer", "enc_layers": shape["layers"],
        "dec_layers": shape["layers"], "heads": shape["n_heads"], "hidden_size": shape["d_model"],
        "word_vec_size": shape["d_model"], "transformer_ff": shape["d_ff"], "position_encoding": True,
        "share_embeddings": True, "share_decoder_embeddings": True, "dropout": [0.1], "attention_dropout": [0.0],
        "label_smoothing": 0.1, "batch_type": "tokens", "batch_size": options["tokens"] // 2, "normalization": "tokens",
        "accum_count": [1], "bucket_size": 30_000, "num_workers": 0, "optim": "adam", "adam_beta2": 0.98,
        "learning_rate": 1e-4, "decay_method": "none", "max_grad_norm": 0, "param_init": 0, "param_init_glorot": True,
        "train_steps": 10**6, "valid_steps": 10**6, "save_checkpoint_steps": 10**6, "report_every": 1,
        "batch_size_multiple": 1, "seed": 1,
    }  # fmt: skip
    _run("onmt.bin.train", ["-config", _write(options, "opennmt", config)])


def run_eole(options: dict[str, Any], meter: Any, shape: dict[str, int]) -> None:
    from eole.trainer import Trainer

    _reports(Trainer, meter, lambda stats: stats.n_src_tokens + stats.n_tokens)
    config = _files(Path(options["folder"])) | {
        "report_every": 1, "seed": 1, "overwrite": True, "transforms": [],
        "model": {
            "architecture": "transformer", "layers": shape["layers"], "heads": shape["n_heads"],
            "hidden_size": shape["d_model"], "transformer_ff": shape["d_ff"], "share_decoder_embeddings": True,
            "share_embeddings": True, "embeddings": {"word_vec_size": shape["d_model"],
                                                     "position_encoding_type": "SinusoidalInterleaved"},
        },
        "training": {
            "model_path": str(Path(options["folder"]) / "eole"), "batch_type": "tokens",
            "batch_size": options["tokens"] // 2, "normalization": "tokens", "accum_count": [1], "bucket_size": 30_000,
            "num_workers": 0, "optim": "adam", "adam_beta2": 0.98, "learning_rate": 1e-4, "decay_method": "none",
            "max_grad_norm": 0, "dropout": [0.1], "attention_dropout": [0.0], "label_smoothing": 0.1,
            "train_steps": 10**6, "valid_steps": 10**6, "save_checkpoint_steps": 10**6, "compute_dtype": "fp32",
        },
    }  # fmt: skip
    _run("eole.bin.main", ["train", "-config", _write(options, "eole", config)])


def run_joeynmt(options: dict[str, Any], meter: Any, shape: dict[str, int]) -> None:
    from joeynmt.training import TrainManager

    train_step = TrainManager._train_step

    previous: list[int] = []

    def counted(self: Any, batch: Any) -> Any:
        if previous and meter.step(previous.pop()):  # the previous step is complete with its update
            raise Complete
        result = train_step(self, batch)
        previous.append(int(batch.src_length.sum()) + int(batch.ntokens))
        return result

    TrainManager._train_step = counted
    folder = options["folder"]
    side = {"level": "word", "voc_file": f"{folder}/vocab.joey", "max_length": 1000, "lowercase": False}
    network = {
        "type": "transformer", "num_layers": shape["layers"], "num_heads": shape["n_heads"],
        "embeddings": {"embedding_dim": shape["d_model"], "scale": True, "dropout": 0.1},
        "hidden_size": shape["d_model"], "ff_size": shape["d_ff"], "dropout": 0.1, "layer_norm": "post",
    }  # fmt: skip
    config = {
        "name": "bench", "joeynmt_version": "2.3.0", "model_dir": f"{folder}/joeynmt", "use_cuda": False, "fp16": False,
        "random_seed": 1,
        "data": {
            "train": f"{folder}/train", "dev": f"{folder}/valid", "dataset_type": "plain",
            "src": {"lang": "src", **side}, "trg": {"lang": "tgt", **side},
        },
        "testing": {"beam_size": 1, "eval_metrics": [], "batch_size": 10},
        "training": {
            "optimizer": "adam", "adam_betas": [0.9, 0.98], "learning_rate": 1e-4, "label_smoothing": 0.1,
            "loss": "crossentropy", "batch_type": "token", "batch_size": options["tokens"] // 2,
            "normalization": "tokens", "epochs": 1000, "validation_freq": 10**6, "logging_freq": 10**6,
            "overwrite": True, "num_workers": 0, "early_stopping_metric": "loss", "scheduling": "noam",
        },
        "model": {
            "initializer": "xavier_uniform", "tied_embeddings": True, "tied_softmax": True,
            "encoder": network, "decoder": network,
        },
    }  # fmt: skip
    _run("joeynmt", ["train", _write(options, "joeynmt", config), "--skip-test"])


TOOLKITS = {"opennmt": run_opennmt, "eole": run_eole, "joeynmt": run_joeynmt}
