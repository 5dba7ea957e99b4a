from __future__ import annotations

import json
import os
import random
import signal
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from tests.full_length import short
from tests.job_handlers.reading.documents import bomb, digital, prose, scan
from tests.kit.system import Daemon, System, is_running, wait_until
from tests.system import faulty_readers
from worker_service.cli import pagemill
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import passwords

pymupdf: Any = partly_typed

PAGES, ROUNDS = short((10, 1), full=(60, 4))
PATIENCE_SECONDS = 60.0
WORDS = "zero one two three four five six seven eight nine".split()


class ReadingSystem:
    """A system with the handlers of `faulty_readers`, a directory of files, and commands."""

    def __init__(self, place: Path) -> None:
        self.system = System(place, shipped=None)
        faulty_readers.install(place / "installed")
        self.papers = place / "papers"
        self.papers.mkdir()
        self._settings = place / "settings.toml"
        self._settings.write_text("[retries.ocr_pages]\nfirst = 0.1\n")

    def start(self, **settings: object) -> Daemon:
        self.daemon = self.system.start(config=self._settings, **settings)
        return self.daemon

    def run(self, *words: object, fails: int = 0) -> Result:
        environment = self.system.environment(config=self._settings)
        result = CliRunner(env=environment).invoke(pagemill, [str(word) for word in words])
        assert result.exit_code == fails, result.output
        return result

    def run_json(self, *words: object, fails: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", fails=fails).stdout)

    def document(self, path: Path, owner: str = "") -> Document | None:
        found = self.system.store.library.documents(DocumentSelector(owners=(owner,), source_keys=(str(path),)))
        return found[0] if found else None

    def add_and_read(self, path: Path, *options: object, owner: str = "", fails: int = 0) -> Document:
        self.run("add", path, "--owner", owner, *options, "--wait", "--timeout", "60s", fails=fails)
        document = self.document(path, owner)
        assert document is not None
        return document

    def wait_until_read(self, document_id: int) -> Document:
        store = self.system.store
        ends = (IndexStatus.SUCCESS, IndexStatus.FAILED)
        wait_until(lambda: store.library.document(document_id).status in ends, "it is read", seconds=PATIENCE_SECONDS)
        return store.library.document(document_id)

    def texts(self, document_id: int) -> list[str]:
        return [" ".join((page.text or "").split()) for page in self.system.store.library.page_texts(document_id)]

    def recognitions(self) -> Counter[int]:
        return faulty_readers.given_to_the_engine(self.system.workspace)

    def jobs(self, document_id: int, job_type: str) -> list[Job]:
        found = self.system.store.job_queries.list(Selector(job_types=(job_type,)), most=1000)
        return [job for job in reversed(found) if job.document_id == document_id]

    def stored_pages(self) -> dict[tuple[int, int], set[int]]:
        """Return the numbers of the stored pages by document and generation."""
        result = self.system.sqlite3("SELECT document_id, generation, number FROM page")
        assert result.returncode == 0, result.stderr
        found: dict[tuple[int, int], set[int]] = {}
        for line in result.stdout.splitlines():
            document_id, generation, number = map(int, line.split("|"))
            found.setdefault((document_id, generation), set()).add(number)
        return found


@pytest.fixture
def own_reader(tmp_path: Path) -> Iterator[ReadingSystem]:
    made = ReadingSystem(tmp_path)
    yield made
    made.system.close()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadingSystem]:
    """One daemon for the tests that kill nothing."""
    place = tmp_path_factory.mktemp("reading")
    credentials = place / "credentials"
    credentials.mkdir()
    (credentials / "password-reports").write_text("secret\n")
    made = ReadingSystem(place)
    with pytest.MonkeyPatch.context() as patched:
        # As systemd would say where they are.
        patched.setenv("CREDENTIALS_DIRECTORY", str(credentials))
        made.start()
    yield made
    made.system.assert_sound()
    assert made.system.store.integrity.audit() == []
    made.system.close()


# ── Papers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def page_text(number: int, mark: str) -> str:
    return f"Leaf {WORDS[number // 10]} {WORDS[number % 10]} tells of {mark} risk and of water in supply chains"


