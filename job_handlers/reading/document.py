"""Access to a job's document: its file, its reading settings, and whether its generation is still current."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from job_handlers.file_kinds import FileKind
from job_handlers.reading import formats, ocr, pdf
from job_handlers.reading.ocr import WayToRead
from job_handlers.settings import HandlersSettings, credential_text, value_of
from worker_service.base.files import sha256_of
from worker_service.handlers import Context, IsCurrent, KnownDocument, Permanent

Quality = Literal["fast", "auto", "best"]

H = TypeVar("H", bound="HowToRead")

ENVIRONMENT = [HandlersSettings.ocr_quality.variable]

_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_]{1,30}(?:/[A-Za-z0-9_]{1,30})?")
LOCKED = "locked"
_PASSWORD = re.compile(r"password[\w.-]*", re.ASCII)


class HowToRead(Struct, frozen=True, kw_only=True):
    """Reading settings. In a payload, None means the document's own setting; in a document, the default."""

    languages: tuple[str, ...] | None = None
    """Tesseract codes, such as eng and deu. By default each page's language is chosen from those installed."""
    quality: Quality | None = None
    """fast: one engine; auto: a second engine rereads uncertain lines; best: it rereads every line."""
    force_ocr: bool | None = None
    """Also recognise pages that have a good text layer."""
    password_file: str | None = None
    """Credential with the password of an encrypted file.

    Its name must begin with `password`, which keeps all other secrets out of reach.
    """

    def given_settings(self) -> dict[str, Any]:
        ways = {name: getattr(self, name) for name in HowToRead.__struct_fields__}
        plain: dict[str, Any] = msgspec.to_builtins({name: way for name, way in ways.items() if way is not None})
        return plain

    @property
    def engine(self) -> WayToRead:
        return ocr.way_to_read(self.languages, self.quality or value_of(HandlersSettings.ocr_quality))


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
        if not _LANGUAGE.fullmatch(language):
            raise Permanent("PAYLOAD_INVALID", f"{language[:40]!r} is not a language", "write eng, or deu")
    if how.languages == ():
        raise Permanent("PAYLOAD_INVALID", "languages is empty", "name one at least, such as eng")
    return how


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
    if not _PASSWORD.fullmatch(name):
        raise Permanent("PAYLOAD_INVALID", "`password_file` is the name of a credential that begins with password")
    return credential_text(name).rstrip("\r\n")
