"""A daemon computes the vectors of what is read, whatever is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.kit.system import System, wait_until
from worker_service.base.embedding import Embedder
from worker_service.jobs.job import Status
from worker_service.jobs.search import SearchRequest
from worker_service.jobs.selector import Selector
from worker_service.store.search import Meaning

EMBEDDING = Selector(job_types=("embed",), statuses=(Status.RUNNING,))
TEXTS = {"a.txt": "The vessel left the harbour in a storm.", "b.txt": "Income tax is due in March."}


def test_documents_are_found_by_meaning_after_the_daemon_was_killed_over_its_work(tmp_path: Path) -> None:
    system = System(tmp_path, shipped=("adopt", "embed"))
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).with_suffix(".pdf").write_bytes(b"%PDF-1.7")
    try:
        assert system.run("documents", "adopt", str(tmp_path), "--yes").returncode == 0
        first = system.start(embeddings="bundled")
        wait_until(lambda: system.store.reading.list(EMBEDDING, most=1), "a job embeds")
        os.killpg(first.pid, signal.SIGKILL)
        first.ends()
        system.start(embeddings="bundled", recovery_interval="1s")
        wait_until(lambda: system.store.embeddings.model() is not None, "all documents have vectors")

        embedder = Embedder("bundled")
        question = "a ship at sea"
        meaning = Meaning(embedder.name, embedder.embed([question])[0])
        found = system.store.search.find(SearchRequest(question), lambda: meaning)

        assert found.items[0].name == "a.pdf"
        assert system.sqlite3("SELECT count(*), count(DISTINCT result_id) FROM page_embedding").stdout == "2|2\n"
        system.assert_sound()
    finally:
        system.close()
