"""Responses of any size, streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from tempfile import TemporaryFile
from typing import IO
from urllib.parse import quote

from starlette.responses import StreamingResponse

WORKBOOK = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_LINES_AT_ONCE = 500
_BYTES_AT_ONCE = 256 * 1024


def stream_lines(lines: Iterable[str], media_type: str, *, file_name: str | None = None) -> StreamingResponse:
    return StreamingResponse(_joined(iter(lines)), media_type=media_type, headers=_saved_as(file_name))


def stream_written(write: Callable[[IO[bytes]], object], media_type: str, *, file_name: str) -> StreamingResponse:
    """Write the whole file before it is sent, so that errors precede the response."""
    with ExitStack() as until_sent:
        file = until_sent.enter_context(TemporaryFile())
        write(file)
        until_sent.pop_all()
        return stream_file(file, media_type, file_name=file_name)


def stream_file(file: IO[bytes], media_type: str, *, file_name: str) -> StreamingResponse:
    size = file.seek(0, 2)
    headers = {**_saved_as(file_name), "Content-Length": str(size)}
    return StreamingResponse(_read(file), media_type=media_type, headers=headers)


def _joined(lines: Iterator[str]) -> Iterator[str]:
    # Each piece passes through the event loop, which costs more than joining lines.
    while piece := "".join(islice(lines, _LINES_AT_ONCE)):
        yield piece


def _read(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while piece := file.read(_BYTES_AT_ONCE):
            yield piece


def _saved_as(file_name: str | None) -> Mapping[str, str]:
    if file_name is None:
        return {}
    plain = quote(file_name)
    name = f'filename="{file_name}"' if plain == file_name else f"filename*=utf-8''{plain}"
    return {"Content-Disposition": f"attachment; {name}"}
