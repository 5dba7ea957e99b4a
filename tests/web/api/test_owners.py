from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from tests import manual
from tests.cli.stored_documents import Shelf
from tests.store.kit import work_as
from tests.web.conftest import bearing, served
from worker_service.jobs.attempts import Failure
from worker_service.jobs.documents import DeferredAction, OnEnd
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.jobs.tokens import TokenScope
from worker_service.services import batches, database_maintenance, job_control, tokens
from worker_service.services.serialize import as_object
from worker_service.services.session import Session, open_session
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings

MARK = "zebrafish"
BOB = f"bob-{MARK}"
SCHEDULE = f"""
[[schedule]]
name = "{MARK}-nightly"
cron = "30 2 * * *"
owner = "{BOB}"
job = {{ type = "report" }}
"""
FILE = json.loads(manual.OPENAPI.read_text("utf-8"))
ENDPOINTS = [(method.upper(), path) for path, methods in FILE["paths"].items() for method in methods]

FIRST_ID = 10_000_000
"""Ids are so high that they occur in an answer only as themselves."""

FOR_ALL_OWNERS = {"/api/status", "/api/stats", "/api/workers", "/metrics"}


@dataclass
class TwoOwners:
    """A server with data of alice and bob. All data of bob contains `MARK`."""

    session: Session
    address: str
    alice_token: str
    admin_token: str
    bobs_ids: dict[str, list[int]]
    """Ids by the first segment of a path."""

    def ids_of_bob_in(self, text: str, asked: str) -> list[int]:
        """Return the ids in the answer that the request does not have."""
        bobs_ids = {row_id for ids in self.bobs_ids.values() for row_id in ids if row_id >= FIRST_ID}
        return [row_id for row_id in bobs_ids if str(row_id) in text and str(row_id) not in asked]

    def request(self, token: str, method: str, path: str, **options: Any) -> httpx.Response:
        headers = bearing(token)
        if path == "/api/events":
            # The stream has no end: read until this job appears.
            job = self.session.store.intake.enqueue(NewJob("action", owner="alice", name="last-of-all"))
            self.session.store.job_control.cancel(Selector(ids=(job.job_id,)), actor="alice")
            with httpx.stream(method, f"{self.address}{path}", headers=headers, timeout=20, **options) as stream:
                received = ""
                for text in stream.iter_text():
                    received += text
                    if "last-of-all" in received or stream.status_code != 200:
                        break
                return httpx.Response(stream.status_code, text=received)
        return httpx.request(method, f"{self.address}{path}", headers=headers, timeout=20, **options)

    def as_alice(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.request(self.alice_token, method, path, **options)

    def as_admin(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.request(self.admin_token, method, path, **options)

    def data_of_bob(self) -> str:
        store = self.session.store
        rows = [
            *store.job_queries.list(Selector(owners=(BOB,)), most=1000),
            *store.library.documents(DocumentSelector(owners=(BOB,)), most=1000),
            *store.batches.list(owners=(BOB,), most=1000),
            *store.job_queries.pauses(),
            *(action for action in store.history.actions(most=1000) if action.actor != "alice"),
        ]
        return json.dumps([as_object(row) for row in rows])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoOwners]:
    folder: Path = tmp_path_factory.mktemp("server")
    (folder / "pagemill.toml").write_text(SCHEDULE)
    environ = {"WORKER_LOG_FORMAT": "json", "WORKER_CONFIG": str(folder / "pagemill.toml")}
    settings: Settings = load_settings({"database": str(folder / "pagemill.db")}, environ=environ)
    database_maintenance.initialise(settings)
    with closing(apsw.Connection(str(settings.database))) as connection:
        for number, table in enumerate(("worker_job_queue", "batch", "document", "file", "worker_action"), 1):
            connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, number * FIRST_ID))
    session = open_session(settings, actor=f"{MARK}-actor")
    bobs_ids = _add_data(session)
    alice = tokens.create_token(session, "alice", [TokenScope.ADMIN], owner="alice").text
    admin = tokens.create_token(session, "root", [TokenScope.ADMIN]).text
    with served(settings) as address:
        yield TwoOwners(session, address, alice, admin, bobs_ids)
    session.close()


