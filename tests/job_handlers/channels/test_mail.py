"""E-mail, sent to a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message as Received
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword

from job_handlers.channels import mail, notify
from tests.job_handlers.channels.conftest import code_of, notify_here
from tests.ports import free_port
from worker_service.handlers import Done, HandlerError, MissingDependency, Permanent, Retryable
from worker_service.testing import How, run_handler


class Inbox:
    """The messages that the server has received. `refusal` is its answer to each recipient instead.

    `data_answer` is its answer to the message, `quit_answer` to QUIT: it cuts the connection if that is empty, and does
    not answer if it is None.
    """

    def __init__(self) -> None:
        self.received: list[tuple[list[str], Received]] = []
        self.refusal = ""
        self.data_answer = "250 OK"
        self.quit_answer: str | None = "221 Bye"

    async def handle_RCPT(self, _: object, __: object, envelope: Envelope, address: str, ___: object) -> str:
        if self.refusal:
            return self.refusal
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _: object, __: object, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        self.received.append((list(envelope.rcpt_tos), message_from_bytes(envelope.content)))
        return self.data_answer

    async def handle_QUIT(self, server: SMTP, _: object, __: object) -> str:
        if self.quit_answer is None:
            await asyncio.Event().wait()
        if not self.quit_answer:
            assert server.transport is not None
            server.transport.close()
        return self.quit_answer or ""


def authenticate(_: object, __: object, ___: object, ____: str, login: object) -> AuthResult:
    password = login.password if isinstance(login, LoginPassword) else b""
    if password == b"too busy":
        return AuthResult(success=False, handled=False, message="454 4.7.0 Temporary authentication failure")
    return AuthResult(success=password == b"hush", handled=password == b"hush")


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def port(inbox: Inbox) -> Iterator[int]:
    port = free_port()
    server = Controller(inbox, "127.0.0.1", port, authenticator=authenticate, auth_require_tls=False)
    server.start()
    yield port
    server.stop()


MESSAGE = {"to": "mailto:ops@example.com", "subject": "3 jobs failed", "text": "TIMEOUT: 2\nHTTP_404: 1"}


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_MAIL_SECURITY", "none")
    monkeypatch.setenv("WORKER_MAIL_SERVER", f"127.0.0.1:{port}")
    monkeypatch.setenv("WORKER_MAIL_FROM", "pagemill@example.com")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))


def test_a_message_arrives_as_it_was_written(inbox: Inbox, tmp_path: Path) -> None:
    message = {**MESSAGE, "subject": "3 Aufträge\nBcc: all@example.com", "text": "Zürich: 2"}

    for fence in (1, 2):
        run = run_handler(notify.notify, message, directory=tmp_path / "run", fence=fence)
        assert run.how is How.DONE, run.ended.message

    [(to, received), (_, again)] = inbox.received
    assert to == ["ops@example.com"]
    assert received["From"] == "pagemill@example.com"
    assert "Bcc" not in received
    assert received.get_payload(decode=True) == "Zürich: 2\r\n".encode()
    assert again["Message-ID"] == received["Message-ID"]


@pytest.mark.parametrize(
    ("refusal", "kind", "code"),
    [("450 mailbox is busy", Retryable, "SMTP_450"), ("550 no such mailbox", Permanent, "SMTP_550")],
)
def test_a_temporary_refusal_is_retried_and_a_permanent_one_is_not(
    inbox: Inbox, refusal: str, kind: type[HandlerError], code: str
) -> None:
    inbox.refusal = refusal

    ended = notify_here(MESSAGE)

    assert code_of(ended, kind) == code
    assert refusal[4:] in str(ended)


@pytest.mark.parametrize(
    ("name", "value", "code", "words"),
    [
        ("WORKER_MAIL_SERVER", "127.0.0.1:1", "CONNECTION_FAILED", "cannot be reached"),
        ("WORKER_MAIL_SECURITY", "starttls", "MAIL_REFUSED", "mail_security (starttls)"),
    ],
)
def test_an_unreachable_server_and_one_without_encryption_are_retried(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: str, words: str
) -> None:
    monkeypatch.setenv(name, value)

    ended = notify_here(MESSAGE)

    assert code_of(ended, Retryable) == code
    assert words in str(ended)


@pytest.mark.parametrize("quit_answer", ["421 too busy", "500 unknown command", "", None])
def test_a_message_that_the_server_has_accepted_is_sent_however_the_connection_ends(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, quit_answer: str | None
) -> None:
    monkeypatch.setattr(mail, "_QUIT_SECONDS", 0.1)
    inbox.quit_answer = quit_answer

    assert isinstance(notify_here(MESSAGE), Done)
    assert len(inbox.received) == 1


def test_each_positive_answer_to_the_message_accepts_it(inbox: Inbox) -> None:
    inbox.data_answer = "251 queued elsewhere"

    assert isinstance(notify_here(MESSAGE), Done)


def test_the_answer_to_quit_does_not_replace_the_refusal_of_a_message(inbox: Inbox) -> None:
    inbox.refusal = "550 no such mailbox"
    inbox.quit_answer = "421 too busy"

    assert code_of(notify_here(MESSAGE), Permanent) == "SMTP_550"


def test_a_login_that_fails_for_now_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_MAIL_USER", "pagemill")
    (tmp_path / "mail-password").write_text("too busy")

    assert code_of(notify_here(MESSAGE), Retryable) == "SMTP_454"


@pytest.mark.parametrize(("password", "code"), [("hush\n", ""), ("guess", "MAIL_REFUSED"), (None, "SECRET_ABSENT")])
def test_it_logs_in_with_the_credential(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str | None, code: str
) -> None:
    monkeypatch.setenv("WORKER_MAIL_USER", "pagemill")
    if password is not None:
        (tmp_path / "mail-password").write_text(password)

    ended = notify_here(MESSAGE)

    assert isinstance(ended, Done) if not code else code_of(ended, Permanent) == code
    assert len(inbox.received) == (not code)
    assert "guess" not in str(ended)


def test_without_a_mail_server_the_job_waits_and_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKER_MAIL_SERVER")

    ended = notify_here(MESSAGE)

    assert isinstance(ended, MissingDependency)
    assert "mail_server" in ended.remedy


@pytest.mark.parametrize("to", ["mailto:ops", "mailto:a@example.com, b@example.com", "slack:ops", "ops@example.com"])
def test_an_invalid_address_is_refused(inbox: Inbox, to: str) -> None:
    assert code_of(notify_here({**MESSAGE, "to": to}), Permanent) == "PAYLOAD_INVALID"
    assert not inbox.received
