"""Uploaded documents, their translation in the background, and results that wait to be fetched.

`dragoman.documents` is imported where it is used: most servers do without it, and it takes 1.6 MB.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from dragoman.errors import DragomanError
from dragoman.pipelines.glossary import Glossary, Term
from dragoman.pipelines.translation import Translator
from dragoman.serve.database import DatabaseError, DocumentLimit, DocumentStore
from dragoman.serve.http import INTERNAL_ERROR, BadRequest, Overloaded

_LOG = logging.getLogger(__name__)
_KEPT_SECONDS = 600.0
_OF_ALL, _OF_CLIENT = DocumentLimit(1_000, 256 << 20), DocumentLimit(250, 64 << 20)


@dataclass(frozen=True)
class Upload:
    """An uploaded file with the other fields of its form.  format: a format of `translate_document`."""

    name: str
    data: bytes
    format: str
    fields: dict[str, str]


async def read_upload(request: Request, body: bytes) -> Upload:
    """Return the file of a multipart form.  Raises BadRequest, and UsageError for an unknown format."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise BadRequest("Invalid request: missing file parameter; send a multipart form")

    async def stream() -> AsyncIterator[bytes]:
        yield body

    try:
        form: FormData = await MultiPartParser(request.headers, stream(), max_files=1, max_fields=20).parse()  # type: ignore[arg-type]
    except (MultiPartException, KeyError, ValueError) as error:
        raise BadRequest(f"Invalid request: the form is invalid ({error})") from None
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise BadRequest("Invalid request: missing file parameter")
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        from dragoman.documents import document_format

        name = PurePosixPath((fields.get("filename") or file.filename or "").replace("\\", "/")).name
        return Upload(name, await file.read(), document_format(name, None), fields)
    finally:
        await form.close()


@dataclass(frozen=True)
class Document:
    """The bytes of a document.

    characters: of its text in the source language, once it is translated.  terms: how often it has a term of the
    glossary, which was applied or not.
    """

    data: bytes
    characters: int = 0
    terms: Counter[Term] = field(default_factory=Counter)

    def term_report(self) -> list[dict[str, Any]]:
        """Return the terms in the order of their first occurrence; applied: at all `occurrences`, less the `missed`."""
        report = []
        for source, target in dict.fromkeys((term.source, term.target) for term in self.terms):
            done, missed = (self.terms[Term(source, target, applied)] for applied in (True, False))
            row = {"source": source, "target": target, "applied": not missed}
            report.append(row | {"occurrences": done + missed, "missed": missed})
        return report


def upload_text(upload: Upload) -> str:
    """Return the text of a document, to identify its language.  Raises UsageError and DataError."""
    from dragoman.documents import document_text

    return document_text(upload.data, upload.format)


def translate_upload(
    format: str, target: str, glossary: Glossary | None, translator: Translator, document: Document
) -> Document:
    """Translate a document in memory.  target: language of the model to which the glossary applies."""
    from dragoman.documents import translate_bytes
    from dragoman.documents.segments import CountingTranslator

    counter = CountingTranslator(translator)
    settings: dict[str, Any] = {"glossary": glossary} if translator.languages[1] == target else {}
    data, report = translate_bytes(cast(Translator, counter), document.data, format, **settings)
    return Document(data, document.characters or report.characters, counter.terms)


@dataclass
class Job:
    """A document that is being translated, or was.

    client: name of the sender.  key: secret that reads the result.  size: of the upload in bytes.  task: None if it
    runs, or ran, elsewhere.  error: message for clients; failure: the exception.
    """

    client: str
    name: str
    key: str
    size: int
    task: asyncio.Task[None] | None
    begun: float = field(default_factory=time.monotonic)
    result: Document | None = None
    error: str | None = None
    failure: Exception | None = None

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self.size if self.result is None else len(self.result.data)


