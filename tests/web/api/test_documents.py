from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.stored_documents import Shelf
from tests.job_handlers.reading.documents import digital
from tests.kit.system import System, wait_until
from tests.store.kit import claim, work_as
from tests.web.conftest import bearer, served, settings_for, site_of
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import Status
from worker_service.services import database_maintenance
from worker_service.services.session import Session, open_session
from worker_service.settings.config import Settings
from worker_service.web import incoming_files


def test_a_document_is_listed_shown_read_and_removed(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.read("a.pdf", "climate risk", "water", roles=("text", "original"), owner="alice")

    [listed] = site.get("/api/documents", params={"owner": "alice", "status": "success"}).json()["items"]
    whole = site.get(f"/api/documents/{document_id}").json()
    text = site.get(f"/api/documents/{document_id}/text?pages=2").json()

    assert listed["name"] == "a.pdf"
    assert [page["number"] for page in whole["page_items"]] == [1, 2]
    assert [page["text"] for page in text["items"]] == ["water"]
    weight = site.delete(f"/api/documents/{document_id}?dry_run=true").json()
    assert (weight["documents"], weight["pages"]) == (1, 2)
    site.delete(f"/api/documents/{document_id}").raise_for_status()
    assert site.get(f"/api/documents/{document_id}").json()["code"] == "document_not_found"


def test_a_page_has_the_positions_of_its_words(site: httpx.Client, shelf: Shelf) -> None:
    layout = {"size": [595.3, 841.9], "lines": [[[72.1, 80.0, 101.5, 92.3, 96, "Annual"]]]}
    document_id = shelf.read("a.pdf", "Annual", layout=json.dumps(layout))

    page = site.get(f"/api/documents/{document_id}/pages/1").json()

    assert (page["text"], page["method"], page["layout"]) == ("Annual", "ocr", layout)
    assert site.get(f"/api/documents/{document_id}/pages/2").status_code == 404


def test_files_are_streamed_whole_and_in_ranges(site: httpx.Client, shelf: Shelf, session: Session) -> None:
    document_id = shelf.read("a.pdf", "0123456789", roles=("text",))
    at = f"/api/documents/{document_id}/files/txt"

    whole = site.get(at)
    part = site.get(at, headers={"Range": "bytes=2-4"})
    beyond = site.get(at, headers={"Range": "bytes=99-"})

    assert (whole.status_code, whole.text) == (200, "0123456789")
    assert 'attachment; filename="a-1.txt"' in whole.headers["content-disposition"]
    assert (part.status_code, part.text, part.headers["content-range"]) == (206, "234", "bytes 2-4/10")
    assert beyond.status_code == 416
    assert site.get(f"/api/documents/{document_id}/files/pdf").json()["code"] == "not_exported"
    assert site.get(f"/api/documents/{document_id}/files/exe").status_code == 400
    [job] = site.get("/api/jobs").json()["items"]
    [file] = site.get(f"/api/jobs/{job['id']}").json()["files"]
    assert site.get(f"/api/jobs/{job['id']}/files/{file['id']}").text == "0123456789"
    Path(file["path"]).unlink()
    assert site.get(at).status_code == 410


def test_a_row_that_names_a_file_outside_the_workspace_does_not_publish_it(
    site: httpx.Client, shelf: Shelf, session: Session
) -> None:
    document_id = shelf.read("a.pdf", "text", roles=("text",))
    file = session.settings.workspace / site.get(f"/api/documents/{document_id}").json()["files"][0]["path"]
    file.unlink()
    file.symlink_to("/etc/passwd")

    answer = site.get(f"/api/documents/{document_id}/files/txt")

    assert (answer.status_code, "root:" in answer.text) == (410, False)


def test_words_are_found_and_counted(site: httpx.Client, shelf: Shelf) -> None:
    shelf.read("a.pdf", "the climate risk", "nothing", content="c1", owner="alice")
    shelf.read("b.pdf", "no such word", content="c2", owner="bob")

    found = site.get("/api/search", params={"q": "climate"}).json()["items"]
    counted = site.get("/api/keywords", params={"term": ["climate", "word"]}).json()
    by_page = site.get("/api/keywords", params={"term": "climate", "by": "page"}).json()["items"]

    [document] = found
    assert (document["name"], document["best_pages"][0]["snippet"]) == ("a.pdf", "the [climate] risk")
    assert [row["counts"] for row in counted["items"]] == [{"climate": 1, "word": 0}, {"climate": 0, "word": 1}]
    assert [(row["name"], row["page"]) for row in by_page] == [("a.pdf", 1)]
    assert site.get("/api/search", params={"q": "climate", "owner": "bob"}).json()["items"] == []
    assert site.get("/api/search", params={"q": "*("}).status_code == 400
    assert site.get("/api/search").json()["detail"].startswith("the parameter q is missing")


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_keyword_counts_are_streamed_as_one_response(
    site: httpx.Client, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    for number, text in enumerate(("the climate", "nothing", "climate, climate")):
        shelf.read(f"{number}.pdf", text, content=f"c{number}")
    monkeypatch.setattr("worker_service.services.keyword_counts._DOCUMENTS_COUNTED_AT_ONCE", at_once)

    items = site.get("/api/keywords", params={"term": "climate"}).json()["items"]

    assert [(row["name"], row["counts"]["climate"]) for row in items] == [("0.pdf", 1), ("1.pdf", 0), ("2.pdf", 2)]


@pytest.mark.parametrize(
    ("path", "parameter"), [("/api/keywords", "term"), ("/keywords.csv", "terms"), ("/keywords.xlsx", "terms")]
)
def test_an_invalid_term_is_refused_before_the_response(site: httpx.Client, path: str, parameter: str) -> None:
    assert site.get(path, params={parameter: "..."}).status_code == 400
    assert site.get(path, params={parameter: "word", "batch": "7"}).status_code == 404


def test_a_document_is_read_again_in_another_language(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.read("a.pdf", "text", roles=("original",))
    at = f"/api/documents/{document_id}/reindex"

    as_it_was = site.post(at).json()
    other = site.post(at, json={"read": {"lang": ["deu"]}})

    assert (as_it_was["id"], as_it_was["decision"]) == (None, "unchanged")
    assert (other.status_code, other.json()["decision"]) == (202, "accepted")
    assert site.post(at, json={"read": {"lang": ["deu"]}}).json()["decision"] == "under way"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lang": ["../../etc"]}, "is not a language"),
        ({"quality": ["great"]}, "quality cannot be 'great': choose fast, auto, best"),
        ({"colour": ["red"]}, "there is no option 'colour': there are as-usual, lang, quality"),
        ({"password-file": ["drive"]}, "is not the name of a credential that begins with password"),
        ({"then": ["no_json={"]}, "is not an action"),
    ],
)
def test_invalid_reading_options_are_refused(
    site: httpx.Client, shelf: Shelf, options: dict[str, list[str]], why: str
) -> None:
    document_id = shelf.read("a.pdf", "text", roles=("original",))

    answer = site.post(f"/api/documents/{document_id}/reindex", json={"read": options})

    assert (answer.status_code, shelf.store.library.document(document_id).index_generation) == (400, 1)
    assert why in f"{answer.json()['detail']}: {answer.json()['remedy']}"


# ── Uploads ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_uploaded_file_becomes_one_job(site: httpx.Client, settings: Settings) -> None:
    def send() -> Any:
        files = {"file": ("../../Jahres bericht.pdf", b"%PDF-1.4 " + os.urandom(0) + b"x" * 300_000)}
        return site.post("/api/uploads", files=files, data={"owner": "alice", "lang": "deu"})

    answer, again = send(), send()

    assert answer.status_code == 201
    [item] = answer.json()["items"]
    job = site.get(f"/api/jobs/{item['id']}").json()
    assert (job["job_type"], job["owner"], job["payload"]["read"]) == ("download", "alice", {"languages": ["deu"]})
    source = Path(job["payload"]["source"])
    assert source.is_relative_to(incoming_files.incoming_directory(settings.workspace))
    assert source.stat().st_size == 300_009
    assert [(repeated["id"], repeated["existing"]) for repeated in again.json()["items"]] == [(item["id"], True)]
    assert len(list(incoming_files.incoming_directory(settings.workspace).rglob("*.pdf"))) == 1


def test_an_empty_file_is_reported_and_the_others_are_accepted(site: httpx.Client) -> None:
    names = {"a.pdf": b"%PDF-1.4", "empty.pdf": b"", "c.csv": b"1"}

    answer = site.post("/api/uploads", files=[("file", (name, content)) for name, content in names.items()])

    assert answer.status_code == 201
    assert [item["name"] for item in answer.json()["items"]] == ["a.pdf", "c.csv"]
    assert answer.json()["refused"] == [
        {"name": "empty.pdf", "code": "empty_file", "detail": "'empty.pdf' is empty"},
    ]
    assert len(site.get("/api/jobs").json()["items"]) == 2
    assert "<bdi>empty.pdf</bdi> is empty and was not uploaded." in site.get("/upload?empty=empty.pdf").text


def test_an_upload_of_several_files_is_a_batch_that_replaces_the_older_one(
    site: httpx.Client, session: Session
) -> None:
    def send(*names: str) -> dict[str, Any]:
        files = [("file", (name, b"%PDF" + name.encode())) for name in names]
        answer: dict[str, Any] = site.post("/api/uploads", files=files, data={"owner": "alice"}).json()
        return answer

    first, same, second, alone = send("a.pdf", "b.pdf"), send("a.pdf", "b.pdf"), send("c.pdf", "d.pdf"), send("e.pdf")

    assert (first["batch"], same["batch"], second["batch"], alone["batch"]) == (1, None, 2, None)
    assert [item["id"] for item in same["items"]] == [item["id"] for item in first["items"]]
    assert [session.store.job_queries.get(item["id"]).batch_id for item in second["items"]] == [2, 2]
    assert session.store.batches.get(1).replaced_by == 2
    page = site.get("/upload", params={"batch": 2, "job": second["items"][0]["id"]}).text
    assert 'It replaces <a href="/batches/1">batch 1 (a.pdf and 1 more)</a>, which resumes' in page


@pytest.mark.parametrize(
    ("sent", "status", "why"),
    [
        ({"content": b"%PDF", "headers": {"Content-Type": "application/pdf"}}, 415, "the upload must be a form"),
        ({"files": {"file": ("a.pdf", b"")}}, 400, "'a.pdf' is empty"),
        ({"data": {"owner": "a"}, "files": {"": ("", b"")}}, 400, "the upload contains no file"),
        ({"data": {"owner": "a\0"}, "files": {"file": ("a.pdf", b"%PDF")}}, 400, "'owner' holds a NUL byte"),
        ({"files": {"file": ("a.pdf", b"%PDF")}, "data": {"lang": "../x"}}, 400, "is not a language"),
        ({"files": {"file": ("a.pdf", b"%PDF")}, "data": {"colour": "red"}}, 400, "there is no option 'colour'"),
        ({"files": {"file": ("a.pdf", b"%PDF")}, "data": {"force": "maybe"}}, 400, "force must be true or false"),
        (
            {
                "content": b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n%PDF',
                "headers": {"Content-Type": "multipart/form-data; boundary=b"},
            },
            400,
            "it is incomplete",
        ),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400, "cannot be read"),
    ],
)
def test_a_refused_upload_leaves_no_file(
    site: httpx.Client, settings: Settings, sent: dict[str, Any], status: int, why: str
) -> None:
    answer = site.post("/api/uploads", **sent)

    assert answer.status_code == status
    assert why in answer.json()["detail"]
    assert site.get("/api/jobs").json()["items"] == []
    directory = incoming_files.incoming_directory(settings.workspace)
    assert not directory.exists() or [path for path in directory.iterdir() if path.name.startswith(".")] == []


