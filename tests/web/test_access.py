from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.web.conftest import bearing, by_unix_socket, connected, served, settings_for
from worker_service.base.clock import as_text
from worker_service.jobs.selector import Selector
from worker_service.jobs.tokens import TokenScope, digest_of, parse_token_text
from worker_service.services import tokens
from worker_service.services.enqueue import enqueue
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.web import access
from worker_service.web.access import Visitor

NOBODY = 65534
JOB = {"job_type": "ocr_pages"}

as_another_user = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def asked_as(user: int, address: str, path: str = "/api/jobs") -> int:
    libc = ctypes.CDLL(None)
    libc.setfsuid(user)
    try:
        return httpx.get(address + path).status_code
    finally:
        libc.setfsuid(0)


# ── From the same machine ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("user", [0, NOBODY])
@as_another_user
def test_no_user_of_the_machine_gets_in_over_tcp_without_a_token(settings: Settings, user: int) -> None:
    with served(settings) as address:
        assert asked_as(user, address) == 401
        assert asked_as(user, address, "/healthz") == 200


def test_a_client_that_hangs_up_before_the_answer_changes_nothing(settings: Settings, session: Session) -> None:
    """The kernel says that a closed socket belongs to root, and TCP_CORK closes it together with the data."""
    enqueue(session, JOB, lambda _: b"")
    with served(settings) as address:
        request = b"POST /api/jobs/1/cancel HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
        for _ in range(40):
            with connected(address) as line:
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                line.sendall(request * 2)
        # One connection after the other: by the time this is answered, so were the others.
        assert httpx.get(f"{address}/api/jobs").status_code == 401

    assert session.job_queries.get(1).status == "pending"


def test_the_unix_socket_needs_no_token_from_the_servers_own_user(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    with served(settings, path), by_unix_socket(path) as local:
        assert local.post("/api/jobs", json=JOB).status_code == 201
        jobs = local.get("/api/jobs").json()["items"]
        assert len(jobs) == 1
        assert local.get("/session/me", headers={"Accept": "text/html"}).status_code == 200


@as_another_user
def test_the_unix_socket_refuses_other_users_with_any_mode(settings: Settings) -> None:
    # Outside the directories of tests, which are their user's own.
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        path = Path(above, "web.sock")
        with served(settings, path):
            path.chmod(0o666)
            curl = ["curl", "-s", "-w", "%{http_code}", "--unix-socket", str(path), "http://localhost/api/jobs"]
            answer = subprocess.run(curl, user=NOBODY, capture_output=True, text=True, check=True, cwd="/").stdout

    assert answer.endswith("401")


@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Proto", "X-Forwarded-User", "Origin"]
)
def test_the_unix_socket_refuses_proxies_and_browsers(settings: Settings, tmp_path: Path, header: str) -> None:
    path = tmp_path / "web.sock"
    with served(settings, path), by_unix_socket(path) as local:
        assert local.get("/api/jobs", headers={header: "http://localhost"}).status_code == 401


