"""Documents that come, change and go during a storm, and a program that follows their passages and is killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import apsw

from job_handlers.reading.requests import ReadOptions, download_job
from tests.kit.system import System
from tests.web.api import passage_follower
from tests.web.conftest import bearer, served
from worker_service.base.errors import PagemillError
from worker_service.jobs.library import DocumentSelector
from worker_service.services.search import embedder_of
from worker_service.services.session import Session, open_session
from worker_service.settings.loading import load_settings

SETTINGS = {"embeddings": "bundled", "passage_tokens": 60}
_FILES = 12
_PARAGRAPHS = [f"Paragraph {number} tells of ships and taxes. " * (1 + number % 5) for number in range(30)]
_EMBEDDED = """
SELECT DISTINCT s.document_id, s.generation, s.number, e.digest FROM passage s
  JOIN passage_embedding e ON e.id = s.embedding_id ORDER BY s.document_id, s.number, e.digest
"""
_CURRENT = (
    "SELECT p.result_id FROM page p JOIN document d ON d.id = p.document_id AND d.current_generation = p.generation"
)


class Library:
    def __init__(self, system: System, seed: int) -> None:
        environ = {f"WORKER_{key.upper()}": str(value) for key, value in SETTINGS.items()}
        self._settings = load_settings(
            {"database": str(system.database)}, environ={**environ, "WORKER_LOG_FORMAT": "json"}
        )
        self._chance = random.Random(f"{seed} library")
        self._place = system.place / "library"
        self._copy = system.place / "follower.db"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._change)
        self._until_end = ExitStack()
        self.faults: list[str] = []
        self.counts = {"read": 0, "removed": 0, "follower killed": 0}

    def start(self) -> None:
        self._place.mkdir()
        url = self._until_end.enter_context(served(self._settings))
        headers = json.dumps(bearer(self._settings))
        self._follow = [sys.executable, passage_follower.__file__, url, headers, str(self._copy)]
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _change(self) -> None:
        follower = subprocess.Popen(self._follow)
        with closing(open_session(self._settings, actor="chaos")) as session:
            while not self._stopping.wait(self._chance.uniform(0.05, 0.4)):
                what = self._chance.choices([*self.counts], [6, 1, 2])[0]
                try:
                    if what == "read":
                        self._read(session)
                    elif what == "removed":
                        self._remove(session)
                    else:
                        follower.kill()
                        follower.wait()
                        follower = subprocess.Popen(self._follow)
                    self.counts[what] += 1
                except PagemillError as error:
                    self.faults.append(f"the library was refused: {error}")
        follower.kill()
        follower.wait()

    def _read(self, session: Session) -> None:
        file = self._place / f"{self._chance.randrange(_FILES)}.txt"
        written = Path(f"{file}.new")
        written.write_text("\n\n".join(self._chance.sample(_PARAGRAPHS, self._chance.randint(1, 12))))
        written.rename(file)
        is_forced = self._chance.random() < 0.3
        session.store.intake.enqueue(download_job(file, ReadOptions(), owner="ann", is_forced=is_forced))

    def _remove(self, session: Session) -> None:
        documents = session.library.documents(DocumentSelector(), most=100)
        if documents:
            session.store.removal.remove_documents([self._chance.choice(documents).id], actor="chaos")

    def is_embedded(self) -> bool:
        with closing(open_session(self._settings, actor="chaos")) as session:
            name, embeddings = embedder_of(self._settings).name, session.store.embeddings
            return not embeddings.is_behind(name) and embeddings.model() == name

    def examine(self) -> Iterator[str]:
        """Compare the follower's copy, the vectors and the search index with what people read."""
        with self._until_end:
            subprocess.run([*self._follow, "--until-complete"], check=True, timeout=60)
        yield from self.faults
        with closing(open_session(self._settings, actor="chaos")) as session:
            store = session.store
            while store.removal.forget_removed_documents() + store.removal.forget_superseded_pages():
                pass
            read = session.library.documents(DocumentSelector(), most=100)
            published = passage_follower.stored_passages(
                session, [document.id for document in read if document.current_generation is not None]
            )
        copy = apsw.Connection(str(self._copy))
        database = apsw.Connection(str(self._settings.database), flags=apsw.SQLITE_OPEN_READONLY)
        with closing(copy), closing(database):
            if copy.execute("SELECT * FROM passage ORDER BY document_id, number").fetchall() != published:
                yield "the follower's copy is not what is published"
            if database.execute(_EMBEDDED).fetchall() != published:
                yield "passages with vectors are not those that are published"
            if database.execute("SELECT count(*) FROM passage_embedding").get != len(
                {passage[3] for passage in published}
            ):
                yield "vectors are there twice, or of no passage"
            indexed = {row[0] for row in database.execute("SELECT id FROM page_text_docsize")}
            if indexed != {row[0] for row in database.execute(_CURRENT)}:
                yield "the index has other pages than those that people read"
        if not published:
            yield "no document was read"