def _add_data(session: Session) -> dict[str, list[int]]:
    store = session.store
    work_as(store)
    shelf = Shelf(store, session.settings.workspace)
    document = shelf.read(f"{MARK}.pdf", f"the word {MARK} stands here", roles=("text", "original"), owner=BOB)
    shelf.read("own.pdf", "alice's", owner="alice")
    store.tags.add([document], [f"{MARK}-tag"])
    store.tags.add_action(f"{MARK}-tag", DeferredAction(f"{MARK}_tell", "", OnEnd.SUCCESS), owner=BOB)
    texts: dict[str, Any] = {
        "owner": BOB, "account": f"{MARK}-account", "name": f"{MARK}-name", "platform": f"{MARK}-platform",
        "source": f"{MARK}-source", "payload": json.dumps({MARK: MARK}), "unique_key": f"{MARK}-key",
        "concurrency_key": f"{MARK}-one",
    }  # fmt: skip
    pending = store.intake.enqueue(NewJob(f"{MARK}_type", **texts)).job_id
    ingest = store.job_queries.list(Selector(owners=(BOB,), job_types=("ingest",)))[0].id
    failed = store.intake.enqueue(NewJob("action", owner=BOB, name=f"{MARK}-failed")).job_id
    [running] = [job for job in store.leases.claim("w1", 9) if job.id == failed]
    store.leases.fail(running.lease, Failure(f"{MARK}_CODE", f"{MARK} message"), retry_at=None)
    added = batches.add_batch(
        session, [NewJob("action", owner=BOB, name=f"{MARK}-of-batch")], batches.BatchRequest(BOB, f"{MARK}-b")
    )
    hers = batches.add_batch(session, [NewJob("action", owner="alice")], batches.BatchRequest("alice", "hers"))
    store.intake.enqueue(NewJob("action", owner="alice", after=[pending]))
    job_control.apply_plan(session, job_control.make_plan(session, "priority", Selector(ids=(pending,)), priority=2))
    store.job_control.pause("owner", BOB, reason=f"{MARK} is away")
    [file] = [file.id for file in store.library.job_files(ingest) if file.role == "text"]
    assert hers.batch.id != added.batch.id
    return {
        "jobs": [pending, failed, ingest, added.jobs[0].job_id or 0],
        "batches": [added.batch.id],
        "documents": [document],
        "actions": [action.id for action in store.history.actions()],
        "number": [1, file],
    }


def _paths(server: TwoOwners, path: str) -> list[str]:
    ids = server.bobs_ids.get(path.split("/")[2] if path.startswith("/api/") else "", [0])
    path = path.replace("{form}", "txt").replace("{name}", f"{MARK}-nightly")
    numbers = server.bobs_ids["number"]
    return sorted({path.replace("{id}", str(row_id)).replace("{number}", str(n)) for row_id in ids for n in numbers})


