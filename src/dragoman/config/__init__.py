"""The configuration: one TOML document, read into frozen pydantic models.

document.py   the whole document: reading, overriding, validating, writing
data.py       [data]
tokenizer.py  [tokenizer]
kinds.py      what follows from the kind of [data]
model.py      [model]
positions.py  [model.position]
recurrent.py  [model] of recurrent networks
train.py      [train] and [search]
section.py    the base class of sections
limits.py     ranges of numbers
errors.py     messages of validation errors
foreign_names.py  names of keys in other toolkits
reference.py  descriptions of all keys, read from the models
toml.py       writing of values and documents as TOML
overrides.py  key=value on the command line
paths.py      paths of the document

The names in the `__all__` of data, document, model, positions, recurrent, tokenizer and train are exported.
"""
# ruff: noqa: F403

from dragoman.config.data import *
from dragoman.config.document import *
from dragoman.config.model import *
from dragoman.config.positions import *
from dragoman.config.recurrent import *
from dragoman.config.section import Duration as Duration
from dragoman.config.tokenizer import *
from dragoman.config.train import *
