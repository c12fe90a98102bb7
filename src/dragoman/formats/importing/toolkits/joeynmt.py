"""The Transformer of JoeyNMT 2.

Differences from our Transformer, and where each is resolved:

- Ids of special tokens are those of the settings, by default `<unk>` 0, `<pad>` 1, `<s>` 2, `</s>` 3.
- Queries, keys and values are separate matrices; the output layer has no bias.
- Sentencepiece uses only the pieces of the vocabulary (`SetVocabulary`): the others are marked as unused in the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.config import parse_config
from dragoman.formats.check_text import CheckText
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import Comparison, ImportedVocabulary, Plan, ProblemList, accepted_values
from dragoman.formats.importing.listed_vocabulary import (
    ListedReference,
    TokenList,
    listed_vocabulary,
    restricted,
    sentencepiece_models,
)
from dragoman.formats.importing.names import AxisOrder, Rule, expanded
from dragoman.formats.importing.numpy_reference import SearchedReference
from dragoman.formats.importing.toolkits.checkpoint import JoeyCheckpoint
from dragoman.formats.importing.toolkits.comparison import compare_with_definition
from dragoman.formats.importing.toolkits.layers import MAX_TOKENS, attention, document, linear, norm, search_document
from dragoman.formats.importing.toolkits.numpy_transformer import Names, Sizes, ToolkitDefinition, interleaved_sinusoids
from dragoman.tokenizers import EOS

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
_STACKS, _SIDES = ("encoder", "decoder"), ("src", "trg")


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    model = _part(settings, "model")
    problems = []
    for stack in _STACKS:
        own = _part(model, stack)
        problems += [f"model.{stack}.{problem}" for problem in accepted_values(own, _STACK)]
        if "layer_norm" not in own:
            problems.append(f"model.{stack}.layer_norm is missing; accepted: 'pre', 'post' (JoeyNMT 1 has 'pre')")
        for key in _SIZES:
            if type(own.get(key)) is not int or own[key] < 1:
                problems.append(f"model.{stack}.{key} = {own.get(key)!r}; accepted: an integer, at least 1")
    for key in ("num_heads", "hidden_size", "ff_size", "layer_norm", "activation"):
        sides = [_part(model, stack).get(key) for stack in _STACKS]
        if sides[0] != sides[1]:
            problems.append(f"model.encoder.{key} = {sides[0]!r}, model.decoder.{key} = {sides[1]!r}; accepted: equal")
    scales = [bool(_part(_part(model, stack), "embeddings").get("scale", False)) for stack in _STACKS]
    if scales[0] != scales[1] and not model.get("tied_embeddings", False):
        problems.append(f"embeddings.scale = {scales[0]} and {scales[1]}; accepted: equal in encoder and decoder")
    for side in _SIDES:
        own = _part(_part(settings, "data"), side)
        problems += [f"data.{side}.{problem}" for problem in accepted_values(own, _SIDE)]
        if (first := _part(own, "tokenizer_cfg").get("pretokenizer", "none")) != "none":
            problems.append(f"data.{side}.tokenizer_cfg.pretokenizer = {first!r}; accepted: 'none'")
    problems += _special_problems(_part(_part(settings, "data"), "special_symbols"))
    if not problems and ((width := model["encoder"]["hidden_size"]) % model["encoder"]["num_heads"] or width % 2):
        problems.append(f"hidden_size = {width}; accepted: even, and a multiple of num_heads")
    return problems


def _special_problems(own: Mapping[str, Any]) -> Iterator[str]:
    if own.get("lang_tags"):
        yield f"data.special_symbols.lang_tags = {own['lang_tags']!r}; accepted: models of one direction"
    if own.get("sep_token"):
        yield f"data.special_symbols.sep_token = {own['sep_token']!r}; accepted: models without prompts"
    ids = [own.get(f"{name}_id", default) for name, default in _SPECIAL.items()]
    if sorted(ids, key=str) != [0, 1, 2, 3]:
        yield f"data.special_symbols: ids of pad, unk, bos, eos = {ids}; accepted: 0 to 3, each once"


def _part(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = settings.get(key)
    return found if isinstance(found, Mapping) else {}


# ---------------------------------------------------------------------------------------------------------- vocabulary


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    assert isinstance(checkpoint, JoeyCheckpoint)
    source, target = token_lists(checkpoint)
    tied = bool(_part(checkpoint.settings, "model").get("tied_embeddings", False))
    same = source.tokens == target.tokens
    if tied and not same:
        raise ProblemList(["model.tied_embeddings = True, but src_vocab.txt and trg_vocab.txt differ"])
    return listed_vocabulary(checkpoint, source, None if same else target, restrict=True)


def token_lists(checkpoint: JoeyCheckpoint) -> list[TokenList]:
    """Return the vocabularies: special tokens first, then those of the file that are not special.

    Raises ProblemList.
    """
    own = _part(_part(checkpoint.settings, "data"), "special_symbols")
    ids = {name: own.get(f"{name}_id", default) for name, default in _SPECIAL.items()}
    if sorted(ids.values(), key=str) != [0, 1, 2, 3]:
        raise ProblemList([])  # reported by `unsupported`
    names = {token: str(own.get(f"{name}_token", _TOKENS[name])) for name, token in ids.items()}
    first = [names[token] for token in range(4)]
    found = []
    for side in _SIDES:
        file = f"{side}_vocab.txt"
        tokens = dict.fromkeys([*first, *checkpoint.text(file).removesuffix("\n").split("\n")])
        found.append(TokenList(list(tokens), (ids["pad"], ids["unk"], ids["bos"], ids["eos"]), file))
    return found


# ---------------------------------------------------------------------------------------------------------------- plan


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    assert isinstance(checkpoint, JoeyCheckpoint)
    settings = checkpoint.settings
    model, data = _part(settings, "model"), _part(settings, "data")
    encoder, decoder = (_part(model, stack) for stack in _STACKS)
    tie = _tie(model)
    content = document(vocabulary, (_part(data, "src").get("lang"), _part(data, "trg").get("lang"))) | {
        "model": {
            "architecture": "transformer", "d_model": encoder["hidden_size"], "d_ff": encoder["ff_size"],
            "n_heads": encoder["num_heads"], "encoder_layers": encoder["num_layers"],
            "decoder_layers": decoder["num_layers"], "order": encoder["layer_norm"], "tie": tie,
            "activation": _ACTIVATIONS[encoder.get("activation", "relu")], "norm": {"kind": "layer", "eps": _EPS},
            "scale_embeddings": bool(_part(encoder, "embeddings").get("scale", False)),
            "dropout": encoder.get("dropout", 0.1),
        },
        "search": search_document(_part(settings, "testing"), "beam_size", "beam_alpha"),
    }  # fmt: skip
    sizes = max(vocabulary.source) + 1, max(vocabulary.target) + 1
    return Plan(
        config=parse_config(content, where=str(checkpoint.folder), stored=True),
        vocabulary=vocabulary,
        table=_table(encoder, decoder, tie),
        orders={"source": AxisOrder(vocabulary.source, sizes[0]), "target": AxisOrder(vocabulary.target, sizes[1])},
        constants={},
        unused=r"(encoder|decoder)\.pe\.pe|loss_function\..*",
        positions=MAX_TOKENS,
    )


def _tie(model: Mapping[str, Any]) -> str:
    output = bool(model.get("tied_softmax", False))
    if model.get("tied_embeddings", False):
        return "all" if output else "embeddings"
    return "target" if output else "none"


def _table(encoder: Mapping[str, Any], decoder: Mapping[str, Any], tie: str) -> dict[str, Rule]:
    rules = dict(_EMBEDDINGS[tie])
    for stack, own in zip(_STACKS, (encoder, decoder), strict=True):
        rules |= expanded(_layer(stack), own["num_layers"])
        if own["layer_norm"] == "pre":
            rules |= norm(f"{stack}.final_norm", f"{stack}.layer_norm")
    return rules


_SOURCE, _TARGET, _OUTPUT = "src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"
_EMBEDDINGS = {
    "all": {"encoder.embedding.weight": Rule((f"{_SOURCE}|{_TARGET}|{_OUTPUT}",), ("source", ""))},
    "embeddings": {
        "encoder.embedding.weight": Rule((f"{_SOURCE}|{_TARGET}",), ("source", "")),
        "output.weight": Rule((_OUTPUT,), ("target", "")),
    },
    "target": {
        "encoder.embedding.weight": Rule((_SOURCE,), ("source", "")),
        "decoder.embedding.weight": Rule((f"{_TARGET}|{_OUTPUT}",), ("target", "")),
    },
    "none": {
        "encoder.embedding.weight": Rule((_SOURCE,), ("source", "")),
        "decoder.embedding.weight": Rule((_TARGET,), ("target", "")),
        "output.weight": Rule((_OUTPUT,), ("target", "")),
    },
}


def _layer(stack: str) -> dict[str, Rule]:
    ours = theirs = f"{stack}.layers.{{}}"
    own, first = ("src_src_att", "layer_norm") if stack == "encoder" else ("trg_trg_att", "x_layer_norm")
    rules = {
        **_attention(f"{ours}.self_attn", f"{theirs}.{own}"),
        **norm(f"{ours}.around_self_attn.norm", f"{theirs}.{first}"),
        **linear(f"{ours}.ffn.inner", f"{theirs}.feed_forward.pwff_layer.0"),
        **linear(f"{ours}.ffn.outer", f"{theirs}.feed_forward.pwff_layer.3"),
        **norm(f"{ours}.around_ffn.norm", f"{theirs}.feed_forward.layer_norm"),
    }
    if stack == "decoder":
        rules |= _attention(f"{ours}.cross_attn", f"{theirs}.src_trg_att")
        rules |= norm(f"{ours}.around_cross_attn.norm", f"{theirs}.dec_layer_norm")
    return rules


def _attention(ours: str, theirs: str) -> dict[str, Rule]:
    return attention(ours, *(f"{theirs}.{part}" for part in ("q_layer", "k_layer", "v_layer", "output_layer")))


# ---------------------------------------------------------------------------------------------------------- comparison


def compare(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    assert isinstance(checkpoint, JoeyCheckpoint)
    lists = token_lists(checkpoint)
    paths = sentencepiece_models(checkpoint.folder)
    models = [restricted(checkpoint.bytes(path.name), listed.tokens) for path, listed in zip(paths, lists, strict=True)]
    reference = ListedReference(models, lists, plan.vocabulary)
    runtime = SearchedReference(
        definition(checkpoint), "JoeyNMT's definition in NumPy, float32", plan.vocabulary, lists[1].special[EOS]
    )
    return compare_with_definition(runtime, reference, folder, plan, check)


def _parts(stack: str) -> dict[str, str]:
    layer = f"{stack}.layers.{{}}"
    names = {"self": "src_src_att" if stack == "encoder" else "trg_trg_att", "cross": "src_trg_att"}
    matrices = {"q": "q_layer", "k": "k_layer", "v": "v_layer", "o": "output_layer"}
    parts = {f"{kind} {x}": f"{layer}.{name}.{m}" for kind, name in names.items() for x, m in matrices.items()}
    parts |= {"in": f"{layer}.feed_forward.pwff_layer.0", "out": f"{layer}.feed_forward.pwff_layer.3"}
    parts |= {"norm": f"{layer}.feed_forward.layer_norm", "cross norm": f"{layer}.dec_layer_norm"}
    return parts | {"self norm": f"{layer}.layer_norm" if stack == "encoder" else f"{layer}.x_layer_norm"}


def definition(checkpoint: JoeyCheckpoint, dtype: type[np.floating[Any]] = np.float32) -> ToolkitDefinition:
    """Return the model of a checkpoint in NumPy."""
    model = _part(checkpoint.settings, "model")
    encoder, decoder = (_part(model, stack) for stack in _STACKS)
    special = token_lists(checkpoint)[1].special
    width = encoder["hidden_size"]
    others = {
        "source": "src_embed.lut", "target": "trg_embed.lut", "output": "decoder.output_layer",
        "encoder norm": "encoder.layer_norm", "decoder norm": "decoder.layer_norm",
    }  # fmt: skip
    sizes = Sizes(
        heads=encoder["num_heads"], layers=(encoder["num_layers"], decoder["num_layers"]),
        is_pre=encoder["layer_norm"] == "pre", activation=_ACTIVATIONS[encoder.get("activation", "relu")], eps=_EPS,
        scale=width**0.5 if _part(encoder, "embeddings").get("scale") else 1.0, begin=special[2], end=special[3],
        positions=lambda stack, count: interleaved_sinusoids(count, width),
    )  # fmt: skip
    tensors = {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}
    return ToolkitDefinition(Names({stack: _parts(stack) for stack in _STACKS}, others), sizes, tensors, dtype)
