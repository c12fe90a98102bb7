"""Random models in the format of CTranslate2, as its converters for other toolkits write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece as spm

from marian_files import vocabulary

FOLDERS: dict[str, dict[str, Any]] = {
    "marian": {
        "d_model": 12, "d_ff": 7, "heads": 3, "layers": (1, 2), "pre_norm": False, "tied": True, "zero_start": True,
        "start": "</s>", "bias": True, "activation": "SWISH",
    },
    "fairseq": {
        "d_model": 10, "d_ff": 16, "heads": 2, "layers": (2, 1), "pre_norm": True, "start": "</s>", "two": True,
        "rows": (40, 33),
    },
    "odd": {
        "d_model": 9, "d_ff": 5, "heads": 1, "layers": (1, 1), "pre_norm": True, "start": "<s>", "bias": True,
        "rms": True, "glu": True, "activation": "GELUTanh", "storage": "float16",
    },
    "opennmt": {
        "d_model": 8, "d_ff": 9, "heads": 2, "layers": (1, 1), "pre_norm": True, "start": "<s>", "two": True,
        "add_source_eos": False,
    },
}  # fmt: skip
"""By name, sizes and variants.  zero_start: the decoder starts with a vector of zeros; two: two vocabularies."""


def _tokens(model: bytes, reverse: bool) -> list[str]:
    processor = spm.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(2, processor.get_piece_size())]
    return ["<blank>", "</s>", "<unk>", "<s>", *(pieces[::-1] if reverse else pieces)]


def _fill(spec: Any, own: dict[str, Any], sizes: tuple[int, int]) -> None:
    """Give every variable without a value one of a plausible shape."""
    rng = np.random.default_rng(4)
    d, ffn = own["d_model"], own["d_ff"]

    def linear(part: Any, rows: int, columns: int, bias: bool = True) -> None:
        part.weight = rng.normal(0, 0.4, (rows, columns)).astype(np.float32)
        if bias:
            part.bias = rng.normal(0, 0.4, rows).astype(np.float32)

    def norm(part: Any) -> None:
        part.gamma = rng.normal(1, 0.2, d).astype(np.float32)
        if hasattr(part, "beta"):
            part.beta = rng.normal(0, 0.2, d).astype(np.float32)

    for stack, size, rows in zip((spec.encoder, spec.decoder), sizes, own.get("rows", (32, 32)), strict=True):
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = rng.normal(0, 0.3, (size, d)).astype(np.float32)
        stack.position_encodings.encodings = rng.normal(0, 0.5, (rows, d)).astype(np.float32)
        if own["pre_norm"]:
            norm(stack.layer_norm)
        for layer in stack.layer:
            linear(layer.self_attention.linear[0], 3 * d, d)
            linear(layer.self_attention.linear[1], d, d)
            norm(layer.self_attention.layer_norm)
            if hasattr(layer, "attention"):
                for part, rows_of in zip(layer.attention.linear, (d, 2 * d, d), strict=True):
                    linear(part, rows_of, d)
                norm(layer.attention.layer_norm)
            linear(layer.ffn.linear_0, ffn, d)
            linear(layer.ffn.linear_1, d, ffn)
            if own.get("glu"):
                linear(layer.ffn.linear_0_noact, ffn, d)
            norm(layer.ffn.layer_norm)
    linear(spec.decoder.projection, sizes[1], d, own.get("bias", False))
    if own.get("tied"):
        spec.decoder.embeddings.weight = spec.encoder.embeddings[0].weight
        spec.decoder.projection.weight = spec.encoder.embeddings[0].weight
    if own.get("bias"):
        spec.decoder.projection.bias[1] += 2  # so that most targets end before the limit of their length


def foreign_folder(folder: Path, name: str, **changes: Any) -> Path:
    """Write a model with random weights.  changes: of `FOLDERS`, or of config.json as `config`."""
    from ctranslate2 import specs

    config = changes.pop("config", {})
    own = FOLDERS[name] | changes
    models = [vocabulary(), vocabulary(52) if own.get("two") else vocabulary()]
    lists = [_tokens(models[0], True), _tokens(models[1], own.get("two", False))]
    lists[1] = lists[1] if own.get("two") else lists[0]
    spec: Any = specs.TransformerSpec.from_config(
        own["layers"], own["heads"], pre_norm=own["pre_norm"],
        activation=specs.Activation[own.get("activation", "RELU")], ffn_glu=own.get("glu", False),
        rms_norm=own.get("rms", False),
    )  # fmt: skip
    _fill(spec, own, (len(lists[0]), len(lists[1])))
    spec.decoder.start_from_zero_embedding = own.get("zero_start", False)
    spec.config.add_source_eos, spec.config.decoder_start_token = own.get("add_source_eos", True), own["start"]
    for key, value in config.items():
        setattr(spec.config, key, value)
    spec.register_source_vocabulary(lists[0])
    spec.register_target_vocabulary(lists[1])
    spec.validate()
    spec.optimize(quantization=own.get("storage"))
    folder.mkdir(parents=True)
    spec.save(str(folder))
    if own.get("two"):
        for side, model in zip(("source", "target"), models, strict=True):
            (folder / f"{side}.spm").write_bytes(model)
    else:
        (folder / "sentencepiece.model").write_bytes(models[0])
    return folder
