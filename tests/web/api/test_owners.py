from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import manual
from tests.cli.stored_documents import Shelf
from tests.store.kit import work_as
from tests.web.conftest import served
from worker_service.jobs.attempts import Failure
from worker_service.jobs.documents import DeferredAction, OnEnd
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.jobs.tokens import Power
from worker_service.services import batches, database_maintenance, job_control, tokens
from worker_service.services.serialize import as_object
from worker_service.services.session import Session, open_session
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings

MARK = "zebrafish"
SCHEDULE = f"""
[[schedule]]
name = "{MARK}-nightly"
cron = "30 2 * * *"
owner = "bob-{MARK}"
job = {{ type = "report" }}
"""
FILE = json.loads(manual.OPENAPI.read_text("utf-8"))
EACH = [(method.upper(), path) for path, methods in FILE["paths"].items() for method in methods]

OF_ALL = {"/api/status", "/api/stats", "/api/workers", "/metrics"}


@dataclass
class House:
    session: Session
    address: str
    alice: str
    everybody: str
    numbers: dict[str, list[int]]
    """Ids for paths, by the first word of the path."""

    def ask(self, token: str, method: str, path: str, **words: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        if path == "/api/events":
            # So that there is something to wait for.
            job = self.session.store.intake.enqueue(NewJob("action", owner="alice", name="last-of-all"))
            self.session.store.job_control.cancel(Selector(ids=(job.job_id,)), actor="alice")
            with httpx.stream(method, f"{self.address}{path}", headers=headers, timeout=20, **words) as stream:
                heard = ""
                for text in stream.iter_text():
                    heard += text
                    if "last-of-all" in heard or stream.status_code != 200:
                        break
                return httpx.Response(stream.status_code, text=heard)
        return httpx.request(method, f"{self.address}{path}", headers=headers, timeout=20, **words)

    def data_of_bob(self) -> str:
        selector = Selector(owners=(BOB,))
        store = self.session.store
        jobs = store.job_queries.list(selector, most=1000)
        return json.dumps(
            [
                [as_object(job) for job in jobs],
                [as_object(one) for one in store.library.documents(_documents(), most=1000)],
                [as_object(one) for one in store.batches.list(owners=(BOB,), most=1000)],
                [as_object(one) for one in store.job_queries.pauses()],
                [as_object(one) for one in store.history.actions(most=1000) if one.actor != "alice"],
            ]
        )


BOB = f"bob-{MARK}"


def _documents() -> DocumentSelector:
    return DocumentSelector(owners=(BOB,))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    place: Path = tmp_path_factory.mktemp("house")
    (place / "pagemill.toml").write_text(SCHEDULE)
    environ = {"WORKER_LOG_FORMAT": "json", "WORKER_CONFIG": str(place / "pagemill.toml")}
    settings: Settings = load_settings({"database": str(place / "pagemill.db")}, environ=environ)
    database_maintenance.initialise(settings)
    session = open_session(settings, actor=f"{MARK}-actor")
    numbers = _fill_house(session)
    alice = tokens.create_token(session, "alice", [Power.ADMIN], owner="alice").text
    everybody = tokens.create_token(session, "root", [Power.ADMIN]).text
    with served(settings) as address:
        yield House(session, address, alice, everybody, numbers)
    session.close()


def _fill_house(session: Session) -> dict[str, list[int]]:
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
        session, [NewJob("action", owner=BOB, name=f"{MARK}-of-batch")], owner=BOB, name=f"{MARK}-b"
    )
    hers = batches.add_batch(session, [NewJob("action", owner="alice")], owner="alice", name="hers")
    store.intake.enqueue(NewJob("action", owner="alice", after=[pending]))
    job_control.apply_plan(session, job_control.make_plan(session, "priority", Selector(ids=(pending,)), priority=2))
    store.job_control.pause("owner", BOB, reason=f"{MARK} is away")
    [file] = [one.id for one in store.library.job_files(ingest) if one.role == "text"]
    assert hers.batch.id != added.batch.id
    return {
        "jobs": [pending, failed, ingest, added.jobs[0].job_id or 0],
        "batches": [added.batch.id],
        "documents": [document],
        "actions": [one.id for one in store.history.actions()],
        "number": [1, file],
    }


def _paths(house: House, path: str) -> list[str]:
    ids = house.numbers.get(path.split("/")[2] if path.startswith("/api/") else "", [0])
    made = [path.replace("{id}", str(one)) for one in ids]
    made = [one.replace("{number}", str(number)) for one in made for number in house.numbers["number"]]
    return sorted({one.replace("{form}", "txt").replace("{name}", f"{MARK}-nightly") for one in made})


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
    "/api/events": [{"after": "0-0"}],
    "/api/failures": [{}],
    "/api/failures/reasons": [{}],
    "DELETE /api/pauses": [{"scope": "owner", "name": BOB}],
}
MANY = [{"owner": BOB}, {"id": "ALL"}, {"id": "document:DOCUMENT"}, {"id": "batch:BATCH"}, {"type": f"{MARK}_type"}]
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


