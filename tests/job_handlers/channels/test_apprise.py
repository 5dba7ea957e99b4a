"""Messages by a real Apprise, to a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from job_handlers.channels import apprise
from tests.job_handlers.channels.conftest import Server
from worker_service.handlers import BadInput, Message
from worker_service.testing import How, Run, run_handler

MESSAGE = Message("m1", "2026-11-19T06:00:00Z", "3 jobs failed", "TIMEOUT: 2")


def send(directory: Path, to: str = "apprise-ops") -> Run:
    payload = {"to": to, "subject": MESSAGE.subject, "text": MESSAGE.text}
    return run_handler(apprise.apprise, payload, directory=directory / "run")


@pytest.fixture
def credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    return tmp_path / "apprise-ops"


def test_each_address_of_the_credential_is_told(credential: Path, server: Server) -> None:
    credential.write_text(f"# the team\njson://127.0.0.1:{server.port}/a\njson://127.0.0.1:{server.port}/b\n")

    run = send(credential.parent)

    assert run.result == {"addresses": 2}
    told = {path: json.loads(body) for path, _, body in server.heard}
    assert told.keys() == {"/a", "/b"}
    assert told["/a"]["title"] == "3 jobs failed"
    assert told["/a"]["message"] == "TIMEOUT: 2"


def test_an_address_that_does_not_take_it_is_tried_again(credential: Path, server: Server) -> None:
    server.status = 500
    credential.write_text(f"json://127.0.0.1:{server.port}/a?token=hush\n")

    run = send(credential.parent)

    assert (run.how, run.ended.code) == (How.RETRYABLE, "NOT_DELIVERED")
    assert "hush" not in str(run)


@pytest.mark.parametrize(
    ("to", "lines", "code"),
    [
        ("apprise-ops", "hush\n", "SECRET_INVALID"),
        ("apprise-ops", "", "SECRET_INVALID"),
        ("apprise-others", "json://localhost", "SECRET_ABSENT"),
        ("mail-password", "json://localhost", "PAYLOAD_INVALID"),
        ("apprise/../x", "json://localhost", "PAYLOAD_INVALID"),
    ],
)
def test_what_is_no_address_is_refused_and_not_told(credential: Path, to: str, lines: str, code: str) -> None:
    credential.write_text(lines)

    run = send(credential.parent, to)

    assert (run.how, run.ended.code) == (How.PERMANENT, code)
    assert "hush" not in str(run)


def test_an_address_becomes_a_job_without_its_secret() -> None:
    assert json.loads(apprise.job_for("apprise:ops", MESSAGE).payload or "")["to"] == "apprise-ops"
    assert json.loads(apprise.job_for("apprise:", MESSAGE).payload or "")["to"] == "apprise"
    with pytest.raises(BadInput):
        apprise.job_for("apprise:../x", MESSAGE)
