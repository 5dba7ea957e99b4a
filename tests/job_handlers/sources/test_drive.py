"""What a crawl and a person ask Drive, with Google's own client, of a server that is as strict as Drive."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from job_handlers.download.troubles import RULES, Trouble
from job_handlers.sources.drive import client as drive
from job_handlers.sources.drive.client import Drive
from job_handlers.sources.drive.pacer import Pacer
from tests.drive_server import DriveServer, Fault
from tests.drive_server.model import ME
from tests.job_handlers.fetching import SOON, drive_for
from worker_service.handlers import Stopped


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DriveServer]:
    with drive_for(monkeypatch, tmp_path) as server:
        yield server


@pytest.fixture
def google(server: DriveServer) -> Iterator[Drive]:
    one = Drive(patience=SOON, pacer=Pacer(1e6))
    yield one
    one.close()


def test_the_children_of_a_folder_come_page_by_page(server: DriveServer, google: Drive) -> None:
    folder = server.store.folder("O'Hara \\ Sons", id="folder-with-'quote\\")
    files = [server.store.add(f"{number}.pdf", b"x", parents=[folder.id]) for number in range(5)]
    server.store.add("elsewhere.pdf", b"x")
    server.store.trash(files.pop())
    server.page_size_max = 3

    first = google.children(folder.id)
    second = google.children(folder.id, first.next_page)

    assert [one.id for one in (*first.entries, *second.entries)] == [one.id for one in files]
    assert (len(first.entries), second.next_page, first.is_partial) == (3, "", False)


def test_an_entry_tells_what_a_download_needs(server: DriveServer, google: Drive) -> None:
    item = server.store.add("a.pdf", b"%PDF-", parents=["somewhere"])
    shortcut = server.store.shortcut("to a", item.id, target_key="0-key")

    entry, link = google.entry(item.id), google.entry(shortcut.id)

    assert (entry.name, entry.size, entry.parent_ids, entry.refusal) == ("a.pdf", 5, ("somewhere",), "")
    assert len(entry.md5) == 32
    assert len(entry.sha256) == 64
    before = entry.revision
    server.store.write(item, b"%PDF-2")
    assert google.entry(item.id).revision != before
    assert (link.kind, link.target_id, link.key) == ("shortcut", item.id, "0-key")


def test_what_changed_since_a_token_is_told_once(server: DriveServer, google: Drive) -> None:
    kept, moved, removed = (server.store.add(name, b"x") for name in ("kept", "moved", "removed"))
    token = google.start_token()
    server.store.edit(moved, lambda item: item.parents.append("other"))
    server.store.remove(removed)
    new = server.store.add("new", b"x")

    changes = google.changes(token)

    assert {one.id for one in changes.entries} == {moved.id, new.id}
    assert (changes.gone_ids, changes.is_last) == ([removed.id], True)
    assert kept.id not in {one.id for one in changes.entries}
    again = google.changes(changes.next_token)
    assert (again.entries, again.gone_ids) == ([], [])


def test_a_shared_drive_has_a_feed_and_a_list_of_its_own(server: DriveServer, google: Drive) -> None:
    shared = server.store.shared_drive("Team")
    token = google.start_token(shared.drive_id)
    inside = server.store.add("in", b"x", drive_id=shared.drive_id)
    server.store.add("out", b"x")

    assert [one.id for one in google.changes(token, drive_id=shared.drive_id).entries] == [inside.id]
    assert [one.id for one in google.children(shared.id, drive_id=shared.drive_id).entries] == [inside.id]


def test_what_others_have_shared_is_found(server: DriveServer, google: Drive) -> None:
    server.store.add("mine", b"x")
    theirs = server.store.add("theirs", b"x", is_shared_with_me=True)

    assert [one.id for one in google.shared_with_me().entries] == [theirs.id]


def test_a_resource_key_is_shown_for_a_folder_and_what_is_in_it(server: DriveServer, google: Drive) -> None:
    folder = server.store.folder("old", resource_key="0-old")

    with pytest.raises(Trouble):
        google.entry(folder.id)

    assert google.entry(folder.id, "0-old").key == "0-old"


def test_a_token_that_drive_no_longer_knows_is_a_request_that_makes_no_sense(google: Drive) -> None:
    with pytest.raises(Trouble) as ended:
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
    for kind, on in (
        ("header drip", "metadata"),
        ("drip", "metadata"),
        ("stall", "metadata"),
        ("header drip", "token"),
    ):
        if on == "token":
            server.tokens.forget()
        server.arm(Fault(kind, on=on, gap=0.1))
        begun = time.monotonic()

        with pytest.raises(Trouble) as ended:
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

    with pytest.raises(Trouble) as ended:
        google.entry(item.id)

    assert ended.value.code == code


def test_calls_are_paced_after_a_burst() -> None:
    clock = Time()
    pacer = Pacer(10.0, burst=5, clock=clock.now, sleep=clock.sleep)

    for _ in range(15):
        pacer.turn()

    assert clock.slept == pytest.approx(1.0)


def test_pacers_of_one_credential_share_their_turns_across_children() -> None:
    clock = Time()
    mine, another = (
        Pacer(10.0, burst=5, shared_by=whose, clock=clock.now, sleep=clock.sleep) for whose in ("mine", "another")
    )

    child = os.fork()
    if child == 0:
        for _ in range(4):
            mine.turn()
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(3):
        mine.turn()
    another.turn()

    # Four of the burst were used up by the child.
    assert clock.slept == pytest.approx(0.2)


def test_whoever_is_told_to_slow_down_slows_down_all() -> None:
    clock = Time()
    told, other = (Pacer(shared_by="slow", clock=clock.now, sleep=clock.sleep) for _ in range(2))

    told.hold_back(7.0)
    other.turn()

    assert clock.slept == pytest.approx(7.1)


def test_waiting_for_a_turn_ends_with_the_attempt() -> None:
    def stop() -> None:
        raise Stopped

    pacer = Pacer(0.001, burst=0, look=stop)

    with pytest.raises(Stopped):
        pacer.turn()


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
