"""How text becomes token ids and ids become text: kinds of pieces with one interface, tokenizers and their training."""

from dragoman.tokenizers.ids import BOS, EOS, PAD, SPECIAL_NAMES, UNK
from dragoman.tokenizers.tokenizer import Tokenizer, TokenizerFiles
from dragoman.tokenizers.training import learn_tokenizer, train_tokenizer
from dragoman.tokenizers.vocabulary import LABELS_FILE, LabelVocabulary, Vocabulary, load_vocabulary

__all__ = [
    "BOS", "EOS", "LABELS_FILE", "PAD", "SPECIAL_NAMES", "UNK", "LabelVocabulary", "Tokenizer", "TokenizerFiles",
    "Vocabulary", "learn_tokenizer", "load_vocabulary", "train_tokenizer",
]  # fmt: skip
