"""What has happened becomes messages, each once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.store.kit import lay_out, new_worker
from worker_service.base.clock import wall_clock
from worker_service.base.errors import BadInput
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import Job, NewJob
from worker_service.jobs.selector import Selector
from worker_service.services import batches, notifications
from worker_service.services.session import Session, open_session
from worker_service.settings.loading import load_settings

SETTINGS = """
notify_old_after = "1h"

[[notify]]
name = "ops"
to = "mailto:ops@example.com"
group = "1s"

[[notify]]
name = "owners"
to = "owner"
when = ["job.failed"]
group = "1s"

[addresses]
alice = "apprise:alice"
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / "pagemill.toml").write_text(SETTINGS)
    settings = load_settings(
        environ={"HOME": str(tmp_path), "WORKER_CONFIG": str(tmp_path / "pagemill.toml")}, directory=tmp_path
    )
    lay_out(settings.database)
    opened = open_session(settings, actor="ann")
    yield Session(opened.store, settings, "ann", lambda: wall_clock() + timedelta(seconds=2))
    opened.close()


def fail_one(session: Session, owner: str = "", message: str = "no answer") -> None:
    session.store.intake.enqueue(NewJob("ocr_pages", owner=owner))
    [job] = session.store.leases.claim("w", 1)
    session.store.leases.fail(job.lease, Failure("TIMEOUT", message), retry_at=None)


def messages(session: Session) -> list[Job]:
    return sorted(session.store.job_queries.list(Selector(job_types=("notify",))), key=lambda job: job.id)


def payload_of(job: Job) -> dict[str, str]:
    found: dict[str, str] = json.loads(job.payload or "")
    return found


def told(session: Session) -> list[tuple[str, str]]:
    payloads = [json.loads(job.payload or "") for job in messages(session)]
    return [(one["to"], one["subject"].partition(": ")[2]) for one in payloads]


def test_what_was_before_the_rule_nobody_is_told(session: Session) -> None:
    session.store.workers.register(new_worker("w"))
    fail_one(session)

    assert notifications.send_due_notifications(session) == 0
    assert notifications.send_due_notifications(session) == 0


def test_each_failure_is_told_once_to_whom_it_concerns(session: Session) -> None:
    session.store.workers.register(new_worker("w"))
    notifications.send_due_notifications(session)
    fail_one(session, "alice")
    fail_one(session, "bob")

    assert notifications.send_due_notifications(session) == 2
    assert notifications.send_due_notifications(session) == 0
    assert told(session) == [("mailto:ops@example.com", "2 jobs failed"), ("apprise:alice", "1 job failed")]


def test_failures_with_long_messages_are_told_and_what_comes_later_as_well(session: Session) -> None:
    session.store.workers.register(new_worker("w"))
    notifications.send_due_notifications(session)
    for _ in range(20):
        fail_one(session, "alice", "a page of \N{SNOWMAN} " * 5_000)

    assert notifications.send_due_notifications(session) == 2
    assert {len(job.payload or "") < 100_000 for job in messages(session)} == {True}


def test_a_message_that_failed_to_arrive_is_told_like_any_other_failure_but_not_of_itself_for_ever(
    session: Session,
) -> None:
    session.store.workers.register(new_worker("w"))
    notifications.send_due_notifications(session)
    fail_one(session)
    notifications.send_due_notifications(session)
    for _ in range(3):
        for job in session.store.leases.claim("w", 9):
            session.store.leases.fail(job.lease, Failure("SMTP_550", "no such mailbox"), retry_at=None)
        notifications.send_due_notifications(session)

    assert len(messages(session)) == 1


def test_a_silent_worker_is_told_once_and_again_when_it_was_back(session: Session) -> None:
    def is_silent(is_so: bool) -> int:
        beat = session.clock() - timedelta(hours=is_so)
        session.store.workers.register(new_worker("w"))
        with session.store.database.transaction():
            session.store.database.writer.execute(
                "UPDATE worker SET heartbeat_at = ?", (beat.isoformat(" ", "milliseconds").removesuffix("+00:00"),)
            )
        return notifications.send_due_notifications(session)

    is_silent(False)
    assert [is_silent(state) for state in (True, True, False, True)] == [1, 0, 0, 1]


