"""A program that follows the passages of a server, as a store of vectors would. The test kills it at any moment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import apsw
import httpx

from worker_service.services.document_formats import write_format
from worker_service.services.session import Session

SCHEMA = """
CREATE TABLE IF NOT EXISTS cursor (value TEXT);
CREATE TABLE IF NOT EXISTS passage (document_id, generation, number, digest, PRIMARY KEY (document_id, number));
"""


def follow(url: str, headers: dict[str, str], path: str, *, until_complete: bool) -> None:
    store = apsw.Connection(path)
    store.execute(SCHEMA)
    while True:
        since = next((row[0] for row in store.execute("SELECT value FROM cursor")), None)
        parameters = {"limit": "2"} | ({"since": since} if since else {})
        answer = httpx.get(f"{url}/api/passages", params=parameters, headers=headers).raise_for_status().json()
        with store:
            for one in answer["items"]:
                store.execute("DELETE FROM passage WHERE document_id = ?", (one["document_id"],))
                for own in one["passages"]:
                    row = (own["document_id"], own["generation"], own["number"], own["digest"])
                    store.execute("INSERT INTO passage VALUES (?, ?, ?, ?)", row)
            store.execute("DELETE FROM cursor")
            store.execute("INSERT INTO cursor VALUES (?)", (answer["next"],))
        if answer["is_complete"]:
            if until_complete:
                return
            time.sleep(0.005)


def passages_there_are(session: Session, documents: Sequence[int]) -> list[tuple[object, ...]]:
    lines = [
        line for one in sorted(documents) for line in write_format(session, session.library.document(one), "jsonl")
    ]
    return [(one["document_id"], one["generation"], one["number"], one["digest"]) for one in map(json.loads, lines)]


if __name__ == "__main__":
    follow(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], until_complete="--until-complete" in sys.argv)
