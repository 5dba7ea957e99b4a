"""Turn spreadsheet or CSV rows into text, a hundred rows a page. Values keep their types."""

from __future__ import annotations

from msgspec import Struct

from job_handlers.file_kinds import kind_of
from job_handlers.reading import spreadsheets
from job_handlers.reading.document import check_current, content_of, original_of, rows_digest, save_known_pages
from job_handlers.reading.page_process import Lost, PageProcess, Refusal, TooLarge
from job_handlers.reading.page_ranges import read_ranges
from worker_service.handlers import MIB, Context, Done, Handler, Limits, PageResult, Permanent, counted

_CPU_SECONDS = 600
_PAGES_MAX = 100_000

TextAndLayout = tuple[str, str]


class ExtractRowsPayload(Struct, frozen=True):
    pages: str
    """Page ranges such as `1-30`; a page is a hundred rows."""


def run(context: Context[ExtractRowsPayload]) -> Done:
    numbers = read_ranges(context.payload.pages, _PAGES_MAX)
    original, content = original_of(context), content_of(context)
    kind = kind_of(original)
    digests = {number: rows_digest(content, number, spreadsheets.LIBRARY) for number in numbers}
    to_read = save_known_pages(context, digests)
    if to_read:
        check_current(context)
    with PageProcess[TextAndLayout | Refusal](
        lambda: spreadsheets.sheet_reader(original, kind), TextAndLayout | Refusal, cpu_seconds=_CPU_SECONDS
    ) as process:
        for done, (number, answer) in enumerate(process.read_all(to_read), 1):
            if isinstance(answer, Refusal):
                raise Permanent(answer.code, answer.message, answer.remedy)
            if isinstance(answer, TooLarge | Lost):
                raise Permanent("SHEET_BROKEN", f"page {number} of its rows: {answer}")
            text, layout = answer
            context.save_page(PageResult(number, digests[number], text, "rows", None, layout))
            total = len(to_read)
            message = f"{done} of {counted(total, 'page')} of rows"
            context.progress(message=message, done=done, total=total, unit="pages")
    return Done({"pages": len(numbers), "read": len(to_read)})


extract_rows = Handler(
    "extract_rows",
    run,
    ExtractRowsPayload,
    limits=Limits(memory_bytes=2048 * MIB, wall_seconds=2 * 3600),
    runs_on_cluster=True,
)
