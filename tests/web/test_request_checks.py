from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.web.conftest import bearer, connected, served, settings_for, sign_in, site_of
from worker_service.settings.config import Settings

# ── Hosts ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.example:8470", "localhost@evil.example", "localhost, evil.example",
     "127.0.0.1.evil.example", "", "localhost:80:80", "[::1", "localhost/../x", "xn--lcalhost-54a"],
)  # fmt: skip
def test_an_unknown_host_name_is_refused(site: httpx.Client, host: str) -> None:
    answer = site.get("/nothing", headers={"Host": host})

    assert answer.status_code == 421
    assert answer.json()["code"] == "host_refused"
    assert "web_urls" in answer.json()["remedy"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.0.0.1:9000", "[::1]:9000", "10.0.0.5"]
)
def test_localhost_and_ip_addresses_are_accepted_with_any_port(site: httpx.Client, host: str) -> None:
    assert site.get("/healthz", headers={"Host": host}).status_code == 200


def test_the_host_of_web_urls_is_accepted(settings: Settings) -> None:
    with served(settings_for(settings.database, web_urls="https://docs.example.org")) as address:
        assert httpx.get(f"{address}/healthz", headers={"Host": "Docs.example.org"}).status_code == 200
        assert httpx.get(f"{address}/healthz", headers={"Host": "other.example.org"}).status_code == 421


def test_a_request_with_two_hosts_or_none_is_refused(settings: Settings) -> None:
    with served(settings) as address:
        for hosts in (b"Host: localhost\r\nHost: evil.example\r\n", b""):
            answer = exchange(address, b"GET /nothing HTTP/1.1\r\n" + hosts + b"\r\n")

            assert answer.startswith(b"HTTP/1.1 400 ")


# ── Other origins ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost.evil.example"},
     {"Origin": "http://localhost:1"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
    ids=lambda headers: next(iter(headers.values())),
)  # fmt: skip
def test_a_request_from_a_page_of_another_site_is_refused(site: httpx.Client, headers: dict[str, str]) -> None:
    answer = site.post("/nothing", headers=headers)

    assert answer.status_code == 403
    assert answer.json()["code"] == "origin_refused"


def test_behind_a_proxy_the_origin_is_that_of_web_urls(settings: Settings) -> None:
    with served(settings_for(settings.database, web_urls="https://docs.example.org")) as address:

        def posted(origin: str) -> int:
            headers = {"Host": "docs.example.org", "Origin": origin, "Content-Type": "application/json"}
            return int(httpx.post(f"{address}/healthz", headers=headers).status_code)

        assert posted("https://docs.example.org") != 403
        assert posted("http://docs.example.org") == 403


def test_a_page_of_web_origins_may_call_the_api_with_a_token(settings: Settings) -> None:
    origin = "https://dashboard.example.org"
    with site_of(settings_for(settings.database, web_origins=origin)) as site:
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        allowed = httpx.options(f"{site.base_url}/api/jobs", headers={**headers, **preflight})
        created = site.post("/api/jobs", headers=headers, json={"job_type": "ocr_pages"})
        unknown = httpx.get(f"{site.base_url}/api/jobs", headers={**headers, "Authorization": "Bearer guess"})

        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, origin)
        assert (created.status_code, created.headers["access-control-allow-origin"]) == (201, origin)
        # The page learns why it was refused.
        assert (unknown.status_code, unknown.headers["access-control-allow-origin"]) == (401, origin)
        assert "access-control-allow-credentials" not in {*allowed.headers, *created.headers}


def test_a_page_of_web_origins_cannot_use_a_cookie(settings: Settings) -> None:
    origin = "https://dashboard.example.org"
    with (
        served(settings_for(settings.database, web_origins=origin)) as address,
        httpx.Client(base_url=address) as browser,
    ):
        sign_in(browser, settings)
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}

        answer = browser.post("/api/jobs", headers=headers, json={"job_type": "ocr_pages"})

        assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")


