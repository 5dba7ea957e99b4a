"""Recognise a range of pages and save each at once, so that a killed attempt resumes there.

A page whose pixels were recognised before, in any file, is not recognised again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from job_handlers.file_kinds import FileKind, kind_of
from job_handlers.reading import ocr, pdf
from job_handlers.reading.document import (
    ENVIRONMENT,
    LOCKED,
    TOO_LARGE,
    UNREADABLE,
    PageSource,
    content_of,
    engine_settings,
    how_to_read,
    job_digest,
    locked_error,
    ocr_digest,
    original_of,
    page_source,
    password_of,
    pixels_digest,
    stale_error,
    unread_page,
)
from job_handlers.reading.flow_pictures import flow_reader
from job_handlers.reading.ocr import OcrSettings
from job_handlers.reading.page_process import Lost, PageProcess, TooLarge
from job_handlers.reading.page_ranges import read_ranges
from job_handlers.reading.page_recognition import (
    IN_PARTS,
    PAGES_DRAWN_MOST,
    DrawnPage,
    PageReading,
    is_recognition_in_parts,
    page_of_request,
    page_request_handler,
)
from job_handlers.reading.reading_settings import HowToRead
from worker_service.handlers import (
    Context,
    Done,
    Handler,
    KnownPages,
    Limits,
    MissingDependency,
    PageResult,
    Retryable,
    counted,
)

_PAGE_CPU_SECONDS = 90
_PAGES_MAX = 1000
# Waiting for languages to be installed.
_DATA_RETRY_SECONDS_LEAST, _DATA_RETRY_SECONDS_MOST = 30.0, 900.0
_DATA_RETRY_SHARE = 0.25  # Of the time waited so far.


class OcrPagesPayload(HowToRead, frozen=True, kw_only=True):
    pages: str
    """Page ranges, such as `1-12` or `3,7-9`."""


def run(context: Context[OcrPagesPayload]) -> Done:
    how = how_to_read(context)
    numbers = read_ranges(context.payload.pages, _PAGES_MAX)
    slice_file = context.inputs.get("slice")
    file, content = slice_file or original_of(context), content_of(context)
    kind = kind_of(file)
    password, settings = password_of(context, how), engine_settings(how)
    engine_identity = ocr.identity_of(settings)
    if engine_identity == "none":
        _wait_for_data(context, settings)
    # A slice contains only these pages, in this order.
    place_of_page = {number: at for at, number in enumerate(numbers, 1)} if slice_file else {}

    def make_reader() -> Callable[[int], DrawnPage | PageReading]:
        if kind.is_flowing:
            return flow_reader(file, kind, settings)
        return page_request_handler(file, password, settings, place_of_page, is_forced=bool(how.force_ocr))

    answer_type = DrawnPage | PageReading
    with PageProcess[DrawnPage | PageReading](make_reader, answer_type, cpu_seconds=_PAGE_CPU_SECONDS) as process:
        # The engine starts while the pages are looked up.
        process.begin()
        pages = PageRange(context, numbers, page_source(content, kind), settings, engine_identity)
        context.progress(0, f"0 of {counted(len(numbers), 'page')} done", done=0, total=len(numbers), unit="pages")
        pages.read_with(process)
    total = len(numbers)
    message = counted(total, "page") if total > 1 else f"page {numbers[0]}"
    context.progress(message=message, done=total, total=total, unit="pages")
    return Done({"pages": total, "recognised": pages.recognised_count, "engine": engine_identity})


def slice_pages(original: Path) -> Callable[[OcrPagesPayload, Path], bool]:
    if kind_of(original) is not FileKind.PDF:
        return lambda payload, target: False
    book = pdf.PagedFile(original, is_mapped=True)
    return lambda payload, target: book.write_slice(read_ranges(payload.pages, _PAGES_MAX), target)


ocr_pages = Handler(
    "ocr_pages",
    run,
    OcrPagesPayload,
    limits=Limits(cpu_seconds=2 * 3600, wall_seconds=2 * 3600),
    environment=ENVIRONMENT,
    missing=ocr.missing,
    offers=ocr.offers,
    choices=ocr.choices,
    identity=lambda: [*ocr.identity(), pdf.LIBRARY],
    # An encrypted file needs a credential, which no node has; the attempt then runs again on the head.
    runs_on_cluster=True,
    slicer=slice_pages,
    credentials=["password*"],
)


def _wait_for_data(context: Context[OcrPagesPayload], settings: OcrSettings) -> None:
    """Raise the engine's `MissingDependency`, so that the job runs again at growing intervals."""
    lacking_since = context.state["lacking_since"] if context.state else time.time()
    try:
        ocr.reader_for(settings)
    except MissingDependency as error:
        context.checkpoint({"lacking_since": lacking_since})
        seconds = (time.time() - lacking_since) * _DATA_RETRY_SHARE
        seconds = min(max(seconds, _DATA_RETRY_SECONDS_LEAST), _DATA_RETRY_SECONDS_MOST)
        raise MissingDependency(error.detail, error.remedy, after=seconds) from error


