from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from job_handlers.crawl import requests
from tests.store.kit import new_worker
from worker_service.jobs.job import NewJob
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import HandlerFacts
from worker_service.services.session import Session
from worker_service.web.resources import read_requests

SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'


def enqueue_jobs(session: Session, number: int = 1, **fields: Any) -> list[int]:
    jobs = [NewJob(**{"job_type": "scrape", **fields}) for _ in range(number)]
    return [enqueued.job_id for enqueued in session.store.intake.enqueue_many(jobs)]


def statuses(site: httpx.Client, **query: Any) -> list[str]:
    return [job["status"] for job in site.get("/api/jobs", params=query).json()["items"]]


def test_a_job_has_all_the_options_of_the_command_line(site: httpx.Client) -> None:
    first = site.post("/api/jobs", json={"job_type": "a"}).json()["id"]
    body = {
        "job_type": "scrape_account", "platform": "instagram", "account": "user123", "payload": {"ids": [1, 2]},
        "owner": "alice", "priority": 2, "run_at": "+10m", "after": [first], "max_retries": 1, "timeout": "10m",
        "unique_key": "u", "concurrency_key": "c", "name": "a name", "on_failure": [{"job_type": "tell"}],
    }  # fmt: skip

    answer = site.post("/api/jobs", json=body)
    again = site.post("/api/jobs", json=body)

    assert answer.status_code == 201
    job = site.get(answer.headers["location"]).json()
    assert (job["payload"], job["owner"], job["priority"], job["timeout_seconds"]) == ({"ids": [1, 2]}, "alice", 2, 600)
    assert job["waits_for"] == [{"id": first, "status": "pending"}]
    assert (again.status_code, again.json()["existing"], again.json()["id"]) == (200, True, job["id"])


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({}, 400, "job_type"),
        ({"job_type": "a", "paylod": 1}, 400, "did you mean payload?"),
        ({"job_type": "a", "priority": 11}, 400, "body.priority"),
        ({"job_type": "a", "run_at": "soon"}, 400, "'soon' is not a time"),
        ({"job_type": "a", "after": [999]}, 404, "there is no job 999"),
        ({"job_type": "checked", "payload": {"n": "x"}}, 422, "does not fit checked: payload.n"),
        ({"job_type": "a", "owner": "\ud800"}, 400, "is not JSON"),
        ({"job_type": "a\0b"}, 400, "body.job_type holds a NUL byte"),
        ({"job_type": "a", "on_failure": [{"job_type": "b\0"}]}, 400, "body.on_failure[0].job_type holds a NUL byte"),
    ],
)
def test_an_invalid_job_is_refused_with_a_problem(
    site: httpx.Client, session: Session, body: dict[str, Any], status: int, why: str
) -> None:
    worker = new_worker("w1", types=())
    facts = (HandlerFacts("checked", payload_schema=SCHEMA),)
    session.store.workers.register(type(worker)(**{**_fields(worker), "handlers": facts}))

    answer = site.post("/api/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert why in f"{answer.json()['detail']}: {answer.json()['remedy']}"
    assert statuses(site) == []


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "bad_input"),
        (b"[]", "application/json", 400, "bad_input"),
        (b'{"job_type": NaN}', "application/json", 400, "bad_input"),
        (b"[" * 100_000, "application/json", 400, "bad_input"),
        (b"job_type=a", "text/plain", 415, "unsupported_media_type"),
        (b'{"job_type": "a", "name": "' + b"x" * 3_000_000 + b'"}', "application/json", 413, "body_too_large"),
    ],
    ids=["cut off", "no object", "no number", "deep", "no JSON", "large"],
)
def test_an_invalid_body_is_refused(site: httpx.Client, body: bytes, kind: str, status: int, code: str) -> None:
    answer = site.post("/api/jobs", content=body, headers={"Content-Type": kind})

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["code"] == code


