"""Random checkpoints of BART, mBART, M2M-100 and NLLB in the layout of Hugging Face, made by `transformers`."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import Any

import sentencepiece as spm
import torch
from tokenizers import pre_tokenizers

LINES = [
    "A dog runs across a field.", "Two people sit on a bench.", "Ένας σκύλος", "the bench, the field!", "people run",
    "a a a a", "ein hund läuft", "Dogs and people and dogs.",
]  # fmt: skip
_TEXT = [
    "a dog runs across a field", "two people sit on a bench", "dogs and people run", "the bench is in the field",
    "ein hund läuft über ein feld", "zwei leute sitzen auf einer bank",
]  # fmt: skip
_LANGUAGES = {
    "MBartTokenizer": ["en_XX", "de_DE", "ro_RO"],
    "MBart50Tokenizer": ["en_XX", "de_DE", "zh_CN", "sl_SI"],
    "NllbTokenizer": ["eng_Latn", "deu_Latn", "zho_Hans"],
}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bart": {
        "kind": "Bart", "tokenizer": "BartTokenizer", "d_model": 20, "ffn": 31, "heads": 4, "layers": (2, 3),
    },
    "bart odd": {
        "kind": "Bart", "tokenizer": "BartTokenizer", "d_model": 9, "ffn": 6, "heads": 3, "layers": (1, 1),
        "scale_embedding": True, "activation_function": "relu",
    },
    "bart untied": {
        "kind": "Bart", "tokenizer": "BartTokenizer", "d_model": 12, "ffn": 40, "heads": 2, "layers": (1, 2),
        "tie_word_embeddings": False,
    },
    "mbart-25": {
        "kind": "MBart", "tokenizer": "MBartTokenizer", "d_model": 15, "ffn": 22, "heads": 3, "layers": (1, 2),
        "start": "ro_RO",
    },
    "mbart-50": {
        "kind": "MBart", "tokenizer": "MBart50Tokenizer", "d_model": 24, "ffn": 40, "heads": 4, "layers": (2, 1),
        "scale_embedding": True, "forced": "de_DE",
    },
    "mbart-50 untied": {
        "kind": "MBart", "tokenizer": "MBart50Tokenizer", "d_model": 10, "ffn": 7, "heads": 5, "layers": (1, 1),
        "activation_function": "relu", "tie_word_embeddings": False,
    },
    "m2m": {
        "kind": "M2M100", "tokenizer": "M2M100Tokenizer", "d_model": 16, "ffn": 20, "heads": 2, "layers": (2, 3),
    },
    "m2m odd": {
        "kind": "M2M100", "tokenizer": "M2M100Tokenizer", "d_model": 9, "ffn": 5, "heads": 3, "layers": (1, 1),
        "scale_embedding": False, "activation_function": "gelu", "target": "de",
    },
    "m2m untied": {
        "kind": "M2M100", "tokenizer": "M2M100Tokenizer", "d_model": 8, "ffn": 33, "heads": 1, "layers": (3, 1),
        "tie_word_embeddings": False,
    },
    "nllb": {
        "kind": "M2M100", "tokenizer": "NllbTokenizer", "d_model": 12, "ffn": 30, "heads": 2, "layers": (1, 2),
    },
    "nllb legacy": {
        "kind": "M2M100", "tokenizer": "NllbTokenizer", "d_model": 14, "ffn": 9, "heads": 7, "layers": (2, 1),
        "legacy": True,
    },
}  # fmt: skip
"""By name, sizes, variants and tokenizer; start, forced: languages of the first and of the forced token."""


@functools.cache
def _model(kind: str) -> bytes:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(_TEXT * 3), model_writer=model, vocab_size=60, model_type=kind, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    return model.getvalue()


def _write_tokenizer(folder: Path, own: dict[str, Any]) -> tuple[dict[str, int], int]:
    """Write the files of a tokenizer; return the ids of its languages and the number of ids."""
    import transformers

    name, package = own["tokenizer"], transformers
    if name == "BartTokenizer":
        characters = sorted(pre_tokenizers.ByteLevel.alphabet())
        ids = {
            piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *characters, "un", "un d", "<mask>"])
        }
        ids = {piece.replace(" ", ""): i for piece, i in ids.items()}
        (folder / "vocab.json").write_text(json.dumps(ids))
        (folder / "merges.txt").write_text("#version: 0.2\nu n\nun d\n")
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "mask_token": "<mask>"}))
        return {}, len(ids)
    model = _model("bpe" if name == "NllbTokenizer" else "unigram")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    processor = spm.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
    if name == "M2M100Tokenizer":
        ids = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces[:-2][::-1]])}
        (folder / "vocab.json").write_text(json.dumps(ids))
        tokenizer: Any = package.M2M100Tokenizer(folder / "vocab.json", folder / "sentencepiece.bpe.model")
        tokenizer.save_pretrained(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text()) | {"tgt_lang": own.get("target")}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return tokenizer.lang_code_to_id, max(tokenizer.lang_code_to_id.values()) + 9
    tokenizer = getattr(package, name).from_pretrained(
        folder, legacy_behaviour=own.get("legacy", False), extra_special_tokens=_LANGUAGES[name]
    )
    tokenizer.save_pretrained(folder)
    codes = {str(code) for code in tokenizer.all_special_tokens if "_" in str(code)}
    return {code: tokenizer.convert_tokens_to_ids(code) for code in sorted(codes)}, len(tokenizer)


def bart_checkpoint(folder: Path, name: str, seed: int = 1, **changes: Any) -> Path:
    """Write a checkpoint with random weights.  changes: of config.json."""
    import transformers

    folder.mkdir(parents=True)
    own = dict(CONFIGURATIONS[name])
    languages, size = _write_tokenizer(folder, own)
    kind, start, forced = own.pop("kind"), own.pop("start", None), own.pop("forced", None)
    for key in ("tokenizer", "legacy", "target"):
        own.pop(key, None)
    heads, ffn, layers = (own.pop(key) for key in ("heads", "ffn", "layers"))
    for stack, count in zip(("encoder", "decoder"), layers, strict=True):
        own |= {f"{stack}_attention_heads": heads, f"{stack}_ffn_dim": ffn, f"{stack}_layers": count}
    torch.manual_seed(seed)
    package: Any = transformers  # its annotations are incomplete
    config = getattr(package, f"{kind}Config")(
        **{"vocab_size": size + 2} | own | changes, max_position_embeddings=64, init_std=0.3, layerdrop=0.0,
        decoder_start_token_id=languages[start] if start else 2,
    )  # fmt: skip
    model = getattr(package, f"{kind}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # biases and norms, which are 0 and 1 in a new model
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "embed_tokens" in parameter_name or "shared" in parameter_name:
                parameter[1] = 0.3 * torch.randn_like(parameter[1])
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.add_(torch.randn_like(model.final_logits_bias))
            model.final_logits_bias[0, 2] += 2  # so that most targets end before the limit of their length
    model.generation_config = package.GenerationConfig(
        num_beams=3, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=config.decoder_start_token_id,
        forced_bos_token_id=languages[forced] if forced else None, max_length=60,
    )  # fmt: skip
    model.save_pretrained(folder)
    return folder
