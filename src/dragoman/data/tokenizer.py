"""Aliases for imports written for earlier versions; the code is in `dragoman.tokenizers`."""

from dragoman.tokenizers import BOS, EOS, PAD, UNK, Tokenizer, learn_tokenizer, train_tokenizer  # noqa: F401
