"""The lists of tokens of a CTranslate2 model and their special tokens."""

from __future__ import annotations

from dragoman.formats.importing.ctranslate2_files.checkpoint import CTranslate2Checkpoint
from dragoman.formats.importing.family import ProblemList
from dragoman.formats.importing.listed_vocabulary import TokenList

TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>"}
"""Special tokens of `config.json`, with their defaults."""
_PADDING = ("<pad>", "<blank>", "[PAD]")


def token_lists(checkpoint: CTranslate2Checkpoint) -> list[TokenList]:
    """Return the list of both sides, or of the source and of the target.  Raises ProblemList."""
    settings = checkpoint.settings
    unknown, begin, end, start = (settings.get(key, default) for key, default in TOKENS.items())
    sides, problems = checkpoint.vocabularies, []
    lists = []
    for index, (name, tokens) in enumerate(sides):
        numbers = {token: i for i, token in enumerate(tokens)}
        if len(numbers) < len(tokens):
            problems.append(f"{name}: the same token twice")
        is_target = index == len(sides) - 1
        required = {"unk_token": unknown, "eos_token": end} | ({"decoder_start_token": start} if is_target else {})
        for key, token in required.items():
            if token not in numbers:
                problems.append(f"{name}: no token {token!r}, the {key} of config.json")
        first = start if is_target else begin
        if settings.get("decoder/start_from_zero_embedding") and is_target:
            first = None  # a vector of zeros
        ids = unk, bos, eos = tuple(numbers.get(token, -1) for token in (unknown, first, end))
        padding = [numbers[token] for token in _PADDING if token in numbers and numbers[token] not in ids]
        lists.append(TokenList(tokens, (padding[0] if padding else -1, unk, bos, eos), name))
    if problems:
        raise ProblemList(problems)
    return lists
