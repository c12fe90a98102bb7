"""Random checkpoints of other toolkits, with the names and shapes that the toolkits write."""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import sentencepiece as spm
import torch
from torch import Tensor

from marian_files import vocabulary as marian_vocabulary

JOEY: dict[str, dict[str, Any]] = {
    "post": {
        "hidden_size": 12, "ff_size": 7, "num_heads": 3, "layers": (1, 2), "layer_norm": "post", "scale": True,
        "tied_embeddings": True, "tied_softmax": True,
    },
    "pre": {
        "hidden_size": 10, "ff_size": 24, "num_heads": 5, "layers": (2, 1), "layer_norm": "pre", "activation": "gelu",
        "tied_softmax": True, "two": True,
    },
    "untied": {
        "hidden_size": 6, "ff_size": 5, "num_heads": 1, "layers": (1, 1), "layer_norm": "pre", "activation": "swish",
        "scale": True,
    },
}  # fmt: skip
"""By name, sizes and variants.  two: two vocabularies."""


@functools.cache
def _pieces(size: int) -> list[str]:
    processor = spm.SentencePieceProcessor(model_proto=marian_vocabulary(size))
    return [processor.id_to_piece(i) for i in range(2, processor.get_piece_size())]


def _randomized(state: dict[str, Tensor], seed: int = 3) -> dict[str, Tensor]:
    """Give the tensors random values; gains of norms stay near 1."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, tensor in state.items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith(".version"):
            found[name] = torch.tensor([3.0])
            continue
        found[name] = 1 + 0.2 * noise if "norm" in name and name.endswith("weight") else 0.35 * noise
    return found


def _write_models(folder: Path, own: dict[str, Any], both: str, source: str, target: str) -> None:
    """Write the sentencepiece model of both sides, or two models.  both, source, target: names of the files."""
    for file, size in ({source: 60, target: 52} if own.get("two") else {both: 60}).items():
        (folder / file).write_bytes(marian_vocabulary(size))


class _State(dict[str, Tensor]):
    """Tensors by name, with norms of d features."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d

    def linear(self, name: str, rows: int, columns: int, bias: bool = True) -> None:
        self[f"{name}.weight"] = torch.empty(rows, columns)
        if bias:
            self[f"{name}.bias"] = torch.empty(rows)

    def norm(self, name: str) -> None:
        self[f"{name}.weight"], self[f"{name}.bias"] = torch.empty(self.d), torch.empty(self.d)


# ------------------------------------------------------------------------------------------------------------- JoeyNMT


def joey_settings(name: str) -> dict[str, Any]:
    """The content of config.yaml, without paths."""
    own = JOEY[name]
    stack = {"type": "transformer", **{key: own[key] for key in ("hidden_size", "ff_size", "num_heads", "layer_norm")}}
    stack |= {"activation": own.get("activation", "relu"), "dropout": 0.1}
    stack["embeddings"] = {"embedding_dim": own["hidden_size"], "scale": own.get("scale", False)}
    side = {"level": "bpe", "lowercase": False, "normalize": False, "tokenizer_type": "sentencepiece"}
    side["tokenizer_cfg"] = {"model_file": "/elsewhere/sp.model", "pretokenizer": "none"}
    return {
        "data": {"src": side | {"lang": "en"}, "trg": side | {"lang": "de"}},
        "testing": {"beam_size": 3, "beam_alpha": 0.6},
        "model": {
            "encoder": stack | {"num_layers": own["layers"][0]}, "decoder": stack | {"num_layers": own["layers"][1]},
            **{key: own.get(key, False) for key in ("tied_embeddings", "tied_softmax")},
        },
    }  # fmt: skip


def _joey_state(own: dict[str, Any], sizes: tuple[int, int]) -> dict[str, Tensor]:
    d, ffn = own["hidden_size"], own["ff_size"]
    state = _State(d)
    linear, norm = state.linear, state.norm
    linear("src_embed.lut", sizes[0], d, bias=False)
    linear("trg_embed.lut", sizes[1], d, bias=False)
    linear("decoder.output_layer", sizes[1], d, bias=False)
    for stack, layers in zip(("encoder", "decoder"), own["layers"], strict=True):
        state[f"{stack}.pe.pe"] = torch.zeros(1, 5000, d)
        if own["layer_norm"] == "pre":
            norm(f"{stack}.layer_norm")
        for i in range(layers):
            layer = f"{stack}.layers.{i}"
            for part in ("src_src_att",) if stack == "encoder" else ("trg_trg_att", "src_trg_att"):
                for matrix in ("k_layer", "v_layer", "q_layer", "output_layer"):
                    linear(f"{layer}.{part}.{matrix}", d, d)
            for part in ("layer_norm",) if stack == "encoder" else ("x_layer_norm", "dec_layer_norm"):
                norm(f"{layer}.{part}")
            linear(f"{layer}.feed_forward.pwff_layer.0", ffn, d)
            linear(f"{layer}.feed_forward.pwff_layer.3", d, ffn)
            norm(f"{layer}.feed_forward.layer_norm")
    return state


