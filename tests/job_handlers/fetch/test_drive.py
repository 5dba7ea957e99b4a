"""The client of Google Drive, with a server that is as strict as Drive."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from job_handlers.fetch.error_rules import RULES, FetchError
from job_handlers.fetch.sources.drive import client as drive
from job_handlers.fetch.sources.drive.client import Drive
from job_handlers.fetch.sources.drive.pacer import Pacer
from tests.drive_server import DriveServer, Fault
from tests.drive_server.model import ME
from tests.job_handlers.fetch.quick_handlers import SOON
from worker_service.handlers import Stopped


@pytest.fixture
def google(server: DriveServer) -> Iterator[Drive]:
    with closing(Drive(timeouts=SOON, pacer=Pacer(1e6))) as client:
        yield client


def test_an_unknown_change_token_is_an_invalid_request(google: Drive) -> None:
    with pytest.raises(FetchError) as ended:
        google.changes("no token")

    assert ended.value.code == "REQUEST_INVALID"


def test_the_account_of_a_credential_is_known(server: DriveServer, tmp_path: Path) -> None:
    with closing(Drive()) as drive:
        assert (drive.request_account(), drive.login.kind) == (ME, "service account")

    (tmp_path / "credentials" / "drive").write_text(server.tokens.service_account(subject="anna@example.com"))

    with closing(Drive()) as drive:
        assert drive.request_account() == "anna@example.com"
        assert drive.login.kind == "service account as anna@example.com"


def test_an_expired_access_token_is_replaced(server: DriveServer, google: Drive) -> None:
    item = server.store.add("a.pdf", b"x")
    google.entry(item.id)
    server.tokens.expire_all()

    assert google.entry(item.id).id == item.id
    assert len(server.requests_for("token")) == 2


def test_metadata_has_the_time_limit_of_a_chunk(server: DriveServer, google: Drive) -> None:
    item = server.store.add("a.pdf", b"x")
    google.entry(item.id)
    for kind, on in (*((kind, "metadata") for kind in ("header drip", "drip", "stall")), ("header drip", "token")):
        if on == "token":
            server.tokens.expire_all()
        server.arm(Fault(kind, on=on, gap=0.1))
        begun = time.monotonic()

        with pytest.raises(FetchError) as ended:
            google.entry(item.id)

        assert ended.value.rule.kind == "RETRY", ended.value
        # The server would go on for ten times as long; the machine may be slow.
        assert time.monotonic() - begun < 10


def test_all_reasons_of_drive_have_a_rule() -> None:
    assert set(drive.CODE_BY_REASON.values()) <= set(RULES)


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        (403, "rateLimitExceeded", "RATE_LIMITED"),
        (429, "", "RATE_LIMITED"),
        (403, "downloadQuotaExceeded", "QUOTA_USED_UP"),
        (403, "insufficientFilePermissions", "ACCESS_REFUSED"),
        (403, "accessNotConfigured", "API_DISABLED"),
        (403, "insufficientPermissions", "SCOPE_MISSING"),
        (403, "domainPolicy", "DOMAIN_POLICY"),
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
def test_each_reason_of_drive_becomes_a_code(
    server: DriveServer, google: Drive, status: int, reason: str, code: str
) -> None:
    item = server.store.add("a.pdf", b"x")
    server.arm(Fault("status", on="metadata", status=status, reason=reason))

    with pytest.raises(FetchError) as ended:
        google.entry(item.id)

    assert ended.value.code == code


def test_calls_are_paced_after_a_burst() -> None:
    clock = FakeClock()
    pacer = Pacer(10.0, burst=5, clock=clock.now, sleep=clock.sleep)

    for _ in range(15):
        pacer.wait_turn()

    assert clock.slept == pytest.approx(1.0)


def test_pacers_of_one_credential_share_their_turns_across_processes() -> None:
    clock = FakeClock()
    mine, another = (
        Pacer(10.0, burst=5, shared_by=account, clock=clock.now, sleep=clock.sleep) for account in ("mine", "another")
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


def test_holding_back_delays_all_pacers_of_the_account() -> None:
    clock = FakeClock()
    held_back, other = (Pacer(shared_by="slow", clock=clock.now, sleep=clock.sleep) for _ in range(2))

    held_back.hold_back_account(7.0)
    other.wait_turn()

    assert clock.slept == pytest.approx(7.1)


def test_waiting_for_a_turn_ends_with_the_attempt() -> None:
    def stop() -> None:
        raise Stopped

    pacer = Pacer(0.001, burst=0, raise_if_stopped=stop)

    with pytest.raises(Stopped):
        pacer.wait_turn()


class FakeClock:
    """Advances only by `sleep`."""

    def __init__(self) -> None:
        self._now = time.monotonic_ns()
        self.slept = 0.0

    def now(self) -> int:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self._now += round(seconds * 1e9)