def test_a_job_that_waits_too_long_is_told(session: Session) -> None:
    notifications.send_due_notifications(session)
    session.store.intake.enqueue(NewJob("ocr_pages"))
    later = Session(session.store, session.settings, "ann", lambda: wall_clock() + timedelta(hours=2))

    assert [notifications.send_due_notifications(later), notifications.send_due_notifications(later)] == [1, 0]
    assert told(session) == [("mailto:ops@example.com", "1 job waits too long")]


def test_a_test_goes_to_each_address_once(session: Session) -> None:
    assert len(notifications.send_test(session, None)) == 2
    assert len(notifications.send_test(session, "owners")) == 1
    assert [to for to, _ in told(session)] == ["mailto:ops@example.com", "apprise:alice", "apprise:alice"]
    with pytest.raises(BadInput, match="is called 'opps'"):
        notifications.send_test(session, "opps")


def test_a_list_says_how_much_is_yet_to_be_told(session: Session) -> None:
    session.store.workers.register(new_worker("w"))
    notifications.send_due_notifications(session)
    fail_one(session)

    assert [(one.name, one.to, one.waiting) for one in notifications.list_rules(session)] == [
        ("ops", "mailto:ops@example.com", 1),
        ("owners", "owner", 1),
    ]


# --- the end of a batch -----------------------------------------------------------------------------


def test_the_end_of_a_batch_is_reported_once_with_its_files_to_the_user_who_asked(session: Session) -> None:
    session.store.workers.register(new_worker("w", types=["download"]))
    first, _ = (
        batches.add_batch(
            session,
            [NewJob("download", name=name, source_key=f"/srv/{name}")],
            batches.BatchRequest("ann", name, notify=to),
        )
        for name, to in (("a.pdf", "mailto:ann@example.com"), ("b.pdf", ""))
    )
    notifications.send_due_notifications(session)
    assert told(session) == []
    batches.resume_batch(session, first.batch.id)

    [job] = session.store.leases.claim("w", 1, "io")
    session.store.leases.fail(job.lease, Failure("PDF_BROKEN", "no /Root"), retry_at=None)
    notifications.send_due_notifications(session)
    notifications.send_due_notifications(session)

    title = f"batch {first.batch.id} (a.pdf): finished, 1 failed · 1 file · 0 pages"
    assert [one for one in told(session) if one[0] == "mailto:ann@example.com"] == [("mailto:ann@example.com", title)]
    [text] = [one["text"] for one in map(payload_of, messages(session)) if one["to"] == "mailto:ann@example.com"]
    assert "Could not be read:\n  a.pdf: This file is damaged and cannot be opened." in text


def test_an_address_is_written_as_users_know_it(session: Session) -> None:
    def read(word: str, owner: str = "alice") -> str:
        return notifications.read_address(session, word, owner=owner)

    assert [read(word) for word in ("", "me", "ann@example.com", "https://example.com/x")] == [
        "", "apprise:alice", "mailto:ann@example.com", "https://example.com/x",
    ]  # fmt: skip
    with pytest.raises(BadInput, match="no address of bob"):
        read("me", "bob")
    with pytest.raises(BadInput, match="is not an address"):
        read("file:///etc/passwd")


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("", True),
        ("apprise:alice", True),
        ("apprise:ops", False),
        ("mailto:ann@example.com", True),
        ("mailto:a@evil.org,b@example.com", False),
        ("https://hooks.example.com/x", True),
        ("https://hooks.example.com@evil.org/x", False),
        ("http://127.0.0.1:9200/", False),
        ("https://team.hooks.example.org/x", True),
        ("https://127.0.0.1:9200#.hooks.example.org/x", False),
        ("https://evil.org?.hooks.example.org/x", False),
        ("https://evil.org\\.hooks.example.org/x", False),
    ],
)
def test_users_of_the_page_reach_their_own_address_and_what_the_settings_allow(
    session: Session, address: str, is_allowed: bool
) -> None:
    session.settings.notify_allow[:] = [
        "mailto:*@example.com", "https://hooks.example.com/*", "https://*.hooks.example.org/x",
    ]  # fmt: skip

    assert notifications.is_allowed_address(session, address, owner="alice") is is_allowed