QUERIES: dict[str, list[dict[str, Any]]] = {
    "/api/jobs": [{}, {"owner": BOB}, {"id": "ALL"}, {"type": f"{MARK}_type"}, {"batch": "BATCH"}],
    "/api/batches": [{}, {"owner": BOB}],
    "/api/documents": [
        {},
        {"owner": BOB},
        {"id": "DOCUMENT"},
        {"name": MARK},
        {"batch": "BATCH"},
        {"tag": f"{MARK}-tag"},
    ],
    "/api/tags": [{}, {"owner": BOB}],
    "/api/search": [{"q": "word"}, {"q": "word", "owner": BOB}, {"q": "word", "document": "DOCUMENT"}],
    "/api/keywords": [{"term": "word"}, {"term": "word", "owner": BOB}, {"term": "word", "batch": "BATCH"}],
    "/api/events": [{"after": "0-0-0"}],
    "/api/failures": [{}],
    "/api/failures/reasons": [{}],
    "DELETE /api/pauses": [{"scope": "owner", "name": BOB}, {"scope": "owner", "name": "alice"}],
}
SELECTORS = [
    {"owner": BOB},
    {"id": "ALL"},
    {"id": "document:DOCUMENT"},
    {"id": "batch:BATCH"},
    {"type": f"{MARK}_type"},
]
ACTION = {"tag": f"{MARK}-tag", "job_type": f"{MARK}_tell"}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/api/tags": [{"id": "DOCUMENTS", "add": ["x"]}, {"id": "DOCUMENTS", "remove": [f"{MARK}-tag"]}],
    "/api/tags/actions": [ACTION | {"owner": BOB}],
    "/api/tags/actions/remove": [ACTION | {"owner": BOB}],
    "/api/jobs": [{"job_type": "a", "owner": BOB}, {"job_type": "a", "after": "ONE"}],
    "/api/batches": [{"owner": BOB, "jobs": [{"job_type": "a"}]}, {"jobs": [{"job_type": "a", "owner": BOB}]}],
    "/api/pauses": [{"scope": "owner", "name": BOB}, {"scope": "all"}, {"scope": "type", "name": "a"}],
    "/api/failures/dismiss": [{"jobs": "ALL"}],
    "/api/failures/retry": [{"jobs": "ALL"}],
    "/api/schedules": [
        {"name": "new", "owner": BOB, "definition": {"cron": "@daily", "job": {"type": "a"}}},
        {"name": "new", "definition": {"cron": "@daily", "crawl": "/srv"}},
    ],
    "/api/documents/{id}/password": [{"password": "x"}],
    "/api/schedules/{name}": [{"definition": {"cron": "@daily", "job": {"type": "a"}}}],
}


def _filled(server: TwoOwners, parameters: dict[str, Any]) -> dict[str, Any]:
    jobs, documents, [batch] = (server.bobs_ids[kind] for kind in ("jobs", "documents", "batches"))
    value_by_placeholder: dict[object, object] = {
        "ALL": jobs, "ONE": jobs[:1], "BATCH": batch, "batch:BATCH": f"batch:{batch}",
        "DOCUMENTS": documents, "DOCUMENT": documents[0], "document:DOCUMENT": f"document:{documents[0]}",
    }  # fmt: skip
    return {
        name: value_by_placeholder.get(value, value) if isinstance(value, str) else value
        for name, value in parameters.items()
    }


