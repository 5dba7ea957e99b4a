"""Mails in files (.eml). Attachments become documents of their own."""

from __future__ import annotations

import email
from codecs import BOM_UTF8
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from job_handlers.encodings import decode
from job_handlers.file_kinds import FORMATS, FileKind
from job_handlers.reading.formats import PictureReference, Piece, StyledText, UnreadableDocument, tables_in, web

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_PICTURES = ("image/png", "image/jpeg", "image/tiff", "image/gif", "image/webp", "image/bmp", "image/x-ms-bmp")
_LOCKED = ("application/pkcs7-mime", "application/x-pkcs7-mime", "application/pgp-encrypted")
_BOUNCE = "message/delivery-status"  # A report about a mail that could not be delivered.
_BYTES_MAX = 128 << 20  # Python's parser takes six times as much memory.
_HEADER_CHARACTERS_MAX = 64 << 10
_PART_HEADER_CHARACTERS_MAX = 4 << 10
"""Python's parser takes quadratic time: 38 s for 64 KiB of a hostile Content-Disposition."""
_DEPTH_MAX = 50
_COMPLETE_SHARE_MIN = 0.5
"""Share of the words of the longest alternative. A text with less only says that there is an HTML text."""
# Python's parser raises these for some headers that occur in practice.
_PARSER_ERRORS = (ValueError, LookupError, AttributeError, TypeError, RecursionError, AssertionError)


class _PolicyWithShortHeaders(policy.EmailPolicy):
    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[: _header_characters_max(name)]

    def header_fetch_parse(self, name: str, value: str) -> Any:
        try:
            return super().header_fetch_parse(name, value)
        except RecursionError:
            return " ".join(value.split())


_POLICY = _PolicyWithShortHeaders()


def _header_characters_max(name: str) -> int:
    return _HEADER_CHARACTERS_MAX if name.title() in _HEADERS else _PART_HEADER_CHARACTERS_MAX


class MailDocument:
    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        if path.stat().st_size > _BYTES_MAX:
            raise UnreadableDocument(f"the mail is larger than {_BYTES_MAX >> 20} MiB")
        try:
            with path.open("rb") as file:
                if file.read(len(BOM_UTF8)) != BOM_UTF8:
                    file.seek(0)
                message = email.message_from_binary_file(file, policy=_POLICY)
        except _PARSER_ERRORS as error:
            raise UnreadableDocument(f"the mail is broken ({error})") from error
        assert isinstance(message, EmailMessage)
        self._message = message
        cut_headers = {
            name
            for name, value in message.raw_items()
            if name.title() in _HEADERS and len(value) >= _HEADER_CHARACTERS_MAX
        }
        if cut_headers:
            names = ", ".join(sorted(cut_headers))
            self.notes.append(f"longer than {_HEADER_CHARACTERS_MAX >> 10} KiB and cut: {names}")

    def pieces(self) -> Iterator[Piece]:
        if any(part.get_content_type() in _LOCKED for part in (self._message, *self._leaf_parts())):
            self.notes.append("its text is encrypted, or within a signature: it is left out")
        for name in _HEADERS:
            if value := self._header(name):
                yield StyledText(f"{name}: {value}")
        yield ""
        pieces = list(self._texts(self._message, 0))
        yield from pieces
        shown_keys = {piece.key for piece in pieces if isinstance(piece, PictureReference)}
        for part in self._leaf_parts():
            key = _content_id(part)
            if _is_inline_picture(part) and key not in shown_keys:
                yield PictureReference(key)
        for name, _ in self.attachments():
            yield StyledText(f"Attached: {name}")

    def picture(self, key: str) -> bytes:
        if key.startswith("data:"):
            return web.decode_data_url(key)
        part = self._inline_pictures.get(key)
        return _bytes_of(part) if part is not None else b""

    def attachments(self) -> Iterator[tuple[str, EmailMessage]]:
        for number, part in enumerate(self._leaf_parts(), 1):
            if not (_is_inline_picture(part) or _is_text(part)):
                yield _name_of(part) or f"attachment {number}{_suffix_of(part)}", part

    def _header(self, name: str) -> str:
        try:
            value = str(self._message.get(name, ""))
        except _PARSER_ERRORS:
            value = self._raw_header(name)
        if "\ufffd" in value:
            # Some programs write a header in the encoding of the text, without saying so.
            raw_bytes = self._raw_header(name).encode("ascii", "surrogateescape")
            charset = web.codec_for(self._message.get_content_charset(""))
            value = raw_bytes.decode(charset, "replace") if charset else decode(raw_bytes)[0]
        return " ".join(value.split())

    def _raw_header(self, name: str) -> str:
        return next((str(raw) for key, raw in self._message.raw_items() if key.lower() == name.lower()), "")

    def _texts(self, part: EmailMessage, depth: int) -> Iterator[Piece]:
        """Yield the texts of a part: of alternatives, the first complete one, if possible with tables."""
        if depth > _DEPTH_MAX:
            return
        if part.is_multipart() and part.get_content_maintype() == "multipart":
            parts = _parts_of(part)
            if part.get_content_subtype() != "alternative":
                for inner_part in parts:
                    yield from self._texts(inner_part, depth + 1)
                return
            alternatives = [list(self._texts(alternative, depth + 1)) for alternative in parts]
            words_min = _COMPLETE_SHARE_MIN * max(map(_count_words, alternatives), default=0)
            complete = [pieces for pieces in alternatives if _count_words(pieces) >= words_min]
            yield from next(filter(_has_tables, complete), complete[0] if complete else [])
        # A mail that is one text is shown, even if it is marked as an attachment.
        elif _is_text(part) or (part is self._message and part.get_content_maintype() == "text"):
            text = _text_of(part)
            if part.get_content_subtype() == "html":
                yield from web.pieces_of(iter([text]), self._picture_key)
            else:
                yield from text.splitlines()

    def _picture_key(self, address: str) -> str | None:
        if not address.startswith("cid:"):
            return web.embedded_address(address)
        content_id = unquote(address.removeprefix("cid:"))
        return content_id if content_id in self._inline_pictures else None

    @cached_property
    def _inline_pictures(self) -> dict[str, EmailMessage]:
        # Of parts with the same id, the first is taken.
        return {_content_id(part): part for part in reversed(list(self._leaf_parts())) if _is_inline_picture(part)}

    def _leaf_parts(self) -> Iterator[EmailMessage]:
        """Yield the parts in their order, except the mail itself if it is a text."""
        pending_parts = [self._message]
        while pending_parts:
            part = pending_parts.pop()
            if part.get_content_maintype() == "multipart" and part.is_multipart():
                pending_parts += reversed(_parts_of(part))
            elif part is not self._message or not _is_text(part):
                yield part


