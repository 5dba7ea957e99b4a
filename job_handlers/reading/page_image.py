"""Draw one page for the document viewer.

In a child process, because the web server must not open files from strangers.
"""

from __future__ import annotations

from typing import Any

import msgspec
from PIL import WebPImagePlugin  # noqa: F401  imported before the sandbox hides Pillow's plugins

from job_handlers.reading import pdf
from job_handlers.reading.document import how_to_read, locked_error, original_of, password_of
from job_handlers.reading.reading_settings import HowToRead
from worker_service.handlers import MIB, Context, Done, Handler, Limits, Permanent, counted

_WIDTH_LEAST, _WIDTH_MOST = 50, 3000


class PageImagePayload(HowToRead, frozen=True, kw_only=True):
    page: int
    width: int


def run(context: Context[PageImagePayload]) -> Done:
    number = context.payload.page
    password = password_of(context, how_to_read(context))
    try:
        with pdf.PagedFile(original_of(context), password) as book:
            if not 1 <= number <= book.pages:
                raise Permanent("NO_PAGE", f"it has {counted(book.pages, 'page')}, and none is page {number}")
            image = book.image(number, min(max(context.payload.width, _WIDTH_LEAST), _WIDTH_MOST))
            words: list[tuple[Any, ...]] = book.words(number)
            size = book.size(number)
    except pdf.PdfLocked as error:
        raise locked_error(context, password) from error
    except (pdf.Broken, pdf.PageTooLarge) as error:
        raise Permanent("UNREADABLE", str(error)) from error
    (context.staging / "page.webp").write_bytes(image)
    (context.staging / "words.json").write_bytes(msgspec.json.encode({"size": size, "words": words}))
    return Done(files=["page.webp", "words.json"])


page_image = Handler(
    "page_image",
    run,
    PageImagePayload,
    limits=Limits(memory_bytes=1024 * MIB, cpu_seconds=25, wall_seconds=30, file_bytes=32 * MIB),
    credentials=["password*"],
)