def _requests(server: TwoOwners, method: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    is_many = method == "POST" and path.startswith("/api/jobs/") and "{" not in path
    queries: list[dict[str, Any]] = [{}]
    if is_many:
        queries = SELECTORS
    elif method in ("GET", "DELETE"):
        queries = QUERIES.get(path) or QUERIES.get(f"{method} {path}", [{}])
    bodies: list[dict[str, Any] | None] = [None]
    if method in ("POST", "PUT"):
        bodies = [*BODIES.get(path, [])] or [{"priority": 1} if path.endswith("priority") else None]
    for filled_path in _paths(server, path):
        for query in queries:
            for body in bodies:
                options: dict[str, Any] = {
                    "params": {**_filled(server, query), **({"expect": 4} if is_many and "delete" in path else {})}
                }
                if path == "/api/uploads":
                    options |= {"files": {"file": ("a.pdf", b"%PDF")}, "data": {"owner": BOB}}
                elif body is not None:
                    options["json"] = _filled(server, body)
                yield filled_path, options


@pytest.mark.parametrize(("method", "path"), ENDPOINTS, ids=[f"{method} {path}" for method, path in ENDPOINTS])
def test_a_token_of_one_owner_neither_sees_nor_changes_anothers_data(server: TwoOwners, method: str, path: str) -> None:
    before = server.data_of_bob()

    for filled_path, options in _requests(server, method, path):
        answer = server.as_alice(method, filled_path, **options)

        context = f"{method} {filled_path} {options}: {answer.status_code} {answer.text}"
        assert answer.status_code < 500, context
        # A refusal may repeat the request.
        asked = json.dumps([filled_path, options], default=str)
        assert MARK not in answer.text or (answer.status_code >= 400 and MARK in asked), context
        assert MARK not in str(answer.headers), context
        assert not server.ids_of_bob_in(answer.text, asked), context
        if path in FOR_ALL_OWNERS:
            assert answer.status_code == 403, context
        elif "{" in path and "{name}" not in path and not path.startswith("/api/exports/"):
            assert answer.status_code in (404, 409), context
    assert server.data_of_bob() == before


@pytest.mark.parametrize(
    "path", [path for method, path in ENDPOINTS if method == "GET" and path not in ("/api/status", "/metrics")]
)
def test_a_token_for_all_owners_sees_what_the_other_does_not(server: TwoOwners, path: str) -> None:
    """Show that the test above could fail."""
    if path in ("/api/workers", "/api/rates", "/api/jobs/{id}/log"):
        pytest.skip("this answer has no data of an owner in this test")

    answers = [
        server.request(
            server.admin_token, "GET", filled_path, **{**options, "params": _searching_mark(options["params"])}
        )
        for filled_path, options in _requests(server, "GET", path)
    ]

    if path.endswith("/image"):
        # The file is no PDF, so rendering it fails; another owner would get 404.
        assert {answer.json()["code"] for answer in answers} == {"not_drawn"}
    else:
        assert any(MARK in answer.text for answer in answers), [answer.text for answer in answers]


def _searching_mark(params: dict[str, Any]) -> dict[str, Any]:
    return {name: MARK if name in ("q", "term") else value for name, value in params.items()}


def test_a_token_of_one_owner_creates_for_that_owner(server: TwoOwners) -> None:
    made = server.as_alice("POST", "/api/jobs", json={"job_type": "a"}).json()
    job = server.as_alice("GET", f"/api/jobs/{made['id']}").json()
    sent = server.as_alice("POST", "/api/uploads", files={"file": ("a.pdf", b"%PDF")}).json()["items"][0]
    batch = server.as_alice("POST", "/api/batches", json={"jobs": [{"job_type": "a"}]}).json()["batch"]

    assert job["owner"] == "alice"
    assert server.as_alice("GET", f"/api/jobs/{sent['id']}").json()["owner"] == "alice"
    assert batch["owner"] == "alice"


@pytest.mark.parametrize(
    "path_text", ["/srv/bob/a.pdf", " /srv/bob", "file:///srv/bob/a.pdf", "FILE:/srv", "~bob/a", "../bob"]
)
def test_a_token_of_one_owner_cannot_name_files_of_the_server(server: TwoOwners, path_text: str) -> None:
    then = f"download={json.dumps({'source': path_text})}"
    drive = {"folder": "https://drive.google.com/drive/folders/1a2b3c4d5e6f7g8h9i"}
    document = server.session.store.library.documents(DocumentSelector(owners=("alice",)), most=1)[0].id
    watch = {"cron": "@daily", "crawl": {**drive, "on-failure": then}}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/api/jobs", {"json": {"job_type": "download", "payload": {"read": [{"source": path_text}]}}}),
        ("/api/jobs", {"json": {"job_type": "a", "on_failure": [{"job_type": "a", "payload": {"source": path_text}}]}}),
        ("/api/batches", {"json": {"sources": [path_text]}}),
        ("/api/batches", {"json": {"jobs": [{"job_type": "a", "payload": {"source": path_text}}]}}),
        ("/api/batches", {"json": {"sources": [{**drive, "then": [then]}]}}),
        ("/api/uploads", {"files": {"file": ("a.pdf", b"%PDF")}, "data": {"then": then}}),
        ("/api/schedules", {"json": {"name": "w", "definition": watch}}),
        ("/api/tags/actions", {"json": {"tag": "t", "job_type": "a", "payload": {"then": [then]}}}),
        (f"/documents/{document}/reindex", {"data": {"then": then}}),
    ]

    for path, options in requests:
        answer = server.as_alice("POST", path, **options)
        assert (answer.status_code, "cannot read files on the server" in answer.text) == (403, True), (
            path,
            answer.text,
        )
    assert server.as_admin("POST", *requests[0][:1], **requests[0][1]).status_code == 201