def small_page_image(text: str) -> Image.Image:
    """Return a page that is read in a tenth of a second."""
    with pymupdf.open() as document:
        page = document.new_page(width=360, height=120)
        page.insert_textbox(pymupdf.Rect(20, 30, 340, 110), text, fontsize=14, fontname="tiro")
        drawn = page.get_pixmap(dpi=150, colorspace=pymupdf.csGRAY)
        return Image.frombytes("L", (drawn.width, drawn.height), drawn.samples)


def scanned_pdf(path: Path, pages: int, mark: str = "climate") -> Path:
    return backdated(scan(path, [small_page_image(page_text(number, mark)) for number in range(1, pages + 1)], dpi=150))


def backdated(path: Path) -> Path:
    """Set the time of change to a minute ago: files that may still be written are not read."""
    os.utime(path, (time.time() - 60,) * 2)
    return path


def half_scanned_pdf(path: Path) -> Path:
    """Write a page with text and a scanned page."""
    image = scan(path.with_name(f"image of {path.name}"), [small_page_image(page_text(2, path.stem))], dpi=150)
    digital(path, [prose(5, 60)])
    with pymupdf.open(path) as document, pymupdf.open(image) as scanned:
        document.insert_pdf(scanned)
        path.write_bytes(document.tobytes())
    image.unlink()
    return backdated(path)


# ── Kills ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_random_kills_repeat_only_the_pages_in_flight(own_reader: ReadingSystem) -> None:
    generator = random.Random(5)
    paper = scanned_pdf(own_reader.papers / "long.pdf", PAGES)
    own_reader.run("add", paper)
    daemon = own_reader.start(concurrency=2)
    pages = (1, 1)
    victims = ["fork-server", "child", "daemon"] * ROUNDS
    marks = sorted(generator.sample(range(PAGES - 2), len(victims)))
    states_at_kills: list[tuple[set[int], Counter[int]]] = []

    for victim, mark in zip(victims, marks, strict=True):
        wait_until(partial(_has_read, own_reader, mark), f"{mark} pages", seconds=PATIENCE_SECONDS)
        time.sleep(generator.uniform(0, 0.05))
        _stop_by_force(own_reader, daemon, victim)
        stored = own_reader.stored_pages().get(pages, set())
        states_at_kills.append((stored, own_reader.recognitions()))
        if victim == "daemon":
            daemon = own_reader.start(concurrency=2)
    wait_until(partial(_is_assembled, own_reader), "it is being put together", seconds=PATIENCE_SECONDS)
    _stop_by_force(own_reader, daemon, "daemon")
    own_reader.start(concurrency=2)

    document = own_reader.wait_until_read(1)
    assert (document.status, document.pages, document.error_message) == (IndexStatus.SUCCESS, PAGES, None)
    assert own_reader.stored_pages() == {pages: set(range(1, PAGES + 1))}
    assert own_reader.texts(1) == [page_text(number, "climate") for number in range(1, PAGES + 1)]
    roles = [file.role for file in own_reader.system.store.library.files(1)]
    assert sorted(roles) == ["original", "pages", "pdf", "text", "thumbnail"]
    recognised = own_reader.recognitions()
    assert set(recognised) == set(range(1, PAGES + 1))
    for stored, before in states_at_kills:
        assert {number: recognised[number] for number in stored} == {number: before[number] for number in stored}
    # One page for each of two children, at each of the kills.
    assert recognised.total() <= PAGES + 2 * (len(victims) + 1)
    own_reader.system.assert_sound()


def test_a_document_has_links_in_the_workspace_until_it_is_removed(reader: ReadingSystem) -> None:
    paper = digital(reader.papers / "Named report.pdf", [prose(5, 60)])
    document = reader.add_and_read(backdated(paper), owner="named")
    assert not reader.jobs(document.id, "assemble")
    top = reader.system.workspace / "by-owner/named"
    folder = top.joinpath(*paper.parent.parts[1:])

    wait_until(lambda: (folder / "Named report.txt").is_file(), "it has its names", seconds=PATIENCE_SECONDS)
    assert (folder / "Named report.pdf").read_bytes() == paper.read_bytes()
    objects = {path.resolve() for path in folder.iterdir()}
    freed = reader.run_json("documents", "rm", document.id, "--yes")

    assert (freed["documents"], freed["pages"], freed["refused"]) == (1, 1, [])
    assert freed["size"] >= paper.stat().st_size
    wait_until(lambda: not top.exists(), "its names are gone", seconds=PATIENCE_SECONDS)
    assert not any(path.exists() for path in objects)
    assert paper.exists()
    # It can be brought in again, as any new file.
    assert reader.add_and_read(paper, owner="named").id > document.id


