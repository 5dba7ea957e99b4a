"""Faults of real servers: the clients return the right file or none.

PAGEMILL_FULL=1 tries thousands of random schedules instead of hundreds.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from job_handlers.fetch import transfer
from job_handlers.fetch.partial_file import Digests, FileFacts, PartialFile
from job_handlers.fetch.sources import FileRequest, https
from job_handlers.fetch.sources.drive.client import Drive
from job_handlers.fetch.sources.drive.file import DriveFile
from job_handlers.fetch.sources.drive.pacer import Pacer
from job_handlers.fetch.sources.local import LocalFile
from job_handlers.fetch.transfer import FetchedFile
from tests.drive_server import DriveServer, Fault, serving
from tests.drive_server.answers import PlainFile
from tests.full_length import short
from tests.job_handlers.certificates import certificate_in
from tests.job_handlers.fetch.kit import Fetching, pdf
from tests.job_handlers.fetch.quick_handlers import SOON
from worker_service.handlers import HandlerError, PauseSource, Permanent, Retryable, Snooze, Stopped

CHUNK = SOON.chunk_bytes
CONTENT = pdf(4 * CHUNK + 5000)
SOURCES = ("drive", "https")
PLACES = {"first": 0, "middle": 2, "last": 4}
SLOW = ("stall", "stall at once", "drip", "header drip")


@pytest.fixture
def fetching(tmp_path: Path) -> Fetching:
    return Fetching(tmp_path / "keep")


class File:
    """The same content in Drive and behind a URL, of which `kind` says which one is fetched."""

    def __init__(self, server: DriveServer, kind: str, content: bytes = CONTENT) -> None:
        self.server, self.kind = server, kind
        self.on = "media" if kind == "drive" else "plain"
        # The facts of a URL come from a request like any other.
        self.skip = 0 if kind == "drive" else 1
        self.item = server.store.add("report.pdf", content)
        self.plain = server.plain["report.pdf"] = PlainFile(content)

    def write(self, content: bytes) -> None:
        self.server.store.write(self.item, content)
        self.plain.content = content
        self.plain.headers["ETag"] = f'"{self.item.revision}"'

    def fetch(self, fetching: Fetching) -> FetchedFile:
        if self.kind == "drive":
            return fetching.from_drive(self.item.id)
        return fetching.from_url(f"{self.server.url}/plain/report.pdf")

    def requested_offsets(self) -> list[int]:
        return [request.begin for request in self.server.requests_for(self.on) if request.end != 1]


# --- every fault, everywhere --------------------------------------------------------------------------

FAULTS: dict[str, dict[str, Any]] = {
    "500": {"kind": "status", "status": 500},
    "503": {"kind": "status", "status": 503},
    "408": {"kind": "status", "status": 408},
    "429": {"kind": "status", "status": 429},
    "page with 403": {"kind": "page", "status": 403},
    "page with 200": {"kind": "page", "status": 200},
    "stall": {"kind": "stall", "at": 3000},
    "stall at once": {"kind": "stall", "at": 0},
    "drip": {"kind": "drip", "at": 3000},
    "header drip": {"kind": "header drip"},
    "cut": {"kind": "cut", "at": 3000},
    "reset": {"kind": "reset", "at": 3000},
    "hang up": {"kind": "hang up"},
    "garbage": {"kind": "garbage"},
    "short": {"kind": "short"},
    "other offset": {"kind": "offset"},
    "other total": {"kind": "total"},
    "range ignored": {"kind": "whole"},
}
DRIVE_ONLY: dict[str, dict[str, Any]] = {
    "rate limit": {"kind": "status", "status": 403, "reason": "userRateLimitExceeded"},
    "token refused once": {"kind": "status", "status": 401, "reason": "authError"},
    # From an ordinary web server, only a digest in the payload could show this.
    "swapped": {"kind": "swapped"},
}
CASES = [(name, source) for name in FAULTS for source in SOURCES] + [(name, "drive") for name in DRIVE_ONLY]


@pytest.mark.parametrize(("name", "source"), CASES)
def test_a_fault_in_any_chunk_only_costs_time(server: DriveServer, tmp_path: Path, name: str, source: str) -> None:
    file = File(server, source)
    for place, skip in PLACES.items():
        # From an ordinary web server, 403 is final.
        if (name in SLOW and place != "middle") or (name == "page with 403" and source == "https"):
            continue
        server.log.clear()
        fetching = Fetching(tmp_path / place)
        fault = Fault(on=file.on, skip=file.skip + skip, **{**FAULTS, **DRIVE_ONLY}[name])
        server.arm(fault)

        got = file.fetch(fetching)

        assert got.part.path.read_bytes() == CONTENT, place
        assert fault.met == 1, place
        assert got.bytes_fetched == len(CONTENT) or got.restarts, place
        assert got.restarts <= 1, place
        if name in ("cut", "stall", "drip"):
            assert file.requested_offsets()[skip + 1] >= skip * CHUNK + 3000, place


def test_a_healthy_download_uses_one_connection_for_all_its_chunks(server: DriveServer, fetching: Fetching) -> None:
    file = File(server, "drive")

    file.fetch(fetching)

    assert file.requested_offsets() == [0, CHUNK, 2 * CHUNK, 3 * CHUNK, 4 * CHUNK]
    assert len({one.connection for one in server.requests_for("media")}) == 1


# --- how often, and how long --------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
def test_retries_double_their_wait_and_respect_retry_after(
    server: DriveServer, fetching: Fetching, source: str
) -> None:
    file = File(server, source)
    server.arm(Fault("status", on=file.on, skip=file.skip, times=6, status=503))

    with pytest.raises(Retryable) as ended:
        file.fetch(fetching)

    assert ended.value.code == "SERVER_ERROR"
    # 2 + 4 + 8 + 16 + 32, and up to a quarter more.
    assert 62 <= fetching.waited_seconds <= 62 * 1.25
    assert len(fetching.context.lines) == 6

    server.arm(Fault("status", on=file.on, skip=file.skip, status=429, headers={"Retry-After": "50"}))
    again = Fetching(fetching.keep.with_name("again"))
    file.fetch(again)
    assert 50 <= again.waited_seconds <= 51


def test_only_new_bytes_reset_the_retries(server: DriveServer, tmp_path: Path) -> None:
    file, fetching = File(server, "drive"), Fetching(tmp_path / "new")
    server.arm(*(Fault("cut", at=2000) for _ in range(20)))
    assert file.fetch(fetching).part.path.read_bytes() == CONTENT
    assert 40 <= fetching.waited_seconds <= 40 * 1.25

    server.plain["report.pdf"] = PlainFile(CONTENT, has_ranges=False)
    server.arm(Fault("cut", on="plain", skip=1, at=2000, times=50))
    with pytest.raises(Retryable):
        Fetching(tmp_path / "same").from_url(f"{server.url}/plain/report.pdf")


YEARS = str(50 * 366 * 24 * 3600)
IN_YEARS = "Fri, 01 Jan 2077 00:00:00 GMT"


@pytest.mark.parametrize(
    ("fault", "end", "after", "words"),
    [
        ({"status": 503, "headers": {"Retry-After": "1800"}}, Retryable, 1800, "answered 503"),
        ({"status": 503, "headers": {"Retry-After": YEARS}}, Retryable, 3600, "days); no more than 1 h"),
        ({"status": 429, "headers": {"Retry-After": IN_YEARS}}, PauseSource, 3600, "days); no more than 1 h"),
        ({"status": 429, "times": 6}, PauseSource, 300, "fewer requests"),
    ],
)
@pytest.mark.parametrize("source", SOURCES)
def test_a_long_requested_wait_ends_the_attempt_for_an_hour_at_most(
    server: DriveServer, fetching: Fetching, source: str, fault: dict[str, Any], end: type[Any], after: int, words: str
) -> None:
    file = File(server, source)
    server.arm(Fault("status", on=file.on, skip=file.skip, **fault))

    with pytest.raises(end) as ended:
        file.fetch(fetching)

    assert ended.value.after == after
    assert words.replace(");", ";") in str(ended.value)


# --- the file itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("place", PLACES)
def test_a_file_that_changes_meanwhile_is_fetched_again(
    server: DriveServer, fetching: Fetching, source: str, place: str
) -> None:
    file = File(server, source)
    fresh = pdf(len(CONTENT) + 100, seed=1)
    server.arm(Fault("call", on=file.on, skip=file.skip + PLACES[place], action=lambda: file.write(fresh)))

    got = file.fetch(fetching)

    assert got.part.path.read_bytes() == fresh


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", ["whole", "offset", "total"])
def test_a_server_that_stops_serving_ranges_is_asked_for_the_whole_file(
    server: DriveServer, fetching: Fetching, source: str, kind: str
) -> None:
    file = File(server, source)
    server.arm(Fault(kind, on=file.on, beyond=2 * CHUNK, times=99))

    got = file.fetch(fetching)

    assert got.part.path.read_bytes() == CONTENT
    *_, last = [one for one in server.requests_for(file.on) if one.end != 1]
    assert last.end is None


def test_another_file_without_validators_is_noticed(server: DriveServer, fetching: Fetching) -> None:
    file = File(server, "https")
    fresh = pdf(len(CONTENT), seed=1)

    def replace_it() -> None:
        file.plain.content, file.plain.headers = fresh, {"Content-Type": "application/pdf"}

    server.arm(Fault("call", on=file.on, skip=3, action=replace_it))

    got = file.fetch(fetching)

    assert got.part.path.read_bytes() == fresh


@pytest.mark.parametrize("source", SOURCES)
def test_a_file_that_keeps_changing_is_fetched_later(server: DriveServer, fetching: Fetching, source: str) -> None:
    file = File(server, source)
    seeds = iter(range(1, 100))
    fault = Fault("call", on=file.on, skip=file.skip, times=99)
    fault.action = lambda: file.write(pdf(len(CONTENT), seed=next(seeds)))
    server.arm(fault)

    with pytest.raises(Retryable) as ended:
        file.fetch(fetching)

    assert (ended.value.code, ended.value.after) in (("CHANGED", 3600), ("SPOILT", 3600))


def test_md5_is_not_computed_if_the_source_gives_sha256(server: DriveServer, fetching: Fetching) -> None:
    file = File(server, "drive")

    got = file.fetch(fetching)
    assert got.digests == Digests(hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest())

    file.item.md5 = "0" * 32
    assert file.fetch(fetching).digests.md5 == "0" * 32


def test_the_same_wrong_digest_twice_is_permanent(server: DriveServer, fetching: Fetching) -> None:
    file = File(server, "drive")
    file.item.md5, file.item.has_sha256 = "0" * 32, False

    with pytest.raises(Permanent) as ended:
        file.fetch(fetching)

    assert ended.value.code == "DIGEST_WRONG"
    assert "0" * 32 in str(ended.value)
    assert len(server.requests_for("media")) == 10


@pytest.mark.parametrize("cut", [True, False])
def test_a_chunked_answer_that_is_cut_is_retried(server: DriveServer, fetching: Fetching, cut: bool) -> None:
    server.plain["report.pdf"] = PlainFile(CONTENT, has_ranges=False, is_chunked=True)
    if cut:
        server.arm(Fault("cut", on="plain", skip=1, at=100_000))

    got = fetching.from_url(f"{server.url}/plain/report.pdf")

    assert got.part.path.read_bytes() == CONTENT
    assert bool(fetching.context.lines) is cut


def test_bytes_of_another_revision_are_discarded(server: DriveServer, fetching: Fetching) -> None:
    file = File(server, "drive")
    server.arm(Fault("status", skip=2, times=6))
    with pytest.raises(Retryable):
        file.fetch(fetching)
    fresh = pdf(len(CONTENT), seed=3)
    file.write(fresh)
    server.log.clear()

    got = file.fetch(Fetching(fetching.keep))

    assert got.part.path.read_bytes() == fresh
    assert file.requested_offsets()[0] == 0


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"1"'}])
def test_without_a_strong_validator_nothing_is_resumed(
    server: DriveServer, fetching: Fetching, headers: dict[str, str]
) -> None:
    server.plain["report.pdf"] = PlainFile(CONTENT, {"Content-Type": "application/pdf", **headers})
    server.arm(Fault("cut", on="plain", skip=1, at=100_000))

    got = fetching.from_url(f"{server.url}/plain/report.pdf")

    assert got.part.path.read_bytes() == CONTENT
    assert {one.begin for one in server.requests_for("plain")} == {0}


# --- https only ---------------------------------------------------------------------------------------

TABLE = b"city;height\nBern;540\n"


@pytest.mark.parametrize(
    ("plain", "code"),
    [
        (PlainFile(b"<!-- 3 --><html>a;b</html>", {"Content-Type": "text/csv"}), "PAGE_INSTEAD"),
        (PlainFile(b'{"error": "later; please"}', {"Content-Type": "application/octet-stream"}), "PAGE_INSTEAD"),
        (PlainFile(b'{"error": "later; please"}', {"Content-Type": "text/plain"}), "PAGE_INSTEAD"),
        (PlainFile(TABLE, {"Content-Type": "application/json"}), "NOT_WHAT_IT_SAYS"),
        # A cut would not be noticed.
        (PlainFile(TABLE, {"Content-Type": "text/csv"}, has_ranges=False, is_without_length=True), "LENGTH_UNKNOWN"),
    ],
)
def test_an_answer_with_status_200_that_is_not_the_table_is_refused(
    server: DriveServer, fetching: Fetching, plain: PlainFile, code: str
) -> None:
    server.plain["table.csv"] = plain

    with pytest.raises(Permanent) as ended:
        fetching.from_url(f"{server.url}/plain/table.csv")

    assert ended.value.code == code


def test_an_error_page_with_status_200_is_retried(server: DriveServer, fetching: Fetching) -> None:
    plain = server.plain["table.csv"] = PlainFile(b'{"error": "later; please"}', {"Content-Type": "text/csv"})
    server.arm(Fault("call", on="plain", skip=5, action=lambda: setattr(plain, "content", TABLE)))

    got = fetching.from_url(f"{server.url}/plain/table.csv")

    assert (got.part.path.read_bytes(), got.kind.name) == (TABLE, "a CSV file")


def test_a_web_page_is_accepted_only_if_the_url_names_one(server: DriveServer, tmp_path: Path) -> None:
    page = b"<!doctype html><title>404</title><p>No such report"
    for name in ("report.html", "report.pdf", "report", "report.txt"):
        server.plain[name] = PlainFile(page, {"Content-Type": "text/html"})
    server.plain |= {
        "sign-in": PlainFile(page, {"Content-Type": "text/html"}),
        "b.html": PlainFile(b"", redirect="sign-in"),
    }

    got = Fetching(tmp_path / "page").from_url(f"{server.url}/plain/report.html")

    assert (got.part.path.read_bytes(), got.kind.name) == (page, "a web page")
    for name in ("report.pdf", "report", "report.txt", "b.html"):
        with pytest.raises(Permanent) as ended:
            Fetching(tmp_path / name).from_url(f"{server.url}/plain/{name}")
        assert ended.value.code == "PAGE_INSTEAD"


def test_redirects_are_followed_up_to_a_limit(server: DriveServer, tmp_path: Path) -> None:
    server.plain |= {"report.pdf": PlainFile(CONTENT), "a": PlainFile(b"", redirect="/plain/b")}
    server.plain |= {"b": PlainFile(b"", redirect="report.pdf"), "round": PlainFile(b"", redirect="/plain/round")}

    got = Fetching(tmp_path / "one").from_url(f"{server.url}/plain/a")

    assert got.part.path.read_bytes() == CONTENT
    with pytest.raises(Permanent) as ended:
        Fetching(tmp_path / "two").from_url(f"{server.url}/plain/round")
    assert ended.value.code == "REDIRECTS"
    assert len([one for one in server.log if one.path == "/plain/round"]) == 6


@pytest.mark.parametrize("to", ["http://10.0.0.1/report.pdf", "http://169.254.169.254/latest", "file:///etc/passwd"])
def test_a_redirect_to_a_forbidden_address_is_refused(server: DriveServer, fetching: Fetching, to: str) -> None:
    server.plain["a"] = PlainFile(b"", redirect=to)

    with pytest.raises(Permanent) as ended:
        fetching.from_url(f"{server.url}/plain/a")

    assert ended.value.code in ("ADDRESS_REFUSED", "REDIRECTS")


def test_an_untrusted_certificate_is_refused(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(https.ALLOW.variable, "127.0.0.0/8")
    authority, context = certificate_in(tmp_path)
    with serving(context) as server:
        server.plain["report.pdf"] = PlainFile(CONTENT)
        url = f"https://localhost:{server.port}/plain/report.pdf"

        with pytest.raises(HandlerError, match="certificate"):
            fetching.from_url(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        server.arm(Fault("drip", on="plain", skip=2, at=3000), Fault("header drip", on="plain", skip=3))

        got = Fetching(tmp_path / "again").from_url(url)

        assert got.part.path.read_bytes() == CONTENT


# --- without a digest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [1, 2], ids=["while it comes", "at its end"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ETag": 'W/"1"'}, {"ETag": 'W/"2"'}),
        ({"Last-Modified": "Sun, 01 Nov 2026 10:00:00 GMT"}, {"Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}),
    ],
    ids=["a weak tag", "a date"],
)
def test_without_a_digest_a_weak_tag_or_a_date_shows_a_change(
    server: DriveServer, fetching: Fetching, before: dict[str, str], after: dict[str, str], skip: int
) -> None:
    fresh = pdf(len(CONTENT), seed=5)
    pdf_type = {"Content-Type": "application/pdf"}
    plain = server.plain["report.pdf"] = PlainFile(CONTENT, pdf_type | before, has_ranges=False)

    def change() -> None:
        plain.content, plain.headers = fresh, pdf_type | after

    server.arm(Fault("call", on="plain", skip=skip, action=change))

    got = fetching.from_url(f"{server.url}/plain/report.pdf")

    assert (got.part.path.read_bytes(), got.restarts) == (fresh, 1)


def test_a_date_that_is_the_time_of_the_answer_is_no_change(server: DriveServer, fetching: Fetching) -> None:
    plain = server.plain["report.pdf"] = PlainFile(CONTENT, {"Content-Type": "application/pdf"}, has_ranges=False)
    ages = itertools.cycle((0, 1))

    def stamp() -> None:
        plain.headers["Last-Modified"] = formatdate(time.time() - next(ages), usegmt=True)

    server.arm(Fault("call", on="plain", times=99, action=stamp))

    got = fetching.from_url(f"{server.url}/plain/report.pdf")

    assert (got.part.path.read_bytes(), got.restarts) == (CONTENT, 0)


def test_a_file_without_any_digest_has_a_note(server: DriveServer, tmp_path: Path) -> None:
    file = File(server, "https")
    native = server.store.add("Minutes", CONTENT, mime="application/vnd.google-apps.document")
    own = tmp_path / "own.pdf"
    own.write_bytes(CONTENT)
    md5, sha256 = hashlib.md5(CONTENT).hexdigest(), hashlib.sha256(CONTENT).hexdigest()

    def fetching(name: str, request: FileRequest | None = None) -> Fetching:
        return Fetching(tmp_path / name, request=request or FileRequest())

    assert file.fetch(fetching("plain")).note == "the source gives no digest"
    assert fetching("native").from_drive(native.id, export="pdf").note == "the source gives no digest"
    assert file.fetch(fetching("by md5", FileRequest(md5=md5))).note == ""
    assert file.fetch(fetching("by sha256", FileRequest(sha256=sha256))).note == ""
    assert fetching("drive").from_drive(file.item.id).note == ""
    assert fetching("local").fetch(LocalFile(str(own), SOON)).note == ""


# --- local only ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["grows", "is replaced", "shrinks", "is touched"])
def test_a_local_file_that_changes_meanwhile_is_copied_again(tmp_path: Path, fetching: Fetching, how: str) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(CONTENT)
    fresh = {"grows": CONTENT + b"more", "shrinks": CONTENT[:100_000], "is touched": CONTENT}.get(how, pdf(400_000, 2))

    class Changing(LocalFile):
        is_done = False

        def download_into(self, part: PartialFile, facts: FileFacts, length: int | None) -> Iterator[int]:
            yield from super().download_into(part, facts, length)
            if not self.is_done:
                self.is_done = True
                if how == "is replaced":
                    path.unlink()
                path.write_bytes(fresh)

    got = fetching.fetch(Changing(str(path), SOON))

    assert got.part.path.read_bytes() == fresh


# --- stopped ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", ["stall", "header drip", "status"])
def test_a_stop_ends_the_wait_for_a_byte_a_header_or_a_retry(
    server: DriveServer, tmp_path: Path, source: str, kind: str
) -> None:
    file = File(server, source)
    timeouts = replace(SOON, idle_seconds=60.0, chunk_seconds=60.0)
    fetching = Fetching(tmp_path / "keep", timeouts, really_waits=True)

    def stop() -> None:
        fetching.context.is_stopping = True

    def stop_soon() -> None:
        if not later.ident:
            later.start()

    later = threading.Timer(0.1, stop)
    server.arm(Fault(kind, on=file.on, skip=file.skip + 1, at=3000, times=9, status=503, action=stop_soon))

    with pytest.raises(Stopped):
        file.fetch(fetching)

    later.join()
    assert CHUNK <= (fetching.keep / "file.part").stat().st_size <= CHUNK + 3000


# --- a full disk --------------------------------------------------------------------------------------


def test_a_full_disk_defers_the_job(server: DriveServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    file = File(server, "drive")
    monkeypatch.setattr(transfer, "_FREE_DISK_BYTES_MIN", 1 << 60)

    with pytest.raises(Snooze) as ended:
        file.fetch(fetching)

    assert "disk is full" in str(ended.value)
    assert server.requests_for("media") == []


# --- anything, in any order ---------------------------------------------------------------------------

TINY = replace(SOON, chunk_bytes=4096, chunk_seconds=0.4, idle_seconds=0.25)
QUICK_KINDS = (
    "status", "page", "cut", "reset", "short", "offset", "total", "whole", "swapped", "hang up", "garbage", "call",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(short(2, full=60)))
def test_random_faults_never_give_a_wrong_file(server: DriveServer, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    drive = Drive(timeouts=TINY, pacer=Pacer(1e6))
    good = 0
    for number in range(50):
        content = pdf(chance.randrange(10, 24_000), seed=number)
        file = File(server, chance.choice(SOURCES), content)
        allowed = {content}

        def edit(file: File = file, allowed: set[bytes] = allowed, number: int = number) -> None:
            fresh = pdf(chance.randrange(10, 24_000), seed=1000 + number + len(allowed))
            allowed.add(fresh)
            file.write(fresh)

        server.faults.clear()
        for _ in range(chance.randrange(1, 7)):
            kind = chance.choice(QUICK_KINDS) if chance.random() > 0.02 else chance.choice(("stall", "drip"))
            if kind == "swapped" and file.kind == "https":
                continue
            fault = Fault(kind, file.on, chance.choice((1, 1, 2, 3)), chance.randrange(0, 5))
            fault.at = chance.randrange(0, 4096)
            fault.status = chance.choice((200, 403, 408, 429, 500, 502, 503, 504))
            fault.action = edit if kind == "call" else fault.action
            server.arm(fault)
        fetching = Fetching(tmp_path / str(number), TINY)
        # Two attempts of one job.
        for _ in range(2):
            try:
                is_drive = file.kind == "drive"
                got = fetching.fetch(_FileOfSharedClient(drive, file.item.id)) if is_drive else file.fetch(fetching)
            except HandlerError:
                continue
            assert got.part.path.read_bytes() == file.plain.content, (seed, number, server.log)
            good += 1
            break
    drive.close()
    assert good > 25


class _FileOfSharedClient(DriveFile):
    """Leaves its client open."""

    def close(self) -> None:
        pass