def content_of(part: EmailMessage) -> bytes:
    if part.get_content_type() != "message/rfc822":
        return _bytes_of(part)
    # The payload of an attached mail is a list with one message.
    payload = part.get_payload()
    try:
        return bytes(payload[0]) if isinstance(payload, list) and payload else _bytes_of(part)  # type: ignore[arg-type]
    except _PARSER_ERRORS as error:
        raise UnreadableDocument(f"it is broken ({error})") from error


def _parts_of(part: EmailMessage) -> list[EmailMessage]:
    return [inner_part for inner_part in part.get_payload() if isinstance(inner_part, EmailMessage)]


def _is_text(part: EmailMessage) -> bool:
    kind = part.get_content_maintype()
    has_no_boundary = kind == "multipart" and not part.is_multipart()
    is_text = kind == "text" or has_no_boundary or part.get_content_type() == _BOUNCE
    return is_text and not _name_of(part) and not _is_attachment(part)


def _is_inline_picture(part: EmailMessage) -> bool:
    return part.get_content_type() in _PICTURES and bool(_content_id(part)) and not _is_attachment(part)


def _is_attachment(part: EmailMessage) -> bool:
    try:
        return part.is_attachment()
    except _PARSER_ERRORS:
        return True


def _name_of(part: EmailMessage) -> str:
    try:
        name = part.get_filename()
    except _PARSER_ERRORS:
        return ""
    return " ".join(name.split()) if name else ""


def _suffix_of(part: EmailMessage) -> str:
    mime = part.get_content_type()
    return next((file_format.suffix for file_format in FORMATS if mime in file_format.mimes), "")


def _bytes_of(part: EmailMessage) -> bytes:
    try:
        body = part.get_payload(decode=True)
    except _PARSER_ERRORS as error:
        raise UnreadableDocument(f"it is broken ({error})") from error
    return body if isinstance(body, bytes) else b""


def _text_of(part: EmailMessage) -> str:
    if part.get_content_type() == _BOUNCE and part.is_multipart():
        try:
            return "\n".join(map(str, part.get_payload()))
        except _PARSER_ERRORS as error:
            raise UnreadableDocument(f"the mail is broken ({error})") from error
    body = _bytes_of(part)
    charset = web.codec_for(part.get_content_charset(""))
    return body.decode(charset, "replace") if charset else decode(body)[0]


def _count_words(pieces: list[Piece]) -> int:
    return sum(len(piece.split()) for piece in pieces if isinstance(piece, str))


def _has_tables(pieces: list[Piece]) -> bool:
    return bool(tables_in(piece for piece in pieces if isinstance(piece, str)))


def _content_id(part: EmailMessage) -> str:
    try:
        return str(part.get("Content-ID", "")).strip().strip("<>")
    except _PARSER_ERRORS:
        return ""


def open_document(path: Path, kind: FileKind) -> MailDocument:
    return MailDocument(path)
