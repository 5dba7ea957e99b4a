from __future__ import annotations

import json

import httpx

from tests.cli.stored_documents import Shelf
from tests.web.conftest import bearer
from worker_service.services.session import Session


def test_documents_are_tagged_and_their_tags_counted(site: httpx.Client, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one")
    shelf.read("b.pdf", "two", owner="bob")

    changed = site.post("/api/tags", json={"id": [1, 2], "add": ["Invoice", "paid"]})
    site.post("/api/tags", json={"id": [2], "remove": ["paid"]})

    assert changed.json() == {"items": [1, 2]}
    assert site.get("/api/tags").json()["items"] == [
        {"tag": "invoice", "documents": 2},
        {"tag": "paid", "documents": 1},
    ]
    assert site.get("/api/tags?owner=bob").json()["items"] == [{"tag": "invoice", "documents": 1}]
    assert site.get("/api/documents?tag=paid").json()["items"][0]["tags"] == ["invoice", "paid"]
    assert site.post("/api/tags", json={"id": [1], "add": ["!"]}).status_code == 400
    assert site.post("/api/tags", json={"id": [9], "add": ["x"]}).status_code == 404


def test_a_tag_given_at_upload_starts_its_action(site: httpx.Client, session: Session) -> None:
    action = {"tag": "invoice", "job_type": "tell", "payload": {"of": "{name}"}}

    first, again = (site.post("/api/tags/actions", json=action) for _ in range(2))
    sent = site.post("/api/uploads", files={"file": ("a.pdf", b"%PDF-1.7")}, data={"tag": "Invoice, 2026"})

    assert (first.status_code, first.json()["is_new"], again.json()["is_new"]) == (201, True, False)
    job = session.store.job_queries.get(sent.json()["items"][0]["id"])
    assert json.loads(job.payload or "")["tags"] == ["invoice", "2026"]
    assert [action["job_type"] for action in site.get("/api/tags/actions").json()["items"]] == ["tell"]
    assert site.post("/api/tags/actions/remove", json=action).status_code == 200
    assert site.get("/api/tags/actions").json()["items"] == []


def test_a_tag_action_of_one_owner_runs_only_for_their_documents(site: httpx.Client, session: Session) -> None:
    site.headers.update(bearer(session.settings, "bob", owner="bob"))

    added = site.post("/api/tags/actions", json={"tag": "x", "job_type": "tell"})
    refused = site.post("/api/tags/actions", json={"tag": "x", "job_type": "tell", "payload": {"f": "/etc/passwd"}})

    assert (added.status_code, refused.status_code) == (201, 403)
    assert [action.owner for action in session.store.tags.actions(None)] == ["bob"]
