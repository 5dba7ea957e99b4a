"""Recognise a range of pages, one by one: each is kept as soon as it is read, so that a killed range goes on there.

While one page is read it is asked of the next whether anybody still wants it, and whether somebody has read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from job_handlers.reading import layout, ocr, pdf
from job_handlers.reading.document import HowToRead, check_current, content_of, how_to_read, original_of
from job_handlers.reading.ocr.engine import Engine, WayToRead
from job_handlers.reading.ocr.recognition import recognise
from job_handlers.reading.page_process import Lost, PageProcess, TooLarge
from job_handlers.reading.page_settings import TOO_LARGE, UNREADABLE, job_digest, ocr_digest, read_ranges
from worker_service.handlers import Context, Done, Handler, KnownPages, Lacking, Limits, PageResult, Retryable, counted

_PAGE_CPU_SECONDS = 90
_PAGES_MAX = 1000
_LOOK_SECONDS, _LOOK_SECONDS_MAX = 30.0, 900.0
"""Whether trained data has been installed."""
_LOOKS_AGAIN_AFTER = 0.25
"""Of the time that it has waited."""
_AHEAD = 2
"""The page that is read, and the next, so that nothing waits between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload(HowToRead):
    pages: str
    """Such as 1-12, or 3,7-9."""


class Read(msgspec.Struct, frozen=True):
    text: str
    method: str
    confidence: float | None = None
    layout: str | None = None
    why: str = ""


def run(context: Context[Payload]) -> Done:
    how = how_to_read(context)
    numbers = read_ranges(context.payload.pages, _PAGES_MAX)
    original, content = original_of(context), content_of(context)
    password, engine = how.password, how.engine
    identity = ocr.chosen().identity(engine)
    if identity == "none":
        _wait_for_data(context, engine)
    read = 0
    with PageProcess[Read](
        lambda: _reader(original, password, engine), Read, cpu_seconds=_PAGE_CPU_SECONDS, ahead=_AHEAD
    ) as process:
        # The engine starts meanwhile.
        process.begin()
        digests = {
            number: ocr_digest(content, number, engine.languages, engine.quality, identity, pdf.LIBRARY)
            for number in numbers
        }
        context.progress(0, f"0 of {counted(len(numbers), 'page')} done")
        for number, found in process.read_all(_to_recognise(context, digests)):
            context.save_page(_page(context, number, found, digests[number]))
            done = numbers.index(number) + 1
            context.progress(100 * done / len(numbers), f"page {number}, {done} of {len(numbers)} done")
            read += 1
            if done < len(numbers):
                # The next one has hardly begun.
                _stop_if_asked(context)
    context.progress(100, counted(len(numbers), "page") if len(numbers) > 1 else f"page {numbers[0]}")
    return Done({"pages": len(numbers), "recognised": read, "engine": identity})


ocr_pages = Handler(
    "ocr_pages",
    run,
    Payload,
    limits=Limits(cpu_seconds=2 * 3600, wall_seconds=2 * 3600),
    missing=ocr.missing,
    offers=ocr.offers,
    choices=ocr.choices,
    credentials=["password*"],
)


def _wait_for_data(context: Context[Payload], wanted: WayToRead) -> None:
    """The longer it has waited, the less often it looks again."""
    since = context.state["lacking_since"] if context.state else time.time()
    try:
        ocr.chosen().engine_for(wanted)
    except Lacking as error:
        context.checkpoint({"lacking_since": since})
        waited = (time.time() - since) * _LOOKS_AGAIN_AFTER
        raise Lacking(error.message, after=min(max(waited, _LOOK_SECONDS), _LOOK_SECONDS_MAX)) from error


def _to_recognise(context: Context[Payload], digests: Mapping[int, str]) -> Iterator[int]:
    """Asked while the page before it is read: has somebody read it meanwhile, and does anybody still want it?"""
    for number, digest in digests.items():
        _stop_if_asked(context)
        known = context.ask(KnownPages([digest, job_digest(digest, context.idempotency_key)])).digests
        if known:
            context.save_page(PageResult(number, known[0]))
            continue
        check_current(context)
        yield number


def _stop_if_asked(context: Context[Payload]) -> None:
    if context.cancelled():
        raise Retryable("it was asked to stop", code="STOPPED")


def _page(context: Context[Payload], number: int, found: Read | TooLarge | Lost, digest: str) -> PageResult:
    if isinstance(found, Lost):
        raise Retryable(f"page {number}: {found} while it was read", code="ENGINE_CRASHED") from found
    read = Read("", TOO_LARGE, why=str(found)) if isinstance(found, TooLarge) else found
    if read.method in (TOO_LARGE, UNREADABLE):
        context.log(f"page {number} is left out: {read.why}")
        return PageResult(number, job_digest(digest, context.idempotency_key), "", read.method)
    return PageResult(number, digest, read.text, read.method, read.confidence, read.layout)


def _reader(original: Path, password: str, wanted: WayToRead) -> Callable[[int], Read]:
    """In the process apart, which holds file and engine."""
    book, engine = pdf.Book(original, password), ocr.chosen().engine_for(wanted)

    def read(number: int) -> Read:
        try:
            return read_page(book, engine, number)
        except pdf.PageTooLarge as error:
            return Read("", TOO_LARGE, why=str(error))
        except pdf.Broken as error:
            return Read("", UNREADABLE, why=str(error))

    return read


def read_page(book: pdf.Book, engine: Engine, number: int) -> Read:
    size = book.size(number)
    gray, dpi = book.picture(number)
    found = recognise(engine, gray, dpi)
    if found.is_blank:
        return Read("", "blank", layout=layout.written(layout.Layout(size)))
    lines = layout.on_page(found.lines, size, dpi, found.turn, found.skew)
    written = layout.written(layout.Layout(size, lines, turn=found.turn, skew=found.skew, dpi=round(dpi)))
    return Read(layout.text_of(lines), "ocr", found.confidence, written)