def joey_checkpoint(folder: Path, name: str, beside: Any = None, settings: dict[str, Any] | None = None) -> Path:
    """Write a model with random weights and return its folder.  beside: object that is stored with the weights."""
    folder.mkdir(parents=True)
    own = JOEY[name]
    sides = [_pieces(60), _pieces(52) if own.get("two") else _pieces(60)]
    lists = [["<unk>", "<pad>", "<s>", "</s>", *pieces[::-1][3:]] for pieces in sides]  # three rare pieces are missing
    state = _randomized(_joey_state(own, (len(lists[0]), len(lists[1]))))
    if own.get("tied_embeddings"):
        state["trg_embed.lut.weight"] = state["src_embed.lut.weight"]
    if own.get("tied_softmax"):
        state["decoder.output_layer.weight"] = state["trg_embed.lut.weight"]
    torch.save({"model_state": state, "optimizer_state": {"step": 3}, "stats_state": beside}, folder / "best.ckpt")
    torch.save({"model_state": {}}, folder / "100.ckpt")
    (folder / "config.yaml").write_text(json.dumps(joey_settings(name) if settings is None else settings))
    for side, tokens in zip(("src", "trg"), lists, strict=True):
        (folder / f"{side}_vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    _write_models(folder, own, "sp.model", "sp.src.model", "sp.trg.model")
    return folder


# -------------------------------------------------------------------------------------------------------------- fairseq


FAIRSEQ: dict[str, dict[str, Any]] = {
    "tied": {
        "embed_dim": 12, "ffn_embed_dim": 7, "attention_heads": 3, "layers": (1, 2), "share_all_embeddings": True,
        "share_decoder_input_output_embed": True, "options": "args",
    },
    "odd": {
        "embed_dim": 9, "ffn_embed_dim": 16, "attention_heads": 3, "layers": (2, 1), "normalize_before": True,
        "activation_fn": "gelu", "share_decoder_input_output_embed": True, "two": True, "options": "cfg",
        "no_scale_embedding": True,
    },
    "learned": {
        "embed_dim": 8, "ffn_embed_dim": 5, "attention_heads": 1, "layers": (1, 1), "normalize_before": True,
        "learned_pos": True, "layernorm_embedding": True, "activation_fn": "gelu_accurate", "options": "nested",
        "max_positions": (40, 33),
    },
}  # fmt: skip
"""By name, sizes and variants.  options: how the settings are stored."""


def fairseq_options(name: str) -> dict[str, Any]:
    """The options of the model, without groups."""
    own = FAIRSEQ[name]
    per_stack = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
    source, target = own.get("max_positions", (64, 64))
    options = {
        f"{stack}_{key}": own.get(key, False) for stack in ("encoder", "decoder") for key in per_stack
    } | {"encoder_layers": own["layers"][0], "decoder_layers": own["layers"][1]}  # fmt: skip
    flags = ("share_all_embeddings", "share_decoder_input_output_embed", "no_scale_embedding", "layernorm_embedding")
    return options | {
        **{key: own.get(key, False) for key in flags}, "activation_fn": own.get("activation_fn", "relu"),
        "arch": "transformer_iwslt_de_en", "max_source_positions": source, "max_target_positions": target,
        "source_lang": "de", "target_lang": "en", "dropout": 0.1, "adaptive_softmax_cutoff": None,
    }  # fmt: skip


def _fairseq_state(own: dict[str, Any], sizes: tuple[int, int]) -> dict[str, Tensor]:
    d, ffn = own["embed_dim"], own["ffn_embed_dim"]
    state = _State(d)
    linear, norm = state.linear, state.norm
    limits = own.get("max_positions", (64, 64))
    for stack, layers, size, limit in zip(("encoder", "decoder"), own["layers"], sizes, limits, strict=True):
        state[f"{stack}.version"] = torch.empty(1)
        linear(f"{stack}.embed_tokens", size, d, bias=False)
        if own.get("learned_pos"):
            linear(f"{stack}.embed_positions", limit + 2, d, bias=False)
        else:
            state[f"{stack}.embed_positions._float_tensor"] = torch.empty(1)
        if own.get("layernorm_embedding"):
            norm(f"{stack}.layernorm_embedding")
        if own.get("normalize_before"):
            norm(f"{stack}.layer_norm")
        for i in range(layers):
            layer = f"{stack}.layers.{i}"
            for part in ("self_attn",) if stack == "encoder" else ("self_attn", "encoder_attn"):
                for matrix in ("k_proj", "v_proj", "q_proj", "out_proj"):
                    linear(f"{layer}.{part}.{matrix}", d, d)
                norm(f"{layer}.{part}_layer_norm")
            linear(f"{layer}.fc1", ffn, d)
            linear(f"{layer}.fc2", d, ffn)
            norm(f"{layer}.final_layer_norm")
    linear("decoder.output_projection", sizes[1], d, bias=False)
    return state


def fairseq_checkpoint(folder: Path, name: str, beside: Any = None, version: float = 3, **changes: Any) -> Path:
    """Write a model with random weights and return its folder.

    version: of the layout of the decoder.  changes: of the options.
    """
    folder.mkdir(parents=True)
    own = FAIRSEQ[name]
    sides = [_pieces(60), _pieces(52) if own.get("two") else _pieces(60)]
    lists = [[*pieces[::-1][3:], "madeupword0000"] for pieces in sides]  # three rare pieces are missing
    state = _randomized(_fairseq_state(own, (len(lists[0]) + 4, len(lists[1]) + 4)))
    if own.get("share_all_embeddings"):
        state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    if own.get("share_decoder_input_output_embed"):
        state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"]
    state["decoder.version"] = torch.tensor([version])
    options = fairseq_options(name) | changes
    content = {"model": state, "args": None, "cfg": None, "extra_state": {"epoch": 3, "meters": beside}}
    if own["options"] == "args":
        content["args"] = argparse.Namespace(**options)
    else:
        model: Any = argparse.Namespace(**options)
        if own["options"] == "nested":
            model = {key: value for key, value in options.items() if not key.startswith(("encoder_", "decoder_"))}
            for stack in ("encoder_", "decoder_"):
                group = {key.removeprefix(stack): value for key, value in options.items() if key.startswith(stack)}
                model[stack.removesuffix("_")] = group
        task = {"_name": "translation", "source_lang": "de", "target_lang": "en"}
        content["cfg"] = {"model": model, "task": task, "bpe": None, "tokenizer": None}
    torch.save(content, folder / "checkpoint_best.pt")
    for side, tokens in zip(("de", "en"), lists, strict=True):
        (folder / f"dict.{side}.txt").write_text("".join(f"{token} 1\n" for token in tokens), encoding="utf-8")
    _write_models(folder, own, "sentencepiece.bpe.model", "source.spm", "target.spm")
    return folder


# ------------------------------------------------------------------------------------------------ OpenNMT-py and eole


OPENNMT: dict[str, dict[str, Any]] = {
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
_OPENNMT_LAYERS: dict[str, dict[str, Any]] = {
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


def opennmt_lists(name: str) -> list[list[str]]:
    """The vocabularies: special tokens, pieces without three rare ones, and padding to a multiple."""
    own = OPENNMT[name]
    sides = [_pieces(60), _pieces(52) if own.get("two") else _pieces(60)]
    special = ["<unk>", "<blank>", "<s>", "</s>"]
    return [[*special, *side[::-1][3:], "averyunlikelytoken0"] for side in sides]


def _opennmt_state(toolkit: str, name: str) -> dict[str, Tensor]:
    own, names = OPENNMT[name], _OPENNMT_LAYERS[toolkit]
    d, sizes = own["width"], [len(tokens) for tokens in opennmt_lists(name)]
    state = _State(d)
    linear, norm = state.linear, state.norm
    for index, (stack, layers) in enumerate(zip(_STACKS, own["layers"], strict=True)):
        state[names["embeddings"][index]] = torch.empty(sizes[index], d)
        norm(f"{stack}.layer_norm")
        for i in range(layers):
            layer = f"{names[stack]}.{i}"
            for part in ("self_attn",) if stack == "encoder" else ("self_attn", "context_attn"):
                for matrix in ("linear_keys", "linear_values", "linear_query", "final_linear"):
                    linear(f"{layer}.{part}.{matrix}", d, d, own.get("attention_bias", False))
            for part in names["norms"][index]:
                norm(f"{layer}.{part}")
            linear(f"{layer}.{names['ffn'][0]}", own["ff"], d, own.get("ffn_bias", False))
            linear(f"{layer}.{names['ffn'][1]}", d, own["ff"], own.get("ffn_bias", False))
    linear("generator", sizes[1], d)
    weights = _randomized(state)
    weights["generator.bias"][3] += 2  # so that most targets end before the limit of their length
    for index, stack in enumerate(_STACKS):
        weights[names["table"][index]] = torch.zeros(50, 1, d)
        if toolkit == "eole" and stack == "decoder":
            weights |= {f"{names[stack]}.{i}.layer_scalar": torch.ones(1) for i in range(own["layers"][1])}
    return weights


def opennmt_checkpoint(folder: Path, name: str, toolkit: str, **parts: Any) -> Path:
    """Write a model with random weights and return its folder.

    beside: object that OpenNMT-py stores with the weights.  settings: the settings, instead of those of `name`.
    """
    folder.mkdir(parents=True)
    own, state = OPENNMT[name], _opennmt_state(toolkit, name)
    source, target = _OPENNMT_LAYERS[toolkit]["embeddings"]
    if own.get("share_embeddings"):
        state[target] = state[source]
    if own.get("share_decoder_embeddings"):
        state["generator.weight"] = state[target]
    _write_models(folder, own, "sentencepiece.model", "source.model", "target.model")
    lists = dict(zip(("src", "tgt"), opennmt_lists(name), strict=True))
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
    own = OPENNMT[name]
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
    own = OPENNMT[name]
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
