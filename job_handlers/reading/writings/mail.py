"""Mails as they are kept in files (.eml): who wrote to whom, of what, and the text. What is attached becomes documents
of its own. By Python's own package."""

from __future__ import annotations

import email
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from pathlib import Path

from job_handlers.kinds import Kind
from job_handlers.reading.writings import Piece, Unreadable, web

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_PICTURES = ("image/png", "image/jpeg", "image/tiff")
_BYTES_MAX = 256 << 20


class Mail:
    def __init__(self, path: Path) -> None:
        if path.stat().st_size > _BYTES_MAX:
            raise Unreadable(f"the mail is larger than {_BYTES_MAX >> 20} MiB")
        try:
            with path.open("rb") as file:
                message = email.message_from_binary_file(file, policy=policy.default)
        except (ValueError, RecursionError, LookupError) as error:
            raise Unreadable(f"the mail is broken ({error})") from error
        assert isinstance(message, EmailMessage)
        self._message = message

    def pieces(self) -> Iterator[Piece]:
        for name in _HEADERS:
            if value := self._header(name):
                yield f"{name}: {value}"
        yield ""
        body = self._body()
        if body is not None:
            text = _text_of(body)
            if body.get_content_subtype() == "html":
                yield from web.pieces_of(iter([text]), self._inside)
            else:
                yield from text.splitlines()
        for name, _ in self.attached():
            yield f"Attached: {name}"

    def picture(self, key: str) -> bytes:
        if key.startswith("data:"):
            return web.unpacked(key)
        return next((_bytes_of(part) for part in self._walk() if _content_id(part) == key), b"")

    def attached(self) -> Iterator[tuple[str, EmailMessage]]:
        """By their names. A mail that was attached is one more mail."""
        for part in self._walk():
            is_mail = part.get_content_type() == "message/rfc822"
            name = part.get_filename() or ("mail.eml" if is_mail else "")
            if name and (part.is_attachment() or is_mail or not _content_id(part)):
                yield name, part

    def _header(self, name: str) -> str:
        try:
            return " ".join(str(self._message.get(name, "")).split())
        except (ValueError, LookupError, IndexError, AttributeError):
            # Its own parser gives some up that people write.
            return ""

    def _body(self) -> EmailMessage | None:
        try:
            found = self._message.get_body(preferencelist=("plain", "html"))
        except (ValueError, LookupError, AttributeError) as error:
            raise Unreadable(f"the mail is broken ({error})") from error
        return found if isinstance(found, EmailMessage) else None

    def _inside(self, address: str) -> str | None:
        if not address.startswith("cid:"):
            return web.inside(address)
        key = address.removeprefix("cid:")
        shown = {_content_id(part) for part in self._walk() if part.get_content_type() in _PICTURES}
        return key if key in shown else None

    def _walk(self) -> Iterator[EmailMessage]:
        """Its parts, without those of mails that are attached to it."""
        waiting = [self._message]
        while waiting:
            part = waiting.pop(0)
            if part.get_content_maintype() == "multipart" and part.is_multipart():
                waiting = [one for one in part.iter_parts() if isinstance(one, EmailMessage)] + waiting
            elif part is not self._message:
                yield part


def content_of(part: EmailMessage) -> bytes:
    if part.get_content_type() == "message/rfc822":
        inner = part.get_payload()
        return bytes(inner[0]) if isinstance(inner, list) and inner else b""  # type: ignore[arg-type]
    return _bytes_of(part)


def _bytes_of(part: EmailMessage) -> bytes:
    body = part.get_payload(decode=True)
    return body if isinstance(body, bytes) else b""


def _text_of(part: EmailMessage) -> str:
    body, charset = _bytes_of(part), part.get_content_charset("utf-8")
    try:
        return body.decode(charset, "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def _content_id(part: EmailMessage) -> str:
    return str(part.get("Content-ID", "")).strip().strip("<>")


def open_writing(path: Path, kind: Kind) -> Mail:
    return Mail(path)
