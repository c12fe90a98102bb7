"""Random checkpoints of the T5 family, built offline by `transformers`."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import Any

import sentencepiece as spm
import torch

LINES = [
    "A dog runs across a field.", "Two people sit on a bench.", "", "Ένας σκύλος", "the bench, the field!",
    "translate: people run", "a <extra_id_0> runs <extra_id_1>", "zwei 漢字 hunde", "a a  a\ta", "Dogs and people.",
]  # fmt: skip
_TEXT = [
    "a dog runs across a field", "two people sit on a bench", "dogs and people run", "the bench is in the field",
    "ein hund läuft über ein feld", "zwei leute sitzen auf einer bank",
]  # fmt: skip

_MT5 = {"model_type": "mt5", "vocab_size": 71, "sentinels": 0}
BYTES = {"vocab_size": 384, "sentinels": 125, "bytes": True}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "v1.0": {
        "d_model": 24, "d_kv": 8, "d_ff": 52, "num_heads": 3, "num_layers": 2, "num_decoder_layers": 3,
    },
    "v1.0, one layer, wide heads": {
        "d_model": 10, "d_kv": 7, "d_ff": 9, "num_heads": 3, "num_layers": 1, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 11, "layer_norm_epsilon": 1e-3,
    },
    "v1.1": {
        "d_model": 18, "d_kv": 4, "d_ff": 33, "num_heads": 5, "num_layers": 3, "num_decoder_layers": 1,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    },
    "v1.1, tied, narrow heads": {
        "d_model": 16, "d_kv": 3, "d_ff": 20, "num_heads": 4, "num_layers": 1, "num_decoder_layers": 2,
        "feed_forward_proj": "gated-silu", "tie_word_embeddings": False, "tied": True,
    },
    "mt5": {**_MT5, "d_model": 15, "d_kv": 6, "d_ff": 21, "num_heads": 2, "num_layers": 2},
    "mt5, one layer, tied": {
        **_MT5, "d_model": 8, "d_kv": 4, "d_ff": 30, "num_heads": 2, "num_layers": 1, "tied": True,
    },
    "mt5, relu, unused rows": {
        **_MT5, "d_model": 12, "d_kv": 5, "d_ff": 16, "num_heads": 6, "num_layers": 1, "num_decoder_layers": 3,
        "vocab_size": 90, "feed_forward_proj": "relu",
    },
    "byt5": {
        **BYTES, "d_model": 14, "d_kv": 6, "d_ff": 32, "num_heads": 3, "num_layers": 3, "num_decoder_layers": 1,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    },
    "byt5, one layer": {
        **BYTES, "d_model": 9, "d_kv": 3, "d_ff": 12, "num_heads": 3, "num_layers": 1, "feed_forward_proj": "gelu",
    },
    "byt5, unused rows": {
        **BYTES, "vocab_size": 390, "d_model": 20, "d_kv": 2, "d_ff": 24, "num_heads": 2, "num_layers": 2,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "tied": True,
    },
}  # fmt: skip
"""By name, settings of config.json, and `sentinels`, `bytes` (ByT5), `tied` (whether the output is the embedding)."""


@functools.cache
def _model() -> bytes:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(_TEXT * 3),
        model_writer=model,
        vocab_size=60,
        model_type="unigram",
        minloglevel=2,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    return model.getvalue()


def t5_checkpoint(folder: Path, name: str = "v1.0", seed: int = 1, **changes: Any) -> Path:
    """Write a checkpoint with random weights.  changes: of config.json."""
    import transformers

    settings: dict[str, Any] = {"vocab_size": 80, "sentinels": 7, "model_type": "t5", **CONFIGURATIONS[name]} | changes
    sentinels, in_bytes, kind = settings.pop("sentinels"), settings.pop("bytes", False), settings.pop("model_type")
    tied = settings.pop("tied", settings.get("tie_word_embeddings", kind == "t5"))
    folder.mkdir(parents=True)
    package: Any = transformers  # its annotations are incomplete
    classes = {
        "t5": (package.T5Config, package.T5ForConditionalGeneration),
        "mt5": (package.MT5Config, package.MT5ForConditionalGeneration),
    }
    config_class, model_class = classes[kind]
    torch.manual_seed(seed)
    config = config_class(**settings, decoder_start_token_id=0)
    model = model_class(config).eval()
    with torch.no_grad():
        if not tied:
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
        for parameter in model.parameters():
            if parameter.dim() == 1:  # the gains of norms, which are 1 in a new model
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.lm_head.weight[1] *= 2  # so that most targets end before the limit of their length
    model.generation_config = package.GenerationConfig(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    model.save_pretrained(folder)
    tokenizer = {"tokenizer_class": "ByT5Tokenizer" if in_bytes else "T5Tokenizer", "extra_ids": sentinels}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if not in_bytes:
        (folder / "spiece.model").write_bytes(_model())
    return folder
