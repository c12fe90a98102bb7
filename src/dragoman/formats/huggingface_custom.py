"""Export of encoder-decoders that fit no class of `transformers`: a folder with `modeling_dragoman.py`, its own class.

The modules of that file have the names of ours, so that the weights are ours with other rows of tokens.  The parity
report uses the class of this package, of which the folder contains a copy; no code from a folder is executed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dragoman.config import Config, TransformerConfig
from dragoman.formats.importing.family import ImportedVocabulary
from dragoman.formats.importing.names import AxisOrder, Rule, reverted
from dragoman.formats.importing.reference import calling
from dragoman.formats.target import ExportSource, accepted_settings, tokenizer_reasons
from dragoman.models.model_folder import unique_tensors
from dragoman.tokenizers import Tokenizer

_PROGRAM = "modeling_dragoman.py of transformers"
_CODE = "modeling_dragoman"
_CLASSES = {"AutoConfig": "DragomanConfig", "AutoModelForSeq2SeqLM": "DragomanForSeq2SeqLM"}
_AXES = {"encoder.embedding.weight": "source", "decoder.embedding.weight": "target", "output": "target"}
_SAME = (
    "d_model", "d_ff", "n_heads", "encoder_layers", "decoder_layers", "order", "normalize_embeddings", "activation",
    "gated", "bias", "scale_embeddings", "output_bias", "dropout", "attention_dropout", "activation_dropout",
)  # fmt: skip
"""Settings with the same name and meaning."""


def unsupported(config: Config, tokenizer: Tokenizer) -> list[str]:
    """Return all reasons why a model cannot be exported."""
    model = config.model
    assert isinstance(model, TransformerConfig)
    positions = ("none", "sinusoidal", "learned", "rotary", "t5", "alibi")
    reasons = accepted_settings(
        _PROGRAM,
        {
            "norm.kind": (model.norm.kind, ("layer", "rms")),
            "position.kind": (model.position.kind, positions),
            "attention.kind": (model.attention.kind, ("softmax",)),
            "decoder_self": (model.decoder_self, ("attention",)),
        },
    )
    if tokenizer.lists is not None and tokenizer.lists.sentinels:
        reasons.append("tokenizer with the sentinels of T5; MarianTokenizer, which is exported, has none")
    return reasons + tokenizer_reasons(_PROGRAM, tokenizer)


def model_settings(config: TransformerConfig, vocabulary: ImportedVocabulary, tie: str) -> dict[str, Any]:
    """Return the content of `config.json`, without the ids of special tokens."""
    return {
        "model_type": "dragoman",
        "architectures": [_CLASSES["AutoModelForSeq2SeqLM"]],
        "auto_map": {auto: f"{_CODE}.{name}" for auto, name in _CLASSES.items()},
        "dtype": "float32",
        "vocab_size": max(vocabulary.source) + 1,
        "decoder_vocab_size": max(vocabulary.target) + 1,
        **{key: getattr(config, key) for key in _SAME},
        "n_kv_heads": config.n_kv_heads or config.n_heads,
        "d_key": config.key_size,
        "d_value": config.d_head,
        "norm": config.norm.kind,
        "norm_eps": config.norm.eps,
        "position": config.position.model_dump(),
        "tie": tie,
    }


def write(model: ExportSource, vocabulary: ImportedVocabulary, settings: dict[str, Any], folder: Path) -> None:
    """Write the code, the settings and the weights."""
    import safetensors.torch

    (folder / f"{_CODE}.py").write_bytes((Path(__file__).parent / f"{_CODE}.py").read_bytes())
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    ours = {name: tensor.float() for name, tensor in unique_tensors(model.network).items()}
    axes = {name: _AXES.get(name, _AXES.get(name.partition(".")[0], "")) for name in ours}
    table = {name: Rule((name,), (axes[name], *[""] * (tensor.dim() - 1))) for name, tensor in ours.items()}
    orders = {
        "source": AxisOrder(vocabulary.source, settings["vocab_size"]),
        "target": AxisOrder(vocabulary.target, settings["decoder_vocab_size"]),
    }
    theirs = {name: tensor.contiguous() for name, tensor in reverted(table, orders, ours).items()}
    (folder / "model.safetensors").write_bytes(safetensors.torch.save(theirs, metadata={"format": "pt"}))


def load(folder: Path) -> Any:
    """Return the model of a folder in float32 and evaluation mode."""
    from dragoman.formats.modeling_dragoman import DragomanForSeq2SeqLM

    with calling(f"load {folder}"):
        model: Any = DragomanForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval()
