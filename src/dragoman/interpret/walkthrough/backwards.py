"""The way back through a story: each step once more, with the gradients of its quantities and how they came about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dragoman.interpret.walkthrough.step import Step, Use, text

__all__ = ["backwards"]

_Users = Mapping[str, Sequence[tuple[Step, int]]]
"""Quantity -> the steps that use it, and as which of what they use."""


def backwards(forward: Sequence[Step]) -> list[Step]:
    """From the last step to the first, those of which something has a gradient.

    The gradient of a quantity is a sum over the steps that used it, so its formula is put together from their terms.
    """
    users: defaultdict[str, list[tuple[Step, int]]] = defaultdict(list)
    for step in forward:
        for place, use in enumerate(step.uses):
            users[use.name].append((step, place))
    return [back for step in reversed(forward) if (back := _back(step, users)).quantities]


def _back(step: Step, users: _Users) -> Step:
    there = tuple(quantity for quantity in step.quantities if quantity.gradient is not None)
    formulas, uses = [], dict[Use, None]()
    for quantity in there:
        found = list(_users_of(quantity.name, users))
        if terms := _terms(found):
            formulas.append(f"∂{quantity.symbol} = {terms}")
        for user, place in found:
            uses |= dict.fromkeys(_needed(user, place))
    phrase = step.phrase
    title = text(f"{phrase.title['en']}, backwards", f"{phrase.title['zh']}（反向）")
    formula = "    ".join([*formulas, *([phrase.own] if phrase.own else [])])
    told = replace(phrase, title=title, formula=formula, note=phrase.back_note or text("", ""))
    return Step(f"{step.name}.gradient", step.box, told, there, "backward", gradients=True, uses=tuple(uses))


def _users_of(name: str, users: _Users) -> Iterator[tuple[Step, int]]:
    """Who uses a quantity; a step that only passes it on (a mask) is looked through."""
    for user, place in users.get(name, ()):
        if user.phrase.terms:
            yield user, place
        else:
            for quantity in user.quantities:
                yield from _users_of(quantity.name, users)


def _terms(found: Sequence[tuple[Step, int]]) -> str:
    """What comes back from all users; the same from several (the layers that look at the memory) as a sum."""
    terms = [user.phrase.terms[place] for user, place in found if place < len(user.phrase.terms)]
    return " + ".join(f"Σ ({term})" if terms.count(term) > 1 else term for term in dict.fromkeys(terms))


def _needed(user: Step, place: int) -> Iterator[Use]:
    """What a user's term is made of: gradients of what came out, matrices, and the values that it keeps."""
    term = user.phrase.terms[place]
    for quantity in user.quantities:
        if quantity.gradient is not None and f"∂{quantity.symbol}" in term:
            yield Use(quantity.name, "gradient")
        elif quantity.along[0] == "input" and quantity.symbol in term:
            yield Use(quantity.name)
    if user.phrase.keeps == "others":
        yield from (use for i, use in enumerate(user.uses) if i != place)
    elif user.phrase.keeps == "self":
        yield user.uses[place]
    elif user.phrase.keeps == "out":
        yield Use(user.quantities[-1].name)
