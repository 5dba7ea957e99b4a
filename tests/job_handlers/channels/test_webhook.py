"""Events posted by real children to a real server."""

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
from job_handlers.fetch import http_client
from tests.job_handlers.channels.conftest import Server
from worker_service.handlers import Done, HandlerError, Permanent, Retryable
from worker_service.testing import HandlerRun, How, run_handler

KEY = b"k" * 32
SECRET = "whsec_" + base64.b64encode(KEY).decode()
EVENT = {"type": "report.ready", "data": {"id": 42, "name": "Zürich"}}


Post = Callable[..., HandlerRun]
Here = Callable[..., Done | HandlerError]


@pytest.fixture
def post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Post:
    """Post an event, from a worker that may reach this machine."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "webhook").write_text(SECRET + "\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))

    def post(
        url: str,
        *,
        allow: str = "127.0.0.0/8, ::1",
        job_id: int = 1,
        fence: int = 1,
        document_id: int | None = None,
        **more: object,
    ) -> HandlerRun:
        monkeypatch.setenv(webhook.ALLOW.variable, allow)
        return run_handler(
            webhook.webhook,
            {"url": url, "event": EVENT, **more},
            directory=tmp_path / "run",
            job_id=job_id,
            fence=fence,
            document_id=document_id,
        )

    return post


class Told:
    """A context in this process."""

    idempotency_key = "1"

    def __init__(self, url: str) -> None:
        self.payload = webhook.WebhookPayload(url, EVENT)

    def log(self, line: str) -> None:
        pass

    def cancelled(self) -> bool:
        return False


@pytest.fixture
def here(post: Post, monkeypatch: pytest.MonkeyPatch) -> Here:
    """The same in this process, for the many verdicts."""

    def here(url: str, *, allow: str = "127.0.0.0/8") -> Done | HandlerError:
        monkeypatch.setenv(webhook.ALLOW.variable, allow)
        context: Any = Told(url)
        try:
            return webhook.run(context)
        except HandlerError as error:
            return error

    return here


def verdict(run: HandlerRun) -> tuple[How, str]:
    return run.how, run.ended.code


# --- the event and its signature --------------------------------------------------------------------


def test_the_signature_is_that_of_the_standard() -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    headers = webhook.signature_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [key])

    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_an_event_is_posted_and_its_receiver_can_check_it(server: Server, post: Post) -> None:
    before = int(time.time())

    run = post(server.url, job_id=7)

    assert (run.how, run.result) == (How.DONE, {"status": 204})
    [(path, headers, body)] = server.heard
    assert (path, json.loads(body)) == ("/hooks?token=hush", EVENT)
    assert headers["content-type"] == "application/json"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert (headers["webhook-id"], before <= int(headers["webhook-timestamp"]) <= time.time()) == ("7", True)
    content = f"7.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY, content, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


def test_every_attempt_of_a_job_posts_the_same_event_under_the_same_id(server: Server, post: Post) -> None:
    post(server.url, job_id=7, fence=1)
    post(server.url, job_id=7, fence=2)

    first, second = server.heard
    assert (first[1]["webhook-id"], first[2]) == (second[1]["webhook-id"], second[2])


def test_without_an_event_it_tells_which_document_was_read(server: Server, post: Post) -> None:
    told, mute = post(server.url, event=None, document_id=7), post(server.url, event=None)

    assert told.how is How.DONE
    [(_, _, body)] = server.heard
    assert json.loads(body) == {
        "type": "document.success",
        "data": {"document": 7, "name": "", "owner": "", "batch": None, "generation": None},
    }
    assert verdict(mute) == (How.PERMANENT, "PAYLOAD_INVALID")


def test_while_a_key_is_exchanged_both_sign(server: Server, post: Post, tmp_path: Path) -> None:
    other = "whsec_" + base64.b64encode(b"n" * 24).decode()
    (tmp_path / "credentials" / "webhook_acme").write_text(f"{SECRET}\n\n{other}\n")

    post(server.url, secret="webhook_acme")

    one, two = server.heard[0][1]["webhook-signature"].split(" ")
    assert one.startswith("v1,")
    assert two.startswith("v1,")
    assert one != two


def test_neither_the_secret_nor_the_url_is_ever_told(server: Server, post: Post) -> None:
    server.status = 500

    run = post(server.url)

    told = repr(run)
    assert "127.0.0.1 answered 500" in told
    assert "hush" not in told
    assert SECRET.removeprefix("whsec_") not in told


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
    server: Server, post: Post, tmp_path: Path, name: str, text: str | None, code: str
) -> None:
    if text is not None:
        (tmp_path / "credentials" / name).write_text(text)

    run = post(server.url, secret=name)

    assert verdict(run) == (How.PERMANENT, code)
    assert "not base64" not in run.ended.message
    assert server.heard == []


def test_without_a_directory_of_credentials_there_is_no_secret(
    server: Server, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")

    assert verdict(post(server.url)) == (How.PERMANENT, "SECRET_ABSENT")


# --- where it may go --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0.0.0.0", "[::ffff:127.0.0.1]"])
def test_this_machine_is_refused_however_it_is_written(server: Server, here: Here, host: str) -> None:
    ended = here(f"http://{host}:{server.port}/", allow="")

    assert isinstance(ended, Permanent)
    assert ended.code == "ADDRESS_REFUSED"
    assert webhook.ALLOW.variable in str(ended)
    assert server.heard == []


def test_a_network_that_is_allowed_allows_no_other(server: Server, post: Post) -> None:
    assert verdict(post(server.url, allow="10.0.0.0/8,127.0.0.2")) == (How.PERMANENT, "ADDRESS_REFUSED")
    assert post(server.url, allow="10.0.0.0/8,127.0.0.1").how is How.DONE


def test_a_setting_that_lists_no_networks_is_refused(server: Server, post: Post) -> None:
    assert verdict(post(server.url, allow="everything")) == (How.PERMANENT, "SETTING_INVALID")


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("192.0.0.192", False),
        ("168.63.129.16", False),
        ("::ffff:168.63.129.16", False),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("fe80::1", False),
        ("fe80::1%1", False),
        ("fc00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("2002:7f00:1::", False),
    ],
)
def test_only_the_public_internet_is_public(address: str, is_public: bool) -> None:
    assert http_client.is_public(ipaddress.ip_address(address)) is is_public


class Names:
    """Stands for the resolver: each look at a name gives the next answer."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = [*answers]

    def __call__(self, host: str, port: int, **_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in self.answers.pop(0)]


