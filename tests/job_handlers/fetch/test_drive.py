"""What a crawl and a person ask Drive, with Google's own client, of a server that is as strict as Drive."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from job_handlers.fetch.errors import RULES, FetchError
from job_handlers.fetch.sources.drive import client as drive
from job_handlers.fetch.sources.drive.client import Drive
from job_handlers.fetch.sources.drive.pacer import Pacer
from tests.drive_server import DriveServer, Fault
from tests.drive_server.model import ME
from tests.job_handlers.fetch.quick_handlers import SOON
from worker_service.handlers import Stopped


@pytest.fixture
def google(server: DriveServer) -> Iterator[Drive]:
    one = Drive(timeouts=SOON, pacer=Pacer(1e6))
    yield one
    one.close()


def test_a_token_that_drive_no_longer_knows_is_a_request_that_makes_no_sense(google: Drive) -> None:
    with pytest.raises(FetchError) as ended:
        google.changes("no token")

    assert ended.value.code == "REQUEST_INVALID"


def test_who_it_is_can_be_asked(server: DriveServer, tmp_path: Path) -> None:
    with closing(Drive()) as drive:
        assert (drive.account(), drive.kind) == (ME, "service account")

    (tmp_path / "credentials" / "drive").write_text(server.tokens.service_account(subject="anna@example.com"))

    with closing(Drive()) as drive:
        assert (drive.account(), drive.kind) == ("anna@example.com", "service account as anna@example.com")


def test_a_token_that_has_ended_is_fetched_anew(server: DriveServer, google: Drive) -> None:
    item = server.store.add("a.pdf", b"x")
    google.entry(item.id)
    server.tokens.forget()

    assert google.entry(item.id).id == item.id
    assert len(server.asked("token")) == 2


def test_metadata_is_not_waited_for_longer_than_a_chunk(server: DriveServer, google: Drive) -> None:
    item = server.store.add("a.pdf", b"x")
    google.entry(item.id)
    for kind, on in (*((kind, "metadata") for kind in ("header drip", "drip", "stall")), ("header drip", "token")):
        if on == "token":
            server.tokens.forget()
        server.arm(Fault(kind, on=on, gap=0.1))
        begun = time.monotonic()

        with pytest.raises(FetchError) as ended:
            google.entry(item.id)

        assert ended.value.rule.kind == "RETRY", ended.value
        # The server would go on for ten times as long; the machine may be slow.
        assert time.monotonic() - begun < 10


def test_all_reasons_of_drive_have_a_rule() -> None:
    assert set(drive.REASONS.values()) <= set(RULES)


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        (403, "rateLimitExceeded", "RATE_LIMITED"),
        (429, "", "RATE_LIMITED"),
        (403, "downloadQuotaExceeded", "QUOTA_USED_UP"),
        (403, "insufficientFilePermissions", "ACCESS_REFUSED"),
        (403, "somethingNew", "BLOCKED"),
        (404, "notFound", "NOT_FOUND"),
        (400, "invalidParameter", "REQUEST_INVALID"),
        (500, "backendError", "SERVER_ERROR"),
        (502, "", "SERVER_ERROR"),
        (408, "", "SERVER_ERROR"),
        (410, "", "NOT_FOUND"),
        (418, "", "REFUSED"),
    ],
)
def test_what_drive_says_becomes_one_of_our_codes(
    server: DriveServer, google: Drive, status: int, reason: str, code: str
) -> None:
    item = server.store.add("a.pdf", b"x")
    server.arm(Fault("status", on="metadata", status=status, reason=reason))

    with pytest.raises(FetchError) as ended:
        google.entry(item.id)

    assert ended.value.code == code


def test_calls_are_paced_after_a_burst() -> None:
    clock = Time()
    pacer = Pacer(10.0, burst=5, clock=clock.now, sleep=clock.sleep)

    for _ in range(15):
        pacer.wait_turn()

    assert clock.slept == pytest.approx(1.0)


def test_pacers_of_one_credential_share_their_turns_across_children() -> None:
    clock = Time()
    mine, another = (
        Pacer(10.0, burst=5, shared_by=whose, clock=clock.now, sleep=clock.sleep) for whose in ("mine", "another")
    )

    child = os.fork()
    if child == 0:
        for _ in range(4):
            mine.wait_turn()
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(3):
        mine.wait_turn()
    another.wait_turn()

    # Four of the burst were used up by the child.
    assert clock.slept == pytest.approx(0.2)


def test_whoever_is_told_to_slow_down_slows_down_all() -> None:
    clock = Time()
    told, other = (Pacer(shared_by="slow", clock=clock.now, sleep=clock.sleep) for _ in range(2))

    told.hold_back(7.0)
    other.wait_turn()

    assert clock.slept == pytest.approx(7.1)


def test_waiting_for_a_turn_ends_with_the_attempt() -> None:
    def stop() -> None:
        raise Stopped

    pacer = Pacer(0.001, burst=0, raise_if_stopped=stop)

    with pytest.raises(Stopped):
        pacer.wait_turn()


class Time:
    """Passes only while somebody sleeps."""

    def __init__(self) -> None:
        self._now = time.monotonic_ns()
        self.slept = 0.0

    def now(self) -> int:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self._now += round(seconds * 1e9)
