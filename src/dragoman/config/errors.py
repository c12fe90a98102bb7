"""Messages for pydantic's validation errors: the key, the value, what is accepted, and the nearest name."""

from __future__ import annotations

import datetime
import re
import reprlib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dragoman.config.limits import ADAM_RATES
from dragoman.config.section import Duration
from dragoman.errors import clip, nearest

DEVICES = "auto, cpu, cuda, cuda:1, mps, xpu, hpu"

_EXPECTED = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text, in quotes",
    "model": "must be a section (a table of keys)",
    "dict": 'must be a table of names, such as general = { source = "general.en", target = "general.de" }',
}
"""Prefix of a pydantic error type -> the expected value."""
_FORMS = {
    "allowed_hosts": "a name without a port, such as translate.example, *.example for a domain, or * for any",
    "allowed_origins": "an origin, such as https://page.example, or * for any",
    "models": "the code of a language, such as en or pt-BR",
    "also_valid": "a name of letters, digits, - and _ that begins with a letter",
}
"""Key of text of a certain form -> the form."""
_OUT_OF_RANGE = (
    "greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of", "finite_number",
)  # fmt: skip


def describe(error: dict[str, Any], root: type[BaseModel]) -> str:
    """Return the message for one of pydantic's errors on a document of the model `root`."""
    section, path, variants, siblings = _locate(error["loc"], root)
    kind, value, context = error["type"], error.get("input"), error.get("ctx") or {}
    name = ".".join(clip(part, 60) for part in path)
    tags = ", ".join(map(tag_of, variants))
    field = section.model_fields.get(path[-1]) if path else None
    limits = limits_of(field) if field is not None else ""
    if limits and path[:-1] == ["train", "schedule"] and (rate := ADAM_RATES.get(path[-1])):
        limits += f', at most {_number(rate)} unless train.optimizer.kind is "sgd"'
    # What pydantic reports of a whole section concerns several keys, which the message names.
    written = "" if isinstance(value, dict) and kind == "value_error" else f" = {shown(value)}"
    match kind:
        case "extra_forbidden":
            known = sorted(section.model_fields, key=lambda key: key not in ("kind", "architecture"))
            known += ["stage", "tune"] if {"data", "train"} <= {*known} else []
            return f"{name}: no such key{_elsewhere(section, path, siblings, root)}; accepted here: {', '.join(known)}"
        case "too_short":
            return f"{name} = {shown(value)}: empty; at least one entry is required"
        case "missing":
            return f"{name}: missing; this key is required"
        case "tuple_type":
            return f"{name}{written}: must be a list; write {_as_list(section, path[-1], value)}"
        case "invalid_key":  # impossible in TOML and JSON
            return f"{'.'.join(path[:-1])}: the key {shown(value)} must be text"
        case "string_unicode":
            return f"{name} = {shown(value)}: invalid Unicode (lone surrogate)"
        case "union_tag_not_found":
            return f"{name}.kind: missing; accepted: {tags}"
        case "union_tag_invalid":
            tag, key = context["tag"], str(context["discriminator"]).strip("'")
            return f"{name}.{key}: no {key} {shown(tag)}{nearest(str(tag), map(tag_of, variants))}; accepted: {tags}"
        case "literal_error":
            expected = str(context["expected"])
            near = nearest(value, re.findall("'([^']*)'", expected)) if isinstance(value, str) else ""
            return f"{name} = {shown(value)}{near}; accepted: {expected}"
        case "model_type" | "model_attributes_type" if tags:
            return f"{name} = {shown(value)}: write {name}.{tag_key(variants[0])} = ..., one of {tags}"
        case "bool_for_number":
            return f"{name} = {shown(value)}: must be a number, not true or false{limits and f'; accepted: {limits}'}"
        case "string_pattern_mismatch" if form := next((_FORMS[part] for part in path if part in _FORMS), ""):
            return f"{name} = {shown(value)}; accepted: {form}"
        case "string_pattern_mismatch":
            return f"{name} = {shown(value)}: no such device; accepted: {DEVICES}"
        case _ if type_expected := _EXPECTED.get(kind.partition("_")[0]):
            return f"{name} = {shown(value)}: {type_expected}{limits and f'; accepted: {limits}'}"
        case _ if kind in _OUT_OF_RANGE and limits:
            return f"{name} = {shown(value)}: out of range; accepted: {limits}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not name:  # the error concerns two sections, and its message names both
        return message
    return f"{name}{written}: {message[0].lower() + message[1:]}"


