"""Messages by a real Apprise, to a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from job_handlers.channels import notify
from tests.job_handlers.channels.conftest import Server, code_of, notify_here
from worker_service.handlers import Retryable
from worker_service.testing import run_handler

# Apprise imports modules of the library that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

MESSAGE = {"to": "apprise:ops", "subject": "3 jobs failed", "text": "TIMEOUT: 2"}


@pytest.fixture
def credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    return tmp_path / "apprise-ops"


def test_each_address_of_the_credential_gets_the_message(credential: Path, server: Server) -> None:
    credential.write_text(f"# the team\njson://127.0.0.1:{server.port}/a\njson://127.0.0.1:{server.port}/b\n")

    run = run_handler(notify.notify, MESSAGE, directory=credential.parent / "run")

    assert run.result == {"addresses": 2}
    received = {path: json.loads(body) for path, _, body in server.requests}
    texts = {path: (message["title"], message["message"]) for path, message in received.items()}
    assert texts == dict.fromkeys(("/a", "/b"), ("3 jobs failed", "TIMEOUT: 2"))


def test_a_message_that_an_address_refuses_is_sent_again(credential: Path, server: Server) -> None:
    server.status = 500
    credential.write_text(f"json://127.0.0.1:{server.port}/a?token=hush\n")

    ended = notify_here(MESSAGE)

    assert code_of(ended, Retryable) == "NOT_DELIVERED"
    assert "hush" not in str(ended)


@pytest.mark.parametrize(
    ("to", "lines", "code"),
    [
        ("apprise:ops", "hush\n", "SECRET_INVALID"),
        ("apprise:ops", "", "SECRET_INVALID"),
        ("apprise:others", "json://localhost", "SECRET_ABSENT"),
        ("apprise:/../x", "json://localhost", "PAYLOAD_INVALID"),
    ],
)
def test_an_invalid_address_is_refused_and_not_quoted(credential: Path, to: str, lines: str, code: str) -> None:
    credential.write_text(lines)

    ended = notify_here({**MESSAGE, "to": to})

    assert code_of(ended) == code
    assert "hush" not in str(ended)
