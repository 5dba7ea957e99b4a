"""Messages by a real Apprise, to a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from job_handlers.channels import notify
from tests.job_handlers.channels.conftest import Server
from worker_service.testing import HandlerRun, How, run_handler


def send(directory: Path, to: str = "apprise:ops") -> HandlerRun:
    payload = {"to": to, "subject": "3 jobs failed", "text": "TIMEOUT: 2"}
    return run_handler(notify.notify, payload, directory=directory / "run")


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
        ("apprise:ops", "hush\n", "SECRET_INVALID"),
        ("apprise:ops", "", "SECRET_INVALID"),
        ("apprise:others", "json://localhost", "SECRET_ABSENT"),
        ("apprise:/../x", "json://localhost", "PAYLOAD_INVALID"),
    ],
)
def test_what_is_no_address_is_refused_and_not_told(credential: Path, to: str, lines: str, code: str) -> None:
    credential.write_text(lines)

    run = send(credential.parent, to)

    assert (run.how, run.ended.code) == (How.PERMANENT, code)
    assert "hush" not in str(run)
