"""A visitor of one owner neither sees nor changes the data of another owner, on any page or by any form.

The server is that of the API tests: all data of bob contains `MARK`, which occurs nowhere else.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from tests.web.api.test_owners import BOB, MARK, TwoOwners
from tests.web.api.test_owners import server as server
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.tokens import TokenScope
from worker_service.services import tokens
from worker_service.web import access, app

# Paths that other tests cover, or that need no sign-in.
_OTHER_PREFIXES = ("/api/", "/session", "/healthz", "/readyz", "/metrics")
PAGES = sorted(
    {
        (method, route.path)
        for route in app.routes()
        if isinstance(route, Route) and not route.path.startswith(_OTHER_PREFIXES)
        for method in route.methods or ()
        if method != "HEAD"
    }
)
VERBS = ("cancel", "retry", "delete", "priority", "stop", "resume", "rm")
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def filled_paths(server: TwoOwners, path: str) -> Iterator[str]:
    ids = server.bobs_ids
    values_by_name: dict[str, list[Any]] = {
        "job_id": ids["jobs"], "document_id": ids["documents"], "batch_id": ids["batches"], "action_id": ids["actions"],
        "file_id": ids["number"], "number": [1], "table": [1], "verb": [*VERBS],
    }  # fmt: skip
    names = _PARAMETER.findall(path)
    for values in itertools.product(*(values_by_name[name] for name in names)):
        chosen = {name: str(value) for name, value in zip(names, values, strict=True)}
        yield _PARAMETER.sub("{\\1}", path).format(**chosen)


def parameters_for(server: TwoOwners, method: str, path: str) -> list[dict[str, Any]]:
    jobs, batches = server.bobs_ids["jobs"], server.bobs_ids["batches"]
    more: dict[str, Any] = {"priority": "1", "reason": "x", "scope": "owner", "name": BOB, "yes": "1", "expect": "9"}
    if "_id" in path:
        return [{}, more | {"verb": "cancel"}]
    chosen: list[dict[str, Any]] = [
        {}, {"owner": BOB}, {"id": jobs}, {"batch": batches}, {"document": server.bobs_ids["documents"]},
        {"job": jobs}, {"again": jobs[0]}, {"done": server.bobs_ids["actions"][0]},
        {"sort": "name", "before": server.bobs_ids["documents"][0]},
        {"q": "word", "terms": "word", "term": "word", "before": 10**6},
    ]  # fmt: skip
    if method == "GET" and path != "/jobs/change":
        return chosen
    scopes = ("owner", "all", "ticked")
    return [
        more | one | {"verb": verb, "scope": scope}
        for one in chosen
        for verb in ("cancel", "priority")
        for scope in scopes
    ]


@pytest.mark.parametrize(("method", "path"), PAGES, ids=[" ".join(page) for page in PAGES])
def test_pages_of_one_owner_neither_show_nor_change_anothers_data(server: TwoOwners, method: str, path: str) -> None:
    before = server.data_of_bob()

    for filled_path in filled_paths(server, path):
        for parameters in parameters_for(server, method, path):
            sent = {"params": parameters} if method == "GET" else {"data": parameters}
            answer = server.as_alice(method, filled_path, **sent)

            context = f"{method} {filled_path} {parameters}: {answer.status_code} {answer.text}"
            assert answer.status_code < 500, context
            # A page may repeat the parameters: in the fields of a filter, in its command, in a refusal.
            assert MARK not in answer.text.replace(BOB, ""), context
            assert BOB not in answer.text or BOB in str(parameters), context
            assert not server.ids_of_bob_in(answer.text, f"{filled_path} {parameters}"), context
            if "_id" in path:
                assert answer.status_code in (400, 403, 404, 409), context
    assert server.data_of_bob() == before


def test_pages_for_all_owners_show_what_those_of_one_owner_do_not(server: TwoOwners) -> None:
    """Show that the test above could fail."""
    shown = {
        path
        for method, path in PAGES
        if method == "GET"
        for filled_path in filled_paths(server, path)
        if MARK in server.as_admin(method, filled_path, params={"q": "word", "terms": "word"}).text
    }

    assert {"/", "/jobs", "/jobs/{job_id:id}", "/batches", "/batches/{batch_id:id}", "/search",
            "/documents/{document_id:id}",
            "/failures", "/queue", "/activity"} <= shown  # fmt: skip


@pytest.mark.parametrize("filters", [{"scope": "ticked"}, {"status": ","}])
def test_a_change_without_a_filter_does_not_change_all_jobs_of_the_owner(
    server: TwoOwners, filters: dict[str, str]
) -> None:
    job_id = server.session.store.intake.enqueue(NewJob("action", owner="alice")).job_id

    answer = server.as_alice("POST", "/jobs/change", data={"verb": "cancel", **filters})

    assert answer.status_code == 400
    assert server.session.store.job_queries.get(job_id).status is Status.PENDING


@pytest.mark.parametrize("is_checked_by_middleware", [True, False])
def test_a_token_that_only_reads_sends_no_form(
    server: TwoOwners, monkeypatch: pytest.MonkeyPatch, *, is_checked_by_middleware: bool
) -> None:
    reader = tokens.create_token(server.session, f"page reader {is_checked_by_middleware}", [TokenScope.READ]).text
    if not is_checked_by_middleware:
        monkeypatch.setattr(access, "SAFE_METHODS", ("GET", "POST"))

    for method, path in PAGES:
        if method != "GET":
            sent: dict[str, Any] = {"files": {"file": ("a.txt", b"a")}} if path == "/upload" else {"data": {}}
            for filled_path in filled_paths(server, path):
                assert server.request(reader, method, filled_path, **sent).status_code == 403, (method, filled_path)


def test_without_a_token_every_page_redirects_to_sign_in(server: TwoOwners) -> None:
    for method, path in PAGES:
        for filled_path in filled_paths(server, path):
            answer = httpx.request(method, f"{server.address}{filled_path}", headers={"Accept": "text/html"})
            wanted = (303, "/session") if method == "GET" else (401, "")
            assert (answer.status_code, answer.headers.get("location", "").partition("?")[0]) == wanted, (
                method,
                filled_path,
            )
