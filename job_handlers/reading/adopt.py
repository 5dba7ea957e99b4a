"""Import a document's text, read elsewhere, from a text file with form feeds between pages."""

from __future__ import annotations

from msgspec import Struct

from job_handlers.fetch.sources.local import ROOTS, readable_paths
from worker_service.handlers import Context, DocumentFacts, Done, File, Handler, PageResult, Permanent, digest


class AdoptPayload(Struct, frozen=True):
    text: str
    """Full path of the text file."""


def run(context: Context[AdoptPayload]) -> Done:
    path = context.payload.text
    allowed = readable_paths(path)
    if not allowed:
        raise Permanent("PATH_REFUSED", f"{path} may not be read by jobs")
    try:
        content = allowed[0].read_text("utf-8", "replace")
    except OSError as error:
        raise Permanent("TEXT_ABSENT", f"{path} cannot be read: {error.strerror}") from error
    pages = content.removesuffix("\f").split("\f")
    for number, text in enumerate(pages, 1):
        context.save_page(PageResult(number, digest(["adopted", text]), text, method="adopted"))
        context.progress(message=f"page {number} of {len(pages)}", done=number, total=len(pages), unit="pages")
    target = context.staging / "text.txt"
    target.write_text(content, "utf-8")
    return Done(
        {"pages": len(pages)},
        files=[File(target, role="text")],
        document=DocumentFacts(pages=len(pages), note="read elsewhere"),
        publishes=True,
    )


adopt = Handler(
    "adopt",
    run,
    AdoptPayload,
    job_class="io",
    environment=[ROOTS.variable],
    reads_payload=lambda payload: readable_paths(payload.text),
)
