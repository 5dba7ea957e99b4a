"""A job's document: its file, its reading settings, and the digests under which results of its pages are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from job_handlers.file_kinds import FileKind
from job_handlers.reading import formats, ocr, pdf
from job_handlers.reading.ocr import OcrSettings
from job_handlers.reading.reading_settings import LANGUAGE_CODE, PASSWORD_CREDENTIAL, HowToRead
from job_handlers.settings import HandlersSettings, credential_text, value_of
from worker_service.base.files import sha256_of
from worker_service.handlers import Context, IsCurrent, KnownDocument, KnownPages, PageResult, Permanent, digest

H = TypeVar("H", bound=HowToRead)

# Variables that the handlers which choose an engine declare.
ENVIRONMENT = [HandlersSettings.ocr_quality.variable]

# Methods of pages that could not be read completely.
LOCKED = "locked"
PARTIAL = "partial"
"""Part of its picture is damaged, or the engine failed on part of it."""
TOO_LARGE = "too_large"
UNREADABLE = "unreadable"

PAGES_PER_MESSAGE = 50  # Pages with a text layer are read faster than saved one by one.
_DIGESTS_PER_QUESTION = 20_000

# Increase a number whenever the same page may now give another result.
LAYER_RULES = 10
OCR_RULES = 12
ROW_RULES = 3

# Load the hashing library before processes are forked, each of which would load it again.
digest([])


def document_of(context: Context[Any]) -> KnownDocument:
    if context.document is None:
        raise Permanent(
            "NO_DOCUMENT",
            f"{context.job_type} reads a document",
            "run `pagemill add PATH`, or enqueue `download` with the file as its source",
        )
    return context.document


def how_to_read(context: Context[H]) -> HowToRead:
    stored = context.document.settings if context.document is not None else ""
    try:
        how = msgspec.convert({**msgspec.json.decode(stored or "{}"), **context.payload.given_settings()}, HowToRead)
    except msgspec.MsgspecError as error:
        raise Permanent("SETTINGS_INVALID", f"how the document is to be read: {error}") from error
    for language in how.languages or ():
        if not LANGUAGE_CODE.fullmatch(language):
            raise Permanent("PAYLOAD_INVALID", f"{language[:40]!r} is not a language", "write eng, or deu")
    if how.languages == ():
        raise Permanent("PAYLOAD_INVALID", "languages is empty", "name one at least, such as eng")
    return how


def engine_settings(how: HowToRead) -> OcrSettings:
    return ocr.ocr_settings(how.languages, how.quality or value_of(HandlersSettings.ocr_quality))


def original_of(context: Context[Any]) -> Path:
    try:
        return context.inputs["original"]
    except KeyError as error:
        raise Permanent(
            "FILE_ABSENT", "the document has no published file", "read it again with `pagemill add PATH`"
        ) from error


def content_of(context: Context[Any]) -> str:
    """Return the SHA-256 of the document's file."""
    return document_of(context).content or sha256_of(original_of(context))


def check_current(context: Context[Any]) -> None:
    """Raise `Permanent` if the document has a newer generation."""
    if not context.ask(IsCurrent()).is_current:
        raise stale_error()


def stale_error() -> Permanent:
    return Permanent("STALE_GENERATION", "the document has a newer generation, which will be read instead")


def locked_error(context: Context[Any], password: str) -> Permanent:
    where = f"on the document's page, or with pagemill reindex {context.document_id} --password"
    if password:
        return Permanent("PASSWORD_WRONG", "this password does not open the PDF", f"type it again {where}")
    return Permanent("PDF_ENCRYPTED", "the PDF is locked with a password", f"type it {where}")


def password_of(context: Context[Any], how: HowToRead) -> str:
    """Return the password that a user has typed, else that of the credential; empty without both."""
    typed_file = context.inputs.get("password")
    if typed_file is not None:
        password: str = msgspec.json.decode(typed_file.read_bytes())["password"]
        return password
    name = how.password_file
    if name is None:
        return ""
    if not PASSWORD_CREDENTIAL.fullmatch(name):
        raise Permanent("PAYLOAD_INVALID", "`password_file` is the name of a credential that begins with password")
    return credential_text(name).rstrip("\r\n")


class PageSource(NamedTuple):
    content: str  # SHA-256 of the file
    library: str  # name and version of the library that reads it


def page_source(content: str, kind: FileKind) -> PageSource:
    return PageSource(content, formats.LIBRARY if kind.is_flowing else pdf.LIBRARY)


# A word such as "layer" only keeps digests of one kind apart from those of another.


def layer_digest(source: PageSource, number: int) -> str:
    # The languages of OCR cannot change a text layer.
    return digest([source.content, number, "layer", LAYER_RULES, source.library])


def ocr_digest(source: PageSource, number: int, languages: Sequence[str], quality: str, engine: str) -> str:
    # Known without opening the file.
    return digest([source.content, number, "ocr", OCR_RULES, list(languages), quality, engine, source.library])


def pixels_digest(picture_digest: str, languages: Sequence[str], quality: str, engine: str) -> str:
    # Without the file: pages with equal pixels share a result, in whichever file they are.
    return digest([picture_digest, "shown", OCR_RULES, list(languages), quality, engine])


def rows_digest(content: str, number: int, library: str) -> str:
    return digest([content, number, "rows", ROW_RULES, library])


def job_digest(page_digest: str, idempotency_key: str) -> str:
    # For a page that could not be read: only the same job finds this result, and a later job tries again.
    return digest([page_digest, "too large", idempotency_key])


def unread_page(context: Context[Any], number: int, page_digest: str, method: str, why: str) -> PageResult:
    context.log(f"page {number} is left out: {why}")
    return PageResult(number, job_digest(page_digest, context.idempotency_key), "", method)


def save_known_pages(context: Context[Any], digests: Mapping[int, str]) -> dict[int, str]:
    """Save the pages that have a stored result. Return the digests of the others."""
    unknown: dict[int, str] = {}
    remaining = iter(digests.items())
    while asked := dict(islice(remaining, _DIGESTS_PER_QUESTION)):
        known = set(context.ask(KnownPages([*asked.values()])).digests)
        results = [PageResult(number, page_digest) for number, page_digest in asked.items() if page_digest in known]
        unknown |= {number: page_digest for number, page_digest in asked.items() if page_digest not in known}
        for at in range(0, len(results), PAGES_PER_MESSAGE):
            context.save_pages(results[at : at + PAGES_PER_MESSAGE])
    return unknown