def test_an_interrupted_upload_leaves_no_file(settings: Settings) -> None:
    directory = incoming_files.incoming_directory(settings.workspace)
    with served(settings) as address:
        sender = http.client.HTTPConnection(address.removeprefix("http://"))
        sender.putrequest("POST", "/api/uploads")
        sender.putheader("Authorization", bearer(settings)["Authorization"])
        sender.putheader("Content-Type", "multipart/form-data; boundary=b")
        sender.putheader("Content-Length", "1000000")
        sender.endheaders()
        sender.send(b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n%PDF')
        wait_until(lambda: directory.exists() and len(list(directory.iterdir())) == 1, "the file is created")

        sender.close()

        wait_until(lambda: not list(directory.iterdir()), "the file is removed")


def test_a_file_beyond_the_limit_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "pagemill.db", upload_bytes_max="1000000")
    database_maintenance.initialise(settings)

    def endless() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n'
        for _ in range(200):
            yield b"x" * 65_536

    with site_of(settings) as site:
        answer = site.post(
            "/api/uploads",
            content=endless(),
            headers={"Content-Type": "multipart/form-data; boundary=b"},
        )

    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert list(incoming_files.incoming_directory(settings.workspace).iterdir()) == []


def test_a_large_file_goes_to_the_disk_and_not_into_memory(settings: Settings) -> None:
    digest = hashlib.sha256()
    piece = os.urandom(1 << 20)

    def large() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="large.pdf"\r\n\r\n'
        for _ in range(80):
            digest.update(piece)
            yield piece
        yield b"\r\n--b--\r\n"

    with site_of(settings) as site:
        site.get("/api/jobs")
        before = _resident_bytes()
        answer = site.post("/api/uploads", content=large(), headers={"Content-Type": "multipart/form-data; boundary=b"})
        grown = _resident_bytes() - before

    assert answer.status_code == 201
    [file] = incoming_files.incoming_directory(settings.workspace).rglob("*.pdf")
    with file.open("rb") as opened:
        assert hashlib.file_digest(opened, "sha256").digest() == digest.digest()
    assert grown < 40_000_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_upload_is_removed_once_its_document_is_published(tmp_path: Path) -> None:
    content = digital(tmp_path / "made.pdf", ["climate risk of the year"]).read_bytes()
    system = System(tmp_path, shipped=None)
    try:
        system.start()
        settings = settings_for(system.database)
        with site_of(settings) as site:
            [made_job] = site.post("/api/uploads", files={"file": ("a.pdf", content)}).json()["items"]
            system.wait_for(made_job["id"], Status.COMPLETED)
            wait_until(lambda: site.get("/api/documents?status=success").json()["items"], "it is read")
            assert site.get("/api/search?q=climate").json()["items"][0]["name"] == "a.pdf"

        session = open_session(settings, actor="test")
        assert incoming_files.sweep(session) == 0
        assert incoming_files.sweep(session, now=time.time() + 7_200) == 1
        assert list(incoming_files.incoming_directory(settings.workspace).rglob("*.pdf")) == []
        session.close()
    finally:
        system.close()


def test_a_failed_upload_is_removed_after_a_day(settings: Settings, session: Session) -> None:
    with site_of(settings) as site:
        answer = site.post("/api/uploads", files={"file": ("a.pdf", b"%PDF-1.4 broken")}).json()
    work_as(session.store)
    session.store.leases.fail(claim(session.store).lease, Failure("GONE", ""), retry_at=None)
    assert session.store.job_queries.get(answer["items"][0]["id"]).status is Status.FAILED

    assert incoming_files.sweep(session, now=time.time() + 82_800) == 0
    assert incoming_files.sweep(session, now=time.time() + 90_000) == 1
