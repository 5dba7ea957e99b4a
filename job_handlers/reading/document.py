"""Access to a job's document: its file, its reading settings, and whether its generation is still current."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from job_handlers.file_kinds import FileKind
from job_handlers.reading import formats, ocr, pdf
from job_handlers.reading.ocr import OcrSettings
from job_handlers.reading.reading_settings import LANGUAGE_CODE, PASSWORD_CREDENTIAL, HowToRead
from job_handlers.settings import HandlersSettings, credential_text, value_of
from worker_service.base.files import sha256_of
from worker_service.handlers import Context, IsCurrent, KnownDocument, Permanent

H = TypeVar("H", bound=HowToRead)

ENVIRONMENT = [HandlersSettings.ocr_quality.variable]

LOCKED = "locked"


def document_of(context: Context[Any]) -> KnownDocument:
    if context.document is None:
        raise Permanent(
            "NO_DOCUMENT",
            f"{context.job_type} reads a document",
            "run `pagemill add PATH`, or enqueue `download` with the file as its source",
        )
    return context.document


def how_to_read(context: Context[H]) -> HowToRead:
    remembered = context.document.settings if context.document is not None else ""
    try:
        how = msgspec.convert(
            {**msgspec.json.decode(remembered or "{}"), **context.payload.given_settings()}, HowToRead
        )
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
    if known := document_of(context).content:
        return known
    return sha256_of(original_of(context))


def library_of(kind: FileKind) -> str:
    return formats.LIBRARY if kind.is_flowing else pdf.LIBRARY


def check_current(context: Context[Any]) -> None:
    """Raise `Permanent` if the document has a newer generation."""
    refuse_stale(is_stale=not context.ask(IsCurrent()).is_current)


def locked_error(context: Context[Any], password: str) -> Permanent:
    where = f"on the document's page, or with pagemill reindex {context.document_id} --password"
    if password:
        return Permanent("PASSWORD_WRONG", "this password does not open the PDF", f"type it again {where}")
    return Permanent("PDF_ENCRYPTED", "the PDF is locked with a password", f"type it {where}")


def refuse_stale(*, is_stale: bool) -> None:
    if is_stale:
        raise Permanent("STALE_GENERATION", "the document has a newer generation, which will be read instead")


def password_of(context: Context[Any], how: HowToRead) -> str:
    """Return the password that a user has typed, else that of the credential; empty without both."""
    if (typed := context.inputs.get("password")) is not None:
        password: str = msgspec.json.decode(typed.read_bytes())["password"]
        return password
    if (name := how.password_file) is None:
        return ""
    if not PASSWORD_CREDENTIAL.fullmatch(name):
        raise Permanent("PAYLOAD_INVALID", "`password_file` is the name of a credential that begins with password")
    return credential_text(name).rstrip("\r\n")