def test_the_page_in_flight_of_a_cancelled_range_is_not_read_again(
    reader: ReadingSystem,
) -> None:
    before = reader.recognitions()
    paper = scanned_pdf(reader.papers / "slow.pdf", 4, "tide")
    reader.run("add", paper)
    wait_until(lambda: (reader.recognitions() - before).keys() == {1, 3}, "each range reads its first page")
    document = reader.document(paper)
    assert document is not None
    ranges = reader.jobs(document.id, "ocr_pages")

    reader.run("cancel", *(job.id for job in ranges), "--yes")
    wait_until(lambda: all(_is_asked(reader, job) for job in ranges), "both are asked to stop")
    faulty_readers.go_on(reader.system.workspace)

    for job in ranges:
        reader.system.wait_for(job.id, Status.CANCELLED)
    assert reader.stored_pages()[document.id, 1] == {1, 3}
    reader.run("retry", *(job.id for job in ranges), "--yes")
    reader.run("wait", f"document:{document.id}", "--timeout", "60s")
    assert reader.texts(document.id) == [page_text(number, "tide") for number in (1, 2, 3, 4)]
    recognised = reader.recognitions() - before
    assert (recognised[1], recognised[3]) == (1, 1)


def _is_asked(reader: ReadingSystem, job: Job) -> bool:
    return any(event["job_id"] == job.id for event in reader.daemon.events("job.stopped"))


def _has_read(reader: ReadingSystem, pages: int) -> bool:
    found = reader.system.store.library.documents(DocumentSelector(ids=(1,)))
    return bool(found) and found[0].percent * PAGES > pages * 100


def _is_assembled(reader: ReadingSystem) -> bool:
    return any(job.status in (Status.RUNNING, Status.COMPLETED) for job in reader.jobs(1, "assemble"))


def _stop_by_force(reader: ReadingSystem, daemon: Daemon, victim: str) -> None:
    [fork_server] = daemon.fork_server_pids()
    if victim == "daemon":
        daemon.signal(signal.SIGKILL)
        daemon.wait_for_exit()
        wait_until(lambda: not is_running(fork_server), "the fork server is gone")
    elif victim == "fork-server":
        os.kill(fork_server, signal.SIGKILL)
        daemon.wait_for("nursery.restarted")
    else:
        _stop_a_child(reader)


def _stop_a_child(reader: ReadingSystem) -> None:
    def pids() -> Sequence[int]:
        running = reader.system.store.job_queries.list(Selector(statuses=(Status.RUNNING,), job_types=("ocr_pages",)))
        attempts = [attempt for job in running for attempt in reader.system.store.history.attempts(job.id)]
        return [attempt.pid for attempt in attempts if attempt.outcome is None and attempt.pid]

    def stop_one() -> bool:
        for pid in pids():
            # It may have come to its end meanwhile.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    wait_until(stop_one, "a child reads", seconds=PATIENCE_SECONDS)


# ── A range that fails ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_range_names_its_pages_and_a_retry_reads_only_those(reader: ReadingSystem) -> None:
    before = reader.recognitions()
    paper = scanned_pdf(reader.papers / "breaks.pdf", 14, "hidden")

    result = reader.run("add", paper, "--wait", fails=1)

    document = reader.document(paper)
    assert document is not None
    assert (document.status, document.error_code) == (IndexStatus.FAILED, "PAGE_BROKEN")
    assert "finished, 1 failed" in result.stdout
    assert "PAGE_BROKEN: pages 1-7: the saboteur has torn the page" in result.stderr
    for words in (("documents", "--status", "failed"), ("show", f"document:{document.id}")):
        assert "pages 1-7: the saboteur has torn the page" in reader.run(*words).stdout
    first, second = reader.jobs(document.id, "ocr_pages")
    reader.system.wait_for(second.id, Status.COMPLETED)
    assert reader.recognitions() - before == Counter(range(8, 15))
    assert reader.run("search", "hidden", fails=1).stdout == ""

    reader.run("retry", first.id)
    reader.run("wait", f"document:{document.id}", "--timeout", "60s")

    assert reader.texts(document.id) == [page_text(number, "hidden") for number in range(1, 15)]
    assert reader.recognitions() - before == Counter(range(1, 15))
    assert reader.system.store.library.document(document.id).error_code is None