@dataclass(slots=True)
class PageRange:
    context: Context[OcrPagesPayload]
    numbers: Sequence[int]
    source: PageSource
    settings: OcrSettings
    engine_identity: str
    recognised_count: int = 0
    _pixels_digest_of_page: dict[int, str] = field(default_factory=dict)

    def read_with(self, process: PageProcess[DrawnPage | PageReading]) -> None:
        key = self.context.idempotency_key
        file_digests = {number: self._file_digest(number) for number in self.numbers}
        # A page may be stored under its own digest, or, if this job could not read it, under that of the job.
        digests_of_page = {number: (job_digest(digest, key), digest) for number, digest in file_digests.items()}
        to_draw = iter(self._save_stored_pages(digests_of_page))
        drawn = [*islice(to_draw, PAGES_DRAWN_MOST)]
        process.request(*drawn)
        while process.has_pending:
            request, answer = process.receive()
            if isinstance(answer, DrawnPage):
                self._pixels_digest_of_page[request] = pixels_digest(
                    answer.picture_digest, self.settings.languages, self.settings.quality, self.engine_identity
                )
            elif isinstance(answer, Lost) and request < 0 and not is_recognition_in_parts(request):
                self.context.log(f"page {-request}: {answer} while it was read; trying again in parts")
                process.request(request - IN_PARTS)
            else:
                self._save(page_of_request(request), answer)
            if drawn and request == drawn[-1]:
                pixels_digests = self._pixels_digest_of_page
                to_look_up = {number: [pixels_digests[number]] for number in drawn if number in pixels_digests}
                to_recognise = [-number for number in self._save_stored_pages(to_look_up)]
                drawn = [*islice(to_draw, PAGES_DRAWN_MOST)]
                # The next pages are drawn before the last of these is recognised, so that the process recognises a
                # page while the next ones are looked up.
                process.request(*to_recognise[:-1], *drawn, *to_recognise[-1:])

    def _save_stored_pages(self, digests_of_page: Mapping[int, Sequence[str]]) -> list[int]:
        """Save the pages with a stored result under one of their digests; return the others."""
        _stop_if_asked(self.context)
        answer = self.context.ask(KnownPages([*chain.from_iterable(digests_of_page.values())]))
        stored = set(answer.digests)
        results: list[PageResult] = []
        missing: list[int] = []
        for number, digests in digests_of_page.items():
            stored_digests = [digest for digest in digests if digest in stored]
            if not stored_digests:
                missing.append(number)
                continue
            is_known_by_pixels = number in self._pixels_digest_of_page
            # Store the result under the digest of this file, too, so that the page is not even drawn next time.
            alias_digest = self._file_digest(number) if is_known_by_pixels else ""
            results.append(PageResult(number, stored_digests[-1], alias_digest=alias_digest))
        self.context.save_pages(results)
        if missing and answer.is_stale:
            raise stale_error()
        return missing

    def _file_digest(self, number: int) -> str:
        return ocr_digest(self.source, number, self.settings.languages, self.settings.quality, self.engine_identity)

    def _save(self, number: int, answer: PageReading | TooLarge | Lost) -> None:
        if isinstance(answer, PageReading) and answer.method == LOCKED:
            raise locked_error(self.context, "")
        self.context.save_page(self._page_result(number, answer))
        done = self.numbers.index(number) + 1
        total = len(self.numbers)
        message = f"page {number}, {done} of {total} done"
        self.context.progress(message=message, done=done, total=total, unit="pages")
        self.recognised_count += 1
        if done < total:
            # Little work is lost here: the next page has hardly begun.
            _stop_if_asked(self.context)

    def _page_result(self, number: int, answer: PageReading | TooLarge | Lost) -> PageResult:
        file_digest = self._file_digest(number)
        if isinstance(answer, TooLarge | Lost):
            method = TOO_LARGE if isinstance(answer, TooLarge) else UNREADABLE
            return unread_page(self.context, number, file_digest, method, str(answer))
        if answer.method in (TOO_LARGE, UNREADABLE):
            return unread_page(self.context, number, file_digest, answer.method, answer.why)
        return PageResult(
            number,
            self._pixels_digest_of_page[number],
            answer.text,
            answer.method,
            answer.confidence,
            answer.layout,
            alias_digest=file_digest,
        )


def _stop_if_asked(context: Context[OcrPagesPayload]) -> None:
    if context.cancelled():
        raise Retryable("it was asked to stop", code="STOPPED")
