"""A `tokenizer.json` for the sentencepiece model of a Llama checkpoint: BPE with byte fallback, without normalization.

The merges of BPE are those pairs of pieces that form another piece, the most frequent ones (with the highest score)
first.
"""

from __future__ import annotations

import sentencepiece as spm

from dragoman.extras import extra_package
from dragoman.tokenizers import Tokenizer
from dragoman.tokenizers.json_pieces import TokenIds

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_SAMPLES = (
    "", "a", "A line of text.", "  two  spaces and\ta tab ", "one\n\ntwo\n", "1,234.56 % € $ # @",
    "e\N{COMBINING ACUTE ACCENT} \N{LATIN SMALL LIGATURE FI}ne", "日本語 and Ελληνικά", "\N{GRINNING FACE} !?",
    "x" * 50,
)  # fmt: skip


def sentencepiece_json(content: bytes) -> bytes:
    """Raises ValueError for a model that is damaged or of another kind, UsageError without `tokenizers`."""
    package = extra_package("tokenizers", "tokenizers", "a sentencepiece model (tokenizer.model)")
    try:
        model = spm.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise ValueError(f"tokenizer.model cannot be read by sentencepiece: {error}") from None
    size = model.get_piece_size()
    vocabulary = {str(model.id_to_piece(token)): token for token in range(size)}
    try:
        bpe = package.models.BPE(
            vocab=vocabulary,
            merges=_merges(model, vocabulary),
            unk_token=model.id_to_piece(model.unk_id()),
            fuse_unk=True,
            byte_fallback=True,
        )
        built = package.Tokenizer(bpe)
    except Exception as error:  # the package has no exception classes of its own
        raise ValueError(f"tokenizer.model: {error}") from None
    normalizers, decoders = package.normalizers, package.decoders
    built.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    built.decoder = decoders.Sequence(steps)
    special = [str(model.id_to_piece(i)) for i in range(size) if model.is_control(i) or model.is_unknown(i)]
    built.add_special_tokens([package.AddedToken(name, special=True, normalized=False) for name in special])
    found: bytes = built.to_str().encode()
    _check(model, found)
    return found


def _merges(model: spm.SentencePieceProcessor, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that form a piece, the best piece first."""
    regular = [
        token
        for token in vocabulary.values()
        if not (model.is_control(token) or model.is_unknown(token) or model.is_byte(token) or model.is_unused(token))
    ]
    pairs = []
    for token in sorted(regular, key=lambda token: (-model.get_score(token), token)):
        piece = str(model.id_to_piece(token))
        splits = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
        known = [pair for pair in splits if pair[0] in vocabulary and pair[1] in vocabulary]
        pairs += sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    return pairs


def _check(model: spm.SentencePieceProcessor, content: bytes) -> None:
    """Raise ValueError if a sample has other ids than in sentencepiece."""
    size = model.get_piece_size()
    ids = TokenIds((None, model.unk_id(), model.bos_id(), model.eos_id()), size)
    tokenizer = Tokenizer(content, None, ids.file())
    # The score of a BPE piece is its rank, that of a unigram piece a log-probability.
    is_bpe = all(float(model.get_score(token)).is_integer() for token in range(size))
    for text in _SAMPLES:
        if not is_bpe or [ids.theirs[token] for token in tokenizer.encode_target(text)[:-1]] != model.encode(text):
            raise ValueError(
                "tokenizer.model is not BPE with byte fallback and without normalization, as that of Llama; convert it "
                "to tokenizer.json with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
