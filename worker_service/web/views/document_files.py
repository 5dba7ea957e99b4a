"""Files of one document, sent so that a browser never runs an uploaded file as a page of this site."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from worker_service.base.sanitize import harmless
from worker_service.services import documents, exports
from worker_service.services.page_images import WIDTHS
from worker_service.services.page_tables import tables_of, tables_with_all_rows, write_csv, write_tables
from worker_service.services.session import Session
from worker_service.web.database_sessions import session_of
from worker_service.web.parameters import query_of
from worker_service.web.resources.documents import ImageQuery, page_image_response, requested_document
from worker_service.web.streaming import WORKBOOK, stream_made_file
from worker_service.web.views import in_rendering_thread, page_route


@in_rendering_thread
def image(request: Request) -> Response:
    width = query_of(request, ImageQuery).width
    ids = request.path_params
    with session_of(request) as session:
        return page_image_response(request, session, ids["document_id"], ids["number"], width)


async def thumbnail(request: Request) -> Response:
    """Return the first page. Its URL names the generation (`?of=`), so that browsers can cache it."""
    stored = await run_in_threadpool(_stored_thumbnail, request)
    return await _draw_thumbnail(request) if stored is None else stored


def _stored_thumbnail(request: Request) -> Response | None:
    with session_of(request) as session:
        for stored in session.library.files(requested_document(session, request).id):
            path = session.settings.workspace / stored.path
            if stored.role == "thumbnail" and path.is_file():
                return FileResponse(path, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400"})
    return None


@in_rendering_thread
def _draw_thumbnail(request: Request) -> Response:
    with session_of(request) as session:
        return page_image_response(request, session, request.path_params["document_id"], 1, WIDTHS[0])


def file(request: Request, session: Session) -> Response:
    document = requested_document(session, request)
    file_by_id = {file.id: file for file in documents.get_document_details(session, document.id).files}
    stored = file_by_id.get(request.path_params["file_id"])
    if stored is None:
        raise exports.NotExported(f"document {document.id} has no such file")
    path = session.settings.workspace / stored.path
    if not path.is_file():
        remedy = "read the document again, even if nothing has changed"
        raise exports.FileGone(f"{stored.name} is no longer in the workspace", remedy)
    if "open" in request.query_params and document.kind == "pdf" and stored.role in ("original", "pdf"):
        # A browser opens this type in its PDF viewer and never as a page of this site (nosniff).
        return FileResponse(path, media_type="application/pdf")
    return FileResponse(path, media_type="application/octet-stream", filename=harmless(stored.name))


def workbook(request: Request, session: Session) -> Response:
    document = requested_document(session, request)
    tables = tables_of(session, document.id)
    name = f"document-{document.id}-tables.xlsx"
    return stream_made_file(lambda file: write_tables(file, tables), WORKBOOK, file_name=name)


def table(request: Request, session: Session) -> Response:
    """Send a table as CSV; a worksheet with its rows on all pages."""
    page_number, table_number = request.path_params["number"], request.path_params["table"]
    document = requested_document(session, request)
    tables_on_page = tables_of(session, document.id, pages=str(page_number))
    chosen = next((table for table in tables_on_page if table.number == table_number), None)
    if chosen is None:
        raise exports.NotExported(f"page {page_number} has no table {table_number}")
    candidates = [chosen] if chosen.sheet is None else tables_of(session, document.id)
    first_part, rows = next(tables_with_all_rows(table for table in candidates if table.sheet == chosen.sheet))
    name = f"document-{document.id}-{first_part.name}.csv"
    return stream_made_file(lambda file: write_csv(file, rows), "text/csv; charset=utf-8", file_name=name)


routes = [
    Route("/documents/{document_id:id}/pages/{number:id}/image", image),
    page_route("/documents/{document_id:id}/pages/{number:id}/tables/{table:id}.csv", table),
    Route("/documents/{document_id:id}/thumbnail", thumbnail),
    page_route("/documents/{document_id:id}/files/{file_id:id}", file),
    page_route("/documents/{document_id:id}/tables.xlsx", workbook),
]