def test_files_of_an_archive_become_documents(reader: ReadingSystem) -> None:
    inner = scanned_pdf(reader.papers / "inner.pdf", 2, "glacier")
    letter = b"Subject: the glaciers\n\nThey melt, says the moraine.\n"
    paper = reader.papers / "delivery.zip"
    with zipfile.ZipFile(paper, "w") as archive:
        archive.write(inner, "2025/Ice.pdf")
        archive.writestr("letter.eml", letter)
    backdated(paper)

    reader.run("add", paper, "--owner", "ann", "--wait", "--timeout", "60s")

    found = {item["name"]: item for item in reader.run_json("documents", "--owner", "ann")["items"]}
    assert {name: found[name]["state"] for name in ("delivery.zip", "Ice.pdf", "letter.eml")} == {
        "delivery.zip": "success",
        "Ice.pdf": "success",
        "letter.eml": "success",
    }
    assert reader.texts(found["Ice.pdf"]["id"]) == [page_text(1, "glacier"), page_text(2, "glacier")]
    assert [hit["name"] for hit in reader.run_json("search", "moraine", "--owner", "ann")["items"]] == ["letter.eml"]
    assert reader.texts(found["delivery.zip"]["id"]) == ["2025/Ice.pdf letter.eml"]

    # The next delivery: one document has changed, and one is new.
    with zipfile.ZipFile(paper, "w") as archive:
        archive.write(inner, "2025/Ice.pdf")
        archive.writestr("letter.eml", letter + b"No, says the crevasse.\n")
        archive.writestr("note.txt", "new\n")
    backdated(paper)
    reader.run("add", paper, "--owner", "ann", "--wait", "--timeout", "60s")

    again = {item["name"]: item["id"] for item in reader.run_json("documents", "--owner", "ann")["items"]}
    assert {name: again[name] for name in found} == {name: one["id"] for name, one in found.items()}
    assert [hit["name"] for hit in reader.run_json("search", "crevasse", "--owner", "ann")["items"]] == ["letter.eml"]
    assert "note.txt" in again


# ── Nothing is read twice ───────────────────────────────────────────────────────────────────────────────────────


def test_equal_pages_of_two_documents_are_recognised_once(reader: ReadingSystem) -> None:
    folder = reader.papers / "twins"
    folder.mkdir()
    scanned_pdf(folder / "one.pdf", 4, "twin")
    (folder / "other.pdf").write_bytes((folder / "one.pdf").read_bytes())
    backdated(folder / "other.pdf")
    before = reader.recognitions()

    reader.run("add", folder, "--wait", "--timeout", "60s")

    assert reader.recognitions() - before == Counter(range(1, 5))
    [both] = reader.run_json("search", "twin")["items"]
    assert (len(both["page_numbers"]), len(both["copies"])) == (4, 1)


def test_only_another_language_reads_scanned_pages_again(
    reader: ReadingSystem,
) -> None:
    paper = half_scanned_pdf(reader.papers / "change.pdf")
    before = reader.recognitions()
    first = reader.add_and_read(paper)
    assert (first.status, reader.recognitions() - before) == (IndexStatus.SUCCESS, Counter({2: 1}))

    same = reader.add_and_read(paper)
    assert (same.index_generation, reader.recognitions() - before) == (1, Counter({2: 1}))
    result = reader.run("reindex", first.id)
    assert "none: unchanged since it was read" in result.stdout

    german = reader.add_and_read(paper, "--lang", "deu")
    assert (german.index_generation, german.current_generation) == (2, 2)
    assert reader.recognitions() - before == Counter({2: 2})
    assert reader.add_and_read(paper) == german

    back = reader.add_and_read(paper, "--as-usual")
    assert (back.index_generation, back.current_generation) == (3, 3)
    assert reader.recognitions() - before == Counter({2: 2})
    # What is known is known, by force as well.
    forced = reader.add_and_read(paper, "--force")
    assert (forced.index_generation, forced.current_generation) == (4, 4)
    assert reader.recognitions() - before == Counter({2: 2})
    assert reader.texts(forced.id) == reader.texts(first.id)


