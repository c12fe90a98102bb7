"""Aliases for imports written for earlier versions; the code is in `dragoman.tokenizers`."""

from dragoman.tokenizers import BOS as BOS
from dragoman.tokenizers import EOS as EOS
from dragoman.tokenizers import PAD as PAD
from dragoman.tokenizers import UNK as UNK
from dragoman.tokenizers import Tokenizer as Tokenizer
from dragoman.tokenizers import learn_tokenizer as learn_tokenizer
from dragoman.tokenizers import train_tokenizer as train_tokenizer
