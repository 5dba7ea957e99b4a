"""Responses of any size, streamed."""

from __future__ import annotations

import os
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
    return StreamingResponse(_join_lines(iter(lines)), media_type=media_type, headers=_download_headers(file_name))


def stream_made_file(write: Callable[[IO[bytes]], object], media_type: str, *, file_name: str) -> StreamingResponse:
    """Call `write` before anything is sent, so that errors precede the response."""
    with ExitStack() as on_error:
        file = on_error.enter_context(TemporaryFile())
        write(file)
        on_error.pop_all()  # `stream_file` closes it
        return stream_file(file, media_type, file_name=file_name)


def stream_file(file: IO[bytes], media_type: str, *, file_name: str) -> StreamingResponse:
    size = file.seek(0, os.SEEK_END)
    headers = {**_download_headers(file_name), "Content-Length": str(size)}
    return StreamingResponse(read_pieces(file), media_type=media_type, headers=headers)


def _join_lines(lines: Iterator[str]) -> Iterator[str]:
    # Each piece passes through the event loop, which costs more than joining lines.
    while piece := "".join(islice(lines, _LINES_AT_ONCE)):
        yield piece


def read_pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while piece := file.read(_BYTES_AT_ONCE):
            yield piece


def _download_headers(file_name: str | None) -> Mapping[str, str]:
    if file_name is None:
        return {}
    quoted = quote(file_name)
    name = f'filename="{file_name}"' if quoted == file_name else f"filename*=utf-8''{quoted}"
    return {"Content-Disposition": f"attachment; {name}"}