def test_a_generation_is_replaced_when_a_newer_one_is_complete(
    reader: ReadingSystem,
) -> None:
    paper = scanned_pdf(reader.papers / "waits.pdf", 2, "harbour")
    document = reader.add_and_read(paper)
    old = reader.texts(document.id)

    reader.run("reindex", document.id, "--lang", "deu")
    wait_until(lambda: _running(reader, document.id), "the second generation is being read")
    stale = _running(reader, document.id)
    assert reader.texts(document.id) == old
    assert reader.run_json("search", "harbour")["pages_with_all"] == 2
    assert reader.system.store.library.document(document.id).status is IndexStatus.INDEXING

    scanned_pdf(paper, 2, "lighthouse")
    newest = reader.add_and_read(paper, "--lang", "deu")

    assert (newest.index_generation, newest.current_generation) == (3, 3)
    assert reader.texts(document.id) == [page_text(number, "lighthouse") for number in (1, 2)]
    for job in stale:
        ended = reader.system.wait_for(job.id, Status.CANCELLED)
        assert ended.error_code == "STALE_GENERATION"
    assert "pagemill reindex" in reader.run("retry", stale[0].id, fails=1).stderr
    assert reader.run_json("search", "harbour", fails=1)["items"] == []
    assert {generation for number, generation in reader.stored_pages() if number == document.id} >= {3}


def _running(reader: ReadingSystem, document_id: int) -> list[Job]:
    jobs = reader.jobs(document_id, "ocr_pages")
    return [job for job in jobs if job.status is Status.RUNNING and job.generation == 2]


# ── Files that are no pleasure ──────────────────────────────────────────────────────────────────────────────────


