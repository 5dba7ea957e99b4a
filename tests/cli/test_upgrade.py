"""`pagemill upgrade`, its way back after a failure, and `pagemill reload`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli.conftest import Run, items
from tests.store.kit import new_worker
from worker_service.cli import system_steps, upgrade
from worker_service.runner.worker_identity import own_identity
from worker_service.store.opening import open_store


@pytest.fixture
def _service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pagemill.service").touch()
    (tmp_path / "venv").mkdir()
    monkeypatch.setattr(upgrade, "_SYSTEM_UNIT", tmp_path / "pagemill.service")
    monkeypatch.setattr(upgrade, "_active_units", lambda *_: ["pagemill-web.service"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))


def verbs(commands: list[list[str]]) -> list[str]:
    """Return one word for each command."""
    known = (
        "rm -rf",
        "backup",
        "cp -a",
        "mv",
        "pip",
        "migrate",
        "restore",
        "install",
        "workers",
        "check",
        "stop",
        "start",
    )
    words = []
    for argv in commands:
        line = " ".join(argv)
        is_swap = "rm -rf" in line and "mv" in line
        words.append("swap" if is_swap else next(word for word in known if f" {word}" in f" {line}"))
    return words


@pytest.mark.usefixtures("_service", "database")
def test_an_upgrade_backs_up_first_and_checks_at_the_end(
    run: Run, commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path)
    dry = run("upgrade", "./new", "--dry-run").stdout
    assert commands == []

    run("upgrade", "./new")

    assert commands[0] == ["systemctl", "stop", "pagemill.service", "pagemill-commands.service", "pagemill-web.service"]
    assert verbs(commands) == [
        "stop", "rm -rf", "backup", "cp -a", "pip", "migrate", "install", "start", "workers", "check",
    ]  # fmt: skip
    assert commands[4][-1] == str(tmp_path / "new")
    assert "if one of these fails:\n" in dry


@pytest.mark.usefixtures("_service", "database")
@pytest.mark.parametrize(
    ("failing", "is_put_back"), [("backup", False), ("pip", True), ("migrate", True), ("workers", True)]
)
def test_when_a_step_fails_the_earlier_version_and_the_backup_are_put_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, is_put_back: bool
) -> None:
    done: list[list[str]] = []

    def do(step: system_steps.RunCommand) -> None:
        done.append([*step.argv])
        if verbs(done)[-1] == "cp -a":
            (tmp_path / "venv.before-upgrade").mkdir()
        if verbs(done)[-1] == failing and verbs(done).count(failing) == 1:
            raise system_steps.StepFailed(f"{failing} ended with 1")

    monkeypatch.setattr(system_steps.RunCommand, "do", do)

    result = run("upgrade", fails=1)

    put_back = ["swap", "restore"] if is_put_back else []
    back = verbs(done)[verbs(done).index(failing) + 1 :]
    assert back == ["stop", *put_back, "install", "start", "workers", "check"]
    assert "runs again: " in result.stderr


@pytest.mark.usefixtures("database")
def test_upgrade_needs_a_service_and_back_an_earlier_version(run: Run, request: pytest.FixtureRequest) -> None:
    assert "no service is installed" in run("upgrade", fails=1).stderr
    request.getfixturevalue("_service")
    assert "there is no earlier version" in run("upgrade", "--back", fails=1).stderr


def test_reload_sends_sighup_to_the_daemons_of_this_machine(
    run: Run, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no daemon runs on this machine" in run("reload", fails=1).stderr
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)) if number else None)
    store, me = open_store(database), own_identity()
    mine = replace(new_worker(me.worker_id), host=me.host, boot_id=me.boot_id, pid=os.getpid())
    store.workers.register(mine)
    store.close()

    assert items(run("reload", "--json")) == [me.worker_id]

    assert signals == [(os.getpid(), signal.SIGHUP)]
    Path("pagemill.toml").write_text('owner_polcy = "off"')
    monkeypatch.setenv("WORKER_CONFIG", "pagemill.toml")
    assert "owner_policy" in run("reload", fails=78).stderr
    assert len(signals) == 1
