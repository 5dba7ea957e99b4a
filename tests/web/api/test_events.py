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
from tests.web.conftest import site_of
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.services import tokens
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings
from worker_service.web import http_server as server
from worker_service.web.api import events as feed_of


@dataclass
class ReceivedEvents:
    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    status: int = 0

    def of(self, kind: str) -> list[Any]:
        return [data for one, _, data in list(self.events) if one == kind]

    @property
    def last_id(self) -> str:
        return cast(str, next(place for _, place, _ in reversed(self.events) if place))


@contextmanager
def listening(site: httpx.Client, **asked: Any) -> Iterator[ReceivedEvents]:
    received = ReceivedEvents()
    client = httpx.Client(base_url=site.base_url, headers=site.headers, timeout=30)
    with client, client.stream("GET", "/api/events", **asked) as stream:
        received.status = stream.status_code
        thread = threading.Thread(target=_receive, args=(stream, received), daemon=True)
        thread.start()
        wait_until(lambda: received.events, "it says hello, or what was missed")
        try:
            yield received
        finally:
            # The thread is in the middle of reading, unless all was said.
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


def cancelled(session: Session, **words: Any) -> int:
    job_id = session.store.intake.enqueue(NewJob(**{"job_type": "a", **words})).job_id
    session.store.job_control.cancel(Selector(ids=(job_id,)), actor="test")
    return job_id


def test_each_event_is_sent_once_and_at_once(site: httpx.Client, session: Session) -> None:
    with listening(site) as received:
        first = cancelled(session, owner="alice", name="a.pdf")
        wait_until(lambda: received.of("job"), "it is told")
        second = cancelled(session)
        wait_until(lambda: len(received.of("job")) == 2, "and the next")

    told = received.of("job")
    assert [one["job_id"] for one in told] == [first, second]
    assert (told[0]["from_status"], told[0]["to_status"], told[0]["owner"], told[0]["name"]) == (
        "pending", "cancelled", "alice", "a.pdf",
    )  # fmt: skip


def test_a_client_that_reconnects_gets_the_missed_events_once(site: httpx.Client, session: Session) -> None:
    with listening(site) as received:
        cancelled(session)
        wait_until(lambda: received.of("job"), "it is told")
    missed = [one.job_id for one in session.store.intake.enqueue_many([NewJob("a")] * 1500)]
    session.store.job_control.cancel(Selector(ids=missed), actor="test")

    with listening(site, headers={"Last-Event-ID": received.last_id}) as again:
        wait_until(lambda: len(again.of("job")) >= 1500, "all that was missed")
        missed.append(cancelled(session))
        wait_until(lambda: again.of("job")[-1]["job_id"] == missed[-1], "and what happens now")

    assert [one["job_id"] for one in again.of("job")] == missed


def test_a_client_that_reconnects_before_the_first_event_misses_nothing(site: httpx.Client, session: Session) -> None:
    with listening(site) as received:
        pass
    job_id = cancelled(session)

    with listening(site, params={"after": received.last_id}) as again:
        wait_until(lambda: again.of("job"), "it is told")

    assert [one["job_id"] for one in again.of("job")] == [job_id]


def test_a_client_that_missed_too_much_is_told_to_start_again(site: httpx.Client, session: Session) -> None:
    job_id = cancelled(session)
    with listening(site, params={"after": "99999-0"}) as of_another:
        assert next(kind for kind, _, _ in of_another.events) == "reset"
    with listening(site, params={"after": "0-99999"}) as received:
        assert next(kind for kind, _, _ in received.events) == "reset"
        session.store.job_control.delete(Selector(ids=(job_id,)), actor="test")
        wait_until(lambda: len(received.of("reset")) == 2, "numbers come again")
        again = cancelled(session)
        wait_until(lambda: received.of("job"), "and it goes on")

    assert [one["job_id"] for one in received.of("job")] == [again]


def test_a_client_that_reconnects_after_the_newest_jobs_were_replaced_is_told_to_start_again(
    site: httpx.Client, session: Session
) -> None:
    cancelled(session)
    with listening(site) as received:
        gone = [cancelled(session), cancelled(session)]
        wait_until(lambda: len(received.of("job")) == 2, "both are told")
    session.store.job_control.delete(Selector(ids=gone), actor="test")
    for _ in range(4):
        cancelled(session)

    with listening(site, headers={"Last-Event-ID": received.last_id}) as again:
        last = cancelled(session)
        wait_until(lambda: again.of("job"), "and it goes on")

    assert [kind for kind, _, _ in again.events] == ["reset", "job"]
    assert [one["job_id"] for one in again.of("job")] == [last]


