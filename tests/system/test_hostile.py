from __future__ import annotations

import subprocess
from collections.abc import Iterable

import pytest
from click.testing import CliRunner

from tests.full_length import short
from tests.kit.system import Daemon, System, wait_until
from tests.system import hostile
from worker_service.cli import pagemill
from worker_service.jobs.job import Status
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector

AT_ONCE = 200
BUG = 70
LOOKS = """
    --json|ls --limit 1000|ls --limit 1000 --json|status|status --json|doctor|doctor --json|doctor --audit|top --once
    workers|workers --json|documents|documents --json|stats|stats --json|errors|errors --json|search climate
    search climate --json|keywords climate|handlers ls|undo --list|undo --list --json|schedules|schedules --json
    db check|config show|why|logs|prune --older-than 1d --dry-run|cancel --type noop --dry-run
    retry --status failed --dry-run|enqueue noop --dry-run
"""


def _by_hand(system: System, statements: Iterable[tuple[str, str]]) -> list[str]:
    """Run the statements; return the descriptions of accepted ones."""
    script = ["PRAGMA synchronous = OFF;"]
    # The step and the number of values have no common factor, so every column meets each value somewhere.
    tried = list(statements)[:: short(5, full=1)]
    for number, (_, statement) in enumerate(tried):
        if number % AT_ONCE == 0:
            script += ["COMMIT;"] * bool(number) + ["BEGIN IMMEDIATE;"]
        script += [statement, f"SELECT {number} WHERE changes() > 0;", "UPDATE no_replacing SET unique_key = '';"]
    done = subprocess.run(
        ["sqlite3", "-cmd", ".timeout 20000", str(system.database)],
        input="\n".join([*script, "COMMIT;"]),
        capture_output=True,
        text=True,
        check=False,
    )
    return [tried[int(number)][0] for number in done.stdout.split()]


def _exit_codes(words: Iterable[str]) -> dict[str, str]:
    """Return the commands that ended with an unexpected exception, and their output."""
    bad = {}
    for line in words:
        result = CliRunner().invoke(pagemill, line.split())
        if result.exit_code == BUG or not isinstance(result.exception, SystemExit | None):
            bad[line] = result.output[-500:]
    return bad


def _stops_nobody(daemon: Daemon) -> None:
    assert daemon.process.poll() is None, daemon.log.read_text()[-2000:]
    troubles = ("daemon.failed", "chore.failed", "nursery.died")
    assert [event for name in troubles for event in daemon.events(name)] == []


def test_a_hostile_row_fails_at_most_its_own_job(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    (system.place / "pagemill.toml").write_text('[commands.say]\nargv = ["/bin/echo", "{account}", "{payload}"]\n')
    settings = {"config": system.place / "pagemill.toml", "heartbeat_interval": 1}
    for name, value in system.environment(**settings).items():
        monkeypatch.setenv(name, value)
    plain, running, waiting = system.enqueue(), system.enqueue("sleep", seconds=2), system.enqueue("talk")
    system.sqlite3(f"UPDATE worker_job_queue SET run_at = '2099-01-01' WHERE id = {waiting}")
    system.sqlite3("INSERT INTO document (platform, source_key) VALUES ('local', '/document')")
    daemon = system.start(**settings)
    system.wait_for(plain, Status.COMPLETED)
    system.wait_for(running, Status.RUNNING)

    taken = _by_hand(system, hostile.updates(system.database, running=running, waiting=waiting))
    taken += _by_hand(
        system, hostile.inserts(system.database, plain=plain, running=running, waiting=waiting, document=1)
    )
    beside = [system.enqueue(job_type, n=1) for job_type in ("noop", "kept", "fetch")]

    # The sweep is no sweep if the table takes nothing.
    assert len(taken) > short(200, full=1000)
    for job in [*beside, running]:
        # Behind hundreds of others.
        wait_until(lambda job=job: system.status(job) is Status.COMPLETED, f"job {job} completed", seconds=120)  # type: ignore[misc]
    wait_until(
        lambda: not system.store.job_queries.count(Selector(statuses=(Status.RUNNING,))), "nothing runs any more"
    )
    ended = {job.error_code for job in system.store.job_queries.list(Selector(statuses=(Status.FAILED,)), most=10_000)}
    assert ended == {"NOT_UTF8", "PAYLOAD_INVALID"}
    jobs = range(1, max(beside) + 1)
    odd = [job for job in jobs if system.job(job).status is not Status.COMPLETED]
    documents = [document.id for document in system.store.library.documents(DocumentSelector(), most=10_000)]
    assert _exit_codes(["", *(word for line in LOOKS.strip().splitlines() for word in line.strip().split("|"))]) == {}
    sampled = slice(None, None, short(8, full=1))
    assert _exit_codes(f"show {job}" for job in jobs[sampled]) == {}
    assert _exit_codes(f"{verb} {job}" for verb in ("why", "logs") for job in [*odd[sampled], plain, running]) == {}
    assert _exit_codes(f"show document:{number}" for number in documents[sampled]) == {}
    _stops_nobody(daemon)
    assert not (system.place.parent / "hostile").exists()
