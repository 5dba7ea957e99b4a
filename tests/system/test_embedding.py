from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.system import System, wait_until
from tests.store.kit import publish, work_as
from worker_service.base.embedding import Embedder
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.search import SearchRequest
from worker_service.jobs.selector import Selector
from worker_service.store.search import Meaning

EMBEDDING = Selector(job_types=("embed",), statuses=(Status.RUNNING,))
TEXTS = {"a.txt": "The vessel left the harbour in a storm.", "b.txt": "Income tax is due in March."}


def test_documents_are_embedded_although_the_daemon_is_killed(tmp_path: Path) -> None:
    system = System(tmp_path, shipped=("adopt", "embed"))
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).with_suffix(".pdf").write_bytes(b"%PDF-1.7")
    try:
        assert system.run("documents", "adopt", str(tmp_path), "--yes").returncode == 0
        first = system.start(embeddings="bundled")
        wait_until(lambda: system.store.job_queries.list(EMBEDDING, most=1), "a job embeds")
        os.killpg(first.pid, signal.SIGKILL)
        first.wait_for_exit()
        system.start(embeddings="bundled", recovery_interval="1s")
        embedder = Embedder("bundled", passage_edition="1.400.0")
        wait_until(lambda: not system.store.embeddings.is_behind(embedder.name), "all documents have vectors")

        question = "a ship at sea"
        meaning = Meaning(embedder.name, embedder.embed([question])[0])
        found = system.store.search.find(SearchRequest(question), lambda: meaning)

        assert found.items[0].name == "a.pdf"
        assert system.sqlite3("SELECT count(*), count(DISTINCT digest) FROM passage_embedding").stdout == "2|2\n"
        system.assert_sound()
    finally:
        system.close()


def test_a_user_cannot_send_texts_and_key_to_another_embedding_server(tmp_path: Path) -> None:
    system = System(tmp_path, shipped=("embed",))
    work_as(system.store)
    publish(system.store, "a.pdf", "the ship sails")
    with ExitStack() as until_end:
        until_end.callback(system.close)
        own, other = (until_end.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        own_url, other_url = (f"http://127.0.0.1:{listener.getsockname()[1]}/v1" for listener in (own, other))
        system.store.intake.enqueue(NewJob("embed", payload=json.dumps({"server": other_url, "model": "small"})))

        system.start(embeddings=own_url, embeddings_model="small")

        own.settimeout(20)
        own.accept()[0].close()
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
