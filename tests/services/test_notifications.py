"""Notices become messages, each once."""

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
    return sorted(session.job_queries.list(Selector(job_types=("notify",))), key=lambda job: job.id)


def payload_of(job: Job) -> dict[str, str]:
    payload: dict[str, str] = json.loads(job.payload or "")
    return payload


def sent(session: Session) -> list[tuple[str, str]]:
    """Return the address and the subject of each message."""
    payloads = map(payload_of, messages(session))
    return [(payload["to"], payload["subject"].partition(": ")[2]) for payload in payloads]


def test_events_before_the_rule_are_not_reported(session: Session) -> None:
    session.store.workers.register(new_worker("w"))
    fail_one(session)

    assert notifications.send_due_notifications(session) == 0
    assert notifications.send_due_notifications(session) == 0


def test_each_failure_is_reported_once_to_each_rule_it_concerns(session: Session) -> None:
    session.store.workers.register(new_worker("w"))
    notifications.send_due_notifications(session)
    fail_one(session, "alice")
    fail_one(session, "bob")

    assert notifications.send_due_notifications(session) == 2
    assert notifications.send_due_notifications(session) == 0
    assert sent(session) == [("mailto:ops@example.com", "2 jobs failed"), ("apprise:alice", "1 job failed")]


def test_failures_with_long_messages_fit_a_payload(session: Session) -> None:
    session.store.workers.register(new_worker("w"))
    notifications.send_due_notifications(session)
    for _ in range(20):
        fail_one(session, "alice", "a page of \N{SNOWMAN} " * 5_000)

    assert notifications.send_due_notifications(session) == 2
    assert {len(job.payload or "") < 100_000 for job in messages(session)} == {True}


def test_a_failed_message_causes_no_further_message(session: Session) -> None:
    session.store.workers.register(new_worker("w"))
    notifications.send_due_notifications(session)
    fail_one(session)
    notifications.send_due_notifications(session)
    for _ in range(3):
        for job in session.store.leases.claim("w", 9):
            session.store.leases.fail(job.lease, Failure("SMTP_550", "no such mailbox"), retry_at=None)
        notifications.send_due_notifications(session)

    assert len(messages(session)) == 1


def test_a_silent_worker_is_reported_once_until_it_is_back(session: Session) -> None:
    def messages_about(*, is_silent: bool) -> int:
        heartbeat = session.clock() - timedelta(hours=is_silent)
        session.store.workers.register(new_worker("w"))
        with session.store.database.transaction():
            session.store.database.writer.execute(
                "UPDATE worker SET heartbeat_at = ?", (heartbeat.isoformat(" ", "milliseconds").removesuffix("+00:00"),)
            )
        return notifications.send_due_notifications(session)

    messages_about(is_silent=False)
    assert [messages_about(is_silent=is_silent) for is_silent in (True, True, False, True)] == [1, 0, 0, 1]


def test_a_job_that_waits_too_long_is_reported_once(session: Session) -> None:
    notifications.send_due_notifications(session)
    session.store.intake.enqueue(NewJob("ocr_pages"))
    later = Session(session.store, session.settings, "ann", lambda: wall_clock() + timedelta(hours=2))

    assert [notifications.send_due_notifications(later), notifications.send_due_notifications(later)] == [1, 0]
    assert sent(session) == [("mailto:ops@example.com", "1 job waits too long")]


def test_a_test_message_is_sent_to_each_address_once(session: Session) -> None:
    assert len(notifications.send_test(session, None)) == 2
    assert len(notifications.send_test(session, "owners")) == 1
    assert [to for to, _ in sent(session)] == ["mailto:ops@example.com", "apprise:alice", "apprise:alice"]
    with pytest.raises(BadInput, match="is called 'opps'"):
        notifications.send_test(session, "opps")


def test_the_list_of_rules_counts_waiting_notices(session: Session) -> None:
    session.store.workers.register(new_worker("w"))
    notifications.send_due_notifications(session)
    fail_one(session)

    assert [(rule.name, rule.to, rule.waiting) for rule in notifications.list_rules(session)] == [
        ("ops", "mailto:ops@example.com", 1),
        ("owners", "owner", 1),
    ]


# --- the end of a batch -----------------------------------------------------------------------------


def test_the_end_of_a_batch_is_reported_once_to_the_user_who_asked(session: Session) -> None:
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
    assert sent(session) == []
    batches.resume_batch(session, first.batch.id)

    [job] = session.store.leases.claim("w", 1, "io")
    session.store.leases.fail(job.lease, Failure("PDF_BROKEN", "no /Root"), retry_at=None)
    notifications.send_due_notifications(session)
    notifications.send_due_notifications(session)

    title = f"batch {first.batch.id} (a.pdf): finished, 1 failed · 1 file · 0 pages"
    [report] = [job for job in messages(session) if payload_of(job)["to"] == "mailto:ann@example.com"]
    assert payload_of(report)["subject"].endswith(title)
    assert "Could not be read:\n  a.pdf: This file is damaged and cannot be opened." in payload_of(report)["text"]


def test_an_address_may_be_a_mail_address_a_url_or_me(session: Session) -> None:
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
def test_users_may_notify_their_own_address_and_those_of_the_settings(
    session: Session, address: str, is_allowed: bool
) -> None:
    session.settings.notify_allow[:] = [
        "mailto:*@example.com", "https://hooks.example.com/*", "https://*.hooks.example.org/x",
    ]  # fmt: skip

    assert notifications.is_allowed_address(session, address, owner="alice") is is_allowed
