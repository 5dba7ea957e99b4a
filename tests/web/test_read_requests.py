from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.stored_documents import Shelf
from tests.store.kit import lay_out, work_as
from worker_service.base.errors import BadInput, DocumentNotFound
from worker_service.jobs.documents import Decision
from worker_service.services.database import Session, open_session
from worker_service.settings.config import load_settings
from worker_service.web.resources.read_requests import submit_files, submit_reindex


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    settings = load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path)
    lay_out(settings.database)
    opened = open_session(settings, actor="ann")
    work_as(opened.store)
    yield opened
    opened.close()


def test_a_file_is_brought_in_as_the_command_brings_it_in(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(b"%PDF")

    words = {"lang": ["deu"], "quality": ["best"], "password-file": [""]}
    [wished], batch_id = submit_files(session, [file], words, owner="alice")

    made = session.reading.get(wished.enqueued.job_id)
    assert batch_id is None
    assert (made.owner, made.name, made.source_key) == ("alice", "report.pdf", str(file))
    assert json.loads(made.payload or "")["read"] == {"languages": ["deu"], "quality": "best"}


def test_a_document_is_read_again_in_another_language_and_not_again_as_it_was(session: Session) -> None:
    document_id = Shelf(session.store, session.settings.workspace).read("a.pdf", "words", roles=("original",))

    as_it_was = submit_reindex(session, document_id, {})
    other = submit_reindex(session, document_id, {"lang": ["eng+deu"]})

    assert as_it_was.enqueued.decision is Decision.UNCHANGED
    assert other.enqueued.decision is Decision.ACCEPTED
    assert submit_reindex(session, document_id, {"lang": ["eng+deu"]}).enqueued.decision is Decision.UNDER_WAY


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"lang": ["../../etc"]}, "is not a language"),
        ({"quality": ["great"]}, "quality cannot be 'great': choose fast, auto, best"),
        ({"colour": ["red"]}, "there is no option 'colour': there are as-usual, lang, quality"),
        ({"password-file": ["drive"]}, "is not the name of a credential that begins with password"),
        ({"then": ["no_json={"]}, "is not an action"),
    ],
)
def test_words_that_mean_nothing_are_refused_and_nothing_is_asked_for(
    session: Session, words: dict[str, list[str]], why: str
) -> None:
    document_id = Shelf(session.store, session.settings.workspace).read("a.pdf", "words", roles=("original",))

    with pytest.raises(BadInput, match=why):
        submit_reindex(session, document_id, words)

    assert session.store.library.document(document_id).index_generation == 1


def test_what_is_not_there_is_not_submit_reindex(session: Session) -> None:
    with pytest.raises(DocumentNotFound):
        submit_reindex(session, 7, {})
