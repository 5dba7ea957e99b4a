"""Fetch one file completely and correctly, even if the connection is lost many times.

The result is returned only if size, signature and digests are right. `PartialFile` keeps the bytes for later attempts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from job_handlers import file_kinds
from job_handlers.fetch.error_rules import RANGE_ERRORS, FetchError, Restart, RetryPolicy
from job_handlers.fetch.partial_file import Digests, FileFacts, PartialFile
from job_handlers.fetch.sources import FileRequest, SourceFile
from worker_service.base.files import move_file
from worker_service.handlers import Context, Snooze, Stopped

NO_DIGEST = "the source gives no digest"
_FREE_DISK_BYTES_MIN = 256 << 20
_WAIT_STEP_SECONDS = 0.2
_REPORT_SECONDS = 0.5
_FETCHED_PERCENT = 95.0  # Of the progress. The rest is for the checks.


class FetchedFile(Struct, frozen=True):
    part: PartialFile
    facts: FileFacts
    kind: file_kinds.Format
    size: int
    digests: Digests
    bytes_fetched: int
    restarts: int
    note: str = ""

    def move_to(self, target: Path) -> None:
        move_file(self.part.path, target)
        self.part.delete()


def fetch(
    source: SourceFile,
    keep: Path,
    request: FileRequest,
    context: Context[Any],
    policy: RetryPolicy,
    sleep: Callable[[float], None] = time.sleep,
) -> FetchedFile:
    with PartialFile(keep) as part:
        policy.deferrals = part.deferrals
        try:
            return _Transfer(source, part, request, context, policy, sleep).run()
        except Snooze:
            # If the reason is a full disk, this may fail, too.
            with suppress(FetchError, OSError):
                part.save_deferral()
            raise


class _Transfer:
    def __init__(
        self, source: SourceFile, part: PartialFile, request: FileRequest, context: Context[Any],
        policy: RetryPolicy, sleep: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._source, self._part, self._request, self._context = source, part, request, context
        self._policy, self._timeouts, self._sleep = policy, policy.timeouts, sleep
        self._progress = _ProgressMeter(context)
        # None before the source was asked for them, and after a restart.
        self._facts: FileFacts | None = None
        self._last_wrong_digest = ""
        # The most bytes that the part has had. Only bytes beyond it are progress, and reset the retries.
        self._longest_length = 0
        self._bytes_fetched = 0
        self._restarts = 0
        self._is_complete = False
        self._can_request_ranges = True
        self._give_up_at = float("inf")

    def run(self) -> FetchedFile:
        while True:
            try:
                return self._try()
            except FetchError as error:
                self._prepare_next_try(error)

    def _try(self) -> FetchedFile:
        facts = self._facts = self._facts or self._begin()
        while not self._is_complete:
            self._download_chunk(facts)
        kind, digests = self._check(facts)
        self._raise_if_stopped()
        facts_after = self._source.facts()
        if not facts_after.has_same_content(facts):
            raise FetchError("CHANGED")
        self._progress.report_end(self._part.length)
        request = self._request
        has_digest = facts.is_of_this_machine or any((facts.md5, facts.sha256, request.md5, request.sha256))
        return FetchedFile(
            self._part,
            facts_after,
            kind,
            self._part.length,
            digests,
            bytes_fetched=self._bytes_fetched,
            restarts=self._restarts,
            note="" if has_digest else NO_DIGEST,
        )

    def _begin(self) -> FileFacts:
        facts = self._source.facts()
        facts = facts if self._can_request_ranges else replace(facts, can_resume=False)
        self._raise_if_stopped()
        part, request = self._part, self._request
        if facts.size == 0:
            raise FetchError("EMPTY")
        self._check_size(facts.size or 0)
        for digest, found, expected in (("MD5", facts.md5, request.md5), ("SHA-256", facts.sha256, request.sha256)):
            if found and expected and found != expected:
                raise FetchError("NOT_AS_EXPECTED", digest=digest, found=found, expected=expected)
        # MD5 costs more than all other checks together: compute it only where SHA-256 does not prove the same.
        is_proven_by_sha256 = facts.sha256 and (facts.md5 or not request.md5)
        part.begin(facts, has_md5=bool(facts.md5 or request.md5) and not is_proven_by_sha256)
        if part.free_disk_bytes() < (facts.size or 0) - part.length + _FREE_DISK_BYTES_MIN:
            raise FetchError("DISK_FULL")
        if part.length:
            self._context.log(f"resuming after {_size_text(part.length)}")
        self._longest_length = part.length
        self._is_complete = part.length == facts.size
        seconds_max = (facts.size or request.bytes_max) / self._timeouts.bytes_per_second_min
        self._give_up_at = time.monotonic() + seconds_max + self._timeouts.slack_seconds
        self._progress.begin(part.length, facts.size)
        return facts

    def _download_chunk(self, facts: FileFacts) -> None:
        part = self._part
        if part.length and not facts.can_resume:
            part.clear()
        length = None if facts.size is None else facts.size - part.length
        if length is not None and facts.can_resume:
            length = min(length, self._timeouts.chunk_bytes)
        length_before = part.length
        for count in self._source.download_into(part, facts, length):
            self._bytes_fetched += count
            if part.length > self._longest_length:
                self._longest_length = part.length
                self._policy.reset_retries_after_new_bytes()
            self._check_size(part.length)
            self._progress.report(part.length)
            self._raise_if_stopped()
            if time.monotonic() > self._give_up_at:
                # `RetryPolicy` requeues the job instead of waiting so long.
                raise FetchError("CHUNK_TOO_SLOW", after=self._timeouts.longest_wait_seconds + 1)
        self._is_complete = facts.size is None or part.length == facts.size
        if facts.size is not None and part.length > facts.size:
            raise FetchError("RANGE_WRONG")
        has_no_new_bytes = part.length == length_before
        must_start_again = not facts.can_resume and not self._is_complete
        if facts.size is not None and (has_no_new_bytes or must_start_again):
            raise FetchError("CUT_SHORT")

    def _check(self, facts: FileFacts) -> tuple[file_kinds.Format, Digests]:
        part = self._part
        if facts.size is not None and os.fstat(part.descriptor).st_size != facts.size:
            raise FetchError("RANGE_WRONG")
        if part.length == 0:
            raise FetchError("CUT_SHORT")
        digests = part.digests(self._report_check)
        self._check_digests(facts, digests)
        head = part.head()
        # A server may answer with a page, such as an error or sign-in page, instead of the file.
        is_certain = facts.md5 or facts.sha256 or facts.is_of_this_machine or file_kinds.HTML.is_named_by(facts.name)
        # Searching 64 KiB of a PDF for markup takes longer than all other checks.
        if not (is_certain or file_kinds.has_pdf_header(head)):
            page = file_kinds.markup_in(head)
            if page:
                part.clear()
                raise FetchError("PAGE_INSTEAD", page=page)
        kind = file_kinds.verify_format(head, facts.mime, facts.name)
        return kind, replace(digests, md5=digests.md5 or facts.md5)

    def _check_digests(self, facts: FileFacts, digests: Digests) -> None:
        request = self._request
        comparisons = (
            ("MD5", digests.md5, facts.md5, request.md5),
            ("SHA-256", digests.sha256, facts.sha256, request.sha256),
        )
        for name, found, stated, _ in comparisons:
            if found and stated and found != stated:
                raise self._wrong_digest(name, found, stated)
        # If the source has confirmed these bytes, a job that expects another digest expects another file.
        is_confirmed = bool(facts.md5 or facts.sha256)
        for name, found, _, expected in comparisons:
            if found and expected and found != expected:
                if is_confirmed:
                    raise FetchError("NOT_AS_EXPECTED", digest=name, found=found, expected=expected)
                raise self._wrong_digest(name, found, expected)

    def _wrong_digest(self, name: str, found: str, expected: str) -> FetchError:
        """Return `SPOILT` if the bytes are wrong in another way than last time, otherwise `DIGEST_WRONG`."""
        is_different = self._last_wrong_digest not in ("", found)
        self._last_wrong_digest = found
        return FetchError("SPOILT" if is_different else "DIGEST_WRONG", digest=name, found=found, expected=expected)

    def _prepare_next_try(self, error: FetchError) -> None:
        self._raise_if_stopped()
        self._context.log(f"at byte {self._part.length}: {error.sentence} ({error.code})")
        decision = self._policy.decide_after(error)
        if isinstance(decision, Restart):
            self._part.clear()
            self._restarts += 1
            if decision.is_last and error.code in RANGE_ERRORS:
                # A server whose ranges are broken may still send the whole file.
                self._can_request_ranges = False
            self._facts, self._is_complete = None, False
            return
        if error.rule.kind == "RESTART":
            # `_check` may have discarded the bytes.
            self._is_complete = False
        self._wait(decision)

    def _wait(self, seconds: float) -> None:
        while seconds > 0:
            self._raise_if_stopped()
            self._sleep(min(seconds, _WAIT_STEP_SECONDS))
            seconds -= _WAIT_STEP_SECONDS

    def _raise_if_stopped(self) -> None:
        if self._context.cancelled():
            raise Stopped

    def _report_check(self, checked: int) -> None:
        self._progress.report_check(checked, self._part.length)
        self._raise_if_stopped()

    def _check_size(self, size: int) -> None:
        if size > self._request.bytes_max:
            raise FetchError("TOO_LARGE", size=size, most=self._request.bytes_max)


class _ProgressMeter:
    def __init__(self, context: Context[Any]) -> None:
        self._context = context
        self._size: int | None = None
        self._reported_at = 0.0
        self._started_at, self._start_length = 0.0, 0

    def begin(self, length: int, size: int | None) -> None:
        self._size = size
        self._started_at, self._start_length = time.monotonic(), length

    def report(self, length: int) -> None:
        size = self._size
        if not self._is_due() and length != size:
            return
        rate = max(length - self._start_length, 0) / max(time.monotonic() - self._started_at, 0.001)
        text = _size_text(length) if size is None else f"{_size_text(length)} of {_size_text(size)}"
        percent = _FETCHED_PERCENT * length / size if size else 0.0
        self._context.progress(percent, text, done=length, total=size, unit="bytes", rate=rate)

    def report_check(self, checked: int, size: int) -> None:
        if self._is_due():
            # The end, which is reported after all checks, is 100 %.
            percent = _FETCHED_PERCENT + (99.0 - _FETCHED_PERCENT) * checked / max(size, 1)
            self._context.progress(percent, f"checking {_size_text(size)}")

    def report_end(self, length: int) -> None:
        self._context.progress(100.0, _size_text(length), done=length, total=length, unit="bytes")

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._reported_at < _REPORT_SECONDS:
            return False
        self._reported_at = now
        return True


def _size_text(byte_count: int) -> str:
    return f"{byte_count / 1e6:.1f} MB" if byte_count >= 1e5 else f"{byte_count / 1e3:.1f} kB"
