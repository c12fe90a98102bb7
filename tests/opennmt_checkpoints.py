"""Random checkpoints of OpenNMT-py and eole, with the names and shapes that these programs write."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from marian_files import vocabulary as marian_vocabulary
from toolkit_checkpoints import _pieces, _randomized

TOOLKITS = ("opennmt", "eole")
MODELS: dict[str, dict[str, Any]] = {
    "tied": {
        "width": 12, "ff": 7, "heads": 3, "layers": (1, 2), "share_embeddings": True, "share_decoder_embeddings": True,
    },
    "biases": {
        "width": 10, "ff": 24, "heads": 5, "layers": (2, 1), "share_decoder_embeddings": True, "two": True,
        "activation": "gelu", "attention_bias": True, "ffn_bias": True,
    },
    "untied": {
        "width": 6, "ff": 5, "heads": 1, "layers": (1, 1), "ffn_bias": True, "eps": 1e-3, "shards": True,
        "pad": "<pad>",
    },
}  # fmt: skip
"""By name, sizes and variants.  two: two vocabularies; shards: OpenNMT-py's weights are in safetensors."""
_STACKS = ("encoder", "decoder")
_LAYERS: dict[str, dict[str, Any]] = {
    "opennmt": {
        "encoder": "encoder.transformer", "decoder": "decoder.transformer_layers", "norms": (
            ("layer_norm", "feed_forward.layer_norm"), ("layer_norm_1", "layer_norm_2", "feed_forward.layer_norm"),
        ), "ffn": ("feed_forward.w_1", "feed_forward.w_2"),
        "embeddings": tuple(f"{stack}.embeddings.make_embedding.emb_luts.0.weight" for stack in _STACKS),
        "table": tuple(f"{stack}.embeddings.make_embedding.pe.pe" for stack in _STACKS),
    },
    "eole": {
        "encoder": "encoder.transformer_layers", "decoder": "decoder.transformer_layers", "norms": (
            ("input_layernorm", "post_attention_layernorm"),
            ("input_layernorm", "precontext_layernorm", "post_attention_layernorm"),
        ), "ffn": ("mlp.gate_up_proj", "mlp.down_proj"),
        "embeddings": ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight"),
        "table": ("src_emb.pe.pe", "tgt_emb.pe.pe"),
    },
}  # fmt: skip


def written_lists(name: str) -> list[list[str]]:
    """The vocabularies: special tokens, pieces without three rare ones, and padding to a multiple."""
    own = MODELS[name]
    sides = [_pieces(60), _pieces(52) if own.get("two") else _pieces(60)]
    special = ["<unk>", "<blank>", "<s>", "</s>"]
    return [[*special, *side[::-1][3:], "averyunlikelytoken0"] for side in sides]


def _state(toolkit: str, name: str) -> dict[str, Tensor]:
    own, names = MODELS[name], _LAYERS[toolkit]
    d, sizes = own["width"], [len(tokens) for tokens in written_lists(name)]
    state: dict[str, Tensor] = {}

    def linear(part: str, rows: int, columns: int, bias: bool | None) -> None:
        state[f"{part}.weight"] = torch.empty(rows, columns)
        if bias:
            state[f"{part}.bias"] = torch.empty(rows)

    def norm(part: str) -> None:
        state[f"{part}.weight"], state[f"{part}.bias"] = torch.empty(d), torch.empty(d)

    for index, (stack, layers) in enumerate(zip(_STACKS, own["layers"], strict=True)):
        state[names["embeddings"][index]] = torch.empty(sizes[index], d)
        norm(f"{stack}.layer_norm")
        for i in range(layers):
            layer = f"{names[stack]}.{i}"
            for part in ("self_attn",) if stack == "encoder" else ("self_attn", "context_attn"):
                for matrix in ("linear_keys", "linear_values", "linear_query", "final_linear"):
                    linear(f"{layer}.{part}.{matrix}", d, d, own.get("attention_bias"))
            for part in names["norms"][index]:
                norm(f"{layer}.{part}")
            linear(f"{layer}.{names['ffn'][0]}", own["ff"], d, own.get("ffn_bias"))
            linear(f"{layer}.{names['ffn'][1]}", d, own["ff"], own.get("ffn_bias"))
    linear("generator", sizes[1], d, True)
    state = _randomized(state)
    state["generator.bias"][3] += 2  # so that most targets end before the limit of their length
    for index, stack in enumerate(_STACKS):
        state[names["table"][index]] = torch.zeros(50, 1, d)
        if toolkit == "eole" and stack == "decoder":
            state |= {f"{names[stack]}.{i}.layer_scalar": torch.ones(1) for i in range(own["layers"][1])}
    return state