def test_each_unreadable_file_fails_with_its_own_code(reader: ReadingSystem) -> None:
    folder = reader.papers / "odd"
    folder.mkdir()
    locked = {"encryption": pymupdf.PDF_ENCRYPT_AES_256, "user_pw": "secret", "owner_pw": "o"}
    digital(folder / "locked.pdf", ["A secret."], **locked)
    (folder / "empty.pdf").touch()
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4\nhello")
    (folder / "words.pdf").write_text("just words\n")
    (folder / "old.xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    digital(folder / "good.pdf", ["Nobody held this page up."])
    bomb(folder / "bomb.pdf", 10_000_000)
    for file in folder.iterdir():
        backdated(file)

    result = reader.run_json("add", folder, "--owner", "odd", "--wait", "--timeout", "90s", fails=1)

    assert result["items"][0]["progress"]["files_failed"] == 5
    failed = reader.run_json("documents", "--owner", "odd", "--status", "failed")
    unread = {
        item["name"]: (item["error_code"], item["error_message"]) for item in failed["items"] + failed["not_brought_in"]
    }
    codes = {name: code for name, (code, _) in unread.items()}
    assert codes == {
        "locked.pdf": "PDF_ENCRYPTED",
        "empty.pdf": "EMPTY",
        "broken.pdf": "PDF_BROKEN",
        "words.pdf": "NOT_WHAT_IT_SAYS",
        "old.xls": "KIND_UNSUPPORTED",
    }
    assert all(len(text.split()) >= 4 for _, text in unread.values())
    documents = reader.system.store.library.documents(DocumentSelector(owners=("odd",)))
    read = {document.name: document for document in documents if document.status is IndexStatus.SUCCESS}
    assert read.keys() == {"good.pdf", "bomb.pdf"}
    assert "left out as broken or too large: page 2" in (read["bomb.pdf"].note or "")

    opened = reader.add_and_read(folder / "locked.pdf", "--password-file", "password-reports", owner="odd")
    assert (opened.status, reader.texts(opened.id)) == (IndexStatus.SUCCESS, ["A secret."])
    assert reader.add_and_read(folder / "locked.pdf", owner="odd") == opened


# ── Passwords ───────────────────────────────────────────────────────────────────────────────────────────────────


def password_protected_pdf(path: Path, password: str) -> Path:
    """Write a page of text and a scanned page, which another job reads."""
    with pymupdf.open() as document:
        document.new_page().insert_textbox(pymupdf.Rect(50, 50, 500, 800), prose(1))
        small_page_image(page_text(1, "locked")).save(path.with_suffix(".png"))
        document.new_page(width=360, height=120).insert_image(
            pymupdf.Rect(0, 0, 360, 120), filename=str(path.with_suffix(".png"))
        )
        document.save(path, encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw=password, owner_pw="o")
    path.with_suffix(".png").unlink()
    return backdated(path)


def stored_passwords(workspace: Path) -> list[Path]:
    """Return the files, so old that a sweep considers them."""
    found = list((workspace / "passwords").iterdir())
    for path in found:
        os.utime(path, (0, 0))
    return found


def test_a_typed_password_opens_a_pdf_and_is_then_deleted(
    reader: ReadingSystem, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret, elsewhere = "sesame Öffne dich 4711", tmp_path_factory.mktemp("hers")
    file = password_protected_pdf(reader.papers / "contract.pdf", secret)
    (elsewhere / "wrong").write_text("Sesame Öffne dich\n")
    (elsewhere / "right").write_text(f"{secret}\n")

    locked = reader.add_and_read(file, owner="lock", fails=1)
    reader.run("reindex", locked.id, "--password-file", elsewhere / "wrong")
    refused = reader.wait_until_read(locked.id)
    reader.run("reindex", locked.id, "--password-file", elsewhere / "right")
    opened = reader.wait_until_read(locked.id)

    assert (locked.error_code, locked.error_message) == ("PDF_ENCRYPTED", "the PDF is locked with a password")
    assert (refused.error_code, refused.error_message) == ("PASSWORD_WRONG", "this password does not open the PDF")
    assert f"type it again on the document's page, or with pagemill reindex {locked.id}" in (refused.error_remedy or "")
    assert (opened.status, opened.is_locked, opened.settings) == (IndexStatus.SUCCESS, True, "{}")
    assert reader.texts(locked.id) == [" ".join(prose(1).split()), page_text(1, "locked")]
    reader.run("report", "-o", elsewhere / "report.tar.gz")
    stored_passwords(reader.system.workspace)
    assert passwords.forget_unneeded(reader.system.store, reader.system.workspace) <= 1
    wait_until(lambda: not stored_passwords(reader.system.workspace), "the daemon or this test has forgotten it")
    for place in (reader.system.place, elsewhere):
        found = [path for path in place.rglob("*") if path.is_file() and b"ffne dich" in path.read_bytes()]
        assert {document.name for document in found} <= {"right", "wrong"}


def test_a_typed_password_survives_a_kill_and_a_remembered_one_the_reading(
    own_reader: ReadingSystem, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = password_protected_pdf(own_reader.papers / "contract.pdf", "sesame")
    (typed := tmp_path_factory.mktemp("hers") / "typed").write_text("sesame")
    store, workspace = own_reader.system.store, own_reader.system.workspace

    own_reader.run("add", file, "--password-file", typed, "--remember-password")
    [kept] = stored_passwords(workspace)
    kept.write_bytes(kept.read_bytes().replace(b'"is_kept":true', b'"is_kept":false'))
    assert passwords.forget_unneeded(store, workspace) == 0  # its job waits for a daemon
    killed = own_reader.start()
    killed.wait_for("job.claimed")
    killed.signal(signal.SIGKILL)
    killed.wait_for_exit()
    own_reader.start()
    wait_until(lambda: own_reader.document(file), "it is downloaded")
    document = own_reader.document(file)
    assert document is not None
    assert own_reader.wait_until_read(document.id).status is IndexStatus.SUCCESS

    own_reader.run("reindex", document.id, "--force", "--password-file", typed, "--remember-password")
    own_reader.wait_until_read(document.id)
    [kept] = stored_passwords(workspace)
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert passwords.forget_unneeded(store, workspace) == 0
    own_reader.run("add", kept, "--wait", "--timeout", "60s", fails=1)
    assert [file.error_code for file in store.library.not_brought_in(DocumentSelector())] == ["PATH_REFUSED"]
    own_reader.run("reindex", document.id, "--force")
    assert own_reader.wait_until_read(document.id).status is IndexStatus.SUCCESS
    own_reader.run("documents", "rm", document.id, "--yes")
    assert stored_passwords(workspace) == []


def test_a_watched_folder_adds_updates_and_marks_its_documents(
    reader: ReadingSystem,
) -> None:
    folder = reader.papers / "watched"
    folder.mkdir()
    paper, going = scanned_pdf(folder / "report.pdf", 1, "harbour"), scanned_pdf(folder / "going.pdf", 1, "ferry")
    reader.run("add", folder, "--watch", "--owner", "watch", "--lang", "eng", "--force-ocr")
    first, second = (_found(reader, path) for path in (paper, going))
    reader.run("reindex", first, "--lang", "deu")
    reader.wait_until_read(first)

    scanned_pdf(paper, 1, "lighthouse")
    going.unlink()
    new = scanned_pdf(folder / "new.pdf", 1, "pier")
    reader.run("schedules", "run-now", "watched")

    wait_until(lambda: _generation_read(reader, first) == 3, "the changed file is read")
    library = reader.system.store.library
    assert json.loads(library.document(first).settings) == {"force_ocr": True, "languages": ["deu"]}
    assert reader.texts(first) == [page_text(1, "lighthouse")]
    assert reader.texts(_found(reader, new)) == [page_text(1, "pier")]
    wait_until(lambda: library.document(second).gone_at is not None, "the removed file is marked")
    wait_until(lambda: "2 enqueued · 1 gone" in reader.run("schedules").stdout, "the list shows what was found")
    reader.run("schedules", "rm", "watched")


def _found(reader: ReadingSystem, path: Path) -> int:
    wait_until(lambda: reader.document(path, "watch"), f"{path.name} is found")
    document = reader.document(path, "watch")
    assert document is not None
    return reader.wait_until_read(document.id).id


def _generation_read(reader: ReadingSystem, document_id: int) -> int | None:
    return reader.system.store.library.document(document_id).current_generation


def test_adopted_documents_can_be_searched_and_read_again(reader: ReadingSystem) -> None:
    folder = reader.papers / "elsewhere"
    folder.mkdir()
    digital(folder / "a.pdf", ["As it is in the file."])
    (folder / "a.txt").write_text("Their zebra text\fand a second page\f")
    digital(folder / "b.pdf", ["Nobody has read this."])

    reader.run("documents", "adopt", folder, "--owner", "eve", "--yes")

    adopted, noted = reader.document(folder / "a.pdf", "eve"), reader.document(folder / "b.pdf", "eve")
    assert adopted is not None
    assert noted is not None
    adopted = reader.wait_until_read(adopted.id)
    assert (adopted.status, adopted.pages, adopted.note) == (IndexStatus.SUCCESS, 2, "read elsewhere")
    assert (noted.status, noted.pages) == (IndexStatus.NOT_INDEXED, None)
    assert [hit["document_id"] for hit in reader.run_json("search", "zebra")["items"]] == [adopted.id]
    assert reader.run("export", adopted.id, "-o", folder / "out").stdout == f"{folder}/out/a-{adopted.id}.txt\n"
    backdated(folder / "a.pdf")
    reader.run("reindex", adopted.id)
    wait_until(
        lambda: reader.system.store.library.document(adopted.id).current_generation == 2,
        "we have read it ourselves",
    )
    assert reader.texts(adopted.id) == ["As it is in the file."]


def test_file_names_that_are_not_utf_8_are_read(reader: ReadingSystem) -> None:
    folder = reader.papers / os.fsdecode(b"alt\xfc")
    folder.mkdir()
    made = digital(reader.papers / "yak.pdf", ["Their yak text."])
    file = backdated(made.rename(folder / os.fsdecode(b"caf\xe9.pdf")))

    reader.run("add", folder, "--owner", "fred", "--wait", "--timeout", "60s")
    reader.run("add", folder, "--depth", 0, "--owner", "fred", "--wait", "--timeout", "60s")

    [document] = reader.run_json("documents", "--owner", "fred")["items"]
    assert (document["name"], document["status"], document["source_key"]) == ("caf\u00e9.pdf", "success", file.as_uri())
    assert reader.texts(document["id"]) == ["Their yak text."]
    exported = reader.run("export", document["id"], "-o", folder.parent).stdout
    assert exported == f"{folder.parent}/caf\u00e9-{document['id']}.txt\n"
    reader.run("reindex", document["id"], "--force")
    wait_until(lambda: _generation_read(reader, document["id"]) == 2, "it is read again")