class DocumentJobs:
    """Documents, ten minutes after their upload: at most 1,000, of 256 MB together; a quarter of both per client.

    database: file that several servers share, so that each of them knows the documents of the others; None = in memory.
    One event loop uses it; the database is used in threads, because it may have to wait for other servers.
    """

    def __init__(self, database: Path | None = None) -> None:
        self._jobs: dict[str, Job] = {}
        """All jobs; with a database, only the unfinished ones."""
        self._store = DocumentStore(database, _KEPT_SECONDS, (_OF_ALL, _OF_CLIENT)) if database else None

    async def start(self, client: str, name: str, size: int, work: Coroutine[Any, Any, Document]) -> tuple[str, Job]:
        """Begin to translate an upload of `size` bytes; return the identifier of the job.  Raises Overloaded."""
        identifier, key = secrets.token_hex(16).upper(), secrets.token_hex(32).upper()  # as DeepL's
        job = Job(client, name, key, size, None)
        try:
            await self._reserve(identifier, job)
        except BaseException:
            work.close()
            raise
        self._jobs[identifier] = job
        job.task = asyncio.create_task(self._run(identifier, job, work))
        return identifier, job

    async def _reserve(self, identifier: str, job: Job) -> None:
        if self._store is None:
            await self.drop_old()
            jobs = self._jobs.values()
            of_client = [other.held for other in jobs if other.client == job.client]
            is_free = _OF_ALL.allows([other.held for other in jobs], job.size)
            is_free = is_free and _OF_CLIENT.allows(of_client, job.size)
        else:
            is_free = await asyncio.to_thread(self._store.add, identifier, job.client, job.name, job.key, job.size)
        if not is_free:
            raise Overloaded(60, "too many documents wait to be fetched")

    async def _run(self, identifier: str, job: Job, work: Coroutine[Any, Any, Document]) -> None:
        try:
            job.result = await work
        except (DragomanError, Overloaded, BadRequest) as error:
            job.error, job.failure = str(error), error
        except Exception as error:
            job.error, job.failure = INTERNAL_ERROR, error
            _LOG.error("the translation of a document failed", exc_info=error)
        if self._store is not None:
            data, characters = (None, 0) if job.result is None else (job.result.data, job.result.characters)
            with suppress(DatabaseError):  # such as a full disk; then only this server knows the document
                await asyncio.to_thread(self._store.finish, identifier, data, characters, job.error)
                self._jobs.pop(identifier, None)

    async def finished(
        self, client: str, name: str, size: int, work: Coroutine[Any, Any, Document]
    ) -> tuple[str, Document]:
        """Translate, and return the result and the identifier under which it waits.

        Raises Overloaded, and the exception of `work`.
        """
        identifier, job = await self.start(client, name, size, work)
        assert job.task is not None
        try:
            await job.task  # cancelled with this call
        except asyncio.CancelledError:
            await self.forget(identifier)
            raise
        if job.result is None:
            await self.forget(identifier)
            assert job.failure is not None
            raise job.failure
        return identifier, job.result

    async def find(self, identifier: str) -> Job | None:
        """Return a job."""
        job = self._jobs.get(identifier)
        if job is not None and job.begun < time.monotonic() - _KEPT_SECONDS:
            return None
        if job is not None or self._store is None:
            return job
        row = await asyncio.to_thread(self._store.find, identifier)
        if row is None:
            return None
        name, key, size, data, characters, error = row
        return Job("", name, key, size, None, result=None if data is None else Document(data, characters), error=error)

    async def forget(self, *identifiers: str) -> None:
        """Drop jobs, and cancel the unfinished ones."""
        for identifier in identifiers:
            job = self._jobs.pop(identifier, None)
            if job is not None and job.task is not None:
                job.task.cancel()
        if self._store is not None and identifiers:
            await asyncio.to_thread(self._store.delete, *identifiers)

    async def drop_old(self) -> None:
        """Drop expired documents; called regularly."""
        limit = time.monotonic() - _KEPT_SECONDS
        await self.forget(*[identifier for identifier, job in self._jobs.items() if job.begun < limit])
        if self._store is not None:
            await asyncio.to_thread(self._store.drop_old)

    async def close(self) -> None:
        """Cancel unfinished jobs."""
        with suppress(DatabaseError):  # other servers delete its documents once they expire
            await self.forget(*self._jobs)
        if self._store is not None:
            self._store.close()