def test_jobs_of_a_selector_are_changed_after_a_dry_run_and_undone(site: httpx.Client, session: Session) -> None:
    ids = enqueue_jobs(session, 7, platform="instagram")
    enqueue_jobs(session)
    selectors = {"platform": "instagram"}

    dry = site.post("/api/jobs/cancel", params={**selectors, "dry_run": "true"}).json()
    other = site.post("/api/jobs/cancel", params={**selectors, "expect": 6})
    done = site.post("/api/jobs/cancel", params={**selectors, "expect": dry["jobs"]}).json()

    assert (dry["dry_run"], dry["jobs"]) == (True, 7)
    assert (other.status_code, other.json()["detail"]) == (409, "7 jobs would be changed, not 6; nothing was done")
    assert sorted(done["items"]) == ids
    assert statuses(site, platform="instagram") == ["cancelled"] * 7
    site.post(f"/api/actions/{done['action']}/undo").raise_for_status()
    assert statuses(site) == ["pending"] * 8
    action, _ = site.get("/api/actions").json()["items"]
    assert (action["verb"], action["jobs"], action["undone_at"] is None) == ("cancel", 7, False)


def test_priority_retry_and_delete_of_many(site: httpx.Client, session: Session) -> None:
    ids = enqueue_jobs(session, 3, owner="alice")
    selectors = {"owner": "alice"}

    site.post("/api/jobs/priority", params=selectors, json={"priority": 1}).raise_for_status()
    assert {job["priority"] for job in site.get("/api/jobs", params=selectors).json()["items"]} == {1}
    site.post(f"/api/jobs/{ids[0]}/priority", json={"priority": 9}).raise_for_status()
    assert site.get(f"/api/jobs/{ids[0]}").json()["priority"] == 9
    site.post("/api/jobs/cancel", params=selectors).raise_for_status()
    assert len(site.post("/api/jobs/retry", params={"id": ids[:2]}).json()["items"]) == 2
    assert "add expect=N" in site.post("/api/jobs/delete", params=selectors).json()["remedy"]
    assert site.post("/api/jobs/delete", params={**selectors, "expect": 3}).status_code == 200
    assert statuses(site) == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/api/jobs/cancel", "no jobs to cancel are selected"),
        ("/api/jobs/cancel?stauts=failed", "did you mean status?"),
        ("/api/jobs/cancel?status=faild", "did you mean failed?"),
        ("/api/jobs/cancel?owner=a&dry_run=perhaps", "dry_run cannot be 'perhaps'"),
        ("/api/jobs/retry?match=x", "does not say what to match"),
        ("/api/jobs/cancel?since=yesterday", "is not a time"),
        ("/api/jobs/cancel?id=batch:x", "names no job"),
    ],
)
def test_an_empty_or_invalid_selector_is_refused(site: httpx.Client, session: Session, path: str, why: str) -> None:
    enqueue_jobs(session)

    answer = site.post(path)

    assert answer.status_code == 400
    assert why in f"{answer.json()['detail']}: {answer.json()['remedy']}"
    assert statuses(site) == ["pending"]


def test_the_next_page_of_a_list_begins_after_the_last_item(site: httpx.Client, session: Session) -> None:
    ids = enqueue_jobs(session, 5)
    read: list[int] = []
    query: dict[str, Any] = {"limit": 2}

    while query:
        page = site.get("/api/jobs", params=query).json()
        read += [job["id"] for job in page["items"]]
        enqueue_jobs(session)
        query = {"limit": 2, "before": page["next"]} if page["next"] else {}

    assert read == ids[::-1]


