from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest

from tests.kit.system import System, wait_until
from tests.store.kit import claim, work_as
from tests.web.conftest import bearing, settings_for, site_of
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.services import tokens
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.web import http_server
from worker_service.web.api import events


@dataclass
class ReceivedEvents:
    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    status: int = 0

    def of(self, kind: str) -> list[Any]:
        return [data for event_kind, _, data in list(self.events) if event_kind == kind]

    @property
    def last_id(self) -> str:
        return cast(str, next(event_id for _, event_id, _ in reversed(self.events) if event_id))


@contextmanager
def listening(site: httpx.Client, **options: Any) -> Iterator[ReceivedEvents]:
    received = ReceivedEvents()
    client = httpx.Client(base_url=site.base_url, headers=site.headers, timeout=30)
    with client, client.stream("GET", "/api/events", **options) as stream:
        received.status = stream.status_code
        thread = threading.Thread(target=_receive, args=(stream, received), daemon=True)
        thread.start()
        wait_until(lambda: received.events, "the first event arrives")
        try:
            yield received
        finally:
            # The thread may be waiting for more events.
            with suppress(OSError):
                stream.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            thread.join()


def _receive(stream: httpx.Response, received: ReceivedEvents) -> None:
    event: dict[str, str] = {}
    try:
        for line in stream.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif event:
                if "event" in event:
                    received.events.append((event["event"], event.get("id", ""), json.loads(event["data"])))
                event = {}
    except (httpx.HTTPError, httpx.StreamError):
        pass


def cancelled(session: Session, **fields: Any) -> int:
    job_id = session.store.intake.enqueue(NewJob(**{"job_type": "a", **fields})).job_id
    session.store.job_control.cancel(Selector(ids=(job_id,)), actor="test")
    return job_id


def test_each_event_is_sent_once_and_at_once(site: httpx.Client, session: Session) -> None:
    with listening(site) as received:
        first = cancelled(session, owner="alice", name="a.pdf")
        wait_until(lambda: received.of("job"), "the event arrives")
        second = cancelled(session)
        wait_until(lambda: len(received.of("job")) == 2, "the next event arrives")

    moves = received.of("job")
    assert [move["job_id"] for move in moves] == [first, second]
    assert (moves[0]["from_status"], moves[0]["to_status"], moves[0]["owner"], moves[0]["name"]) == (
        "pending", "cancelled", "alice", "a.pdf",
    )  # fmt: skip


def test_a_client_that_reconnects_gets_the_missed_events_once(site: httpx.Client, session: Session) -> None:
    with listening(site) as received:
        cancelled(session)
        wait_until(lambda: received.of("job"), "the event arrives")
    missed = [enqueued.job_id for enqueued in session.store.intake.enqueue_many([NewJob("a")] * 1500)]
    session.store.job_control.cancel(Selector(ids=missed), actor="test")

    with listening(site, headers={"Last-Event-ID": received.last_id}) as again:
        wait_until(lambda: len(again.of("job")) >= 1500, "all missed events arrive")
        missed.append(cancelled(session))
        wait_until(lambda: again.of("job")[-1]["job_id"] == missed[-1], "a new event arrives")

    assert [move["job_id"] for move in again.of("job")] == missed


def test_a_client_that_reconnects_before_the_first_event_misses_nothing(site: httpx.Client, session: Session) -> None:
    with listening(site) as received:
        pass
    job_id = cancelled(session)

    with listening(site, params={"after": received.last_id}) as again:
        wait_until(lambda: again.of("job"), "the event arrives")

    assert [move["job_id"] for move in again.of("job")] == [job_id]


def test_a_client_that_missed_too_many_events_gets_a_reset(site: httpx.Client, session: Session) -> None:
    job_id = cancelled(session)
    with listening(site, params={"after": "99999-0-0"}) as of_another:
        assert next(kind for kind, _, _ in of_another.events) == "reset"
    with listening(site, params={"after": "0-99999-0"}) as received:
        assert next(kind for kind, _, _ in received.events) == "reset"
        session.store.job_control.delete(Selector(ids=(job_id,)), actor="test")
        wait_until(lambda: len(received.of("reset")) == 2, "the ids start again")
        again = cancelled(session)
        wait_until(lambda: received.of("job"), "the next event arrives")

    assert [move["job_id"] for move in received.of("job")] == [again]


def test_a_client_that_reconnects_after_the_newest_jobs_were_replaced_gets_a_reset(
    site: httpx.Client, session: Session
) -> None:
    cancelled(session)
    with listening(site) as received:
        gone = [cancelled(session), cancelled(session)]
        wait_until(lambda: len(received.of("job")) == 2, "both events arrive")
    session.store.job_control.delete(Selector(ids=gone), actor="test")
    for _ in range(4):
        cancelled(session)

    with listening(site, headers={"Last-Event-ID": received.last_id}) as again:
        last = cancelled(session)
        wait_until(lambda: again.of("job"), "the next event arrives")

    assert [kind for kind, _, _ in again.events] == ["reset", "job"]
    assert [move["job_id"] for move in again.of("job")] == [last]


