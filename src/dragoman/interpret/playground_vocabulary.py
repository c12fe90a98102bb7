"""The sentencepiece models of a vocabulary as `tokenizer.js` reads them."""

from __future__ import annotations

from typing import Any

import sentencepiece as spm

from dragoman.io.reading import protobuf_fields
from dragoman.tokenizers import EOS, Tokenizer
from dragoman.tokenizers.pieces import SentencePieces

_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # TrainerSpec.ModelType
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "kind": ("bpe", "unigram", "char"),
    "normalization": ("nmt_nfkc", "nfkc", "identity"),
}
_USER_DEFINED = 4  # SentencePiece.Type


def text_settings(processor: spm.SentencePieceProcessor) -> dict[str, Any]:
    """Return the pieces, kind and normalization of a sentencepiece model, read from its protobuf message.

    pieces: [text, score] by id; the score of those to which no text is encoded (special pieces, bytes) is None.
    """
    message = list(protobuf_fields(processor.serialized_model_proto()))
    trainer = dict(protobuf_fields(b"".join(content for number, content in message if number == 2)))
    normalizer = dict(protobuf_fields(b"".join(content for number, content in message if number == 3)))
    return {
        "pieces": [
            [processor.id_to_piece(i), None if _is_special(processor, i) else processor.get_score(i)]
            for i in range(processor.get_piece_size())
        ],
        "kind": _KINDS.get(trainer.get(3, 1), "other"),
        "normalization": normalizer.get(1, b"").decode(),
        "prefix": bool(normalizer.get(3, 1)),  # add_dummy_prefix
        "trim": bool(normalizer.get(4, 1)),  # remove_extra_whitespaces
    }


def unsupported_vocabulary(vocabulary: Any) -> list[str]:
    """Return what `tokenizer.js` lacks for a vocabulary; an empty list if nothing."""
    pieces = vocabulary.pieces if isinstance(vocabulary, Tokenizer) else (None,)
    sides = [side.model for side in dict.fromkeys(pieces) if isinstance(side, SentencePieces)]
    if len(sides) < len(set(pieces)):
        return ["its tokenizer has ids that are not those of a sentencepiece model"]
    found = []
    for side in sides:
        settings = text_settings(side)
        found += [
            f"tokenizer.{key} = {settings[key]!r}; accepted: {', '.join(map(repr, accepted))}"
            for key, accepted in _ACCEPTED.items()
            if settings[key] not in accepted
        ]
        if words := [word for word in _user_defined(side) if word != "\n"]:
            found.append(f"its tokenizer has user-defined tokens, such as {words[0]!r}")
    plain = [[*side.encode("a"), EOS] for side in (sides[0], sides[-1])]
    if [vocabulary.encode_source("a"), vocabulary.encode_target("a")] != plain:
        found.append("its sentences are surrounded by other tokens than the end of sentence, such as languages")
    return found


def _is_special(processor: spm.SentencePieceProcessor, i: int) -> bool:
    return bool(processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i) or processor.is_byte(i))


def _user_defined(processor: spm.SentencePieceProcessor) -> list[str]:
    pieces = [
        dict(protobuf_fields(content))
        for number, content in protobuf_fields(processor.serialized_model_proto())
        if number == 1
    ]
    return [piece[1].decode() for piece in pieces if piece.get(3) == _USER_DEFINED]