def test_polling_gets_304_until_something_changes(site: httpx.Client, session: Session) -> None:
    [job_id] = enqueue_jobs(session)
    first = site.get("/api/jobs")
    known = {"If-None-Match": first.headers["etag"]}

    assert (site.get("/api/jobs", headers=known).status_code, first.headers["cache-control"]) == (
        304,
        "private, no-cache",
    )
    assert site.get("/api/jobs?limit=1", headers=known).status_code == 200
    session.store.job_control.pause("type", "other")
    # Another table has changed, but not this list.
    assert site.get("/api/jobs", headers=known).status_code == 304
    site.post(f"/api/jobs/{job_id}/cancel").raise_for_status()
    assert site.get("/api/jobs", headers=known).json()["items"][0]["status"] == "cancelled"


def test_pauses_are_created_listed_and_lifted(site: httpx.Client) -> None:
    answer = site.post("/api/pauses", json={"scope": "type", "name": "ocr", "for": "1h", "reason": "disk"})
    assert answer.status_code == 201
    [shown] = site.get("/api/pauses").json()["items"]
    assert (shown["scope"], shown["name"], shown["reason"]) == ("type", "ocr", "disk")

    assert site.delete("/api/pauses?scope=type&name=ocr").status_code == 200
    assert site.get("/api/pauses").json()["items"] == []
    assert site.delete("/api/pauses?scope=all").status_code == 409
    assert site.post("/api/pauses", json={"scope": "all", "name": "x"}).status_code == 400


def test_a_batch_is_started_stopped_resumed_cancelled_and_deleted(site: httpx.Client) -> None:
    body = {"name": "reports", "owner": "alice", "jobs": [{"job_type": "a"}, {"job_type": "a", "payload": {"n": 2}}]}
    added = site.post("/api/batches", json=body)
    assert added.status_code == 201
    at = added.headers["location"]

    assert site.get(at).json()["progress"]["jobs"] == 2
    assert site.post(f"{at}/stop").json()["state"] == "stopped"
    assert site.post(f"{at}/resume").json()["batch"]["state"] == "active"
    assert len(site.post(f"{at}/cancel").json()["job_ids"]) == 2
    assert [details["batch"]["name"] for details in site.get("/api/batches?owner=alice").json()["items"]] == ["reports"]
    site.post(f"{at}/retry")
    site.delete(at).raise_for_status()
    assert site.get(at).json()["code"] == "batch_not_found"
    neither = site.post("/api/batches", json={"name": "x"})
    assert (neither.status_code, neither.json()["detail"]) == (400, "a batch needs either sources or jobs")


def test_a_batch_of_sources_is_made_by_their_handlers(site: httpx.Client, tmp_path: Any) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    for name in ("a.pdf", "b.pdf", ".hidden.pdf", "c.exe"):
        (folder / name).write_bytes(b"%PDF")
    body = {"sources": [str(folder / "a.pdf"), str(folder)], "owner": "alice", "read": {"lang": ["deu"]}}

    added = site.post("/api/batches", json=body).json()
    jobs = site.get("/api/jobs", params={"batch": added["batch"]["id"]}).json()["items"]

    assert [(job["name"], job["owner"], job["payload"]["read"]) for job in jobs] == [
        ("b.pdf", "alice", {"languages": ["deu"]}),
        ("a.pdf", "alice", {"languages": ["deu"]}),
    ]
    assert sum(added["left_out"].values()) == 2


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("ftp://example.org/x", "a source is"),
        ("", "is neither an absolute path, such as /srv/reports, nor an address"),
        ({"folder": ""}, "the folder is empty"),
        ("./reports", "is neither an absolute path, such as /srv/reports, nor an address"),
        ("/nowhere", "there is no file /nowhere"),
        ("/proc/self", "/proc/self may not be read by jobs"),
    ],
)
def test_an_invalid_source_is_refused(site: httpx.Client, source: object, sentence: str) -> None:
    refused = site.post("/api/batches", json={"sources": [source]})

    assert (refused.status_code, sentence in refused.json()["detail"]) == (400, True)


