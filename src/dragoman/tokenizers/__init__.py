"""How text becomes token ids and ids become text: kinds of pieces with one interface, tokenizers and their training."""

from dragoman.tokenizers.pieces import BOS, EOS, PAD, SPECIAL_NAMES, UNK
from dragoman.tokenizers.tokenizer import (
    LABELS_FILE,
    LabelVocabulary,
    Tokenizer,
    TokenizerFiles,
    Vocabulary,
    load_vocabulary,
)
from dragoman.tokenizers.training import learn_tokenizer, train_tokenizer

__all__ = [
    "BOS", "EOS", "LABELS_FILE", "PAD", "SPECIAL_NAMES", "UNK", "LabelVocabulary", "Tokenizer", "TokenizerFiles",
    "Vocabulary", "learn_tokenizer", "load_vocabulary", "train_tokenizer",
]  # fmt: skip
