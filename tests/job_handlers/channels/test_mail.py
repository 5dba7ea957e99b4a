"""E-mail, handed by real children to a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.message import Message as Received
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword

from job_handlers.channels import notify
from tests.ports import free_port
from worker_service.testing import HandlerRun, How, run_handler


class Inbox:
    """What the server was handed; `refuses` is what it answers instead."""

    def __init__(self) -> None:
        self.received: list[tuple[list[str], Received]] = []
        self.refuses = ""

    async def handle_RCPT(self, _: object, __: object, envelope: Envelope, address: str, ___: object) -> str:
        if self.refuses:
            return self.refuses
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _: object, __: object, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        self.received.append((list(envelope.rcpt_tos), message_from_bytes(envelope.content)))
        return "250 OK"


def who_knows_the_password(_: object, __: object, ___: object, ____: str, said: object) -> AuthResult:
    is_right = isinstance(said, LoginPassword) and said.password == b"hush"
    return AuthResult(success=is_right, handled=is_right)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def port(inbox: Inbox) -> Iterator[int]:
    port = free_port()
    server = Controller(inbox, "127.0.0.1", port, authenticator=who_knows_the_password, auth_require_tls=False)
    server.start()
    yield port
    server.stop()


Send = Callable[..., HandlerRun]


@pytest.fixture
def send(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Send:
    monkeypatch.setenv("WORKER_MAIL_SECURITY", "none")
    monkeypatch.setenv("WORKER_MAIL_SERVER", f"127.0.0.1:{port}")
    monkeypatch.setenv("WORKER_MAIL_FROM", "pagemill@example.com")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))

    def send(*, fence: int = 1, **payload: Any) -> HandlerRun:
        said = {
            "to": "mailto:ops@example.com",
            "subject": "3 jobs failed",
            "text": "TIMEOUT: 2\nHTTP_404: 1",
            **payload,
        }
        return run_handler(notify.notify, said, directory=tmp_path / "run", job_id=7, fence=fence)

    return send


def test_a_message_arrives_as_it_was_written(send: Send, inbox: Inbox) -> None:
    assert send(subject="3 Aufträge\nBcc: all@example.com", text="Zürich: 2").how is How.DONE

    [(to, received)] = inbox.received
    assert to == ["ops@example.com"]
    assert received["From"] == "pagemill@example.com"
    assert "Bcc" not in received
    assert received.get_payload(decode=True) == "Zürich: 2\r\n".encode()


def test_a_second_attempt_sends_the_same_message(send: Send, inbox: Inbox) -> None:
    send()
    send(fence=2)

    assert len({received["Message-ID"] for _, received in inbox.received}) == 1


@pytest.mark.parametrize(
    ("refusal", "how", "code"),
    [
        ("450 mailbox is busy", How.RETRYABLE, "SMTP_450"),
        ("550 no such mailbox", How.PERMANENT, "SMTP_550"),
    ],
)
def test_what_the_server_refuses_for_now_is_tried_again(
    send: Send, inbox: Inbox, refusal: str, how: How, code: str
) -> None:
    inbox.refuses = refusal

    run = send()

    assert (run.how, run.ended.code) == (how, code)
    assert refusal[4:] in run.ended.message


def test_a_server_that_is_away_is_tried_again(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_MAIL_SERVER", "127.0.0.1:1")

    run = send()

    assert (run.how, run.ended.code) == (How.RETRYABLE, "CONNECTION_FAILED")


def test_of_a_server_that_does_not_encrypt_the_setting_is_named(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_MAIL_SECURITY", "starttls")

    run = send()

    assert (run.how, run.ended.code) == (How.RETRYABLE, "MAIL_REFUSED")
    assert "mail_security (starttls)" in run.ended.message


@pytest.mark.parametrize(("password", "code"), [("hush\n", ""), ("guess", "MAIL_REFUSED"), (None, "SECRET_ABSENT")])
def test_it_logs_in_with_the_credential(
    send: Send, inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str | None, code: str
) -> None:
    monkeypatch.setenv("WORKER_MAIL_USER", "pagemill")
    if password is not None:
        (tmp_path / "mail-password").write_text(password)

    run = send()

    assert run.ended.code == code, run.ended.message
    assert len(inbox.received) == (not code)
    assert "guess" not in run.ended.message


def test_without_a_server_it_waits_and_says_what_to_set(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKER_MAIL_SERVER")

    run = send()

    assert (run.how, run.ended.code) == (How.SNOOZED, "CAPABILITY_MISSING")
    assert "mail_server" in run.ended.remedy


@pytest.mark.parametrize("to", ["mailto:ops", "mailto:a@example.com, b@example.com", "slack:ops", "ops@example.com"])
def test_what_is_no_address_is_refused(send: Send, inbox: Inbox, to: str) -> None:
    run = send(to=to)

    assert (run.how, run.ended.code) == (How.PERMANENT, "PAYLOAD_INVALID")
    assert not inbox.received