def _filled(house: House, words: dict[str, Any]) -> dict[str, Any]:
    stand = {"ALL": house.numbers["jobs"], "ONE": house.numbers["jobs"][:1], "BATCH": house.numbers["batches"][0]}
    stand |= {"DOCUMENT": house.numbers["documents"][0], "DOCUMENTS": house.numbers["documents"]}
    stand |= {f"batch:{'BATCH'}": f"batch:{stand['BATCH']}", "document:DOCUMENT": f"document:{stand['DOCUMENT']}"}
    return {name: stand.get(value, value) if isinstance(value, str) else value for name, value in words.items()}


def _questions(house: House, method: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    is_many = method == "POST" and path.startswith("/api/jobs/") and "{" not in path
    queries: list[dict[str, Any]] = [{}]
    if is_many:
        queries = MANY
    elif method in ("GET", "DELETE"):
        queries = QUERIES.get(path) or QUERIES.get(f"{method} {path}", [{}])
    bodies: list[dict[str, Any] | None] = [None]
    if method in ("POST", "PUT"):
        bodies = [*BODIES.get(path, [])] or [{"priority": 1} if path.endswith("priority") else None]
    for one in _paths(house, path):
        for query in queries:
            for body in bodies:
                words: dict[str, Any] = {
                    "params": {**_filled(house, query), **({"expect": 4} if is_many and "delete" in path else {})}
                }
                if path == "/api/uploads":
                    words |= {"files": {"file": ("a.pdf", b"%PDF")}, "data": {"owner": BOB}}
                elif body is not None:
                    words["json"] = _filled(house, body)
                yield one, words


@pytest.mark.parametrize(("method", "path"), EACH, ids=[f"{method} {path}" for method, path in EACH])
def test_a_token_of_one_owner_neither_sees_nor_changes_anothers_data(house: House, method: str, path: str) -> None:
    before = house.data_of_bob()

    for at, words in _questions(house, method, path):
        answer = house.ask(house.alice, method, at, **words)

        said = f"{method} {at} {words}: {answer.status_code} {answer.text}"
        assert answer.status_code < 500, said
        # A refusal may say again what was asked.
        asked = json.dumps([at, words], default=str)
        assert MARK not in answer.text or (answer.status_code >= 400 and MARK in asked), said
        assert MARK not in str(answer.headers), said
        if path in OF_ALL:
            assert answer.status_code == 403, said
        elif "{" in path and "{name}" not in path and not path.startswith("/api/exports/"):
            assert answer.status_code in (404, 409), said
    assert house.data_of_bob() == before


@pytest.mark.parametrize(
    "path", [path for method, path in EACH if method == "GET" and path not in ("/api/status", "/metrics")]
)
def test_a_token_for_all_owners_sees_what_the_other_does_not(house: House, path: str) -> None:
    """Show that the test above could fail."""
    if path in ("/api/workers", "/api/rates", "/api/jobs/{id}/log"):
        pytest.skip("nothing of an owner stands there here")

    answers = [
        house.ask(house.everybody, "GET", at, **{**words, "params": _of_mark(words["params"])})
        for at, words in _questions(house, "GET", path)
    ]

    if path.endswith("/image"):
        # What is to be drawn is no PDF: but it was there, and somebody has tried.
        assert {answer.json()["code"] for answer in answers} == {"not_drawn"}
    else:
        assert any(MARK in answer.text for answer in answers), [answer.text for answer in answers]


def _of_mark(params: dict[str, Any]) -> dict[str, Any]:
    return {name: MARK if name in ("q", "term") else value for name, value in params.items()}


def test_a_token_of_one_owner_creates_for_that_owner(house: House) -> None:
    made = house.ask(house.alice, "POST", "/api/jobs", json={"job_type": "a"}).json()
    job = house.ask(house.alice, "GET", f"/api/jobs/{made['id']}").json()
    sent = house.ask(house.alice, "POST", "/api/uploads", files={"file": ("a.pdf", b"%PDF")}).json()["items"][0]
    batch = house.ask(house.alice, "POST", "/api/batches", json={"jobs": [{"job_type": "a"}]}).json()["batch"]

    assert job["owner"] == "alice"
    assert house.ask(house.alice, "GET", f"/api/jobs/{sent['id']}").json()["owner"] == "alice"
    assert batch["owner"] == "alice"


@pytest.mark.parametrize(
    "place", ["/srv/bob/a.pdf", " /srv/bob", "file:///srv/bob/a.pdf", "FILE:/srv", "~bob/a", "../bob"]
)
def test_a_token_of_one_owner_cannot_name_files_of_the_server(house: House, place: str) -> None:
    then = f"download={json.dumps({'source': place})}"
    drive = {"folder": "https://drive.google.com/drive/folders/1a2b3c4d5e6f7g8h9i"}
    document = house.session.store.library.documents(DocumentSelector(owners=("alice",)), most=1)[0].id
    watch = {"cron": "@daily", "crawl": {**drive, "on-failure": then}}
    wishes: list[tuple[str, dict[str, Any]]] = [
        ("/api/jobs", {"json": {"job_type": "download", "payload": {"read": [{"source": place}]}}}),
        ("/api/jobs", {"json": {"job_type": "a", "on_failure": [{"job_type": "a", "payload": {"source": place}}]}}),
        ("/api/batches", {"json": {"sources": [place]}}),
        ("/api/batches", {"json": {"jobs": [{"job_type": "a", "payload": {"source": place}}]}}),
        ("/api/batches", {"json": {"sources": [{**drive, "then": [then]}]}}),
        ("/api/uploads", {"files": {"file": ("a.pdf", b"%PDF")}, "data": {"then": then}}),
        ("/api/schedules", {"json": {"name": "w", "definition": watch}}),
        ("/api/tags/actions", {"json": {"tag": "t", "job_type": "a", "payload": {"then": [then]}}}),
        (f"/documents/{document}/reindex", {"data": {"then": then}}),
    ]

    for path, words in wishes:
        answer = house.ask(house.alice, "POST", path, **words)
        assert (answer.status_code, "cannot read files on the server" in answer.text) == (403, True), (
            path,
            answer.text,
        )
    assert house.ask(house.everybody, "POST", *wishes[0][:1], **wishes[0][1]).status_code == 201


def test_a_relative_folder_is_refused(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bob").mkdir()
    monkeypatch.chdir(tmp_path)
    wishes: list[tuple[str, dict[str, Any]]] = [
        ("/api/batches", {"sources": [{"folder": "bob"}]}),
        ("/api/schedules", {"name": "r1", "definition": {"cron": "@daily", "crawl": "bob"}}),
        ("/api/schedules", {"name": "r2", "definition": {"cron": "@daily", "batch": [{"folder": "bob"}]}}),
    ]

    for path, body in wishes:
        assert house.ask(house.alice, "POST", path, json=body).status_code == 400, body


@pytest.mark.parametrize("address", ["http://127.0.0.1:9200/", "https://10.0.0.1/hook", "ann@evil.org", "apprise:ops"])
def test_only_allowed_addresses_can_be_notified(house: House, address: str) -> None:
    wishes: list[tuple[str, dict[str, Any]]] = [
        ("/api/batches", {"json": {"jobs": [{"job_type": "a"}], "notify": address}}),
        ("/api/uploads", {"files": {"file": ("a.pdf", b"%PDF")}, "data": {"notify": address}}),
    ]

    for token in (house.alice, house.everybody):
        for path, words in wishes:
            answer = house.ask(token, "POST", path, **words)
            assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed"), (path, answer.text)


def test_a_unique_key_of_another_owner_is_refused_without_a_word_of_the_job(house: House) -> None:
    answer = house.ask(house.alice, "POST", "/api/jobs", json={"job_type": "a", "unique_key": f"{MARK}-key"})
    definition = {"cron": "@daily", "job": {"type": "a", "unique": f"{MARK}-key"}}
    house.ask(house.alice, "POST", "/api/schedules", json={"name": "same", "definition": definition}).raise_for_status()
    begun = house.ask(house.alice, "POST", "/api/schedules/same/run")
    [same] = [one for one in house.ask(house.alice, "GET", "/api/schedules").json()["items"] if one["name"] == "same"]
    house.ask(house.alice, "DELETE", "/api/schedules/same").raise_for_status()

    assert (answer.status_code, str(house.numbers["jobs"][0]) in answer.text) == (409, False)
    assert (begun.status_code, "job_id" in begun.text, same["job"], same["job_id"]) == (409, False, None, None)


def test_a_token_that_only_reads_changes_nothing(house: House) -> None:
    reader = tokens.create_token(house.session, "reader", [Power.READ]).text

    for method, path in EACH:
        if method != "GET":
            for at in _paths(house, path):
                assert house.ask(reader, method, at).status_code == 403, (method, at)


def test_every_endpoint_needs_a_token(house: House) -> None:
    for method, path in EACH:
        for at in _paths(house, path):
            answer = httpx.request(method, f"{house.address}{at}")
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorised"), (method, at)


def test_undoing_another_users_action_needs_admin(house: House) -> None:
    operator = tokens.create_token(house.session, "operator", [Power.OPERATE]).text
    job_id = house.session.store.intake.enqueue(NewJob("action")).job_id
    house.ask(house.everybody, "POST", f"/api/jobs/{job_id}/cancel").raise_for_status()
    action = house.session.store.history.actions(most=1)[0].id

    assert house.ask(operator, "POST", f"/api/actions/{action}/undo").status_code == 403
    assert house.session.store.job_queries.get(job_id).status is Status.CANCELLED
    assert house.ask(house.everybody, "POST", f"/api/actions/{action}/undo").status_code == 200
