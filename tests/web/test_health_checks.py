from __future__ import annotations

import time

import httpx

from tests.web.conftest import served
from worker_service.settings.config import Settings


def test_health_and_readiness_are_reported(site: httpx.Client) -> None:
    assert (site.get("/healthz").status_code, site.get("/readyz").status_code) == (200, 200)


def test_without_a_database_the_server_is_healthy_but_not_ready(settings: Settings) -> None:
    with served(settings) as address:
        settings.database.rename(settings.database.with_name("elsewhere.db"))

        assert httpx.get(f"{address}/healthz").status_code == 200
        answer = httpx.get(f"{address}/readyz")
        assert answer.status_code == 503
        assert answer.json()["code"] == "database_absent"
        assert "pagemill init" in answer.json()["remedy"]


def test_an_unknown_path_is_reported_with_a_sentence(site: httpx.Client) -> None:
    answer = site.get("/api/nothing")

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == "/api/nothing does not exist"

    page = site.get("/nothing", headers={"Accept": "text/html"})
    assert page.status_code == 404
    assert "/nothing does not exist" in page.text


def test_a_response_on_a_reused_connection_waits_for_no_acknowledgement(site: httpx.Client) -> None:
    def seconds() -> float:
        started = time.perf_counter()
        site.get("/healthz")
        return time.perf_counter() - started

    # Without TCP_NODELAY, each response on a reused connection waits 40 ms for an acknowledgement.
    site.get("/healthz")
    assert min(seconds() for _ in range(10)) < 0.03