def test_behind_a_proxy_the_unix_socket_needs_a_token(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    with (
        served(settings_for(settings.database, web_urls="https://docs.example.org"), path),
        by_unix_socket(path) as local,
    ):
        assert local.get("/api/jobs").status_code == 401
    with served(settings, path), by_unix_socket(path) as local:
        assert local.get("/api/jobs", headers={"Host": "10.0.0.5"}).status_code == 401


# ── By a token ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_token_is_valid_until_it_is_removed(site: httpx.Client, session: Session) -> None:
    token = tokens.create_token(session, "grafana")
    assert site.get("/api/jobs", headers=bearing(token.text)).status_code == 200

    tokens.remove_tokens(session, ["grafana"])
    answer = site.get("/api/jobs", headers=bearing(token.text))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert token.text not in answer.text


def test_a_token_is_valid_until_it_expires(settings: Settings, session: Session) -> None:
    token = tokens.create_token(session, "grafana", until="1d")
    with served(settings) as address:
        assert httpx.get(f"{address}/api/jobs", headers=bearing(token.text)).status_code == 200
        session.store.tokens.remove([token.id], actor=None)
        expiring = tokens.create_token(session, "grafana", until="1s")
        until = expiring.until
        assert until is not None
        while until > as_text(session.clock()):
            pass
        assert httpx.get(f"{address}/api/jobs", headers=bearing(expiring.text)).status_code == 401


CRAFTED: dict[str, Callable[[int, str], str]] = {
    "another secret": lambda number, secret: f"pm_{number}_{'A' * 43}",
    "a shorter secret": lambda number, secret: f"pm_{number}_{secret[:-1]}",
    "a longer secret": lambda number, secret: f"pm_{number}_{secret}A",
    "the secret of another": lambda number, secret: f"pm_{number + 1}_{secret}",
    "an unknown id": lambda number, secret: f"pm_999999_{secret}",
    "a number without end": lambda number, secret: f"pm_{'9' * 40}_{secret}",
    "a negative number": lambda number, secret: f"pm_-{number}_{secret}",
    "its digest": lambda number, secret: f"pm_{number}_{digest_of(secret)}",
    "SQL": lambda number, secret: f"pm_{number} OR 1=1_{secret}",
    "a wildcard": lambda number, secret: f"pm_{number}_%",
    "a NUL": lambda number, secret: f"pm_{number}_{secret}\\0",
    "a long text": lambda number, secret: "pm_" + "9" * 30_000,
}


@pytest.mark.parametrize("crafted", CRAFTED.values(), ids=CRAFTED)
def test_a_crafted_token_is_refused(site: httpx.Client, session: Session, crafted: Callable[[int, str], str]) -> None:
    read = parse_token_text(tokens.create_token(session, "grafana").text)
    assert read is not None

    assert site.get("/api/jobs", headers=bearing(crafted(*read))).status_code == 401
    assert site.get("/api/jobs", headers={"Authorization": f"Basic {crafted(*read)}"}).status_code == 401


def test_a_token_in_the_address_is_no_token(site: httpx.Client, session: Session) -> None:
    del site.headers["Authorization"]
    token = tokens.create_token(session, "grafana")

    assert site.get(f"/api/jobs?token={token.text}").status_code == 401
    assert site.get(f"/api/jobs?access_token={token.text}").status_code == 401


def test_a_link_and_a_session_are_no_tokens(site: httpx.Client, session: Session) -> None:
    link = tokens.create_link(session)
    browser_session = tokens.begin_browser_session(session, tokens.create_token(session, "ann").text)
    assert browser_session is not None

    assert site.get("/api/jobs", headers=bearing(link.text)).status_code == 401
    assert site.get("/api/jobs", headers=bearing(browser_session.text)).status_code == 401


def test_the_database_has_no_secret(settings: Settings, session: Session) -> None:
    texts = [tokens.create_token(session, "grafana").text, tokens.create_link(session).text]
    session.close()

    content = b"".join(path.read_bytes() for path in settings.database.parent.glob("pagemill.db*"))
    assert b"grafana" in content
    assert not any((parse_token_text(text) or (0, text))[1].encode() in content for text in texts)


# ── Powers and owners ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_scope_includes_the_lower_ones(session: Session) -> None:
    for highest, scopes in zip(TokenScope, (["read"], ["read", "operate"], ["read", "operate", "admin"]), strict=True):
        tokens.create_token(session, highest, [highest])
        assert tokens.list_tokens(session)[-1].scopes.split() == scopes


def test_a_selector_is_limited_to_the_visitors_owner() -> None:
    alice = Visitor("alice", frozenset(TokenScope), "alice")

    assert alice.limit_selector(Selector()) == Selector(owners=("alice",))
    assert alice.limit_selector(Selector(owners=("alice", "bob"), ids=(1,))) == Selector(owners=("alice",), ids=(1,))
    assert alice.limit_selector(Selector(owners=("bob",), batch_ids=(7,))) == Selector(owners=("alice",), ids=(0,))
    assert not alice.may_see("bob")
    assert not alice.may_see("")
    assert not alice.may_see(None)
    assert Visitor("ann", frozenset(TokenScope)).limit_selector(Selector()) == Selector()


# ── Repeated failures ───────────────────────────────────────────────────────────────────────────────────


def test_guessing_tokens_is_slowed_down_and_valid_tokens_still_work(site: httpx.Client, session: Session) -> None:
    good = tokens.create_token(session, "grafana").text
    guesses = [site.get("/api/jobs", headers=bearing(f"pm_1_{'A' * 43}")) for _ in range(access.FAILURES_MAX + 2)]

    assert [answer.status_code for answer in guesses] == [401] * access.FAILURES_MAX + [429] * 2
    assert 1 <= int(guesses[-1].headers["retry-after"]) <= 60
    assert site.post("/session", data={"token": "pm_1_guess"}).status_code == 429
    assert site.get("/api/jobs", headers=bearing(good)).status_code == 200


def test_failures_are_counted_per_address() -> None:
    failures = access.SignInFailures()
    counts = [failures.note("10.0.0.1")[0] for _ in range(3)]

    assert (counts, failures.note("10.0.0.2")[0]) == ([1, 2, 3], 1)


def test_the_time_of_use_is_stored_when_the_server_stops(settings: Settings, session: Session) -> None:
    token = tokens.create_token(session, "grafana")
    with served(settings) as address:
        httpx.get(f"{address}/api/jobs", headers=bearing(token.text))

    assert tokens.list_tokens(session)[0].used_at is not None