def test_a_relative_folder_is_refused(server: TwoOwners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bob").mkdir()
    monkeypatch.chdir(tmp_path)
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/api/batches", {"sources": [{"folder": "bob"}]}),
        ("/api/schedules", {"name": "r1", "definition": {"cron": "@daily", "crawl": "bob"}}),
        ("/api/schedules", {"name": "r2", "definition": {"cron": "@daily", "batch": [{"folder": "bob"}]}}),
    ]

    for path, body in requests:
        assert server.as_alice("POST", path, json=body).status_code == 400, body


@pytest.mark.parametrize("address", ["http://127.0.0.1:9200/", "https://10.0.0.1/hook", "ann@evil.org", "apprise:ops"])
def test_only_allowed_addresses_can_be_notified(server: TwoOwners, address: str) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/api/batches", {"json": {"jobs": [{"job_type": "a"}], "notify": address}}),
        ("/api/uploads", {"files": {"file": ("a.pdf", b"%PDF")}, "data": {"notify": address}}),
    ]

    for token in (server.alice_token, server.admin_token):
        for path, options in requests:
            answer = server.request(token, "POST", path, **options)
            assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed"), (path, answer.text)


def test_a_unique_key_of_another_owner_is_refused_without_details_of_the_job(server: TwoOwners) -> None:
    answer = server.request(
        server.alice_token, "POST", "/api/jobs", json={"job_type": "a", "unique_key": f"{MARK}-key"}
    )
    definition = {"cron": "@daily", "job": {"type": "a", "unique": f"{MARK}-key"}}
    server.request(
        server.alice_token, "POST", "/api/schedules", json={"name": "same", "definition": definition}
    ).raise_for_status()
    started = server.as_alice("POST", "/api/schedules/same/run")
    listed = server.as_alice("GET", "/api/schedules").json()["items"]
    [same] = [schedule for schedule in listed if schedule["name"] == "same"]
    server.as_alice("DELETE", "/api/schedules/same").raise_for_status()

    assert (answer.status_code, str(server.bobs_ids["jobs"][0]) in answer.text) == (409, False)
    assert (started.status_code, "job_id" in started.text, same["job"], same["job_id"]) == (409, False, None, None)


def test_the_last_job_of_a_schedule_is_not_named_if_it_was_another_owners_and_is_deleted(server: TwoOwners) -> None:
    store = server.session.store
    carols_job = store.intake.enqueue(NewJob("action", owner="carol", unique_key="carol-key")).job_id
    definition = {"cron": "@daily", "job": {"type": "a", "unique": "carol-key"}}
    server.as_alice("POST", "/api/schedules", json={"name": "deleted", "definition": definition}).raise_for_status()
    server.as_alice("POST", "/api/schedules/deleted/run")

    store.job_control.delete(Selector(ids=(carols_job,)), actor="carol")
    listed = server.as_alice("GET", "/api/schedules").json()["items"]
    server.as_alice("DELETE", "/api/schedules/deleted").raise_for_status()

    assert [schedule["job_id"] for schedule in listed if schedule["name"] == "deleted"] == [None]


