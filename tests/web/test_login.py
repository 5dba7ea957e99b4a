from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.web.conftest import PAGE, served, settings_for
from worker_service.jobs.tokens import TokenScope
from worker_service.services import tokens
from worker_service.services.enqueue import enqueue
from worker_service.services.session import Session
from worker_service.settings.config import Settings


@pytest.fixture
def browser(settings: Settings, session: Session) -> Iterator[httpx.Client]:
    tokens.create_token(session, "grafana")
    with served(settings) as address, httpx.Client(base_url=address, headers=PAGE) as client:
        yield client


def link_of(session: Session, name: str | None = None, owner: str | None = None) -> str:
    return f"/session?link={tokens.create_link(session, name, owner=owner).text}"


def follow(browser: httpx.Client, link: str, **options: Any) -> httpx.Response:
    shown = browser.get(link, **options)
    assert shown.status_code == 200
    token = re.search(r'name="token" value="(\S+)"', shown.text)
    assert token is not None
    return browser.post("/session", data={"token": token[1], "link": "1"}, **options)


def csrf_of(browser: httpx.Client, path: str = "/session/me") -> str:
    field = re.search(r'name="csrf" value="([0-9a-f]+)"', browser.get(path, headers=PAGE).text)
    assert field is not None
    return field[1]


# ── Sign-in ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_signed_out_browser_gets_the_sign_in_page_and_then_its_target(
    browser: httpx.Client, session: Session
) -> None:
    redirected = browser.get("/jobs?status=failed")
    assert (redirected.status_code, redirected.headers["location"]) == (303, "/session?next=/jobs%3Fstatus%3Dfailed")

    form = browser.get(redirected.headers["location"])
    assert 'value="/jobs?status=failed"' in form.text
    token = tokens.create_token(session, "ann", [TokenScope.OPERATE]).text
    signed_in = browser.post("/session", data={"token": token, "next": "/jobs?status=failed"})

    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/jobs?status=failed")
    assert browser.get("/api/jobs").status_code == 200


def test_a_link_signs_one_browser_in_once(browser: httpx.Client, session: Session) -> None:
    link = link_of(session)

    assert follow(browser, link).status_code == 303
    assert browser.get("/api/jobs").status_code == 200

    browser.cookies.clear()
    again = follow(browser, link)
    assert again.status_code == 401
    assert "pagemill token link" in again.text
    assert browser.get("/api/jobs").status_code == 401


def test_a_link_pasted_into_the_field_signs_in(browser: httpx.Client, session: Session) -> None:
    browser.post("/session", data={"token": f" http://127.0.0.1:8470{link_of(session)}\n"})

    assert browser.get("/api/jobs").status_code == 200


def test_opening_a_link_does_not_use_it_up(browser: httpx.Client, session: Session) -> None:
    link = link_of(session)

    assert browser.head(link).status_code == 200
    assert browser.get(link).status_code == 200
    assert not browser.cookies

    assert follow(browser, link).status_code == 303


def test_a_cookie_is_sent_only_by_pages_of_this_site(browser: httpx.Client, session: Session) -> None:
    cookie = follow(browser, link_of(session)).headers["set-cookie"]

    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert "Domain" not in cookie


def test_behind_https_a_cookie_is_sent_only_over_https(settings: Settings, session: Session) -> None:
    with served(settings_for(settings.database, web_urls="https://docs.example.org")) as address:
        with httpx.Client(base_url=address, headers={"Host": "docs.example.org"}) as client:
            cookie = follow(client, link_of(session)).headers["set-cookie"]
        assert cookie.startswith("__Host-pagemill-")
        assert {"HttpOnly", "SameSite=strict", "Secure", "Path=/"} <= set(cookie.split("; "))


@pytest.mark.parametrize(
    "wanted",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/session/end", "/a\nb"],
)
def test_sign_in_never_redirects_to_another_site(browser: httpx.Client, session: Session, wanted: str) -> None:
    token = tokens.create_token(session, "ann").text

    assert browser.post("/session", data={"token": token, "next": wanted}).headers["location"] == "/"


def test_text_in_the_url_is_shown_as_text(browser: httpx.Client) -> None:
    answer = browser.get("/session", params={"next": '/"><script>alert(1)</script>'})

    assert "<script>alert" not in answer.text


