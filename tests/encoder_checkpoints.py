"""Random checkpoints of BERT and ViT in the layout of Hugging Face, built offline by `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

HARD_LINES = [
    "A dog runs in the park.", "two people, RUNNING!", "", "  spaces \t and\u00a0more ", "Café cafe\u0301 CAFÉ",
    "漢字 and 漢", "1,234.56 %", "x" * 120, "zero\u200bwidth \x07 bell", "[MASK] [CLS] ##ing", "it's a dog-park",
    "\N{GRINNING FACE} dog", "unaffable runs",
]  # fmt: skip
"""Text with unknown words and characters, accents, controls, and names of special tokens."""
WORDS = ["two", "dogs", "running", "in", "the", "café", "!"]
_PIECES = [
    *(
        "[PAD]",
        "[unused0]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "A",
        "dog",
        "run",
        "##s",
        "##ning",
        "the",
        "park",
    ),
    *("in", "cafe", "caf", "##é", ".", ",", "!", "?", "two", "Two", "people", "漢", "字", "1", "234", "56", "%", "#"),
    *("##x", "##e", "'", "-", "it", "s", "x", "un", "##aff", "##able", "runs", "##ing", "café", "[", "]"),
]

BERTS: dict[str, dict[str, Any]] = {
    "masked": {
        "architecture": "BertForMaskedLM", "hidden_size": 24, "intermediate_size": 52, "num_attention_heads": 3,
        "num_hidden_layers": 2,
    },
    "masked, untied": {
        "architecture": "BertForMaskedLM", "hidden_size": 10, "intermediate_size": 7, "num_attention_heads": 5,
        "num_hidden_layers": 1, "hidden_act": "gelu_new", "tie_word_embeddings": False, "type_vocab_size": 1,
    },
    "labels": {
        "architecture": "BertForSequenceClassification", "hidden_size": 18, "intermediate_size": 33,
        "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "relu",
        "id2label": {0: "good", 1: "bad", 2: "so so"},
    },
    "tags": {
        "architecture": "BertForTokenClassification", "hidden_size": 15, "intermediate_size": 20,
        "num_attention_heads": 5, "num_hidden_layers": 1, "id2label": {0: "DT", 1: "NN", 2: "VB", 3: "NN"},
    },
}  # fmt: skip
"""By name, sizes and variants; the first is BERT, smaller."""

VITS: dict[str, dict[str, Any]] = {
    "colour": {
        "hidden_size": 24, "intermediate_size": 52, "num_attention_heads": 3, "num_hidden_layers": 2, "image_size": 8,
        "patch_size": 2, "num_channels": 3,
    },
    "grey": {
        "hidden_size": 15, "intermediate_size": 7, "num_attention_heads": 5, "num_hidden_layers": 1, "image_size": 9,
        "patch_size": 3, "num_channels": 1, "hidden_act": "gelu_new", "qkv_bias": False,
    },
    "one patch": {
        "hidden_size": 10, "intermediate_size": 33, "num_attention_heads": 2, "num_hidden_layers": 3, "image_size": 4,
        "patch_size": 4, "num_channels": 3, "hidden_act": "silu",
    },
}  # fmt: skip
_PIXELS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def _shaken(model: Any) -> Any:
    """Change biases and norms, which are 0 and 1 in a new model."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
        for name, parameter in model.named_parameters():
            if name.endswith("word_embeddings.weight"):
                parameter[0] = 0.3 * torch.randn_like(parameter[0])
    return model.eval()


def bert_checkpoint(folder: Path, name: str = "masked", tokenizer_json: bool | None = None, **changes: Any) -> Path:
    """Write a checkpoint with random weights.

    tokenizer_json: whether the tokenizer is `tokenizer.json` instead of `vocab.txt`; default: not if the name has a
    comma.  changes: of config.json.
    """
    import transformers

    folder.mkdir(parents=True)
    package: Any = transformers  # its annotations are incomplete
    torch.manual_seed(3)
    settings = BERTS[name] | changes
    kind = settings.pop("architecture")
    config = package.BertConfig(
        **settings, vocab_size=len(_PIECES) + 3, max_position_embeddings=40, pad_token_id=0, initializer_range=0.3
    )
    _shaken(getattr(package, kind)(config)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(_PIECES) + "\n")
    lower = name != "masked, untied"
    if (tokenizer_json is None and "," not in name) or tokenizer_json:
        tokenizer = package.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=lower)
        (folder / "vocab.txt").unlink()
        tokenizer.save_pretrained(folder)
    else:
        settings = {"do_lower_case": lower, "tokenizer_class": "BertTokenizer", "model_max_length": 40}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def vit_checkpoint(folder: Path, name: str = "colour", **changes: Any) -> Path:
    """Write a checkpoint with random weights.  changes: of config.json."""
    import transformers

    folder.mkdir(parents=True)
    package: Any = transformers
    torch.manual_seed(4)
    labels = {0: "crane", 1: "dog", 2: "crane", 3: "tabby, tabby cat"}
    config = package.ViTConfig(**VITS[name] | changes, id2label=labels, initializer_range=0.3)
    _shaken(package.ViTForImageClassification(config)).save_pretrained(folder)
    channels, size = VITS[name]["num_channels"], VITS[name]["image_size"]
    preparation = {key: values[:channels] for key, values in _PIXELS.items()} | {
        "do_normalize": True, "do_rescale": True, "do_resize": True, "rescale_factor": 1 / 255, "resample": 2,
        "size": {"height": size, "width": size}, "image_processor_type": "ViTImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(preparation))
    return folder
