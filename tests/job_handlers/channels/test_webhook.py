"""Events posted to a real server."""

from __future__ import annotations

import base64
import email.utils
import hmac
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from job_handlers.channels import notify, webhook
from job_handlers.fetch import address_policy, http_client
from job_handlers.fetch.error_rules import limit_wait
from tests.job_handlers.channels.conftest import Server, code_of, run_here
from worker_service.handlers import Done, HandlerError, Permanent, Retryable
from worker_service.testing import How, run_handler

KEY = b"k" * 32
SECRET = "whsec_" + base64.b64encode(KEY).decode()
EVENT = {"type": "report.ready", "data": {"id": 42, "name": "Zürich"}}

Post = Callable[..., Done | HandlerError]


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "webhook").write_text(SECRET + "\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv(webhook.ALLOW.variable, "127.0.0.0/8, ::1")
    return tmp_path


@pytest.fixture
def post(credentials: Path, monkeypatch: pytest.MonkeyPatch) -> Post:
    """Return a function that posts an event in this process. It may reach this machine."""

    def post(
        url: str, *, allow: str | None = None, document_id: int | None = None, **payload: Any
    ) -> Done | HandlerError:
        if allow is not None:
            monkeypatch.setenv(webhook.ALLOW.variable, allow)
        return run_here(webhook.webhook, webhook.WebhookPayload(url, **{"event": EVENT, **payload}), document_id)

    return post


# --- the event and its signature --------------------------------------------------------------------


def test_the_signature_is_that_of_the_standard() -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    headers = webhook.signature_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [key])

    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.usefixtures("credentials")
def test_a_child_posts_an_event_that_its_receiver_can_check(server: Server, tmp_path: Path) -> None:
    before = int(time.time())

    runs = [
        run_handler(webhook.webhook, {"url": server.url, "event": EVENT}, directory=tmp_path, job_id=7, fence=fence)
        for fence in (1, 2)
    ]

    assert [(run.how, run.result) for run in runs] == [(How.DONE, {"status": 204})] * 2
    [(path, headers, body), (_, headers_again, body_again)] = server.requests
    assert (path, json.loads(body)) == ("/hooks?token=hush", EVENT)
    assert headers["content-type"] == "application/json"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert (headers["webhook-id"], before <= int(headers["webhook-timestamp"]) <= time.time()) == ("7", True)
    content = f"7.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY, content, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    # Each attempt sends the same event under the same id.
    assert (headers_again["webhook-id"], body_again) == ("7", body)


def test_a_notification_is_signed_like_any_event(server: Server, credentials: Path) -> None:
    about = {"subject": "3 jobs failed", "text": "TIMEOUT: 3", "data": {"n": 3}, "at": "2026-11-19T06Z"}

    run = run_handler(notify.notify, {"to": server.url, **about}, directory=credentials / "run", job_id=2)

    assert run.how is How.DONE, run.ended.message
    [(_, headers, body)] = server.requests
    signed = webhook.signature_headers(headers["webhook-id"], int(headers["webhook-timestamp"]), body, [KEY])
    assert headers == {**headers, **signed}
    assert json.loads(body) == {
        "specversion": "1.0",
        "id": headers["webhook-id"],
        "source": "pagemill",
        "type": "pagemill.notice",
        "subject": "3 jobs failed",
        "time": "2026-11-19T06Z",
        "datacontenttype": "application/json",
        "data": {"text": "TIMEOUT: 3", "n": 3},
    }


def test_without_an_event_the_document_is_described(server: Server, post: Post) -> None:
    assert isinstance(post(server.url, event=None, document_id=7), Done)
    assert code_of(post(server.url, event=None)) == "PAYLOAD_INVALID"

    [(_, _, body)] = server.requests
    assert json.loads(body) == {
        "type": "document.success",
        "data": {"document": 7, "name": "", "owner": "ann", "batch": None, "generation": None},
    }


def test_each_key_of_the_credential_signs(server: Server, post: Post, credentials: Path) -> None:
    other = "whsec_" + base64.b64encode(b"n" * 24).decode()
    (credentials / "webhook_acme").write_text(f"{SECRET}\n\n{other}\n")

    post(server.url, secret="webhook_acme")

    signatures = server.requests[0][1]["webhook-signature"].split(" ")
    assert len({text for text in signatures if text.startswith("v1,")}) == 2


@pytest.mark.usefixtures("credentials")
def test_neither_the_secret_nor_the_url_is_shown(server: Server, tmp_path: Path) -> None:
    server.status = 500

    run = run_handler(webhook.webhook, {"url": server.url, "event": EVENT}, directory=tmp_path / "run")

    assert "127.0.0.1 answered 500" in repr(run)
    assert "hush" not in repr(run)
    assert SECRET.removeprefix("whsec_") not in repr(run)


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("webhook_absent", None, "SECRET_ABSENT"),
        ("webhook_empty", "\n", "SECRET_INVALID"),
        ("webhook_short", "whsec_aGVsbG8=", "SECRET_INVALID"),
        ("webhook_odd", "whsec_not base64 at all, and long enough to be a key", "SECRET_INVALID"),
        ("drive", SECRET, "PAYLOAD_INVALID"),
        ("webhook/../drive", None, "PAYLOAD_INVALID"),
    ],
)
def test_without_a_secret_nothing_is_posted(
    server: Server, post: Post, credentials: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None,
    code: str,
) -> None:  # fmt: skip
    if text is not None:
        (credentials / name).write_text(text)

    ended = post(server.url, secret=name)

    assert code_of(ended) == code
    assert "not base64" not in str(ended)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert code_of(post(server.url)) == "SECRET_ABSENT"
    assert server.requests == []