def test_a_folder_that_jobs_may_not_read_is_not_listed(
    site: httpx.Client, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a.pdf").write_bytes(b"%PDF")
    monkeypatch.setenv("WORKER_DOWNLOAD_ROOTS", str(inside))

    refused = site.post("/api/batches", json={"sources": [str(outside)]})

    assert (refused.status_code, refused.json()["detail"]) == (400, f"{outside} may not be read by jobs")
    assert site.post("/api/batches", json={"sources": [str(inside)]}).status_code == 201


def test_metrics_match_the_database(site: httpx.Client, session: Session) -> None:
    enqueue_jobs(session, 3, job_type='a"b\n')

    text = site.get("/metrics").text

    assert 'pagemill_jobs{status="pending"} 3\n' in text
    assert 'pagemill_live_jobs{job_type="a\\"b\\n",state="pending"} 3\n' in text
    assert "pagemill_worker_healthy 0\n" in text
    for line in text.splitlines():
        assert line.startswith(("# HELP pagemill_", "# TYPE pagemill_", "pagemill_")), line


def test_control_characters_are_escaped_and_the_text_stays_the_same(site: httpx.Client, session: Session) -> None:
    name = "a\x1b[31m\x9b2J\u202efdp.exe\u2028<script>\x07"
    [job_id] = enqueue_jobs(session, name=name, payload=json.dumps({"k": name, "half": "\ud800"}))

    for answer in (
        site.get("/api/jobs"),
        site.get(f"/api/jobs/{job_id}"),
        site.get("/api/jobs", params={"type": name}),
    ):
        assert not any(letter in answer.text for letter in "\x1b\x9b\u202e\u2028\x07"), answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert site.get(f"/api/jobs/{job_id}").json()["name"] == name
    assert site.get(f"/api/jobs/{job_id}").json()["payload"]["k"] == name


def test_a_search_without_an_index_stops_in_time_and_can_be_continued(
    site: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = site.post("/api/jobs", json={"job_type": "a", "platform": "drive"}).json()["id"]
    for _ in range(5):
        site.post("/api/jobs", json={"job_type": "a"})
    monkeypatch.setattr("worker_service.services.jobs._FIRST_RANGE_IDS", 2)
    monkeypatch.setattr("worker_service.web.resources.jobs.SEARCH_SECONDS_MAX", 0.0)

    found, pages, before = list[int](), 0, dict[str, int]()
    while True:
        page = site.get("/api/jobs", params={"platform": "drive", **before}).json()
        found, pages = [*found, *(job["id"] for job in page["items"])], pages + 1
        assert page["is_partial"] is (page["next"] is not None)
        if page["next"] is None:
            break
        before = {"before": page["next"]}

    assert (found, pages) == ([rare], 3)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/jobs", {"job_type": "a\ud800"}),
        ("/api/batches", {"sources": ["https://example.org/\ud800.pdf"]}),
        ("/api/batches", {"jobs": [{"job_type": "a", "payload": {"a": "\ud800"}}]}),
    ],
)
def test_half_a_surrogate_pair_is_refused(
    site: httpx.Client, session: Session, path: str, body: dict[str, Any]
) -> None:
    answer = site.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})

    assert answer.status_code in (400, 422), answer.text
    assert session.store.job_queries.list(Selector(), most=1) == []


def test_a_batch_has_a_maximum_number_of_jobs(
    site: httpx.Client, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (tmp_path / f"{number}.pdf").write_bytes(b"%PDF")
    monkeypatch.setattr(read_requests, "BATCH_JOBS_MAX", 3)
    many = site.post("/api/batches", json={"sources": [str(tmp_path)]})
    monkeypatch.setattr(requests, "_ENTRIES_MAX", 3)
    more = site.post("/api/batches", json={"sources": [str(tmp_path)]})

    assert (many.status_code, "this would be 4 jobs, and a batch has at most 3" in many.json()["detail"]) == (400, True)
    assert (more.status_code, "name parts of it, or crawl it" in more.json()["remedy"]) == (400, True)
