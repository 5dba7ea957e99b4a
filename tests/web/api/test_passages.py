from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import apsw
import httpx

from tests.cli.stored_documents import Shelf
from tests.web.api import passage_follower
from tests.web.conftest import bearer, served
from worker_service.services.session import Session
from worker_service.settings.config import Settings


def changes(site: httpx.Client, **query: str) -> list[tuple[int, int | None, list[str]]]:
    items = site.get("/api/passages", params=query).raise_for_status().json()["items"]
    return [
        (document["document_id"], document["generation"], [passage["text"] for passage in document["passages"]])
        for document in items
    ]


def test_a_document_is_in_the_feed_at_its_last_change(site: httpx.Client, shelf: Shelf) -> None:
    first = shelf.read("a.pdf", "water")
    second = shelf.read("b.pdf", "fire", content="c2")
    cursor = site.get("/api/passages").json()["next"]

    shelf.read("a.pdf", "earth", content="c3")
    after_reading = changes(site, since=cursor)
    site.delete(f"/api/documents/{first}").raise_for_status()

    assert after_reading == [(first, 2, ["earth"])]
    assert changes(site, since=cursor) == [(first, None, [])]
    assert changes(site) == [(second, 1, ["fire"]), (first, None, [])]


def test_the_feed_has_the_documents_of_the_visitors_owner_alone(
    settings: Settings, site: httpx.Client, shelf: Shelf
) -> None:
    shelf.read("a.pdf", "water", owner="alice")
    bobs = shelf.read("b.pdf", "fire", owner="bob", content="c2")

    answer = site.get("/api/passages", headers=bearer(settings, "bob", owner="bob")).json()

    assert [document["document_id"] for document in answer["items"]] == [bobs]


def test_a_cursor_of_another_database_is_refused(site: httpx.Client, shelf: Shelf) -> None:
    shelf.read("a.pdf", "water")

    refused = site.get("/api/passages", params={"since": "7.0123456789ab"})
    invalid = site.get("/api/passages", params={"since": "seven"})

    assert (refused.status_code, refused.json()["code"]) == (409, "cursor_outdated")
    assert invalid.status_code == 400


def test_a_follower_killed_at_any_moment_ends_with_all_passages(
    settings: Settings, session: Session, shelf: Shelf, tmp_path: Path
) -> None:
    rng, path = random.Random(7), tmp_path / "follower.db"
    readable: list[int] = []
    with served(settings) as url:
        follow = [sys.executable, passage_follower.__file__, url, json.dumps(bearer(settings)), str(path)]
        running = subprocess.Popen(follow)
        for turn in range(30):
            if turn % 5 == 4:
                removed = readable.pop(rng.randrange(len(readable)))
                session.store.removal.remove_documents([removed], actor="test")
            else:
                name = f"{rng.randrange(8)}.pdf"
                texts = [f"{turn} {page}" for page in range(rng.randint(1, 4))]
                document_id = shelf.read(name, *texts, content=f"c{turn}")
                readable = [*dict.fromkeys([*readable, document_id])]
            time.sleep(rng.random() * 0.05)
            if turn % 6 == 5:
                running.kill()
                running.wait()
                running = subprocess.Popen(follow)
        running.kill()
        running.wait()
        subprocess.run([*follow, "--until-complete"], check=True, timeout=30)

    known = apsw.Connection(str(path)).execute("SELECT * FROM passage ORDER BY document_id, number").fetchall()
    assert known == passage_follower.stored_passages(session, readable)
    assert {row[0] for row in known} == {*readable}
