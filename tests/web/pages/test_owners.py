"""One owner's browser sees nothing of another's, and moves nothing of it: asked of every page and every form.

The same house as for the endpoints: all that is bob's has a word in it that stands nowhere else.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from tests.web.api.test_owners import BOB, MARK, House
from tests.web.api.test_owners import house as house
from worker_service.jobs.tokens import Power
from worker_service.services import tokens
from worker_service.web import app

# Those of programs are asked for elsewhere; these are anybody's.
_OTHERS = ("/api/", "/session", "/healthz", "/readyz", "/metrics")
PAGES = sorted(
    {
        (method, route.path)
        for route in app.routes()
        if isinstance(route, Route) and not route.path.startswith(_OTHERS)
        for method in route.methods or ()
        if method != "HEAD"
    }
)
VERBS = ("cancel", "retry", "delete", "priority", "stop", "resume", "rm")
_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")


def filled_paths(house: House, path: str) -> Iterator[str]:
    numbers = {f"{kind[:-1]}_id": ids for kind, ids in house.numbers.items()}
    numbers |= {"batch_id": house.numbers["batches"], "number": [1], "table": [1], "file_id": house.numbers["number"]}
    known: dict[str, list[Any]] = {**numbers, "verb": [*VERBS]}
    names = [found[1] for found in _PLACE.finditer(path)]
    for values in itertools.product(*(known[name] for name in names)):
        chosen = {name: str(value) for name, value in zip(names, values, strict=True)}
        yield _PLACE.sub("{\\1}", path).format(**chosen)


def parameters_for(house: House, method: str, path: str) -> list[dict[str, Any]]:
    jobs, batches = house.numbers["jobs"], house.numbers["batches"]
    more: dict[str, Any] = {"priority": "1", "reason": "x", "scope": "owner", "name": BOB, "yes": "1", "expect": "9"}
    if "_id" in path:
        return [{}, more | {"verb": "cancel"}]
    chosen: list[dict[str, Any]] = [
        {}, {"owner": BOB}, {"id": jobs}, {"batch": batches}, {"document": house.numbers["documents"]},
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
def test_pages_of_one_owner_neither_show_nor_change_anothers_data(house: House, method: str, path: str) -> None:
    before = house.data_of_bob()

    for at in filled_paths(house, path):
        for words in parameters_for(house, method, path):
            sent = {"params": words} if method == "GET" else {"data": words}
            answer = house.ask(house.alice, method, at, **sent)

            said = f"{method} {at} {words}: {answer.status_code} {answer.text}"
            assert answer.status_code < 500, said
            # What was asked for may be said again: in the fields of a filter, in its command, in a refusal.
            assert MARK not in answer.text.replace(BOB, ""), said
            assert BOB not in answer.text or BOB in str(words), said
            if "_id" in path:
                assert answer.status_code in (400, 403, 404, 409), said
    assert house.data_of_bob() == before


def test_pages_for_all_owners_show_what_those_of_one_owner_do_not(house: House) -> None:
    """Show that the test above could fail."""
    shown = {
        path
        for method, path in PAGES
        if method == "GET"
        for at in filled_paths(house, path)
        if MARK in house.ask(house.everybody, method, at, params={"q": "word", "terms": "word"}).text
    }

    assert {"/", "/jobs", "/jobs/{job_id:id}", "/batches", "/batches/{batch_id:id}", "/search",
            "/documents/{document_id:id}",
            "/failures", "/queue", "/activity"} <= shown  # fmt: skip


def test_a_token_that_only_reads_sends_no_form(house: House) -> None:
    reader = tokens.create_token(house.session, "page reader", [Power.READ]).text

    for method, path in PAGES:
        if method != "GET":
            for at in filled_paths(house, path):
                assert house.ask(reader, method, at, data={}).status_code == 403, (method, at)


def test_without_a_token_every_page_leads_to_the_way_in(house: House) -> None:
    for method, path in PAGES:
        for at in filled_paths(house, path):
            answer = httpx.request(method, f"{house.address}{at}", headers={"Accept": "text/html"})
            wanted = (303, "/session") if method == "GET" else (401, "")
            assert (answer.status_code, answer.headers.get("location", "").partition("?")[0]) == wanted, (method, at)
