"""Queries are embedded by the model that searches use, if it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.embedding import embed_all
from tests.store.kit import publish, work_as
from worker_service.base.embedding import Embedder, EmbeddingUnavailable, windows
from worker_service.jobs.search import SearchRequest
from worker_service.services import search
from worker_service.services.session import Session


class _EmbeddingHandler(BaseHTTPRequestHandler):
    keys: list[str | None] = []  # noqa: RUF012  of all requests

    def do_POST(self) -> None:
        self.keys.append(self.headers["Authorization"])
        request: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = [
            {"index": index, "embedding": [1.0, float("ship" in text or "boat" in text), float(len(text) % 2)]}
            for index, text in enumerate(request["input"])
        ]
        body = json.dumps({"data": data[::-1]} if request["model"] == "small" else {"error": "no such model"}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _EmbeddingHandler) as http_server:
        thread = Thread(target=http_server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}/v1"
        http_server.shutdown()
        thread.join()


def found_documents(session: Session, text: str) -> list[int]:
    return [document.document_id for document in search.find_documents(session, SearchRequest(text)).items]


def test_a_search_uses_only_words_if_the_server_does_not_answer(session: Session, server: str) -> None:
    work_as(session.store)
    publish(session.store, "a.pdf", "the ship sails")
    publish(session.store, "b.pdf", "the tax is due", content="c2")
    embed_all(session.store, Embedder(server, "small", "secret"))

    def with_settings(**values: str) -> Session:
        settings = session.settings
        return replace(session, settings=type(settings)({**settings.values, **values}, settings.origins))

    with_server = with_settings(embeddings=server, embeddings_model="small")
    assert found_documents(with_server, "a boat")[0] == 1
    assert found_documents(with_settings(embeddings=server, embeddings_model="next"), "a boat")[0] == 1
    assert found_documents(session, "a boat") == []
    assert found_documents(with_settings(embeddings="http://127.0.0.1:9/v1", embeddings_model="small"), "boat") == []
    assert found_documents(with_settings(embeddings="bundled"), "a boat") == []
    assert "Bearer secret" in _EmbeddingHandler.keys


def test_an_answer_without_vectors_is_an_error_that_names_the_server(server: str) -> None:
    with pytest.raises(EmbeddingUnavailable, match=server):
        Embedder(server, "large").embed(["text"])


@pytest.mark.parametrize(("words", "expected"), [(0, []), (1, [1]), (60, [60]), (75, [60, 30]), (105, [60, 60])])
def test_windows_cover_all_words_and_overlap(words: int, expected: list[int]) -> None:
    text = " ".join(f"w{number}" for number in range(words))

    assert [len(text[begin:end].split()) for begin, end in windows(text)] == expected
