"""The Transformer of JoeyNMT 2.

Differences from our Transformer, and where each is resolved:

- Ids of special tokens are those of the settings, by default `<unk>` 0, `<pad>` 1, `<s>` 2, `</s>` 3.
- Queries, keys and values are separate matrices; the output layer has no bias.
- Sentencepiece uses only the pieces of the vocabulary (`SetVocabulary`): the others are marked as unused in the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dragoman.formats.importing.comparison import toolkit_comparison
from dragoman.formats.importing.encoder_decoder import MAX_TOKENS, search_section, text_sections, tie_of
from dragoman.formats.importing.family import (
    ImportedVocabulary,
    Plan,
    ProblemList,
    accepted_values,
    integer_problems,
    multiple_problems,
    part,
    unequal_problems,
)
from dragoman.formats.importing.listed_vocabulary import TokenList, toolkit_vocabulary
from dragoman.formats.importing.name_tables import STACKS, TransformerNames, layer_parts
from dragoman.formats.importing.numpy_reference import NumpyTransformer, Sizes, interleaved_sinusoids
from dragoman.formats.importing.toolkit_files import JoeyCheckpoint
from dragoman.tokenizers import BOS, EOS

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
_EPS = 1e-6
_STACK: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",), "layer_norm": ("pre", "post"), "activation": tuple(_ACTIVATIONS), "alpha": (1, 1.0),
}  # fmt: skip
"""Setting of `model.encoder` and `model.decoder` -> accepted values."""
_SIZES = ("num_layers", "num_heads", "hidden_size", "ff_size")
_SIDE: dict[str, tuple[Any, ...]] = {
    "level": ("bpe",), "lowercase": (False,), "normalize": (False,), "tokenizer_type": ("sentencepiece",),
    "bpe_type": ("sentencepiece",),
}  # fmt: skip
"""Setting of `data.src` and `data.trg` -> accepted values."""
_SPECIAL = {"pad": 1, "unk": 0, "bos": 2, "eos": 3}
_TOKENS = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}
_SIDES = ("src", "trg")


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    model = part(settings, "model")
    problems = []
    for stack in STACKS:
        own = part(model, stack)
        problems += [f"model.{stack}.{problem}" for problem in accepted_values(own, _STACK)]
        if "layer_norm" not in own:
            problems.append(f"model.{stack}.layer_norm is missing; accepted: 'pre', 'post' (JoeyNMT 1 has 'pre')")
        problems += integer_problems(own, dict.fromkeys(_SIZES, 1), f"model.{stack}.")
    problems += unequal_problems(
        {f"model.{stack}.{key}": part(model, stack).get(key) for stack in STACKS}
        for key in ("num_heads", "hidden_size", "ff_size", "layer_norm", "activation")
    )
    scales = [bool(part(part(model, stack), "embeddings").get("scale", False)) for stack in STACKS]
    if scales[0] != scales[1] and not model.get("tied_embeddings", False):
        problems.append(f"embeddings.scale = {scales[0]} and {scales[1]}; accepted: equal in encoder and decoder")
    for side in _SIDES:
        own = part(part(settings, "data"), side)
        problems += [f"data.{side}.{problem}" for problem in accepted_values(own, _SIDE)]
        if (first := part(own, "tokenizer_cfg").get("pretokenizer", "none")) != "none":
            problems.append(f"data.{side}.tokenizer_cfg.pretokenizer = {first!r}; accepted: 'none'")
    special = part(part(settings, "data"), "special_symbols")
    if special.get("lang_tags"):
        problems.append(f"data.special_symbols.lang_tags = {special['lang_tags']!r}; accepted: models of one direction")
    if special.get("sep_token"):
        problems.append(f"data.special_symbols.sep_token = {special['sep_token']!r}; accepted: models without prompts")
    ids = [special.get(f"{name}_id", default) for name, default in _SPECIAL.items()]
    if sorted(ids, key=str) != [0, 1, 2, 3]:
        problems.append(f"data.special_symbols: ids of pad, unk, bos, eos = {ids}; accepted: 0 to 3, each once")
    return problems or multiple_problems(model["encoder"], "hidden_size", "num_heads", even=True)


def read_vocabulary(checkpoint: JoeyCheckpoint) -> ImportedVocabulary:
    is_tied = part(checkpoint.settings, "model").get("tied_embeddings", False)
    tied = "model.tied_embeddings = True, but src_vocab.txt and trg_vocab.txt differ" if is_tied else ""
    return toolkit_vocabulary(checkpoint, token_lists(checkpoint), tied)


def token_lists(checkpoint: JoeyCheckpoint) -> list[TokenList]:
    """Return the vocabularies: special tokens first, then those of the file that are not special.

    Raises ProblemList.
    """
    symbols = part(part(checkpoint.settings, "data"), "special_symbols")
    ids = {name: symbols.get(f"{name}_id", default) for name, default in _SPECIAL.items()}
    if sorted(ids.values(), key=str) != [0, 1, 2, 3]:
        raise ProblemList([])  # reported by `unsupported`
    names = {token: str(symbols.get(f"{name}_token", _TOKENS[name])) for name, token in ids.items()}
    first = [names[token] for token in range(4)]
    lists = []
    for side in _SIDES:
        file = f"{side}_vocab.txt"
        tokens = dict.fromkeys([*first, *checkpoint.text(file).removesuffix("\n").split("\n")])
        lists.append(TokenList(list(tokens), (ids["pad"], ids["unk"], ids["bos"], ids["eos"]), file, restrict=True))
    return lists


def plan(checkpoint: JoeyCheckpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings = checkpoint.settings
    model, data = part(settings, "model"), part(settings, "data")
    encoder, decoder = (part(model, stack) for stack in STACKS)
    tie = tie_of(model.get("tied_embeddings"), model.get("tied_softmax"))
    content = text_sections(vocabulary, languages=(part(data, "src").get("lang"), part(data, "trg").get("lang"))) | {
        "model": {
            "architecture": "transformer", "d_model": encoder["hidden_size"], "d_ff": encoder["ff_size"],
            "n_heads": encoder["num_heads"], "encoder_layers": encoder["num_layers"],
            "decoder_layers": decoder["num_layers"], "order": encoder["layer_norm"], "tie": tie,
            "activation": _ACTIVATIONS[encoder.get("activation", "relu")], "norm": {"kind": "layer", "eps": _EPS},
            "scale_embeddings": bool(part(encoder, "embeddings").get("scale", False)),
            "dropout": encoder.get("dropout", 0.1),
        },
        "search": search_section(part(settings, "testing"), "beam_size", "beam_alpha"),
    }  # fmt: skip
    return Plan(
        config=checkpoint.config(content), vocabulary=vocabulary,
        table=_names(encoder["layer_norm"] == "pre").rules((encoder["num_layers"], decoder["num_layers"]), tie),
        orders=vocabulary.orders(), unused=r"(encoder|decoder)\.pe\.pe|loss_function\..*", positions=MAX_TOKENS,
    )  # fmt: skip


def _names(is_pre: bool) -> TransformerNames:
    others = {
        "encoder.embedding": "src_embed.lut.weight", "decoder.embedding": "trg_embed.lut.weight",
        "output": "decoder.output_layer.weight",
    }  # fmt: skip
    if is_pre:
        others |= {f"{stack}.final_norm": f"{stack}.layer_norm" for stack in STACKS}
    ffn = {
        "ffn.inner": "feed_forward.pwff_layer.0", "ffn.outer": "feed_forward.pwff_layer.3",
        "around_ffn.norm": "feed_forward.layer_norm",
    }  # fmt: skip
    parts = {
        "encoder": ffn | {"self_attn": "src_src_att.", "around_self_attn.norm": "layer_norm"},
        "decoder": ffn | {
            "self_attn": "trg_trg_att.", "around_self_attn.norm": "x_layer_norm",
            "cross_attn": "src_trg_att.", "around_cross_attn.norm": "dec_layer_norm",
        },
    }  # fmt: skip
    matrices = ("q_layer", "k_layer", "v_layer", "output_layer")
    layers = {stack: layer_parts(stack, f"{stack}.layers.{{}}.", parts[stack], matrices) for stack in STACKS}
    return TransformerNames(layers, others)


def definition(checkpoint: JoeyCheckpoint, dtype: type[np.floating[Any]] = np.float32) -> NumpyTransformer:
    encoder, decoder = (part(part(checkpoint.settings, "model"), stack) for stack in STACKS)
    special = token_lists(checkpoint)[1].special
    width = encoder["hidden_size"]
    sizes = Sizes(
        heads=encoder["num_heads"], layers=(encoder["num_layers"], decoder["num_layers"]),
        is_pre=encoder["layer_norm"] == "pre", activation=_ACTIVATIONS[encoder.get("activation", "relu")], eps=_EPS,
        scale=width**0.5 if part(encoder, "embeddings").get("scale") else 1.0, begin=special[BOS], end=special[EOS],
        positions=lambda stack, first, count: interleaved_sinusoids(first, count, width),
    )  # fmt: skip
    tensors = {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}
    return NumpyTransformer(_names(sizes.is_pre), sizes, tensors, dtype)


compare = toolkit_comparison("JoeyNMT", definition, token_lists)