def problems_of(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Return the messages for pydantic's errors on a document of the model `root`."""
    errors = error.errors(include_url=False)
    # pydantic reports a list without valid entries as too short as well.
    inner = {e["loc"][:depth] for e in errors for depth in range(1, len(e["loc"]))}
    return [describe(dict(e), root) for e in errors if e["type"] != "too_short" or e["loc"] not in inner]


def shown(value: Any) -> str:
    """Return a value in the notation of TOML, clipped to one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of about {int(value.bit_length() * 0.30103):,} digits"
    if isinstance(value, list | tuple | dict):
        return _SHORT.repr(value)
    if isinstance(value, datetime.date | datetime.time):
        return str(value)
    return clip(repr(value))


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        return shown(x)  # Python does not write out an integer of many digits


_SHORT = _Short()


def toml_value(value: Any) -> str:
    """Return a value as TOML in one line, and None as `none`."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        keys = {key: tomli_w.dumps({str(key): 0}).removesuffix(" = 0\n") for key in value}  # quoted if necessary
        items = ", ".join(f"{keys[key]} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str | bool | int | float | datetime.date | datetime.time):
        return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")
    return str(value)


def _elsewhere(
    section: type[BaseModel], path: Sequence[str], siblings: Sequence[type[BaseModel]], root: type[BaseModel]
) -> str:
    """Return a hint for an unknown key: the kinds that have it, or the nearest name."""
    key, parents = path[-1], ".".join(path[:-1])
    if kinds := [tag_of(model) for model in siblings if key in model.model_fields]:
        selecting, here = tag_key(section), tag_of(section)
        needed = ", ".join(f'"{kind}"' for kind in kinds)
        return f' with {selecting} "{here}"; available with {parents}.{selecting} = {needed}'
    if other := native_name(key):
        return f" (did you mean {other!r}?)"
    if near := nearest(key, section.model_fields):
        return near
    name = _full_names(root).get(key)
    return f" (did you mean {name!r}?)" if name else ""


@cache
def _full_names(root: type[BaseModel]) -> dict[str, str]:
    """Return the shortest dotted name by its last part."""
    names = sorted(_names(root, ""), key=len, reverse=True)
    return {name.rpartition(".")[2]: name for name in names}


forget_names = _full_names.cache_clear
"""To be called after a section has been changed."""


def _names(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the dotted names of all keys in a section and its sections."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for inner in models_in(field.annotation):
            yield from _names(inner, f"{prefix}{name}.")


def _as_list(section: type[BaseModel], key: str, value: Any) -> str:
    """Return the correct notation of a key that requires a list: its example, or the given value in brackets."""
    if isinstance(value, str) and not models_in(section.model_fields[key].annotation):
        return f"{key} = {toml_value([value])}"
    if isinstance(value, dict):
        return f"[[data.{key}]] with two brackets, once per entry"
    examples = section.model_fields[key].examples
    return f"{key} = {toml_value(examples[0] if examples else [])}"


def limits_of(field: FieldInfo) -> str:
    """Return the limits of a number, such as "1 to 65,536"; empty if the field has none."""
    optional = [m for part in typing.get_args(field.annotation) for m in getattr(part, "__metadata__", ())]  # X | None
    metadata = [m for part in (*field.metadata, *optional) for m in getattr(part, "metadata", [part])]
    names = ("ge", "gt", "le", "multiple_of")
    bounds = {name: getattr(part, name) for part in metadata for name in names if hasattr(part, name)}
    if "le" not in bounds or not bounds.keys() & {"ge", "gt"}:
        return ""
    least = _number(bounds["ge"]) if "ge" in bounds else f"more than {_number(bounds['gt'])}"
    multiple = f", a multiple of {bounds['multiple_of']}" if "multiple_of" in bounds else ""
    return f"{least} to {_number(bounds['le'])}{multiple}"


def _number(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:,.0f}" if 1000 <= limit < 1e15 else f"{limit:g}"


def _locate(
    loc: Sequence[Any], root: type[BaseModel]
) -> tuple[type[BaseModel], list[str], list[type[BaseModel]], list[type[BaseModel]]]:
    """Return the section that contains the last key of a location, the keys, the variants of the value, if any, and
    the variants of the section.

    pydantic appends the tag of the selected variant to a key; users do not write it.
    """
    section, path = root, []
    models: list[type[BaseModel]] = []
    siblings: list[type[BaseModel]] = []
    for part in loc:
        if len(models) > 1 and (chosen := next((m for m in models if tag_of(m) == part), None)):
            section, siblings, models = chosen, models, []
            continue
        path.append(str(part))
        if isinstance(part, str):
            if models:
                section, siblings = models[0], []
            models = models_in(section.model_fields[part].annotation) if part in section.model_fields else []
    return section, path, models if len(models) > 1 else [], siblings


def tag_key(model: type[BaseModel]) -> str:
    """Return the key that selects a variant: `architecture` or `kind`."""
    return "architecture" if "architecture" in model.model_fields else "kind"


def tag_of(model: type[BaseModel]) -> str:
    """Return the value of `architecture` or `kind` that selects a variant."""
    return str(model.model_fields[tag_key(model)].default)


def models_at(root: type[BaseModel], path: Sequence[str]) -> list[type[BaseModel]]:
    """Return the possible models of the section at `path`; empty if `path` is not a section."""
    models = [root]
    for part in path:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        if fields:
            models = list(dict.fromkeys(m for field in fields for m in models_in(field.annotation)))
        elif not (part.isascii() and part.isdigit()):
            return []
    return models


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the section models in the annotation of a field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [] if issubclass(annotation, Duration) else [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, list, tuple, Annotated):
        return [m for a in typing.get_args(annotation) for m in models_in(a)]
    return []


_NAMES = {
    "data.filter.max_tokens": "src_seq_length max_length max_seq_length max_source_positions",
    "data.source_language": "source_lang src_lang",
    "data.target_language": "target_lang tgt_lang trg_lang",
    "data.train": "train_sets train_file",
    "data.valid": "valid_sets validation_file dev",
    "model.activation": "activation_fn hidden_act",
    "model.activation_dropout": "relu_dropout",
    "model.d_ff": "transformer_ff transformer_dim_ffn encoder_ffn_embed_dim dim_feedforward intermediate_size ff_size",
    "model.d_model": "hidden_size rnn_size word_vec_size dim_emb encoder_embed_dim embedding_dim n_embd",
    "model.decoder_layers": "dec_layers dec_depth num_decoder_layers",
    "model.encoder_layers": "layers enc_layers enc_depth num_layers num_encoder_layers num_hidden_layers",
    "model.n_heads": "heads nhead num_heads num_attention_heads encoder_attention_heads transformer_heads",
    "model.n_kv_heads": "num_key_value_heads",
    "model.normalize_embeddings": "layernorm_embedding normalize_embedding",
    "model.order": "norm_first pre_norm encoder_normalize_before",
    "model.position.kind": "position_encoding positional_encoding",
    "model.tie": "share_embeddings share_all_embeddings tied_embeddings tied_embeddings_all tie_word_embeddings",
    "search.alpha": "lenpen length_penalty normalize",
    "search.beam": "beam_size num_beams",
    "search.max_extra": "max_len_b max_new_tokens",
    "search.no_repeat_ngram": "no_repeat_ngram_size block_ngram_repeat",
    "tokenizer.shared": "share_vocab joined_dictionary joint_vocab",
    "tokenizer.vocab_size": "src_vocab_size dim_vocabs",
    "train.accumulate": "update_freq accum_count optimizer_delay gradient_accumulation_steps",
    "train.batch_tokens": "batch_size mini_batch per_device_train_batch_size",
    "train.budget": "epochs max_epoch max_epochs num_train_epochs after_epochs max_steps train_steps max_update",
    "train.clip_norm": "max_grad_norm gradient_clip_val",
    "train.device": "gpu gpus use_cuda gpu_ranks devices",
    "train.ema": "exponential_smoothing ema_decay",
    "train.gradient_checkpointing": "checkpoint_activations activation_checkpointing recompute",
    "train.init_from": "train_from finetune_from_model pretrained_model load_model model_name_or_path restore_file",
    "train.keep": "keep_checkpoint keep_last_epochs save_total_limit",
    "train.label_smoothing": "label_smoothing_factor",
    "train.log_every": "report_every disp_freq log_interval logging_steps",
    "train.lora.alpha": "lora_alpha",
    "train.lora.rank": "lora_rank lora_r",
    "train.lora.targets": "target_modules lora_target_modules",
    "train.metric": "best_checkpoint_metric metric_for_best_model eval_metric valid_metrics",
    "train.optimizer.kind": "optim",
    "train.patience": "early_stopping early_stopping_patience",
    "train.precision": "fp16 bf16 amp mixed_precision",
    "train.save_every": "save_steps save_freq save_checkpoint_steps save_interval",
    "train.schedule.kind": "lr_scheduler lr_scheduler_type decay_method",
    "train.schedule.peak": "lr learning_rate learn_rate",
    "train.schedule.warmup": "warmup_steps warmup_updates lr_warmup",
    "train.threads": "num_threads cpu_threads",
    "train.validate_every": "valid_steps valid_freq validate_interval eval_steps",
}
FOREIGN_NAMES = {name: key for key, names in _NAMES.items() for name in names.split()}
"""Name in fairseq, OpenNMT-py, Marian, Hugging Face or PyTorch, with underscores -> key of Dragoman."""


def native_name(name: str) -> str | None:
    """Return the key of Dragoman for a name of another toolkit, such as "early-stopping"; None if it is unknown."""
    return FOREIGN_NAMES.get(name.replace("-", "_").lower())