# ── Signed in ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_signed_in_browser_needs_a_csrf_token_to_change_anything(browser: httpx.Client, session: Session) -> None:
    enqueue(session, {"job_type": "ocr_pages"}, lambda _: b"")
    follow(browser, link_of(session, "bob"))

    for headers in ({}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": ""}):
        answer = browser.post("/api/jobs/1/cancel", headers={**headers, "Accept": "*/*"})
        assert (answer.status_code, answer.json()["code"]) == (403, "form_outdated")
    assert session.job_queries.get(1).status == "pending"

    assert browser.post("/api/jobs/1/cancel", headers={"X-CSRF-Token": csrf_of(browser)}).status_code == 200
    assert session.store.history.actions()[0].actor == "bob"


@pytest.mark.parametrize("path", ["/upload", "/api/uploads"])
def test_an_upload_of_any_type_needs_the_csrf_token(browser: httpx.Client, session: Session, path: str) -> None:
    follow(browser, link_of(session))
    file = ("a.pdf", b"%PDF-1.4")

    assert browser.post(path, files={"file": file}).status_code == 403
    assert browser.post(path, data={"file": "a"}).status_code == 403
    assert browser.post(path, content=b"a", headers={"Content-Type": "application/json"}).status_code == 403
    carried = {"X-CSRF-Token": csrf_of(browser)}
    assert browser.post(path, files={"file": file}, headers=carried).status_code not in (400, 403)


def test_a_csrf_token_is_valid_in_one_browser_only(browser: httpx.Client, session: Session) -> None:
    follow(browser, link_of(session, "bob"))
    token_of_bob = csrf_of(browser)
    browser.cookies.clear()
    follow(browser, link_of(session, "ann"))

    answer = browser.post(
        "/api/jobs", headers={"X-CSRF-Token": token_of_bob, "Accept": "*/*"}, json={"job_type": "ocr_pages"}
    )

    assert answer.json()["code"] == "form_outdated"


def test_a_page_of_another_site_changes_nothing_in_a_signed_in_browser(browser: httpx.Client, session: Session) -> None:
    follow(browser, link_of(session))
    headers = {"X-CSRF-Token": csrf_of(browser), "Origin": "https://evil.example", "Accept": "*/*"}

    assert browser.post("/api/jobs/1/cancel", headers=headers).json()["code"] == "origin_refused"


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: text[::-1], lambda text: ""], ids="abc")
def test_a_changed_cookie_is_refused(browser: httpx.Client, session: Session, change: object) -> None:
    assert callable(change)
    follow(browser, link_of(session))
    [(name, value)] = browser.cookies.items()
    token_text, _, signature = value.rpartition(".")

    browser.cookies.clear()
    assert browser.get("/api/jobs", headers={"Cookie": f"{name}={token_text}.{change(signature)}"}).status_code == 401
    assert browser.get("/api/jobs", headers={"Cookie": f"{name}={token_text}.{signature}"}).status_code == 200


def test_a_session_has_the_owner_of_its_link(browser: httpx.Client, session: Session) -> None:
    enqueue(session, {"job_type": "ocr_pages", "owner": "alice"}, lambda _: b"")
    enqueue(session, {"job_type": "ocr_pages", "owner": "bob"}, lambda _: b"")
    follow(browser, link_of(session, "bob", owner="bob"))

    assert [job["owner"] for job in browser.get("/api/jobs").json()["items"]] == ["bob"]


# ── Sign-out ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_signing_out_invalidates_every_copy_of_the_cookie(browser: httpx.Client, session: Session) -> None:
    follow(browser, link_of(session))
    [(name, value)] = browser.cookies.items()

    assert browser.post("/session/end", data={"csrf": "0" * 64}).status_code == 403
    assert browser.post("/session/end", data={"csrf": csrf_of(browser)}).status_code == 303
    assert not browser.cookies
    assert browser.get("/api/jobs", headers={"Cookie": f"{name}={value}"}).status_code == 401


def test_removing_a_token_ends_its_browser_sessions(browser: httpx.Client, session: Session) -> None:
    browser.post("/session", data={"token": tokens.create_token(session, "ann").text})
    assert browser.get("/api/jobs").status_code == 200

    tokens.remove_tokens(session, ["ann"])

    assert browser.get("/api/jobs").status_code == 401


def test_a_session_survives_a_restart_of_the_server(settings: Settings, session: Session) -> None:
    tokens.create_token(session, "grafana")
    with served(settings) as address, httpx.Client(base_url=address) as client:
        cookies = follow(client, link_of(session)).cookies

    with served(settings) as address:
        cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
        assert httpx.get(f"{address}/api/jobs", headers={"Cookie": cookie}).status_code == 200
