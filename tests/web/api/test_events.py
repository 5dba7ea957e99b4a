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
from worker_service.services.database import Session
from worker_service.settings.config import Settings, load_settings
from worker_service.web import http_server as server
from worker_service.web.api import events as feed_of


@dataclass
class Heard:
    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    status: int = 0

    def of(self, kind: str) -> list[Any]:
        return [data for one, _, data in list(self.events) if one == kind]

    @property
    def last_id(self) -> str:
        return cast(str, next(place for _, place, _ in reversed(self.events) if place))


@contextmanager
def listening(site: httpx.Client, **asked: Any) -> Iterator[Heard]:
    heard = Heard()
    client = httpx.Client(base_url=site.base_url, headers=site.headers, timeout=30)
    with client, client.stream("GET", "/api/events", **asked) as stream:
        heard.status = stream.status_code
        thread = threading.Thread(target=_hear, args=(stream, heard), daemon=True)
        thread.start()
        wait_until(lambda: heard.events, "it says hello, or what was missed")
        try:
            yield heard
        finally:
            # The thread is in the middle of reading, unless all was said.
            with suppress(OSError):
                stream.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            thread.join()


def _hear(stream: httpx.Response, heard: Heard) -> None:
    event: dict[str, str] = {}
    try:
        for line in stream.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif event:
                if "event" in event:
                    heard.events.append((event["event"], event.get("id", ""), json.loads(event["data"])))
                event = {}
    except (httpx.HTTPError, httpx.StreamError):
        pass


def cancelled(session: Session, **words: Any) -> int:
    job_id = session.store.intake.enqueue(NewJob(**{"job_type": "a", **words})).job_id
    session.store.steering.cancel(Selector(ids=(job_id,)), actor="test")
    return job_id


def test_what_happens_is_told_at_once_and_once(site: httpx.Client, session: Session) -> None:
    with listening(site) as heard:
        first = cancelled(session, owner="alice", name="a.pdf")
        wait_until(lambda: heard.of("job"), "it is told")
        second = cancelled(session)
        wait_until(lambda: len(heard.of("job")) == 2, "and the next")

    told = heard.of("job")
    assert [one["job_id"] for one in told] == [first, second]
    assert (told[0]["from_status"], told[0]["to_status"], told[0]["owner"], told[0]["name"]) == (
        "pending", "cancelled", "alice", "a.pdf",
    )  # fmt: skip


def test_who_comes_back_hears_what_was_missed_and_nothing_twice(site: httpx.Client, session: Session) -> None:
    with listening(site) as heard:
        cancelled(session)
        wait_until(lambda: heard.of("job"), "it is told")
    missed = [one.job_id for one in session.store.intake.enqueue_many([NewJob("a")] * 1500)]
    session.store.steering.cancel(Selector(ids=missed), actor="test")

    with listening(site, headers={"Last-Event-ID": heard.last_id}) as again:
        wait_until(lambda: len(again.of("job")) >= 1500, "all that was missed")
        missed.append(cancelled(session))
        wait_until(lambda: again.of("job")[-1]["job_id"] == missed[-1], "and what happens now")

    assert [one["job_id"] for one in again.of("job")] == missed


def test_who_comes_back_before_anything_has_happened_misses_nothing(site: httpx.Client, session: Session) -> None:
    with listening(site) as heard:
        pass
    job_id = cancelled(session)

    with listening(site, params={"after": heard.last_id}) as again:
        wait_until(lambda: again.of("job"), "it is told")

    assert [one["job_id"] for one in again.of("job")] == [job_id]


def test_who_missed_too_much_or_what_is_gone_is_told_to_begin_anew(site: httpx.Client, session: Session) -> None:
    job_id = cancelled(session)
    with listening(site, params={"after": "99999-0"}) as of_another:
        assert next(kind for kind, _, _ in of_another.events) == "reset"
    with listening(site, params={"after": "0-99999"}) as heard:
        assert next(kind for kind, _, _ in heard.events) == "reset"
        session.store.steering.delete(Selector(ids=(job_id,)), actor="test")
        wait_until(lambda: len(heard.of("reset")) == 2, "numbers come again")
        again = cancelled(session)
        wait_until(lambda: heard.of("job"), "and it goes on")

    assert [one["job_id"] for one in heard.of("job")] == [again]


def test_who_comes_back_after_the_newest_jobs_were_removed_and_others_came_is_told_to_begin_anew(
    site: httpx.Client, session: Session
) -> None:
    cancelled(session)
    with listening(site) as heard:
        gone = [cancelled(session), cancelled(session)]
        wait_until(lambda: len(heard.of("job")) == 2, "both are told")
    session.store.steering.delete(Selector(ids=gone), actor="test")
    for _ in range(4):
        cancelled(session)

    with listening(site, headers={"Last-Event-ID": heard.last_id}) as again:
        last = cancelled(session)
        wait_until(lambda: again.of("job"), "and it goes on")

    assert [kind for kind, _, _ in again.events] == ["reset", "job"]
    assert [one["job_id"] for one in again.of("job")] == [last]