def test_any_other_origin_may_not_call_the_api_with_a_token(settings: Settings) -> None:
    with site_of(settings_for(settings.database, web_origins="https://dashboard.example.org")) as site:
        answer = site.post("/api/jobs", headers={"Origin": "https://evil.example"}, json={"job_type": "ocr_pages"})

        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


# ── Bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_body_announced_as_too_large_is_refused_before_it_is_sent(settings: Settings) -> None:
    with served(settings) as address:
        answer = exchange(
            address,
            b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Authorization: " + bearer(settings)["Authorization"].encode() + b"\r\n"
            b"Content-Length: 10000000000\r\nExpect: 100-continue\r\n\r\n",
        )

        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"larger than the limit of 4194304 bytes" in answer
        assert httpx.get(f"{address}/healthz").status_code == 200


def test_a_body_of_unknown_length_is_refused_once_it_is_too_large(
    site: httpx.Client,
) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 65536

    answer = site.post("/nothing", content=endless(), headers={"Content-Type": "application/x-www-form-urlencoded"})

    assert answer.status_code == 413
    assert answer.json()["code"] == "body_too_large"


@pytest.mark.parametrize("form", [b"a=%ff", b"\xff=1", b"&".join(b"a=1" for _ in range(30_000))], ids=len)
def test_a_form_that_cannot_be_read_is_refused(site: httpx.Client, form: bytes) -> None:
    answer = site.post("/nothing", content=form, headers={"Content-Type": "application/x-www-form-urlencoded"})

    assert answer.status_code == 400
    assert "the form cannot be read" in answer.json()["detail"]


@pytest.mark.parametrize(("size", "status"), [(4096, 401), (4097, 413)])
def test_a_sign_in_takes_4_kib(settings: Settings, size: int, status: int) -> None:
    with served(settings) as address:
        body = b"token=" + b"x" * (size - 6)
        headers = {"Content-Type": "application/x-www-form-urlencoded"}

        assert httpx.post(f"{address}/session", content=body, headers=headers).status_code == status


def test_a_request_with_two_lengths_is_refused_and_the_connection_closed(settings: Settings) -> None:
    with served(settings) as address:
        smuggled = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with connected(address) as line:
            line.sendall(
                b"POST /session HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
                + smuggled
            )
            answer = b""
            while chunk := line.recv(65536):
                answer += chunk

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"ambiguous_length"' in answer
    assert answer.count(b"HTTP/1.1 ") == 1


# ── Responses ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/static/pagemill.css", "/static/nothing"])
def test_no_response_lets_a_browser_run_foreign_scripts(site: httpx.Client, path: str) -> None:
    headers = site.get(path).headers

    assert headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store" or path == "/static/pagemill.css"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/%2e%2e/__init__.py", "/static/..%2f..%2faccess.py", "/static/%00",
     "/static//etc/passwd", "/%00", "//evil.example/", "/" + "a" * 20_000, "/static/" + "a/" * 5_000],
    ids=lambda path: path[:30],
)  # fmt: skip
def test_a_crafted_path_is_not_found(settings: Settings, path: str) -> None:
    with served(settings) as address:
        token = f"Authorization: {bearer(settings)['Authorization']}"
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{token}\r\nConnection: close\r\n\r\n"
        answer = exchange(address, request.encode())

        assert answer.split(b" ", 2)[1] in (b"404", b"400"), answer[:100]
        assert b"evil.example\r\n" not in answer


# ── Raw requests ─────────────────────────────────────────────────────────────────────────────────────────────────────


def exchange(address: str, request: bytes) -> bytes:
    with connected(address) as line:
        line.sendall(request)
        received = b""
        while chunk := line.recv(65536):
            received += chunk
            if b"Content-Length" not in request and b"Connection: close" not in request and b"\r\n\r\n" in received:
                break
        return received
