"""Endpoints of other document converters, if `web_endpoints` names them. See docs/converters.md."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from worker_service.base.errors import BadInput
from worker_service.services.document_formats import docling_json, opencontracts_export
from worker_service.settings.config import Settings
from worker_service.web.api.endpoint import receive_body
from worker_service.web.conversions import Conversion, NotConverted, convert, new_file, received_body
from worker_service.web.database_sessions import session_of
from worker_service.web.incoming_files import IncomingFile
from worker_service.web.multipart import ReceivedForm, receive_form
from worker_service.web.resources.read_requests import OptionValues

PARSED_AT_ONCE = 4
PARSE_BYTES_MAX = 64 * 1024 * 1024
"""Largest body with a PDF as base64, which is decoded in memory."""


async def open_webui(request: Request) -> Response:
    """Answer `PUT /process` of Open WebUI's external document loader: a list of pages, numbered from 0."""
    return JSONResponse(await run_in_threadpool(_open_webui_answer, await _convert_body(request)))


def _open_webui_answer(conversion: Conversion) -> list[dict[str, Any]]:
    metadata = {
        "source": conversion.document.name,
        "document_id": conversion.document.id,
        "Content-Type": conversion.media_type,
    }
    pages = zip(conversion.pages, conversion.markdown, strict=True)
    return [{"page_content": text, "metadata": {**metadata, "page": page.number - 1}} for page, text in pages]


async def tika(request: Request) -> Response:
    """Answer `PUT /tika/text` of Apache Tika 3, and `PUT /tika/json/md` of Tika 4."""
    conversion = await _convert_body(request)
    return JSONResponse(await run_in_threadpool(_tika_answer, conversion, request.url.path.endswith("/md")))


def _tika_answer(conversion: Conversion, is_markdown: bool) -> dict[str, str]:
    content = {"tk:content": "\n\n".join(conversion.markdown)} if is_markdown else {"X-TIKA:content": conversion.text}
    return {**content, "Content-Type": conversion.media_type, "xmpTPg:NPages": str(len(conversion.pages))}


async def _convert_body(request: Request) -> Conversion:
    async with received_body(request) as incoming:
        return await convert(request, unquote(request.headers.get("x-filename", "")), incoming)


# ── OpenContracts ───────────────────────────────────────────────────────────────────────────────────────────────────


class ParseRequest(Struct, frozen=True):
    """The fields that pagemill uses; it ignores others."""

    filename: str
    pdf_base64: bytes
    force_ocr: bool = False


async def opencontracts(request: Request) -> Response:
    """Answer `POST /parse/` of OpenContracts' parser: words with boxes, and the parts of each page."""
    async with new_file(request) as incoming:
        async with request.app.state.parse_slots:
            body = await receive_body(request, PARSE_BYTES_MAX)
            name, options = await run_in_threadpool(_write_pdf, body, incoming)
        conversion = await convert(request, name, incoming, options)
    return JSONResponse(await run_in_threadpool(_opencontracts_answer, request, conversion))


def _write_pdf(body: bytes, incoming: IncomingFile) -> tuple[str, OptionValues]:
    """Write the PDF of the request. Return its name and the reading options."""
    try:
        parse_request = msgspec.json.decode(body, type=ParseRequest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"the body is not what OpenContracts sends: {error}") from None
    incoming.write(parse_request.pdf_base64)
    return parse_request.filename, {"force-ocr": ["true"] if parse_request.force_ocr else []}


def _opencontracts_answer(request: Request, conversion: Conversion) -> dict[str, Any]:
    with session_of(request) as session:
        return opencontracts_export(session, conversion.document, conversion.pages)


# ── docling-serve ───────────────────────────────────────────────────────────────────────────────────────────────────


async def docling(request: Request) -> Response:
    """Answer `POST /v1/convert/file` of docling-serve. A file that cannot be read is a `failure` with status 200."""
    started = time.monotonic()
    async with receive_form(request) as form:
        if len(form.files) != 1:
            raise BadInput("send one file in the field `files`")
        [(name, incoming)] = form.files
        try:
            conversion = await convert(request, name, incoming, _docling_options(form))
        except NotConverted as error:
            return JSONResponse(_docling_answer(started, {"filename": name}, error))
    return JSONResponse(_docling_answer(started, await run_in_threadpool(_docling_document, name, form, conversion)))


def _docling_document(name: str, form: ReceivedForm, conversion: Conversion) -> dict[str, Any]:
    formats = form.fields.get("to_formats", ["md"])
    page_break = form.first_value("md_page_break_placeholder")
    separator = f"\n\n{page_break}\n\n" if page_break else "\n\n"
    docling = "".join(docling_json(conversion.document, conversion.pages)) if "json" in formats else "null"
    return {
        "filename": name,
        "md_content": separator.join(conversion.markdown) if "md" in formats else None,
        "text_content": conversion.text if "text" in formats else None,
        "json_content": msgspec.json.decode(docling),
        "html_content": None,
        "doctags_content": None,
    }


def _docling_options(form: ReceivedForm) -> Mapping[str, Sequence[str]]:
    options = {"lang": form.fields.get("ocr_lang", [])}
    if (form.first_value("force_ocr") or "").lower() == "true":
        options["force-ocr"] = ["true"]
    return options


def _docling_answer(started: float, document: dict[str, Any], error: NotConverted | None = None) -> dict[str, Any]:
    errors = [{"component_type": "user_input", "module_name": "pagemill", "error_message": str(error)}]
    return {
        "document": document,
        "status": "success" if error is None else "failure",
        "errors": [] if error is None else errors,
        "processing_time": time.monotonic() - started,
        "timings": {},
    }


_ROUTES: Mapping[str, Sequence[Route]] = {
    "openwebui": [Route("/process", open_webui, methods=["PUT"])],
    "docling": [Route("/v1/convert/file", docling, methods=["POST"])],
    "opencontracts": [Route("/parse/", opencontracts, methods=["POST"])],
    "tika": [Route("/tika/text", tika, methods=["PUT"]), Route("/tika/json/md", tika, methods=["PUT"])],
}


def routes(settings: Settings) -> list[Route]:
    return [route for name in settings.web_endpoints for route in _ROUTES.get(name, ())]
