"""Names that documentation of earlier versions imports from this module; the code is in `dragoman.tokenizers`."""

from dragoman.tokenizers import BOS, EOS, PAD, UNK, Tokenizer, learn_tokenizer, train_tokenizer

__all__ = ["BOS", "EOS", "PAD", "UNK", "Tokenizer", "learn_tokenizer", "train_tokenizer"]
