"""The command `vectors`: word vectors, learned, asked, drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import app
from dragoman.cli.streams import OutputStream, lines_of
from dragoman.errors import UsageError

if TYPE_CHECKING:
    from dragoman.vectors import WordVectors
    from dragoman.vectors.word_vectors import Neighbour

__all__ = ["vectors"]

Question = tuple[str, ...]  # one word, or the three of an analogy


@app.command()
def vectors(
    file: Annotated[Path, typer.Argument(help="Word vectors (.safetensors; .txt as word2vec has it), or a model.")],
    near: Annotated[list[str] | None, typer.Option(help="A word: the words like it. May be repeated.")] = None,
    analogy: Annotated[
        list[str] | None, typer.Option(help='"man king woman": man is to king as woman is to ...?')
    ] = None,
    count: Annotated[int, typer.Option(help="Answers to each.")] = 10,
    measure: Annotated[str, typer.Option(help="Of --near: cosine, dot, euclidean, mahalanobis.")] = "cosine",
    picture: Annotated[Path | None, typer.Option(help="Draw the words asked for and found: an SVG file.")] = None,
    questions: Annotated[Path | None, typer.Option(help="A file of analogies: how many are right.")] = None,
    train: Annotated[list[Path] | None, typer.Option(help="First learn FILE from this text. May be repeated.")] = None,
    kind: Annotated[str, typer.Option(help="With --train: skipgram or cbow.")] = "skipgram",
    size: Annotated[int, typer.Option(help="With --train: numbers a word.")] = 100,
    min_count: Annotated[int, typer.Option(help="With --train: rarer words are left out.")] = 5,
) -> None:
    """Word vectors: learn them from text, ask for neighbours and analogies, draw them."""
    from dragoman.vectors import WordVectors

    words = _trained(file, train, kind, size, min_count) if train else WordVectors.load(file)
    asked: dict[Question, list[Neighbour]] = {}
    for word in near or []:
        asked[word,] = words.neighbours(word, count, measure)  # type: ignore[arg-type]
    for text in analogy or []:
        asked[_three(text)] = words.analogy(*_three(text), count)
    with OutputStream(None) as write:
        for question, answers in asked.items():
            for answer in answers:
                write(f"{' '.join(question)}\t{answer.word}\t{answer.value:.4f}")
        if questions is not None:
            from dragoman.vectors.questions import read_questions

            for line in words.accuracy(read_questions(questions)).lines():
                write(line)
    if picture is not None:
        _draw(words, asked, picture)
    if not (asked or questions):
        typer.echo(f"{file}: {len(words):,} words, {words.matrix.shape[1]} numbers each", err=True)


def _three(text: str) -> tuple[str, str, str]:
    match text.split():
        case [a, b, c]:
            return a, b, c
        case parts:
            raise UsageError(f'--analogy "{text}": {len(parts)} words; accepted are three, such as "man king woman"')


def _trained(file: Path, texts: list[Path], kind: Any, size: int, min_count: int) -> WordVectors:
    from dragoman.vectors import train_vectors
    from dragoman.vectors.files import check_target

    def lines() -> Iterator[str]:
        for text in texts:
            yield from lines_of(text)

    check_target(file)
    words = train_vectors(lines(), kind, size=size, min_count=min_count, log=lambda line: typer.echo(line, err=True))
    words.save(file)
    typer.echo(f"{file}: written", err=True)
    return words


def _draw(words: WordVectors, asked: dict[Question, list[Neighbour]], path: Path) -> None:
    """Each word asked for and its answers; of an analogy the first answer only, with its two arrows."""
    shown: list[str] = []
    arrows: list[tuple[str, str]] = []
    for question, answers in asked.items():
        found = [answer.word for answer in answers[: 1 if len(question) == 3 else None]]
        shown += [*question, *found]
        if len(question) == 3 and found:
            arrows += [(question[0], question[1]), (question[2], found[0])]
    if not shown:
        raise UsageError("--picture has no words to draw; ask with --near or --analogy")
    words.picture(shown, path, arrows)
    typer.echo(f"{path}: written", err=True)