# --- addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0.0.0.0", "[::ffff:127.0.0.1]"])
def test_this_machine_is_refused_however_its_address_is_written(server: Server, post: Post, host: str) -> None:
    ended = post(f"http://{host}:{server.port}/", allow="")

    assert code_of(ended) == "ADDRESS_REFUSED"
    assert webhook.ALLOW.variable in str(ended)
    assert server.requests == []


def test_an_allowed_network_allows_no_other(server: Server, post: Post) -> None:
    assert code_of(post(server.url, allow="10.0.0.0/8,127.0.0.2")) == "ADDRESS_REFUSED"
    assert isinstance(post(server.url, allow="10.0.0.0/8,127.0.0.1"), Done)
    assert code_of(post(server.url, allow="everything")) == "SETTING_INVALID"


PUBLIC = "93.184.216.34 2606:2800:220:1::1 64:ff9b::5db8:d822"
NOT_PUBLIC = (
    "10.1.2.3 172.16.0.1 192.168.0.1 100.64.0.1 169.254.169.254 192.0.0.192 168.63.129.16 127.0.0.1 0.0.0.0 224.0.0.1 "
    "240.0.0.1 255.255.255.255 :: ::1 fe80::1 fe80::1%1 fc00::1 fec0::1 ff02::1 ::ffff:168.63.129.16 ::ffff:10.0.0.1 "
    "64:ff9b::a00:1 2002:7f00:1::"
)


@pytest.mark.parametrize("address", [*PUBLIC.split(), *NOT_PUBLIC.split()])
def test_only_the_public_internet_is_public(address: str) -> None:
    assert address_policy.is_public(ipaddress.ip_address(address)) is (address in PUBLIC.split())


class FakeResolver:
    """Replaces `getaddrinfo`: each call returns the next addresses."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = [*answers]

    def __call__(self, host: str, port: int, **_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.answers.pop(0)]


def test_a_name_is_resolved_once_and_only_the_checked_address_is_used(
    server: Server, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = FakeResolver(["127.0.0.1"], ["10.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", resolver)

    post(f"http://hooks.example:{server.port}/")

    assert resolver.answers == [["10.0.0.1"]]
    assert server.requests[0][1]["host"] == f"hooks.example:{server.port}"


def test_a_name_with_one_private_address_is_refused(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", FakeResolver(["93.184.216.34", "169.254.169.254"]))

    assert code_of(post("http://hooks.example/")) == "ADDRESS_REFUSED"


@pytest.mark.parametrize(
    "url",
    (
        "|example.com|ftp://example.com/|file:///etc/passwd|http://|http://user:word@example.com/|http://exa mple.com/|"
        "http://example.com:99999/|http://example.com/\r\nX: y|http://exämple.com/|http://[::1/"
    ).split("|"),
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(Permanent) as refused:
        address_policy.parse_url(url)

    assert refused.value.code == "URL_INVALID"


def test_no_redirect_is_followed(server: Server, post: Post) -> None:
    server.status, server.headers = 302, {"Location": server.url}

    assert code_of(post(server.url)) == "HTTP_302"
    assert len(server.requests) == 1


# --- answers ----------------------------------------------------------------------------------------


def test_any_status_from_200_to_299_completes_the_job(server: Server, post: Post) -> None:
    server.status, server.body = 202, b"thank you"

    assert post(server.url) == Done({"status": 202})


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_a_temporary_refusal_is_retried_after_the_requested_wait(server: Server, post: Post, status: int) -> None:
    server.status, server.headers = status, {"Retry-After": "17"}

    ended = post(server.url)

    assert isinstance(ended, Retryable)
    assert ended.code == f"HTTP_{status}"
    assert ended.after == 17


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
def test_a_permanent_refusal_fails_the_job(server: Server, post: Post, status: int) -> None:
    server.status, server.body = status, b"no such hook"

    ended = post(server.url)

    assert code_of(ended) == f"HTTP_{status}"
    assert "no such hook" in str(ended)


def test_the_requested_wait_may_be_a_date_and_is_an_hour_at_most() -> None:
    in_ten_minutes = http_client.seconds_in_retry_after(email.utils.formatdate(time.time() + 600, usegmt=True))

    assert in_ten_minutes is not None
    assert 500 < in_ten_minutes <= 600
    assert http_client.seconds_in_retry_after("soon") is None
    after, note = limit_wait(http_client.seconds_in_retry_after("9" * 400))
    assert (after, "no more than 1 h" in note) == (3600, True)


def test_an_unreachable_server_and_one_without_tls_are_retried(server: Server, post: Post) -> None:
    with socket.socket() as bound:
        # Bound and not listening, so that no other program can use the port.
        bound.bind(("127.0.0.1", 0))
        assert code_of(post(f"http://127.0.0.1:{bound.getsockname()[1]}/"), Retryable) == "CONNECTION_FAILED"
    assert code_of(post(server.url.replace("http:", "https:")), Retryable) == "CONNECTION_FAILED"
    assert server.requests == []


@pytest.mark.parametrize(
    ("answer", "code"), [(b"", "CONNECTION_FAILED"), (b"SSH-2.0-OpenSSH\r\n\r\n", "ANSWER_GARBLED")]
)
def test_an_answer_that_is_not_http_is_retried(post: Post, answer: bytes, code: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                request = b""
                # Unread bytes would turn the close into a reset, which overtakes the answer.
                while not request.endswith(b"}}"):
                    request += connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        ended = post(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        thread.join()

    assert code_of(ended, Retryable) == code