def test_a_listening_client_is_told_to_start_again_if_the_newest_jobs_are_replaced(
    site: httpx.Client, session: Session
) -> None:
    with listening(site) as received:
        gone = [cancelled(session), cancelled(session)]
        wait_until(lambda: len(received.of("job")) == 2, "both are told")
        # Within one look of who tells, as a rule; and else it is told all the more.
        session.store.job_control.delete(Selector(ids=gone), actor="test")
        for _ in range(4):
            cancelled(session)

        wait_until(lambda: received.of("reset"), "it is told")


def test_removing_old_jobs_resets_no_stream(site: httpx.Client, session: Session) -> None:
    old = cancelled(session)
    with listening(site) as received:
        cancelled(session)
        wait_until(lambda: received.of("job"), "it is told")
    session.store.job_control.delete(Selector(ids=(old,)), actor="test")
    new = cancelled(session)

    with listening(site, headers={"Last-Event-ID": received.last_id}) as again:
        wait_until(lambda: again.of("job"), "what was missed")

    assert [(kind, data["job_id"]) for kind, _, data in again.events] == [("job", new)]


def test_a_stream_can_be_limited_to_one_job_batch_or_document(site: httpx.Client, session: Session) -> None:
    wanted = session.store.intake.enqueue(NewJob("a")).job_id

    with listening(site, params={"job": wanted}) as received:
        cancelled(session)
        session.store.job_control.cancel(Selector(ids=(wanted,)), actor="test")
        wait_until(lambda: received.of("job"), "it is told")

    assert [one["job_id"] for one in received.of("job")] == [wanted]


@pytest.mark.parametrize("word", ["x", "1", "-1-2", "1-2-3-4", "9" * 40 + "-1"])
def test_a_place_that_is_none_is_refused(site: httpx.Client, word: str) -> None:
    answer = site.get("/api/events", params={"after": word})

    assert (answer.status_code, "is not the id of an event" in answer.json()["detail"]) == (400, True)


def test_a_notice_is_sent(site: httpx.Client, session: Session) -> None:
    work_as(session.store)
    session.store.intake.enqueue(NewJob("action", owner="bob"))
    with listening(site) as received:
        session.store.leases.fail(claim(session.store).lease, Failure("GONE", "it is gone"), retry_at=None)
        wait_until(lambda: received.of("notice"), "it is told")

    [told] = received.of("notice")
    assert (told["kind"], told["owner"], told["code"], told["message"]) == ("job.failed", "bob", "GONE", "it is gone")


def test_progress_and_end_of_a_running_job_are_sent(system: System) -> None:
    settings = load_settings({"database": str(system.database)}, environ={"WORKER_LOG_FORMAT": "json"})
    system.start()
    with site_of(settings) as site, listening(site) as received:
        job_id = system.enqueue("sleep", seconds=60)
        wait_until(lambda: any(one["job_id"] == job_id for one in received.of("progress")), "it runs, and is told")
        site.post(f"/api/jobs/{job_id}/cancel").raise_for_status()
        wait_until(lambda: any(one["to_status"] == "cancelled" for one in received.of("job")), "its end is told")
    assert system.status(job_id) is Status.CANCELLED


def test_many_streams_are_open_at_once(settings: Settings, session: Session) -> None:
    with site_of(settings) as site, ExitStack() as open_streams:
        all_heard = [open_streams.enter_context(listening(site)) for _ in range(32)]
        job_id = cancelled(session)
        wait_until(lambda: all(received.of("job") for received in all_heard), "all are told")

    assert {received.of("job")[0]["job_id"] for received in all_heard} == {job_id}


def test_one_visitor_cannot_take_all_the_streams(
    settings: Settings, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_of, "_STREAMS_PER_VISITOR_MAX", 2)
    mine, theirs = (
        {"Authorization": f"Bearer {tokens.create_token(session, name, owner=name).text}"} for name in ("alice", "bob")
    )
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
    monkeypatch.setattr(server, "_GRACE_SECONDS", 600)  # so long it would wait for whoever has not been told
    with ExitStack() as open_streams:
        with site_of(settings) as site:
            received = [open_streams.enter_context(listening(site)) for _ in range(8)]

        wait_until(lambda: all(one.of("end") for one in received), "all are told")