def test_jobs_of_other_owners_that_hold_up_a_job_are_not_named(server: TwoOwners) -> None:
    store = server.session.store

    def enqueue(owner: str, **fields: Any) -> int:
        return store.intake.enqueue(NewJob("action", owner=owner, **fields)).job_id

    def cancel(job_id: int) -> None:
        store.job_control.cancel(Selector(ids=(job_id,)), actor="root")

    runs = enqueue("carol", concurrency_key="shared", priority=1)
    assert [job.id for job in store.leases.claim("w1", 1)] == [runs]
    pending, cancelled, same_key = enqueue("carol"), enqueue("carol"), enqueue("alice", unique_key="shared")
    waits, busy = enqueue("alice", after=[pending]), enqueue("alice", concurrency_key="shared")
    broken = enqueue("alice", after=[cancelled])
    cancel(cancelled)
    cancel(same_key)
    carols_ids = [runs, pending, cancelled, enqueue("carol", unique_key="shared")]

    held_up = [
        *(server.as_alice("GET", path) for job in (waits, busy) for path in (f"/api/jobs/{job}/why", f"/jobs/{job}")),
        *(server.as_alice("GET", path) for path in (f"/api/jobs/{broken}", f"/jobs/{broken}")),
        *(server.as_alice("POST", f"/api/jobs/{job}/retry") for job in (broken, same_key)),
    ]
    other = server.as_alice("GET", f"/api/jobs/{waits}")

    assert other.json()["waits_for"] == []
    assert ["a job of another owner" in answer.text.lower() for answer in held_up] == [True] * len(held_up)
    for answer in held_up:
        assert not [job for job in carols_ids if re.search(rf"jobs?[ /]{job}\b", answer.text)], answer.text


@pytest.mark.parametrize(
    ("method", "path", "kind", "options"),
    [
        ("GET", "/api/documents", "documents", {"params": {"sort": "name", "before": "{id}"}}),
        ("POST", "/api/jobs", "batches", {"json": {"job_type": "a", "batch_id": "{id}"}}),
    ],
    ids=["the cursor of a list", "the batch of a new job"],
)
def test_an_id_of_another_owner_is_refused_like_an_unknown_id(
    server: TwoOwners, method: str, path: str, kind: str, options: dict[str, Any]
) -> None:
    unknown_id = 900_000
    answers = []
    for row_id in (server.bobs_ids[kind][0], unknown_id):
        sent = json.loads(json.dumps(options).replace('"{id}"', str(row_id)))
        answer = server.as_alice(method, path, **sent)
        answers.append((answer.status_code, answer.text.replace(str(row_id), str(unknown_id))))

    assert answers[0] == answers[1]
    assert answers[0][0] == 404


def test_a_token_that_only_reads_changes_nothing(server: TwoOwners) -> None:
    reader = tokens.create_token(server.session, "reader", [TokenScope.READ]).text

    for method, path in ENDPOINTS:
        if method != "GET":
            for filled_path in _paths(server, path):
                assert server.request(reader, method, filled_path).status_code == 403, (method, filled_path)


def test_every_endpoint_needs_a_token(server: TwoOwners) -> None:
    for method, path in ENDPOINTS:
        for filled_path in _paths(server, path):
            answer = httpx.request(method, f"{server.address}{filled_path}")
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorised"), (method, filled_path)


def test_undoing_another_users_action_needs_admin(server: TwoOwners) -> None:
    operator = tokens.create_token(server.session, "operator", [TokenScope.OPERATE]).text
    job_id = server.session.store.intake.enqueue(NewJob("action")).job_id
    server.as_admin("POST", f"/api/jobs/{job_id}/cancel").raise_for_status()
    action = server.session.store.history.actions(most=1)[0].id

    assert server.request(operator, "POST", f"/api/actions/{action}/undo").status_code == 403
    assert server.session.store.job_queries.get(job_id).status is Status.CANCELLED
    assert server.as_admin("POST", f"/api/actions/{action}/undo").status_code == 200