@pytest.mark.usefixtures("post")
def test_a_name_is_looked_up_once_and_the_address_that_was_checked_is_connected_to(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    context: Any = Told(f"http://hooks.example:{server.port}/")
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", names)
    monkeypatch.setenv(webhook.ALLOW.variable, "127.0.0.1")

    webhook.run(context)

    assert names.answers == [["10.0.0.1"]]
    assert server.heard[0][1]["host"] == f"hooks.example:{server.port}"


@pytest.mark.usefixtures("post")
def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = Told("http://hooks.example/")
    monkeypatch.setattr(socket, "getaddrinfo", Names(["93.184.216.34", "169.254.169.254"]))

    with pytest.raises(Permanent) as refused:
        webhook.run(context)

    assert refused.value.code == "ADDRESS_REFUSED"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http://",
        "http://user:word@example.com/",
        "http://example.com:99999/",
        "http://exa mple.com/",
        "http://example.com/\r\nX: y",
        "http://exämple.com/",
        "http://[::1/",
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Permanent) as refused:
        http_client.parse_url(url)

    assert refused.value.code == "URL_INVALID"


def test_no_redirect_is_followed(server: Server, post: Post) -> None:
    server.status, server.headers = 302, {"Location": server.url}

    run = post(server.url)

    assert verdict(run) == (How.PERMANENT, "HTTP_302")
    assert len(server.heard) == 1


# --- what is answered -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202])
def test_an_answer_of_the_200s_is_done(server: Server, here: Here, status: int) -> None:
    server.status, server.body = status, b"thank you"

    assert here(server.url) == Done({"status": status})


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_a_server_that_cannot_now_is_asked_again(server: Server, here: Here, status: int) -> None:
    server.status, server.headers = status, {"Retry-After": "17"}

    ended = here(server.url)

    assert isinstance(ended, Retryable)
    assert (ended.code, ended.after) == (f"HTTP_{status}", 17)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
def test_an_event_that_is_refused_is_not_posted_again(server: Server, here: Here, status: int) -> None:
    server.status, server.body = status, b"no such hook"

    ended = here(server.url)

    assert isinstance(ended, Permanent)
    assert ended.code == f"HTTP_{status}"
    assert "no such hook" in ended.detail


def test_a_date_to_try_again_is_heeded_and_nonsense_is_not(server: Server, post: Post) -> None:
    server.status = 503

    server.headers = {"Retry-After": email.utils.formatdate(time.time() + 600, usegmt=True)}
    by_date = post(server.url).ended.after_seconds
    server.headers = {"Retry-After": "soon"}
    by_nonsense = post(server.url).ended.after_seconds
    server.headers = {"Retry-After": "9" * 400}
    for_ever = post(server.url).ended

    assert by_date is not None
    assert 500 < by_date <= 600
    assert (by_nonsense, for_ever.after_seconds) == (None, 3600)
    assert "no more than 1 h" in for_ever.message


def test_a_server_that_is_not_there_is_tried_again(post: Post) -> None:
    with socket.socket() as nobody:
        # Bound and not listening, so that nobody else can take the port.
        nobody.bind(("127.0.0.1", 0))
        run = post(f"http://127.0.0.1:{nobody.getsockname()[1]}/")

    assert verdict(run) == (How.RETRYABLE, "CONNECTION_FAILED")


def test_a_server_that_does_not_speak_tls_is_tried_again(server: Server, post: Post) -> None:
    run = post(server.url.replace("http:", "https:"))

    assert verdict(run) == (How.RETRYABLE, "CONNECTION_FAILED")
    assert server.heard == []


@pytest.mark.parametrize(("said", "code"), [(b"", "CONNECTION_FAILED"), (b"SSH-2.0-OpenSSH\r\n\r\n", "ANSWER_GARBLED")])
def test_a_server_that_does_not_speak_http_is_tried_again(post: Post, said: bytes, code: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            one, _ = listening.accept()
            with one:
                heard = b""
                # What is left unread when it hangs up would be a reset, which overtakes what it says.
                while not heard.endswith(b"}}"):
                    heard += one.recv(65536)
                one.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        run = post(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        thread.join()

    assert verdict(run) == (How.RETRYABLE, code)


def test_a_message_is_an_event_that_is_signed_as_any_other(post: Post, server: Server, tmp_path: Path) -> None:
    told = {
        "to": server.url,
        "subject": "3 jobs failed",
        "text": "TIMEOUT: 3",
        "data": {"n": 3},
        "at": "2026-11-19T06Z",
    }
    post(server.url)

    run = run_handler(notify.notify, told, directory=tmp_path / "run", job_id=2)

    assert run.how is How.DONE, run.ended.message
    _, headers, body = server.heard[-1]
    assert headers == {
        **headers,
        **webhook.signature_headers(headers["webhook-id"], int(headers["webhook-timestamp"]), body, [KEY]),
    }
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
