"""A program that copies the passages of a server into a database, as a vector store would. Tests kill it."""

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
            for document in answer["items"]:
                store.execute("DELETE FROM passage WHERE document_id = ?", (document["document_id"],))
                for passage in document["passages"]:
                    store.execute("INSERT INTO passage VALUES (?, ?, ?, ?)", _row(passage))
            store.execute("DELETE FROM cursor")
            store.execute("INSERT INTO cursor VALUES (?)", (answer["next"],))
        if answer["is_complete"]:
            if until_complete:
                return
            time.sleep(0.005)


def stored_passages(session: Session, documents: Sequence[int]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for document_id in sorted(documents):
        for line in write_format(session, session.library.document(document_id), "jsonl"):
            rows.append(_row(json.loads(line)))
    return rows


def _row(passage: dict[str, object]) -> tuple[object, ...]:
    return passage["document_id"], passage["generation"], passage["number"], passage["digest"]


if __name__ == "__main__":
    follow(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], until_complete="--until-complete" in sys.argv)
