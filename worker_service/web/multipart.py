"""Receive a form with files (multipart/form-data), and write the files to disk as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from worker_service.base.errors import BadInput
from worker_service.settings.config import Settings
from worker_service.web.error_responses import BodyTooLarge, HttpProblem, WrongMediaType
from worker_service.web.incoming_files import IncomingFile, refuse_if_disk_full
from worker_service.web.middleware import announced_bytes

_FIELDS_MAX = 100
_FIELD_BYTES_MAX = 65_536
_HEADER_BYTES_MAX = 4_096
_FILES_MAX = 100
_BOUNDARY_BYTES_MAX = 70  # RFC 2046, section 5.1.1


@dataclass(slots=True)
class ReceivedForm:
    fields: dict[str, list[str]] = field(default_factory=dict)
    files: list[tuple[str, IncomingFile]] = field(default_factory=list)
    """Names as sent, and contents."""

    def first_value(self, name: str) -> str | None:
        return next(iter(self.fields.get(name, ())), None)


@asynccontextmanager
async def receive_form(request: Request) -> AsyncIterator[ReceivedForm]:
    """Receive the form. Deletes on exit every file that the caller did not keep."""
    media_type, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if media_type != b"multipart/form-data" or not 0 < len(boundary) <= _BOUNDARY_BYTES_MAX:
        raise WrongMediaType("the upload must be a form (multipart/form-data)", "curl -F file=@report.pdf")
    settings: Settings = request.app.state.settings
    form = _FormReceiver(settings)
    try:
        await run_in_threadpool(refuse_if_disk_full, settings.workspace, announced_bytes(request))
        parser = MultipartParser(boundary, form.callbacks)  # type: ignore[arg-type]
        try:
            async for chunk in request.stream():
                await run_in_threadpool(parser.write, chunk)
        except ClientDisconnect:
            raise HttpProblem("the connection closed before the upload was complete") from None
        except MultipartParseError as error:
            raise BadInput(f"the form cannot be read: {error}") from None
        if not form.has_ended:
            raise BadInput("the form cannot be read: it is incomplete")
        yield form.result
    finally:
        await run_in_threadpool(form.close)


class _FormReceiver:
    def __init__(self, settings: Settings) -> None:
        self.result = ReceivedForm()
        self.has_ended = False
        self._settings = settings
        self._header_name, self._header_value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._field: bytearray | None = None
        self._file: IncomingFile | None = None
        self.callbacks = {
            "on_part_begin": self._begin_part,
            "on_header_field": lambda data, start, end: self._extend(self._header_name, data[start:end]),
            "on_header_value": lambda data, start, end: self._extend(self._header_value, data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._write_part,
            "on_part_end": self._end_part,
            "on_end": self._end_form,
        }

    def close(self) -> None:
        for _, incoming in self.result.files:
            incoming.close()

    def _begin_part(self) -> None:
        self._headers = {}
        self._field = self._file = None

    def _extend(self, header: bytearray, data: bytes) -> None:
        header += data
        if len(header) > _HEADER_BYTES_MAX:
            raise BadInput("the form cannot be read: a header in it is too long")

    def _end_header(self) -> None:
        self._headers[bytes(self._header_name).lower()] = bytes(self._header_value)
        self._header_name, self._header_value = bytearray(), bytearray()
        if len(self._headers) > _FIELDS_MAX:
            raise BadInput("the form cannot be read: too many headers in it")

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            if len(self.result.files) >= _FILES_MAX:
                raise BadInput(f"at most {_FILES_MAX} files at once")
            self._file = IncomingFile(self._settings.workspace)
            self.result.files.append((options[b"filename"].decode("utf-8", "replace"), self._file))
        else:
            self._field = bytearray()

    def _write_part(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            if self._file.size + end - start > self._settings.upload_bytes_max:
                name = self.result.files[-1][0]
                raise BodyTooLarge(
                    f"{name!r} is larger than {self._settings.upload_bytes_max} bytes (upload_bytes_max)"
                )
            self._file.write(data[start:end])
        elif self._field is not None:
            self._field += data[start:end]
            if len(self._field) > _FIELD_BYTES_MAX:
                raise BadInput(f"{self._name[:50]!r} is longer than {_FIELD_BYTES_MAX} bytes", "send it as a file")

    def _end_part(self) -> None:
        if self._field is not None:
            values = self.result.fields.setdefault(self._name, [])
            if sum(map(len, self.result.fields.values())) >= _FIELDS_MAX:
                raise BadInput("the form has too many fields")
            if b"\0" in self._field:
                raise BadInput(f"{self._name[:50]!r} holds a NUL byte")
            try:
                values.append(self._field.decode())
            except UnicodeDecodeError:
                raise BadInput(f"{self._name[:50]!r} is not UTF-8 text") from None

    def _end_form(self) -> None:
        self.has_ended = True
