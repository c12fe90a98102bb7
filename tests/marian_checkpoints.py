"""Random MarianMT checkpoints in the layout of OPUS-MT, built offline by `transformers`."""

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
    ">>fra<< A dog runs.", ">>xyz<< unknown tag", "people run", "a a a a", "Dogs and people and dogs.",
]  # fmt: skip
_SOURCE = ["a dog runs across a field", "two people sit on a bench", "dogs and people run", "the bench is in the field"]
_TARGET = ["ein hund läuft über ein feld", "zwei leute sitzen auf einer bank", "hunde und leute laufen"]
_TAGS = [">>fra<<", ">>deu<<"]

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "tied": {
        "d_model": 24, "encoder_ffn_dim": 52, "decoder_ffn_dim": 52, "encoder_attention_heads": 3,
        "decoder_attention_heads": 3, "encoder_layers": 2, "decoder_layers": 3, "activation_function": "swish",
        "scale_embedding": True,
    },
    "one layer, unscaled": {
        "d_model": 10, "encoder_ffn_dim": 7, "decoder_ffn_dim": 7, "encoder_attention_heads": 5,
        "decoder_attention_heads": 5, "encoder_layers": 1, "decoder_layers": 1, "activation_function": "gelu",
        "scale_embedding": False,
    },
    "two vocabularies": {
        "d_model": 18, "encoder_ffn_dim": 33, "decoder_ffn_dim": 33, "encoder_attention_heads": 3,
        "decoder_attention_heads": 3, "encoder_layers": 3, "decoder_layers": 1, "activation_function": "relu",
        "scale_embedding": True, "share_encoder_decoder_embeddings": False,
    },
    "untied": {
        "d_model": 16, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "activation_function": "gelu_new",
        "scale_embedding": True, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""By name, sizes and variants; the first is that of OPUS-MT, smaller."""


@functools.cache
def _model(lines: tuple[str, ...], size: int, kind: str, normalization: str) -> bytes:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        minloglevel=2,
        hard_vocab_limit=False,
        normalization_rule_name=normalization,
    )
    return model.getvalue()


def _pieces(model: bytes) -> list[str]:
    processor = spm.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


def _vocabulary(pieces: list[str], drop: int = 2) -> dict[str, int]:
    """`</s>` and `<unk>` first, `<pad>` last, as in OPUS-MT; the last `drop` pieces are not listed."""
    kept = sorted(set(pieces))[:-drop]
    return {piece: i for i, piece in enumerate(["</s>", "<unk>", *kept, *_TAGS, "<pad>"])}


def marian_checkpoint(
    folder: Path,
    name: str = "tied",
    seed: int = 1,
    safetensors: bool = True,
    kind: str = "unigram",
    normalization: str = "nmt_nfkc",
    **changes: Any,
) -> Path:
    """Write a checkpoint with random weights.  changes: of config.json."""
    import transformers

    folder.mkdir(parents=True)
    models = _model(tuple(_SOURCE * 3), 40, kind, normalization), _model(tuple(_TARGET * 3), 44, kind, normalization)
    two = CONFIGURATIONS[name].get("share_encoder_decoder_embeddings") is False and name == "two vocabularies"
    lists = [_pieces(model) for model in models]
    vocabularies = [_vocabulary(side) for side in lists] if two else [_vocabulary(lists[0] + lists[1])]
    # transformers uses one id of padding for both sides
    pad = min(map(len, vocabularies)) - 1
    for vocabulary in vocabularies:
        at = next(piece for piece, i in vocabulary.items() if i == pad)
        vocabulary[at], vocabulary["<pad>"] = vocabulary["<pad>"], pad
    torch.manual_seed(seed)
    package: Any = transformers  # its annotations are incomplete
    config = package.MarianConfig(
        **CONFIGURATIONS[name] | changes, vocab_size=len(vocabularies[0]), decoder_vocab_size=len(vocabularies[-1]),
        max_position_embeddings=64, pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad, init_std=0.3,
        forced_eos_token_id=0,
    )  # fmt: skip
    model = package.MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # biases and norms, which are 0 and 1 in a new model
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "embed_tokens" in parameter_name or "shared" in parameter_name:
                parameter[pad] = 0.3 * torch.randn_like(parameter[pad])
        model.final_logits_bias.add_(torch.randn_like(model.final_logits_bias))
        model.final_logits_bias[0, 0] += 2  # so that most targets end before the limit of their length
    model.generation_config = package.GenerationConfig(
        bad_words_ids=[[pad]], num_beams=4, pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad,
        renormalize_logits=name == "tied", max_length=64,
    )  # fmt: skip
    model.save_pretrained(folder)
    if not safetensors:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    for file, content in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / file).write_bytes(content)
    for file, vocabulary in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=False):
        (folder / file).write_text(json.dumps(vocabulary, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({
            "source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer", "separate_vocabs": two,
        })
    )  # fmt: skip
    return folder