def test_a_listening_client_gets_a_reset_if_the_newest_jobs_are_replaced(site: httpx.Client, session: Session) -> None:
    with listening(site) as received:
        gone = [cancelled(session), cancelled(session)]
        wait_until(lambda: len(received.of("job")) == 2, "both events arrive")
        # Mostly between two polls; otherwise the stream notices it even sooner.
        session.store.job_control.delete(Selector(ids=gone), actor="test")
        for _ in range(4):
            cancelled(session)

        wait_until(lambda: received.of("reset"), "the event arrives")


def test_removing_old_jobs_resets_no_stream(site: httpx.Client, session: Session) -> None:
    old = cancelled(session)
    with listening(site) as received:
        cancelled(session)
        wait_until(lambda: received.of("job"), "the event arrives")
    session.store.job_control.delete(Selector(ids=(old,)), actor="test")
    new = cancelled(session)

    with listening(site, headers={"Last-Event-ID": received.last_id}) as again:
        wait_until(lambda: again.of("job"), "the missed event arrives")

    assert [(kind, data["job_id"]) for kind, _, data in again.events] == [("job", new)]


def test_a_stream_can_be_limited_to_one_job_batch_or_document(site: httpx.Client, session: Session) -> None:
    job_id = session.store.intake.enqueue(NewJob("a")).job_id

    with listening(site, params={"job": job_id}) as received:
        cancelled(session)
        session.store.job_control.cancel(Selector(ids=(job_id,)), actor="test")
        wait_until(lambda: received.of("job"), "the event arrives")

    assert [move["job_id"] for move in received.of("job")] == [job_id]


@pytest.mark.parametrize("event_id", ["x", "1", "1-2", "-1-2-3", "1-2-3-4", "9" * 40 + "-1-1"])
def test_an_invalid_event_id_is_refused(site: httpx.Client, event_id: str) -> None:
    answer = site.get("/api/events", params={"after": event_id})

    assert (answer.status_code, "is not the id of an event" in answer.json()["detail"]) == (400, True)


def test_a_notice_is_sent(site: httpx.Client, session: Session) -> None:
    work_as(session.store)
    session.store.intake.enqueue(NewJob("action", owner="bob"))
    with listening(site) as received:
        session.store.leases.fail(claim(session.store).lease, Failure("GONE", "it is gone"), retry_at=None)
        wait_until(lambda: received.of("notice"), "the event arrives")

    [notice] = received.of("notice")
    assert (notice["kind"], notice["owner"]) == ("job.failed", "bob")
    assert (notice["code"], notice["message"]) == ("GONE", "it is gone")


def test_progress_and_end_of_a_running_job_are_sent(system: System) -> None:
    settings = settings_for(system.database)
    system.start()
    with site_of(settings) as site, listening(site) as received:
        job_id = system.enqueue("sleep", seconds=60)
        wait_until(lambda: job_id in [progress["job_id"] for progress in received.of("progress")], "it runs")
        site.post(f"/api/jobs/{job_id}/cancel").raise_for_status()
        wait_until(lambda: any(move["to_status"] == "cancelled" for move in received.of("job")), "its end arrives")
    assert system.status(job_id) is Status.CANCELLED


def test_many_streams_are_open_at_once(settings: Settings, session: Session) -> None:
    with site_of(settings) as site, ExitStack() as open_streams:
        streams = [open_streams.enter_context(listening(site)) for _ in range(32)]
        job_id = cancelled(session)
        wait_until(lambda: all(received.of("job") for received in streams), "every stream gets it")

    assert {received.of("job")[0]["job_id"] for received in streams} == {job_id}


def test_one_visitor_cannot_take_all_the_streams(
    settings: Settings, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_STREAMS_PER_VISITOR_MAX", 2)
    mine, theirs = (bearing(tokens.create_token(session, name, owner=name).text) for name in ("alice", "bob"))
    with site_of(settings) as site, ExitStack() as open_streams:
        for _ in range(2):
            open_streams.enter_context(listening(site, headers=mine))

        refused = site.get("/api/events", headers=mine)
        assert (refused.status_code, refused.json()["detail"]) == (
            429, "alice has 2 event streams open",
        )  # fmt: skip
        with listening(site, headers=theirs) as received:
            assert received.of("hello")


def test_streams_end_when_the_server_stops(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_GRACE_SECONDS", 600)
    with ExitStack() as open_streams:
        with site_of(settings) as site:
            received = [open_streams.enter_context(listening(site)) for _ in range(8)]

        wait_until(lambda: all(stream.of("end") for stream in received), "every stream gets it")