def written(folder: Path, toolkit: str, name: str, **parts: Any) -> Path:
    """Write a model with random weights and return its folder.

    beside: object that OpenNMT-py stores with the weights.  settings: the settings, instead of those of `name`.
    """
    folder.mkdir(parents=True)
    own, state = MODELS[name], _state(toolkit, name)
    source, target = _LAYERS[toolkit]["embeddings"]
    if own.get("share_embeddings"):
        state[target] = state[source]
    if own.get("share_decoder_embeddings"):
        state["generator.weight"] = state[target]
    if own.get("two"):
        (folder / "source.model").write_bytes(marian_vocabulary(60))
        (folder / "target.model").write_bytes(marian_vocabulary(52))
    else:
        (folder / "sentencepiece.model").write_bytes(marian_vocabulary(60))
    lists = dict(zip(("src", "tgt"), written_lists(name), strict=True))
    vocabulary: dict[str, Any] = {**lists, "decoder_start_token": "<s>"}
    if toolkit == "eole":
        _write_eole(folder, own, state, vocabulary, parts.get("settings", eole_settings(name)))
        return folder
    options = parts.get("settings", opennmt_options(name))
    content = {"vocab": vocabulary | {"data_task": "seq2seq"}, "opt": argparse.Namespace(**options)}
    content["optim"] = {"training_step": 3, "optimizer": parts.get("beside")}
    if own.get("shards"):
        safetensors.torch.save_file({key: each.clone() for key, each in state.items()}, folder / "m.00.safetensors")
    else:
        content["model"] = {key: each for key, each in state.items() if not key.startswith("generator")}
        content["generator"] = {part: state[f"generator.{part}"] for part in ("weight", "bias")}
    torch.save(content, folder / "m.pt")
    return folder


def _write_eole(
    folder: Path, own: dict[str, Any], state: dict[str, Tensor], vocabulary: dict[str, Any], settings: dict[str, Any]
) -> None:
    if own.get("share_embeddings"):
        del state["tgt_emb.embeddings.weight"]
    if own.get("share_decoder_embeddings"):
        del state["generator.weight"]
    if "pad" in own:
        special = {"unk_token": "<unk>", "pad_token": own["pad"], "bos_token": "<s>", "eos_token": "</s>"}
        for side in ("src", "tgt"):
            vocabulary[side][1] = own["pad"]
        vocabulary["specials"] = special
    first = {key: tensor for key, tensor in state.items() if key.startswith("encoder")}
    rest = {key: tensor for key, tensor in state.items() if key not in first}
    safetensors.torch.save_file(first, folder / "model.00.safetensors")
    safetensors.torch.save_file(rest, folder / "model.01.safetensors")
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(settings))


def opennmt_options(name: str) -> dict[str, Any]:
    own = MODELS[name]
    return {
        "encoder_type": "transformer", "decoder_type": "transformer", "enc_layers": own["layers"][0],
        "dec_layers": own["layers"][1], "enc_hid_size": own["width"], "dec_hid_size": own["width"],
        "hidden_size": own["width"], "word_vec_size": own["width"], "src_word_vec_size": own["width"],
        "tgt_word_vec_size": own["width"], "heads": own["heads"], "transformer_ff": own["ff"],
        "position_encoding": True, "position_encoding_type": "SinusoidalInterleaved",
        "pos_ffn_activation_fn": own.get("activation", "relu"), "norm_eps": own.get("eps", 1e-6),
        "add_qkvbias": own.get("attention_bias", False), "add_ffnbias": own.get("ffn_bias", False),
        "share_embeddings": own.get("share_embeddings", False), "model_task": "seq2seq", "model_type": "text",
        "share_decoder_embeddings": own.get("share_decoder_embeddings", False), "copy_attn": False,
        "max_relative_positions": 0, "layer_norm": "standard", "dropout": [0.3], "transforms": ["sentencepiece"],
        "self_attn_type": "scaled-dot-flash", "generator_function": "softmax", "lora_layers": [], "quant_layers": [],
    }  # fmt: skip


def eole_settings(name: str) -> dict[str, Any]:
    own = MODELS[name]
    stack: dict[str, Any] = {"heads": own["heads"], "hidden_size": own["width"], "transformer_ff": own["ff"]}
    optional = {"norm_eps": "eps", "mlp_activation_fn": "activation"}
    shared: dict[str, Any] = {key: own[short] for key, short in optional.items() if short in own}
    shared |= {"add_qkvbias": own.get("attention_bias", False), "add_ffnbias": own.get("ffn_bias", False)}
    model: dict[str, Any] = {
        "architecture": "transformer", "hidden_size": own["width"], "layers": -1, **shared,
        "encoder": {"encoder_type": "transformer", "layers": own["layers"][0], **stack, **shared},
        "decoder": {"decoder_type": "transformer", "layers": own["layers"][1], **stack, **shared},
        "embeddings": {"word_vec_size": own["width"], "position_encoding_type": "SinusoidalInterleaved"},
        **{key: own[key] for key in ("share_embeddings", "share_decoder_embeddings") if key in own},
    }  # fmt: skip
    return {"model": model, "training": {"dropout": [0.1]}, "transforms": ["sentencepiece", "filtertoolong"]}
