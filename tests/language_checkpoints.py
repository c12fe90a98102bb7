"""Random checkpoints of GPT-2, Llama, Mistral and Qwen2 as Hugging Face stores them, built by `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from json_tokenizers import json_tokenizer, special_ids

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 24, "n_head": 3, "n_layer": 2, "n_inner": None, "n_positions": 48},
    "gpt2, one layer, untied": {
        "n_embd": 15, "n_head": 5, "n_layer": 1, "n_inner": 7, "n_positions": 44, "activation_function": "relu",
        "tie_word_embeddings": False,
    },
    "gpt2, padding, three layers": {
        "n_embd": 14, "n_head": 1, "n_layer": 3, "n_inner": 33, "n_positions": 50, "layer_norm_epsilon": 1e-3,
        "extra_ids": 3, "pad_token_id": 331,
    },
    "llama": {
        "hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "intermediate_size": 39,
    },
    "llama, one layer, tied": {
        "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 1,
        "intermediate_size": 17, "tie_word_embeddings": True, "rope_theta": 500_000.0, "rms_norm_eps": 1e-3,
    },
    "llama, biases, bytes": {
        "hidden_size": 20, "num_attention_heads": 5, "num_key_value_heads": 1, "num_hidden_layers": 3,
        "intermediate_size": 8, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_new",
        "tokenizer": "byte-level", "extra_ids": 2,
    },
    "llama, 3.1": {
        "hidden_size": 20, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "head_dim": 6,
        "intermediate_size": 22, "rope_theta": 500.0, "rope_type": "llama3", "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
    "llama, 3.2, tied": {
        "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 1,
        "intermediate_size": 17, "tie_word_embeddings": True, "rope_theta": 5000.0, "rope_type": "llama3",
        "rope_scaling": {
            "factor": 32.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0, "original_max_position_embeddings": 16,
        },
    },
    "llama, linear": {
        "hidden_size": 18, "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 1, "head_dim": 4,
        "intermediate_size": 11, "rope_theta": 300.0, "rope_type": "linear", "rope_scaling": {"factor": 2.5},
        "tokenizer": "byte-level",
    },
    "mistral": {
        "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 8,
        "intermediate_size": 19, "sliding_window": None,
    },
    "mistral, window, one layer": {
        "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
        "intermediate_size": 30, "sliding_window": 41, "rope_theta": 1e6,
    },
    "mistral, tied": {
        "hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 3, "head_dim": 2,
        "intermediate_size": 9, "sliding_window": None, "tie_word_embeddings": True, "tokenizer": "byte-level",
    },
    "qwen2": {
        "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "intermediate_size": 19, "tokenizer": "byte-level", "extra_ids": 3, "rope_theta": 1e6,
    },
    "qwen2, tied": {
        "hidden_size": 18, "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 1,
        "intermediate_size": 31, "tie_word_embeddings": True,
    },
    "qwen2, three layers": {
        "hidden_size": 12, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 3,
        "intermediate_size": 10, "rms_norm_eps": 1e-5, "tokenizer": "byte-level",
    },
}  # fmt: skip
"""By name, sizes and variants; the first of each family is that of the published models, smaller."""
FAMILY = {name: name.partition(",")[0] for name in CONFIGURATIONS}


def language_checkpoint(folder: Path, name: str, seed: int = 1, **changes: Any) -> Path:
    """Write a checkpoint with random weights and a tokenizer.  changes: of config.json."""
    import transformers

    settings = CONFIGURATIONS[name] | changes
    kind = settings.pop("tokenizer", "byte-level" if FAMILY[name] == "gpt2" else "byte fallback")
    tokenizer = json_tokenizer(kind)
    _, _, begin, end = special_ids(kind)
    ids = {
        "vocab_size": settings.pop("vocab_size", tokenizer.get_vocab_size() + settings.pop("extra_ids", 0)),
        "bos_token_id": begin,
    }
    if "rope_theta" in settings:
        scaling = {"rope_type": settings.pop("rope_type", "default")} | settings.pop("rope_scaling", {})
        settings["rope_parameters"] = scaling | {"rope_theta": settings.pop("rope_theta")}
    if FAMILY[name] != "gpt2":
        settings["max_position_embeddings"] = 48
    package: Any = transformers  # its annotations are incomplete
    makers = {
        "gpt2": (package.GPT2Config, package.GPT2LMHeadModel),
        "llama": (package.LlamaConfig, package.LlamaForCausalLM),
        "mistral": (package.MistralConfig, package.MistralForCausalLM),
        "qwen2": (package.Qwen2Config, package.Qwen2ForCausalLM),
    }
    config, model = makers[FAMILY[name]]
    torch.manual_seed(seed)
    network = model(config(**ids, eos_token_id=end, initializer_range=0.3, **settings)).eval()
    with torch.no_grad():
        for each in network.parameters():
            if each.dim() == 1:  # biases and norms, which are 0 and 1 in a new model
                each.add_(0.2 * torch.randn_like(each))
    network.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = tokenizer.id_to_token(begin), tokenizer.id_to_token(end)
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": special[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder
