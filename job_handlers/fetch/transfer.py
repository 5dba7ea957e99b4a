"""Fetch one file, whole and right, however often it is cut off: the pipeline behind every source.

The bytes go into `file.part` in the directory that outlives attempts; a sidecar beside it says of which revision they
are. They are kept across retries, deadlines and restarts, and each request begins where they end. Only when size,
signature and digests are right, and the source still says the same, the file leaves that directory.
What went wrong is judged in `troubles`; what a source is, its own file says.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from job_handlers import file_kinds
from job_handlers.fetch.errors import OF_RANGES, FetchError, Restart, RetryPolicy, Timeouts
from job_handlers.fetch.partial_file import Digests, FileFacts, PartialFile, sidecar_in
from worker_service.base.files import move_file, sync_path
from worker_service.handlers import Snooze, Stopped

NO_DIGEST = "nobody named a digest"
"""Of a file: no one but the server that sent it says that it is the right one."""

_MARGIN_BYTES = 256 << 20
_WAIT_STEP_SECONDS = 0.2
_TELL_SECONDS = 0.5
_RATE_SECONDS = 10.0
_FETCHED_PERCENT = 95.0


class SourceFile(Protocol):
    """Raises `FetchError`, and nothing else, for what goes wrong at its end."""

    def facts(self) -> FileFacts: ...

    def download_into(self, part: PartialFile, facts: FileFacts, length: int | None) -> Iterator[int]:
        """Append up to `length` bytes (None: all) to `part`, validated; yields what each step brought. Ending early
        without a trouble is no error."""

    def close(self) -> None: ...


class FileWanted(Struct, frozen=True):
    md5: str = ""
    sha256: str = ""
    bytes_max: int = 4 << 30


class FetchedFile(Struct, frozen=True):
    part: Path
    facts: FileFacts
    kind: file_kinds.Format
    size: int
    digests: Digests
    bytes_fetched: int
    restarts: int
    note: str = ""


class Teller(Protocol):
    """The part of a handler's context that is needed here."""

    def progress(
        self,
        percent: float | None = None,
        message: str = "",
        *,
        done: int | None = None,
        total: int | None = None,
        unit: str = "",
        rate: float | None = None,
    ) -> None: ...
    def log(self, line: str) -> None: ...
    def cancelled(self) -> bool: ...


def fetch(
    source: SourceFile,
    keep: Path,
    wanted: FileWanted,
    teller: Teller,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
    sleep: Callable[[float], None] = time.sleep,
    judge: RetryPolicy | None = None,
) -> FetchedFile:
    with PartialFile(keep) as part:
        judge = judge or RetryPolicy(timeouts, part.deferrals)
        try:
            return _Fetch(source, part, wanted, teller, timeouts, sleep, judge).run()
        except Snooze:
            # A full disk takes no note either.
            with suppress(FetchError, OSError):
                part.note_deferral()
            raise


def moved_to(fetched: FetchedFile, target: Path) -> None:
    """Give it its final name, durably; what was kept of it is gone then."""
    move_file(fetched.part, target)
    sync_path(target.parent)
    drop(fetched)


def drop(fetched: FetchedFile) -> None:
    """What was kept of it."""
    fetched.part.unlink(missing_ok=True)
    sidecar_in(fetched.part.parent).unlink(missing_ok=True)


class _Fetch:
    """One attempt. What is known already survives a retry."""

    def __init__(
        self, source: SourceFile, part: PartialFile, wanted: FileWanted, teller: Teller, timeouts: Timeouts,
        sleep: Callable[[float], None], judge: RetryPolicy,
    ) -> None:  # fmt: skip
        self._source, self._part, self._wanted, self._teller = source, part, wanted, teller
        self._patience, self._sleep, self._judge = timeouts, sleep, judge
        self._gauge = _Gauge(teller)
        self._facts: FileFacts | None = None
        self._wrong_digest = ""
        self._furthest = 0
        self._fetched = 0
        self._restarts = 0
        self._whole = False
        self._has_ranges = True
        self._give_up_at = float("inf")

    def run(self) -> FetchedFile:
        while True:
            try:
                return self._try()
            except FetchError as trouble:
                self._heed(trouble)

    def _try(self) -> FetchedFile:
        facts = self._facts or self._begin(self._told())
        while not self._whole:
            self._pour(facts)
        kind, found = self._check(facts)
        self._look()
        again = self._source.facts()
        if not again.has_same_content(facts):
            raise FetchError("CHANGED")
        os.fsync(self._part.descriptor)
        self._gauge.ended(self._part.length)
        is_vouched_for = facts.is_of_this_machine or any(
            (facts.md5, facts.sha256, self._wanted.md5, self._wanted.sha256)
        )
        return FetchedFile(
            self._part.path,
            again,
            kind,
            self._part.length,
            found,
            bytes_fetched=self._fetched,
            restarts=self._restarts,
            note="" if is_vouched_for else NO_DIGEST,
        )

    def _told(self) -> FileFacts:
        facts = self._source.facts()
        return facts if self._has_ranges else replace(facts, can_resume=False)

    def _begin(self, facts: FileFacts) -> FileFacts:
        self._look()
        wanted = self._wanted
        if facts.size == 0:
            raise FetchError("EMPTY")
        self._check_size(facts.size or 0)
        for digest, told, expected in (("MD5", facts.md5, wanted.md5), ("SHA-256", facts.sha256, wanted.sha256)):
            if told and expected and told != expected:
                raise FetchError("NOT_AS_EXPECTED", digest=digest, found=told, expected=expected)
        # MD5 costs more than all the rest together, so only where it proves more than SHA-256 does.
        is_proven = facts.sha256 and (facts.md5 or not wanted.md5)
        self._part.adopt(facts, has_md5=bool(facts.md5 or wanted.md5) and not is_proven)
        if self._part.room() < (facts.size or 0) - self._part.length + _MARGIN_BYTES:
            raise FetchError("DISK_FULL")
        if self._part.length:
            self._teller.log(f"{_sized(self._part.length)} of it is here already")
        self._facts = facts
        self._furthest = self._part.length
        self._whole = facts.size is not None and self._part.length == facts.size
        slowest = (facts.size or wanted.bytes_max) / self._patience.floor_bytes_per_second
        self._give_up_at = time.monotonic() + slowest + self._patience.slack_seconds
        self._gauge.begin(self._part.length, facts.size)
        return facts

    def _pour(self, facts: FileFacts) -> None:
        """One chunk; or all of it, where the source knows no chunks."""
        part = self._part
        if part.length and not facts.can_resume:
            part.clear()
        left = None if facts.size is None else facts.size - part.length
        length = min(left, self._patience.chunk_bytes) if left is not None and facts.can_resume else left
        before = part.length
        for count in self._source.download_into(part, facts, length):
            self._fetched += count
            if part.length > self._furthest:
                self._furthest = part.length
                self._judge.bytes_came()
            self._check_size(part.length)
            self._gauge.now(part.length)
            self._look()
            if time.monotonic() > self._give_up_at:
                raise FetchError("CHUNK_TOO_SLOW", after=self._patience.longest_wait + 1)
        if facts.size is None:
            self._whole = True
        else:
            self._whole = part.length == facts.size
            if part.length > facts.size:
                raise FetchError("RANGE_WRONG")
            if part.length == before or not (facts.can_resume or self._whole):
                raise FetchError("CUT_SHORT")

    def _check(self, facts: FileFacts) -> tuple[file_kinds.Format, Digests]:
        """Size, signature, digests. Of wrong bytes it is told that they are wrong, before what they look like."""
        part, wanted = self._part, self._wanted
        if facts.size is not None and os.fstat(part.descriptor).st_size != facts.size:
            raise FetchError("RANGE_WRONG")
        if part.length == 0:
            raise FetchError("CUT_SHORT")
        found = part.digests(self._look_while_hashing)
        for digest, right, is_told in (
            ("MD5", facts.md5, True),
            ("SHA-256", facts.sha256, True),
            ("MD5", wanted.md5, bool(facts.md5)),
            ("SHA-256", wanted.sha256, bool(facts.sha256 or facts.md5)),
        ):
            local = found.md5 if digest == "MD5" else found.sha256
            if not right or not local or right == local:
                continue
            if right in (wanted.md5, wanted.sha256) and is_told and right not in (facts.md5, facts.sha256):
                raise FetchError("NOT_AS_EXPECTED", digest=digest, found=local, expected=right)
            raise self._wrong(digest, local, right)
        head = part.head()
        is_sure = facts.md5 or facts.sha256 or facts.is_of_this_machine or file_kinds.HTML.is_named_by(facts.name)
        # To look for letters in 64 KiB of a PDF takes longer than all else here.
        if not is_sure and not file_kinds.has_pdf_within(head) and (page := file_kinds.markup_in(head)):
            part.clear()
            raise FetchError("PAGE_INSTEAD", page=page)
        return file_kinds.verify_format(head, facts.mime, facts.name), replace(found, md5=found.md5 or facts.md5)

    def _wrong(self, digest: str, local: str, right: str) -> FetchError:
        """The same wrong bytes twice are what the source has; other ones each time were spoilt on their way."""
        is_another = self._wrong_digest not in ("", local)
        self._wrong_digest = local
        return FetchError("SPOILT" if is_another else "DIGEST_WRONG", digest=digest, found=local, expected=right)

    def _heed(self, trouble: FetchError) -> None:
        self._look()
        self._teller.log(f"at byte {self._part.length}: {trouble.sentence} ({trouble.code})")
        answer = self._judge.after(trouble)
        if isinstance(answer, Restart):
            self._part.clear()
            self._restarts += 1
            if answer.is_last and trouble.code in OF_RANGES:
                # A server that has lost its ranges may still have the file.
                self._has_ranges = False
            self._facts, self._whole = None, False
            return
        if trouble.rule.kind == "RESTART":
            self._whole = False
        self._wait(answer.seconds)

    def _wait(self, seconds: float) -> None:
        while seconds > 0:
            self._look()
            self._sleep(min(seconds, _WAIT_STEP_SECONDS))
            seconds -= _WAIT_STEP_SECONDS

    def _look(self) -> None:
        if self._teller.cancelled():
            # The bytes are on the disk, as far as they have come.
            raise Stopped

    def _look_while_hashing(self, done: int) -> None:
        self._gauge.checking(done, self._part.length)
        self._look()

    def _check_size(self, size: int) -> None:
        if size > self._wanted.bytes_max:
            raise FetchError("TOO_LARGE", size=size, most=self._wanted.bytes_max)


class _Gauge:
    """Reports bytes and their rate a few times a second."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._size: int | None = None
        self._told_at = 0.0
        self._past: deque[tuple[float, int]] = deque()

    def begin(self, length: int, size: int | None) -> None:
        self._size = size
        self._past.clear()
        self._past.append((time.monotonic(), length))

    def now(self, length: int) -> None:
        now = time.monotonic()
        if now - self._told_at < _TELL_SECONDS and length != self._size:
            return
        self._told_at = now
        while len(self._past) > 1 and now - self._past[0][0] > _RATE_SECONDS:
            self._past.popleft()
        (then, before), size = self._past[0], self._size
        self._past.append((now, length))
        rate = max(length - before, 0) / max(now - then, 0.001)
        said = _sized(length) if size is None else f"{_sized(length)} of {_sized(size)}"
        percent = _FETCHED_PERCENT * length / size if size else 0.0
        self._teller.progress(percent, said, done=length, total=size, unit="bytes", rate=rate)

    def checking(self, done: int, size: int) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            rest = 99.0 - _FETCHED_PERCENT
            self._teller.progress(_FETCHED_PERCENT + rest * done / max(size, 1), f"checking {_sized(size)}")

    def ended(self, length: int) -> None:
        self._teller.progress(100.0, _sized(length), done=length, total=length, unit="bytes")


def _sized(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
