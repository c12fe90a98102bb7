"""Small tokenizers of `tokenizers`, of each kind that public checkpoints have, trained offline."""

from __future__ import annotations

import functools
import io
import json
from typing import Any

import sentencepiece as spm

TEXTS = [
    "", " ", "a", "A dog runs.", "  two  spaces and\ta tab ", "a\n\nb\n", "\n", "e\N{COMBINING ACUTE ACCENT}te\u0323",
    "\N{GRINNING FACE}\N{GRINNING FACE} !?", "\N{WAVING BLACK FLAG}\N{EMOJI MODIFIER FITZPATRICK TYPE-4} ok",
    "日本語 and Ελληνικά", "zero\N{ZERO WIDTH SPACE}width", "1,234.56 % € $ # @", "don't we'll I'm",
    "\N{FULLWIDTH LATIN SMALL LETTER W}ide \N{VULGAR FRACTION ONE HALF} \N{LATIN SMALL LIGATURE FI}ne", "x" * 50,
    "line one\r\nline two", "the bench, the field! ", "\N{NO-BREAK SPACE}two people",
]  # fmt: skip
"""Text that is difficult for tokenizers: emoji, combining characters, leading and double spaces, line ends."""
_CORPUS = [
    "a dog runs across a field", "two people sit on a bench", "dogs and people run, and don't sit",
    "The bench is in the field.\n", "  Two people\n\nrun across the bench! 12,345", "Ελληνικά ete wide",
]  # fmt: skip
KINDS = ("byte-level", "byte fallback", "wordpiece", "unigram")
_SPECIAL = {
    "byte-level": ["<|endoftext|>"],
    "byte fallback": ["<unk>", "<s>", "</s>"],
    "wordpiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "unigram": ["<pad>", "</s>", "<unk>", "<extra_id_0>"],
}
_ROLES: dict[str, tuple[str | None, ...]] = {
    "byte-level": (None, None, "<|endoftext|>", "<|endoftext|>"),
    "byte fallback": (None, "<unk>", "<s>", "</s>"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    "unigram": ("<pad>", "<unk>", None, "</s>"),
}
"""Padding, unknown, begin and end."""


def json_tokenizer(kind: str) -> Any:
    """A `tokenizers.Tokenizer` as checkpoints of GPT-2, Llama, BERT and T5 have it."""
    import tokenizers

    return tokenizers.Tokenizer.from_str(_trained(kind))


def special_ids(kind: str) -> tuple[int | None, ...]:
    """The ids of padding, unknown, begin and end."""
    model = json_tokenizer(kind)
    return tuple(None if name is None else model.token_to_id(name) for name in _ROLES[kind])


@functools.cache
def _trained(kind: str) -> str:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = _SPECIAL[kind]
    tokenizer: Any
    if kind == "byte-level":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=330, show_progress=False, initial_alphabet=alphabet)
        tokenizer.train_from_iterator(_CORPUS, trainer)
        tokenizer.add_special_tokens(special)  # the last id, as in GPT-2
    elif kind == "byte fallback":
        tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(steps)
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=330, show_progress=False, special_tokens=[*special, *bytes_])
        tokenizer.train_from_iterator(_CORPUS, trainer)
        document = json.loads(tokenizer.to_str())
        document["added_tokens"] = [each for each in document["added_tokens"] if each["content"] in special]
        return str(json.dumps(document))
    elif kind == "wordpiece":
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=90, show_progress=False, special_tokens=special)
        tokenizer.train_from_iterator(_CORPUS, trainer)
    else:
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=90, show_progress=False, special_tokens=special, unk_token="<unk>")
        tokenizer.train_from_iterator(_CORPUS, trainer)
    return str(tokenizer.to_str())


def sentencepiece_model(normalization: str = "identity", kind: str = "bpe") -> bytes:
    """As that of Llama: bytes, no normalization, every space kept."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["a dog runs across a field", "two people sit on a bench", "dogs and people run"] * 3),
        model_writer=model, vocab_size=310, model_type=kind, byte_fallback=True, minloglevel=2, unk_id=0, bos_id=1,
        eos_id=2, pad_id=-1, normalization_rule_name=normalization,
        remove_extra_whitespaces=normalization != "identity",
        hard_vocab_limit=False,
    )  # fmt: skip
    return model.getvalue()
