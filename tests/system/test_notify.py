from __future__ import annotations

import base64
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job_handlers.channels.conftest import Server
from tests.job_handlers.channels.conftest import server as server
from tests.kit.system import System, wait_until
from worker_service.jobs.job import NewJob, Status


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path, shipped=("notify",))
    yield made
    made.close()


def settings(system: System, server: Server, **more: object) -> dict[str, object]:
    (system.place / "webhook").write_text("whsec_" + base64.b64encode(b"k" * 32).decode())
    lines = [
        f"[[notify]]\nname = 'ops'\nto = '{server.url}'\nwhen = ['job.failed']",
        *(f"{k} = {v!r}" for k, v in more.items()),
    ]
    (system.place / "told.toml").write_text("\n".join(lines))
    return {"config": system.place / "told.toml", "webhook_allow": "127.0.0.0/8"}


def messages_by_job(server: Server) -> Counter[int]:
    """Count the messages about each job; a repeated id counts once."""
    events = {headers["webhook-id"]: json.loads(body) for _, headers, body in server.requests}
    return Counter(notice["job_id"] for event in events.values() for notice in event["data"]["notices"])


def test_each_failure_is_notified_once_although_the_daemon_is_killed(
    system: System, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(system.place))
    options = settings(system, server, group="0s")
    daemon = system.start(**options)
    wait_until(lambda: system.store.notices.begin("notify:ops") >= 0)
    failing: list[int] = []
    for _ in range(2):
        jobs = [NewJob("fail", payload="{}", max_retries=0) for _ in range(5)]
        failing += [enqueued.job_id for enqueued in system.store.intake.enqueue_many(jobs)]
        system.wait_for(failing[-5], Status.FAILED)
        daemon.signal(signal.SIGKILL)
        daemon.wait_for_exit()
        daemon = system.start(**options)

    wait_until(lambda: len(messages_by_job(server)) == 10, "all failures are told", seconds=60)

    assert messages_by_job(server) == Counter(failing)
    system.assert_sound()
