"""Documents in a real database, written by methods of the store as a daemon would write them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.store.kit import claim
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.documents import DocumentFacts, DocumentRequest, NewFile, PageResult
from worker_service.jobs.job import Job, NewJob
from worker_service.store.store import Store


@dataclass
class Shelf:
    """Writes documents as a daemon would."""

    store: Store
    workspace: Path

    def ask(
        self, name: str, owner: str = "", *, key: str = "", content: str = "c1", settings: str = "", revision: str = ""
    ) -> None:
        request = DocumentRequest(key or f"/srv/{name}", name, content, settings, revision=revision)
        self.store.intake.enqueue(NewJob("ingest", platform="local", owner=owner, document=request))

    def wish(self, name: str, owner: str = "", **fields: str) -> Job:
        self.ask(name, owner, **fields)
        return claim(self.store, "ingest")

    def read(
        self,
        name: str,
        *texts: str,
        roles: Sequence[str] = ("text",),
        kind: str = "pdf",
        note: str | None = None,
        layout: str | None = None,
        confidence: float = 90.4,
        **fields: str,
    ) -> int:
        job = self.wish(name, **fields)
        facts = DocumentFacts(kind, len(texts), note=note)
        self.publish(job, name, *texts, roles=roles, facts=facts, layout=layout, confidence=confidence)
        assert job.document_id is not None
        return job.document_id

    def publish(
        self,
        job: Job,
        name: str,
        *texts: str,
        roles: Sequence[str] = ("text",),
        facts: DocumentFacts | None = None,
        layout: str | None = None,
        confidence: float = 90.4,
    ) -> None:
        pages = [
            PageResult(n, f"{name}:{text[:100]}", text, "ocr", confidence, layout) for n, text in enumerate(texts, 1)
        ]
        self.store.attempts.save_pages([(job.lease, page) for page in pages])
        files = [self._file(job, role, f"{name}.{role}", "\f".join(texts)) for role in roles]
        facts = facts or DocumentFacts("pdf", len(texts))
        self.store.leases.complete_many([Completion(job.lease, files=files, document=facts, publishes=True)])

    def with_sheet(self, name: str, *pages: Sequence[Sequence[object]]) -> int:
        job = self.wish(name)
        for number, rows in enumerate(pages, 1):
            text = "".join("\t".join("" if cell is None else str(cell) for cell in row) + "\n" for row in rows)
            layout = json.dumps({"sheet": "Costs", "first": number, "values": rows}, separators=(",", ":"))
            page = PageResult(number, f"{name}:{number}", text, "rows", None, layout)
            self.store.attempts.save_pages([(job.lease, page)])
        self.publish(job, name, facts=DocumentFacts("sheet", len(pages)))
        assert job.document_id is not None
        return job.document_id

    def with_tables(self, name: str, *tables: Sequence[Sequence[str]], **fields: str) -> int:
        """Store a document with a page for each table."""
        job = self.wish(name, **fields)
        for number, rows in enumerate(tables, 1):
            cells = [[[10, 20, 30, 40, cell] if cell else None for cell in row] for row in rows]
            text = "".join("\t".join(row) + "\n" for row in rows)
            table = {"box": [10, 20, 30, 40], "begin": 0, "end": len(text), "rows": cells}
            layout = json.dumps({"size": [595, 842], "tables": [table]}, separators=(",", ":"))
            page = PageResult(number, f"{name}:{number}", text, "layer", None, layout)
            self.store.attempts.save_pages([(job.lease, page)])
        self.publish(job, name, facts=DocumentFacts("pdf", len(tables)))
        assert job.document_id is not None
        return job.document_id

    def fail(self, name: str, code: str, message: str, remedy: str = "") -> int:
        job = self.wish(name)
        self.store.leases.fail(job.lease, Failure(code, message, remedy=remedy), retry_at=None)
        return job.document_id or 0

    def next_job(self, classes: Sequence[str] = ("cpu", "io")) -> Job:
        """Wait for the next job that can start, and claim it."""
        deadline = time.monotonic() + 60
        while not (found := [job for job_class in classes for job in self.store.leases.claim("w1", 1, job_class)]):
            assert time.monotonic() < deadline, "no job came"
            time.sleep(0.01)
        return found[0]

    def fail_next(self, code: str, message: str, remedy: str = "") -> None:
        self.store.leases.fail(self.next_job().lease, Failure(code, message, remedy=remedy), retry_at=None)

    def brought_in(self, *requests: DocumentRequest, files: Sequence[str] = ()) -> None:
        """Complete a download: publish its files, and request that they are read."""
        job = self.next_job(["io"])
        jobs = [NewJob("ingest", platform="local", document=request) for request in requests]
        made = [self._file(job, "original", name, "bytes") for name in files]
        self.store.leases.complete_many([Completion(job.lease, files=made, follow_ups=jobs)])

    def _file(self, job: Job, role: str, name: str, content: str) -> NewFile:
        path = f"objects/{job.id}-{job.fence}/{role}"
        (self.workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (self.workspace / path).write_text(content)
        return NewFile(name, path, role, len(content.encode()), sha256_of(content), "bb")


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