def test_who_listens_while_the_newest_jobs_are_removed_and_others_come_is_told_to_begin_anew(
    site: httpx.Client, session: Session
) -> None:
    with listening(site) as heard:
        gone = [cancelled(session), cancelled(session)]
        wait_until(lambda: len(heard.of("job")) == 2, "both are told")
        # Within one look of who tells, as a rule; and else it is told all the more.
        session.store.steering.delete(Selector(ids=gone), actor="test")
        for _ in range(4):
            cancelled(session)

        wait_until(lambda: heard.of("reset"), "it is told")


def test_what_was_removed_further_back_costs_nobody_anything(site: httpx.Client, session: Session) -> None:
    old = cancelled(session)
    with listening(site) as heard:
        cancelled(session)
        wait_until(lambda: heard.of("job"), "it is told")
    session.store.steering.delete(Selector(ids=(old,)), actor="test")
    new = cancelled(session)

    with listening(site, headers={"Last-Event-ID": heard.last_id}) as again:
        wait_until(lambda: again.of("job"), "what was missed")

    assert [(kind, data["job_id"]) for kind, _, data in again.events] == [("job", new)]


def test_a_stream_is_narrowed_down_to_one_thing(site: httpx.Client, session: Session) -> None:
    wanted = session.store.intake.enqueue(NewJob("a")).job_id

    with listening(site, params={"job": wanted}) as heard:
        cancelled(session)
        session.store.steering.cancel(Selector(ids=(wanted,)), actor="test")
        wait_until(lambda: heard.of("job"), "it is told")

    assert [one["job_id"] for one in heard.of("job")] == [wanted]


@pytest.mark.parametrize("word", ["x", "1", "-1-2", "1-2-3-4", "9" * 40 + "-1"])
def test_a_place_that_is_none_is_refused(site: httpx.Client, word: str) -> None:
    answer = site.get("/api/events", params={"after": word})

    assert (answer.status_code, "is not the id of an event" in answer.json()["detail"]) == (400, True)


def test_a_notice_is_told(site: httpx.Client, session: Session) -> None:
    work_as(session.store)
    session.store.intake.enqueue(NewJob("action", owner="bob"))
    with listening(site) as heard:
        session.store.leases.fail(claim(session.store).lease, Failure("GONE", "it is gone"), retry_at=None)
        wait_until(lambda: heard.of("notice"), "it is told")

    [told] = heard.of("notice")
    assert (told["kind"], told["owner"], told["code"], told["message"]) == ("job.failed", "bob", "GONE", "it is gone")


def test_progress_is_told_while_a_job_runs_and_its_end(system: System) -> None:
    settings = load_settings({"database": str(system.database)}, environ={"WORKER_LOG_FORMAT": "json"})
    system.start()
    with site_of(settings) as site, listening(site) as heard:
        job_id = system.enqueue("sleep", seconds=60)
        wait_until(lambda: any(one["job_id"] == job_id for one in heard.of("progress")), "it runs, and is told")
        site.post(f"/api/jobs/{job_id}/cancel").raise_for_status()
        wait_until(lambda: any(one["to_status"] == "cancelled" for one in heard.of("job")), "its end is told")
    assert system.status(job_id) is Status.CANCELLED


def test_many_listen_at_once(settings: Settings, session: Session) -> None:
    with site_of(settings) as site, ExitStack() as open_streams:
        all_heard = [open_streams.enter_context(listening(site)) for _ in range(32)]
        job_id = cancelled(session)
        wait_until(lambda: all(heard.of("job") for heard in all_heard), "all are told")

    assert {heard.of("job")[0]["job_id"] for heard in all_heard} == {job_id}


def test_one_visitor_cannot_take_all_the_streams(
    settings: Settings, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_of, "_STREAMS_PER_VISITOR_MAX", 2)
    mine, theirs = (
        {"Authorization": f"Bearer {tokens.create_token(session, name, owner=name).word}"} for name in ("alice", "bob")
    )
    with site_of(settings) as site, ExitStack() as open_streams:
        for _ in range(2):
            open_streams.enter_context(listening(site, headers=mine))

        refused = site.get("/api/events", headers=mine)
        assert (refused.status_code, refused.json()["detail"]) == (
            429, "alice has 2 event streams open",
        )  # fmt: skip
        with listening(site, headers=theirs) as heard:
            assert heard.of("hello")


def test_who_listens_is_told_when_the_server_stops_and_keeps_it_from_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_GRACE_SECONDS", 600)  # so long it would wait for whoever has not been told
    with ExitStack() as open_streams:
        with site_of(settings) as site:
            heard = [open_streams.enter_context(listening(site)) for _ in range(8)]

        wait_until(lambda: all(one.of("end") for one in heard), "all are told")
