"""Documents from file to text, by a real daemon with a real engine: killed at random, sabotaged, asked twice."""

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
from tests.system import faulty_readers as readers
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


class Desk:
    """A system with the readers, and a person before it."""

    def __init__(self, place: Path) -> None:
        self.system = System(place, shipped=None)
        readers.install(place / "installed")
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

    def answer(self, *words: object, fails: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", fails=fails).stdout)

    def document(self, path: Path, owner: str = "") -> Document | None:
        found = self.system.store.library.documents(DocumentSelector(owners=(owner,), source_keys=(str(path),)))
        return found[0] if found else None

    def reads(self, path: Path, *options: object, owner: str = "", fails: int = 0) -> Document:
        """Bring it in and wait for its end."""
        self.run("add", path, "--owner", owner, *options, "--wait", "--timeout", "60s", fails=fails)
        document = self.document(path, owner)
        assert document is not None
        return document

    def ended(self, document_id: int) -> Document:
        store = self.system.store
        ends = (IndexStatus.SUCCESS, IndexStatus.FAILED)
        wait_until(lambda: store.library.document(document_id).status in ends, "it is read", seconds=PATIENCE_SECONDS)
        return store.library.document(document_id)

    def texts(self, document_id: int) -> list[str]:
        return [" ".join((page.text or "").split()) for page in self.system.store.library.page_texts(document_id)]

    def recognised(self) -> Counter[int]:
        return readers.given_to_the_engine(self.system.workspace)

    def jobs(self, document_id: int, job_type: str) -> list[Job]:
        found = self.system.store.job_queries.list(Selector(job_types=(job_type,)), most=1000)
        return [job for job in reversed(found) if job.document_id == document_id]

    def stored(self) -> dict[tuple[int, int], set[int]]:
        """The numbers of the stored pages, by document and generation."""
        told = self.system.sqlite3("SELECT document_id, generation, number FROM page")
        assert told.returncode == 0, told.stderr
        found: dict[tuple[int, int], set[int]] = {}
        for line in told.stdout.splitlines():
            document_id, generation, number = map(int, line.split("|"))
            found.setdefault((document_id, generation), set()).add(number)
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.system.close()


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One daemon for the tests that kill nobody."""
    place = tmp_path_factory.mktemp("reading")
    credentials = place / "credentials"
    credentials.mkdir()
    (credentials / "password-reports").write_text("secret\n")
    made = Desk(place)
    with pytest.MonkeyPatch.context() as patched:
        # As systemd would say where they are.
        patched.setenv("CREDENTIALS_DIRECTORY", str(credentials))
        made.start()
    yield made
    made.system.assert_sound()
    assert made.system.store.integrity.audit() == []
    made.system.close()


# ── Papers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def leaf(number: int, mark: str) -> str:
    return f"Leaf {WORDS[number // 10]} {WORDS[number % 10]} tells of {mark} risk and of water in supply chains"


def slip(text: str) -> Image.Image:
    """A small page, read in a tenth of a second."""
    with pymupdf.open() as document:
        page = document.new_page(width=360, height=120)
        page.insert_textbox(pymupdf.Rect(20, 30, 340, 110), text, fontsize=14, fontname="tiro")
        drawn = page.get_pixmap(dpi=150, colorspace=pymupdf.csGRAY)
        return Image.frombytes("L", (drawn.width, drawn.height), drawn.samples)


def slips(path: Path, pages: int, mark: str = "climate") -> Path:
    return aged(scan(path, [slip(leaf(number, mark)) for number in range(1, pages + 1)], dpi=150))


def aged(path: Path) -> Path:
    """Nobody has written it for a while."""
    os.utime(path, (time.time() - 60,) * 2)
    return path


def mixed(path: Path) -> Path:
    """A page with text of its own, then a scanned one."""
    image = scan(path.with_name(f"image of {path.name}"), [slip(leaf(2, path.stem))], dpi=150)
    digital(path, [prose(5, 60)])
    with pymupdf.open(path) as document, pymupdf.open(image) as scanned:
        document.insert_pdf(scanned)
        path.write_bytes(document.tobytes())
    image.unlink()
    return aged(path)


# ── Kills ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_kills_at_random_moments_cost_no_page_twice_but_those_in_flight(desk: Desk) -> None:
    chance = random.Random(5)
    paper = slips(desk.papers / "long.pdf", PAGES)
    desk.run("add", paper)
    daemon = desk.start(concurrency=2)
    pages = (1, 1)
    victims = ["fork-server", "child", "daemon"] * ROUNDS
    marks = sorted(chance.sample(range(PAGES - 2), len(victims)))
    looked: list[tuple[set[int], Counter[int]]] = []

    for victim, mark in zip(victims, marks, strict=True):
        wait_until(partial(_has_read, desk, mark), f"{mark} pages", seconds=PATIENCE_SECONDS)
        time.sleep(chance.uniform(0, 0.05))
        _stop_by_force(desk, daemon, victim)
        stored = desk.stored().get(pages, set())
        looked.append((stored, desk.recognised()))
        if victim == "daemon":
            daemon = desk.start(concurrency=2)
    wait_until(partial(_is_assembled, desk), "it is being put together", seconds=PATIENCE_SECONDS)
    _stop_by_force(desk, daemon, "daemon")
    desk.start(concurrency=2)

    document = desk.ended(1)
    assert (document.status, document.pages, document.error_message) == (IndexStatus.SUCCESS, PAGES, None)
    assert desk.stored() == {pages: set(range(1, PAGES + 1))}
    assert desk.texts(1) == [leaf(number, "climate") for number in range(1, PAGES + 1)]
    roles = [file.role for file in desk.system.store.library.files(1)]
    assert sorted(roles) == ["original", "pages", "pdf", "text", "thumbnail"]
    recognised = desk.recognised()
    assert set(recognised) == set(range(1, PAGES + 1))
    for stored, before in looked:
        assert {number: recognised[number] for number in stored} == {number: before[number] for number in stored}
    # One page for each of two children, at each of the kills.
    assert recognised.total() <= PAGES + 2 * (len(victims) + 1)
    desk.system.assert_sound()


def test_a_document_has_its_names_in_the_workspace_until_it_is_removed(reading: Desk) -> None:
    paper = digital(reading.papers / "Named report.pdf", [prose(5, 60)])
    document = reading.reads(aged(paper), owner="named")
    assert not reading.jobs(document.id, "assemble")
    top = reading.system.workspace / "by-owner/named"
    folder = top.joinpath(*paper.parent.parts[1:])

    wait_until(lambda: (folder / "Named report.txt").is_file(), "it has its names", seconds=PATIENCE_SECONDS)
    assert (folder / "Named report.pdf").read_bytes() == paper.read_bytes()
    objects = {path.resolve() for path in folder.iterdir()}
    freed = reading.answer("documents", "rm", document.id, "--yes")

    assert (freed["documents"], freed["pages"], freed["refused"]) == (1, 1, [])
    assert freed["size"] >= paper.stat().st_size
    wait_until(lambda: not top.exists(), "its names are gone", seconds=PATIENCE_SECONDS)
    assert not any(path.exists() for path in objects)
    assert paper.exists()
    # It can be brought in again, as any new file.
    assert reading.reads(paper, owner="named").id > document.id


def test_a_page_that_is_being_read_when_its_range_is_cancelled_is_kept_and_not_read_again(reading: Desk) -> None:
    before = reading.recognised()
    paper = slips(reading.papers / "slow.pdf", 4, "tide")
    reading.run("add", paper)
    wait_until(lambda: (reading.recognised() - before).keys() == {1, 3}, "each range reads its first page")
    document = reading.document(paper)
    assert document is not None
    ranges = reading.jobs(document.id, "ocr_pages")

    reading.run("cancel", *(job.id for job in ranges), "--yes")
    wait_until(lambda: all(_is_asked(reading, job) for job in ranges), "both are asked to stop")
    readers.go_on(reading.system.workspace)

    for job in ranges:
        reading.system.wait_for(job.id, Status.CANCELLED)
    assert reading.stored()[document.id, 1] == {1, 3}
    reading.run("retry", *(job.id for job in ranges), "--yes")
    reading.run("wait", f"document:{document.id}", "--timeout", "60s")
    assert reading.texts(document.id) == [leaf(number, "tide") for number in (1, 2, 3, 4)]
    recognised = reading.recognised() - before
    assert (recognised[1], recognised[3]) == (1, 1)


def _is_asked(desk: Desk, job: Job) -> bool:
    return any(event["job_id"] == job.id for event in desk.daemon.events("job.stopped"))


def _has_read(desk: Desk, pages: int) -> bool:
    found = desk.system.store.library.documents(DocumentSelector(ids=(1,)))
    return bool(found) and found[0].percent * PAGES > pages * 100


def _is_assembled(desk: Desk) -> bool:
    """Or was, if we have looked too late."""
    return any(job.status in (Status.RUNNING, Status.COMPLETED) for job in desk.jobs(1, "assemble"))


def _stop_by_force(desk: Desk, daemon: Daemon, victim: str) -> None:
    [fork_server] = daemon.fork_server_pids()
    if victim == "daemon":
        daemon.signal(signal.SIGKILL)
        daemon.ends()
        wait_until(lambda: not is_running(fork_server), "the fork server is gone")
    elif victim == "fork-server":
        os.kill(fork_server, signal.SIGKILL)
        daemon.wait_for("nursery.restarted")
    else:
        _stop_a_child(desk)


def _stop_a_child(desk: Desk) -> None:
    def pids() -> Sequence[int]:
        running = desk.system.store.job_queries.list(Selector(statuses=(Status.RUNNING,), job_types=("ocr_pages",)))
        attempts = [attempt for job in running for attempt in desk.system.store.history.attempts(job.id)]
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


def test_a_failed_range_names_its_pages_and_a_retry_reads_no_other_page(reading: Desk) -> None:
    before = reading.recognised()
    paper = slips(reading.papers / "breaks.pdf", 14, "hidden")

    told = reading.run("add", paper, "--wait", fails=1)

    document = reading.document(paper)
    assert document is not None
    assert (document.status, document.error_code) == (IndexStatus.FAILED, "PAGE_BROKEN")
    assert "finished, 1 failed" in told.stdout
    assert "PAGE_BROKEN: pages 1-7: the saboteur has torn the page" in told.stderr
    for words in (("documents", "--status", "failed"), ("show", f"document:{document.id}")):
        assert "pages 1-7: the saboteur has torn the page" in reading.run(*words).stdout
    first, second = reading.jobs(document.id, "ocr_pages")
    reading.system.wait_for(second.id, Status.COMPLETED)
    assert reading.recognised() - before == Counter(range(8, 15))
    assert reading.run("search", "hidden", fails=1).stdout == ""

    reading.run("retry", first.id)
    reading.run("wait", f"document:{document.id}", "--timeout", "60s")

    assert reading.texts(document.id) == [leaf(number, "hidden") for number in range(1, 15)]
    assert reading.recognised() - before == Counter(range(1, 15))
    assert reading.system.store.library.document(document.id).error_code is None


def test_an_archive_becomes_documents_that_are_found_like_any_other(reading: Desk) -> None:
    inner = slips(reading.papers / "inner.pdf", 2, "glacier")
    letter = b"Subject: the glaciers\n\nThey melt, says the moraine.\n"
    paper = reading.papers / "delivery.zip"
    with zipfile.ZipFile(paper, "w") as archive:
        archive.write(inner, "2025/Ice.pdf")
        archive.writestr("letter.eml", letter)
    aged(paper)

    reading.run("add", paper, "--owner", "ann", "--wait", "--timeout", "60s")

    found = {one["name"]: one for one in reading.answer("documents", "--owner", "ann")["items"]}
    assert {name: found[name]["state"] for name in ("delivery.zip", "Ice.pdf", "letter.eml")} == {
        "delivery.zip": "success",
        "Ice.pdf": "success",
        "letter.eml": "success",
    }
    assert reading.texts(found["Ice.pdf"]["id"]) == [leaf(1, "glacier"), leaf(2, "glacier")]
    assert [hit["name"] for hit in reading.answer("search", "moraine", "--owner", "ann")["items"]] == ["letter.eml"]
    assert reading.texts(found["delivery.zip"]["id"]) == ["2025/Ice.pdf letter.eml"]

    # The next delivery: one document has changed, and one is new.
    with zipfile.ZipFile(paper, "w") as archive:
        archive.write(inner, "2025/Ice.pdf")
        archive.writestr("letter.eml", letter + b"No, says the crevasse.\n")
        archive.writestr("note.txt", "new\n")
    aged(paper)
    reading.run("add", paper, "--owner", "ann", "--wait", "--timeout", "60s")

    again = {one["name"]: one["id"] for one in reading.answer("documents", "--owner", "ann")["items"]}
    assert {name: again[name] for name in found} == {name: one["id"] for name, one in found.items()}
    assert [hit["name"] for hit in reading.answer("search", "crevasse", "--owner", "ann")["items"]] == ["letter.eml"]
    assert "note.txt" in again


# ── Nothing is read twice ───────────────────────────────────────────────────────────────────────────────────────


def test_what_two_want_at_the_same_time_is_recognised_once(reading: Desk) -> None:
    folder = reading.papers / "twins"
    folder.mkdir()
    slips(folder / "one.pdf", 4, "twin")
    (folder / "other.pdf").write_bytes((folder / "one.pdf").read_bytes())
    aged(folder / "other.pdf")
    before = reading.recognised()

    reading.run("add", folder, "--wait", "--timeout", "60s")

    assert reading.recognised() - before == Counter(range(1, 5))
    [both] = reading.answer("search", "twin")["items"]
    assert (len(both["page_numbers"]), len(both["copies"])) == (4, 1)


def test_another_language_reads_the_scanned_pages_again_and_no_change_reads_nothing(reading: Desk) -> None:
    paper = mixed(reading.papers / "change.pdf")
    before = reading.recognised()
    first = reading.reads(paper)
    assert (first.status, reading.recognised() - before) == (IndexStatus.SUCCESS, Counter({2: 1}))

    same = reading.reads(paper)
    assert (same.index_generation, reading.recognised() - before) == (1, Counter({2: 1}))
    told = reading.run("reindex", first.id)
    assert "none: unchanged since it was read" in told.stdout

    german = reading.reads(paper, "--lang", "deu")
    assert (german.index_generation, german.current_generation) == (2, 2)
    assert reading.recognised() - before == Counter({2: 2})
    assert reading.reads(paper) == german

    back = reading.reads(paper, "--as-usual")
    assert (back.index_generation, back.current_generation) == (3, 3)
    assert reading.recognised() - before == Counter({2: 2})
    # What is known is known, by force as well.
    forced = reading.reads(paper, "--force")
    assert (forced.index_generation, forced.current_generation) == (4, 4)
    assert reading.recognised() - before == Counter({2: 2})
    assert reading.texts(forced.id) == reading.texts(first.id)


def test_until_a_newer_reading_is_published_people_read_the_older_and_a_stale_one_never_is(reading: Desk) -> None:
    paper = slips(reading.papers / "waits.pdf", 2, "harbour")
    document = reading.reads(paper)
    old = reading.texts(document.id)

    reading.run("reindex", document.id, "--lang", "deu")
    wait_until(lambda: _running(reading, document.id), "the second generation is being read")
    stale = _running(reading, document.id)
    assert reading.texts(document.id) == old
    assert reading.answer("search", "harbour")["pages_with_all"] == 2
    assert reading.system.store.library.document(document.id).status is IndexStatus.INDEXING

    slips(paper, 2, "lighthouse")
    newest = reading.reads(paper, "--lang", "deu")

    assert (newest.index_generation, newest.current_generation) == (3, 3)
    assert reading.texts(document.id) == [leaf(number, "lighthouse") for number in (1, 2)]
    for job in stale:
        ended = reading.system.wait_for(job.id, Status.CANCELLED)
        assert ended.error_code == "STALE_GENERATION"
    assert "pagemill reindex" in reading.run("retry", stale[0].id, fails=1).stderr
    assert reading.answer("search", "harbour", fails=1)["items"] == []
    assert {generation for number, generation in reading.stored() if number == document.id} >= {3}


def _running(reading: Desk, document_id: int) -> list[Job]:
    jobs = reading.jobs(document_id, "ocr_pages")
    return [job for job in jobs if job.status is Status.RUNNING and job.generation == 2]


# ── Files that are no pleasure ──────────────────────────────────────────────────────────────────────────────────


def test_each_odd_file_ends_with_its_code_and_holds_nothing_else_up(reading: Desk) -> None:
    folder = reading.papers / "odd"
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
        aged(file)

    told = reading.answer("add", folder, "--owner", "odd", "--wait", "--timeout", "90s", fails=1)

    assert told["items"][0]["progress"]["files_failed"] == 5
    failed = reading.answer("documents", "--owner", "odd", "--status", "failed")
    unread = {
        one["name"]: (one["error_code"], one["error_message"]) for one in failed["items"] + failed["not_brought_in"]
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
    read = {one.name: one for one in reading.system.store.library.documents(DocumentSelector(owners=("odd",)))}
    good = {name for name, one in read.items() if one.status is IndexStatus.SUCCESS}
    assert good == {"good.pdf", "bomb.pdf"}
    assert "left out as broken or too large: page 2" in (read["bomb.pdf"].note or "")

    opened = reading.reads(folder / "locked.pdf", "--password-file", "password-reports", owner="odd")
    assert (opened.status, reading.texts(opened.id)) == (IndexStatus.SUCCESS, ["A secret."])
    assert reading.reads(folder / "locked.pdf", owner="odd") == opened


# ── Passwords ───────────────────────────────────────────────────────────────────────────────────────────────────


def locked_pdf(path: Path, password: str) -> Path:
    """A page of text and a scanned page, which another job reads."""
    with pymupdf.open() as document:
        document.new_page().insert_textbox(pymupdf.Rect(50, 50, 500, 800), prose(1))
        slip(leaf(1, "locked")).save(path.with_suffix(".png"))
        document.new_page(width=360, height=120).insert_image(
            pymupdf.Rect(0, 0, 360, 120), filename=str(path.with_suffix(".png"))
        )
        document.save(path, encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw=password, owner_pw="o")
    path.with_suffix(".png").unlink()
    return aged(path)


def stored_passwords(workspace: Path) -> list[Path]:
    """Return the files, so old that a sweep considers them."""
    found = list((workspace / "passwords").iterdir())
    for path in found:
        os.utime(path, (0, 0))
    return found


def test_a_typed_password_opens_a_pdf_and_is_nowhere_when_it_has_been_read(
    reading: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret, elsewhere = "sesame Öffne dich 4711", tmp_path_factory.mktemp("hers")
    file = locked_pdf(reading.papers / "contract.pdf", secret)
    (elsewhere / "wrong").write_text("Sesame Öffne dich\n")
    (elsewhere / "right").write_text(f"{secret}\n")

    locked = reading.reads(file, owner="lock", fails=1)
    reading.run("reindex", locked.id, "--password-file", elsewhere / "wrong")
    refused = reading.ended(locked.id)
    reading.run("reindex", locked.id, "--password-file", elsewhere / "right")
    opened = reading.ended(locked.id)

    assert (locked.error_code, locked.error_message) == ("PDF_ENCRYPTED", "the PDF is locked with a password")
    assert (refused.error_code, refused.error_message) == ("PASSWORD_WRONG", "this password does not open the PDF")
    assert f"type it again on the document's page, or with pagemill reindex {locked.id}" in (refused.error_remedy or "")
    assert (opened.status, opened.is_locked, opened.settings) == (IndexStatus.SUCCESS, True, "{}")
    assert reading.texts(locked.id) == [" ".join(prose(1).split()), leaf(1, "locked")]
    reading.run("report", "-o", elsewhere / "report.tar.gz")
    stored_passwords(reading.system.workspace)
    assert passwords.forget_unneeded(reading.system.store, reading.system.workspace) <= 1
    wait_until(lambda: not stored_passwords(reading.system.workspace), "the daemon or this test has forgotten it")
    for place in (reading.system.place, elsewhere):
        found = [one for one in place.rglob("*") if one.is_file() and b"ffne dich" in one.read_bytes()]
        assert {one.name for one in found} <= {"right", "wrong"}


def test_a_typed_password_outlives_a_killed_daemon_and_one_that_is_remembered_the_reading(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = locked_pdf(desk.papers / "contract.pdf", "sesame")
    (typed := tmp_path_factory.mktemp("hers") / "typed").write_text("sesame")
    store, workspace = desk.system.store, desk.system.workspace

    desk.run("add", file, "--password-file", typed, "--remember-password")
    [kept] = stored_passwords(workspace)
    kept.write_bytes(kept.read_bytes().replace(b'"is_kept":true', b'"is_kept":false'))
    assert passwords.forget_unneeded(store, workspace) == 0  # its job waits for a daemon
    killed = desk.start()
    killed.wait_for("job.claimed")
    killed.signal(signal.SIGKILL)
    killed.ends()
    desk.start()
    wait_until(lambda: desk.document(file), "it is downloaded")
    document = desk.document(file)
    assert document is not None
    assert desk.ended(document.id).status is IndexStatus.SUCCESS

    desk.run("reindex", document.id, "--force", "--password-file", typed, "--remember-password")
    desk.ended(document.id)
    [kept] = stored_passwords(workspace)
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert passwords.forget_unneeded(store, workspace) == 0
    desk.run("add", kept, "--wait", "--timeout", "60s", fails=1)
    assert [one.error_code for one in store.library.not_brought_in(DocumentSelector())] == ["PATH_REFUSED"]
    desk.run("reindex", document.id, "--force")
    assert desk.ended(document.id).status is IndexStatus.SUCCESS
    desk.run("documents", "rm", document.id, "--yes")
    assert stored_passwords(workspace) == []


def test_a_watched_folder_gives_what_is_new_changed_and_gone_and_keeps_settings_made_since(reading: Desk) -> None:
    folder = reading.papers / "watched"
    folder.mkdir()
    paper, going = slips(folder / "report.pdf", 1, "harbour"), slips(folder / "going.pdf", 1, "ferry")
    reading.run("add", folder, "--watch", "--owner", "watch", "--lang", "eng", "--force-ocr")
    first, second = (_found(reading, path) for path in (paper, going))
    reading.run("reindex", first, "--lang", "deu")
    reading.ended(first)

    slips(paper, 1, "lighthouse")
    going.unlink()
    new = slips(folder / "new.pdf", 1, "pier")
    reading.run("schedules", "run-now", "watched")

    wait_until(lambda: _generation_read(reading, first) == 3, "the changed file is read")
    library = reading.system.store.library
    assert json.loads(library.document(first).settings) == {"force_ocr": True, "languages": ["deu"]}
    assert reading.texts(first) == [leaf(1, "lighthouse")]
    assert reading.texts(_found(reading, new)) == [leaf(1, "pier")]
    wait_until(lambda: library.document(second).gone_at is not None, "the removed file is marked")
    wait_until(lambda: "2 enqueued · 1 gone" in reading.run("schedules").stdout, "the list shows what was found")
    reading.run("schedules", "rm", "watched")


def _found(reading: Desk, path: Path) -> int:
    wait_until(lambda: reading.document(path, "watch"), f"{path.name} is found")
    document = reading.document(path, "watch")
    assert document is not None
    return reading.ended(document.id).id


def _generation_read(desk: Desk, document_id: int) -> int | None:
    return desk.system.store.library.document(document_id).current_generation


def test_what_was_read_elsewhere_is_adopted_and_can_be_searched(reading: Desk) -> None:
    folder = reading.papers / "elsewhere"
    folder.mkdir()
    digital(folder / "a.pdf", ["As it is in the file."])
    (folder / "a.txt").write_text("Their zebra text\fand a second page\f")
    digital(folder / "b.pdf", ["Nobody has read this."])

    reading.run("documents", "adopt", folder, "--owner", "eve", "--yes")

    adopted, noted = reading.document(folder / "a.pdf", "eve"), reading.document(folder / "b.pdf", "eve")
    assert adopted is not None
    assert noted is not None
    adopted = reading.ended(adopted.id)
    assert (adopted.status, adopted.pages, adopted.note) == (IndexStatus.SUCCESS, 2, "read elsewhere")
    assert (noted.status, noted.pages) == (IndexStatus.NOT_INDEXED, None)
    assert [hit["document_id"] for hit in reading.answer("search", "zebra")["items"]] == [adopted.id]
    assert reading.run("export", adopted.id, "-o", folder / "out").stdout == f"{folder}/out/a-{adopted.id}.txt\n"
    aged(folder / "a.pdf")
    reading.run("reindex", adopted.id)
    wait_until(
        lambda: reading.system.store.library.document(adopted.id).current_generation == 2, "we have read it ourselves"
    )
    assert reading.texts(adopted.id) == ["As it is in the file."]


def test_names_that_are_no_utf_8_are_read_like_any_other(reading: Desk) -> None:
    folder = reading.papers / os.fsdecode(b"alt\xfc")
    folder.mkdir()
    made = digital(reading.papers / "yak.pdf", ["Their yak text."])
    file = aged(made.rename(folder / os.fsdecode(b"caf\xe9.pdf")))

    reading.run("add", folder, "--owner", "fred", "--wait", "--timeout", "60s")
    reading.run("add", folder, "--depth", 0, "--owner", "fred", "--wait", "--timeout", "60s")

    [document] = reading.answer("documents", "--owner", "fred")["items"]
    assert (document["name"], document["status"], document["source_key"]) == ("caf\u00e9.pdf", "success", file.as_uri())
    assert reading.texts(document["id"]) == ["Their yak text."]
    exported = reading.run("export", document["id"], "-o", folder.parent).stdout
    assert exported == f"{folder.parent}/caf\u00e9-{document['id']}.txt\n"
    reading.run("reindex", document["id"], "--force")
    wait_until(lambda: _generation_read(reading, document["id"]) == 2, "it is read again")
