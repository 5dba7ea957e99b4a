from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.job_handlers.reading.documents import digital
from tests.kit.system import System
from tests.web.conftest import bearer, connected, served, settings_for
from worker_service.jobs.library import DocumentSelector
from worker_service.settings.config import Settings
from worker_service.web import middleware

PAGES = ["climate risk of the year", "water in the cellar"]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("system"), shipped=None)
    system.start()
    yield system
    system.close()


@pytest.fixture
def settings(system: System) -> Settings:
    return settings_for(system.database, web_endpoints="openwebui,docling,tika,opencontracts")


@pytest.fixture
def report(tmp_path: Path) -> bytes:
    return digital(tmp_path / "made.pdf", PAGES).read_bytes()


@pytest.fixture
def token(settings: Settings) -> str:
    return bearer(settings, owner="ann")["Authorization"].removeprefix("Bearer ")


@pytest.fixture
def address(settings: Settings) -> Iterator[str]:
    with served(settings) as address:
        yield address


def convert_by_docling(address: str, token: str, name: str, content: bytes, **fields: object) -> Any:
    form: Mapping[str, Any] = {"to_formats": ["md", "json"], "image_export_mode": "placeholder", **fields}
    headers = {"X-Api-Key": token}
    files = {"files": (name, content, "application/pdf")}
    answer = httpx.post(f"{address}/v1/convert/file", files=files, data=form, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_open_webui_s_document_loader_gets_the_pages(address: str, token: str, report: bytes, system: System) -> None:
    headers = {
        "Content-Type": "application/pdf",
        "Authorization": f"Bearer {token}",
        "X-Filename": "Bericht%20M%C3%A4rz.pdf",
    }

    answer = httpx.put(f"{address}/process", content=report, headers=headers, timeout=60).json()

    assert [page["page_content"].strip() for page in answer] == PAGES
    assert [page["metadata"]["page"] for page in answer] == [0, 1]
    document = system.store.library.document(answer[0]["metadata"]["document_id"])
    assert (document.name, document.owner) == ("Bericht März.pdf", "ann")


def test_a_docling_client_gets_markdown_with_the_page_break_it_asked_for(
    address: str, token: str, report: bytes
) -> None:
    answer = convert_by_docling(address, token, "docling.pdf", report, md_page_break_placeholder="\f")

    assert (answer["status"], answer["errors"]) == ("success", [])
    assert answer["document"]["json_content"]["schema_name"] == "DoclingDocument"
    assert [page.strip() for page in answer["document"]["md_content"].split("\f")] == PAGES


def test_a_tika_client_signs_in_with_the_password_of_its_url(address: str, token: str, report: bytes) -> None:
    with_token = address.replace("http://", f"http://pagemill:{token}@")

    text = httpx.put(f"{with_token}/tika/text", content=report, timeout=60).json()
    markdown = httpx.put(f"{with_token}/tika/json/md", content=report, timeout=60).json()

    assert all(page_text in text["X-TIKA:content"] and page_text in markdown["tk:content"] for page_text in PAGES)


def test_opencontracts_gets_words_with_boxes_and_the_parts_of_each_page(
    address: str, token: str, report: bytes
) -> None:
    body = {"filename": "parsed.pdf", "pdf_base64": base64.b64encode(report).decode(), "roll_up_groups": True}
    headers = {"X-Api-Key": token}

    answer = httpx.post(f"{address}/parse/", json=body, headers=headers, timeout=60).json()
    refused = httpx.post(f"{address}/parse/", json={"filename": "parsed.pdf"}, headers=headers)

    assert answer["pageCount"] == 2
    pages = answer["pawlsFileContent"]
    assert [page["page"]["index"] for page in pages] == [0, 1]
    assert [" ".join(token["text"] for token in page["tokens"]) for page in pages] == PAGES
    for annotation in answer["labelledText"]:
        [on_page] = annotation["annotation_json"].values()
        tokens = [pages[ref["pageIndex"]]["tokens"][ref["tokenIndex"]] for ref in on_page["tokensJsons"]]
        words = [token["text"] for token in tokens]
        assert " ".join(words) == annotation["rawText"]
    assert {annotation["page"] for annotation in answer["labelledText"]} == {0, 1}
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_input")


def test_a_file_that_was_read_is_answered_without_being_read_again(
    address: str, token: str, report: bytes, system: System
) -> None:
    convert_by_docling(address, token, "twice.pdf", report)
    [document] = system.store.library.documents(DocumentSelector(name="twice.pdf"))

    convert_by_docling(address, token, "twice.pdf", report)

    assert system.store.library.document(document.id).index_generation == document.index_generation


def test_a_known_file_is_read_again_if_the_options_differ(
    address: str, token: str, report: bytes, system: System
) -> None:
    convert_by_docling(address, token, "again.pdf", report)
    [before] = system.store.library.documents(DocumentSelector(name="again.pdf"))

    convert_by_docling(address, token, "again.pdf", report, force_ocr="true")

    after = system.store.library.document(before.id)
    assert (after.current_generation, after.status) == (before.index_generation + 1, "success")


def test_a_file_that_cannot_be_read_says_why(address: str, token: str) -> None:
    docling = convert_by_docling(address, token, "broken.pdf", b"%PDF-1.4 broken")
    headers = {"Authorization": f"Bearer {token}", "X-Filename": "broken.pdf"}
    other = httpx.put(f"{address}/process", content=b"%PDF-1.4 broken", headers=headers, timeout=60)
    empty = httpx.put(f"{address}/process", content=b"", headers=headers)

    assert (docling["status"], docling["document"].get("md_content")) == ("failure", None)
    assert docling["errors"][0]["error_message"]
    assert (other.status_code, other.json()["code"]) == (422, "PDF_BROKEN")
    assert (empty.status_code, empty.json()["code"]) == (400, "bad_input")


def test_converters_need_a_token_and_only_they_accept_other_headers(
    address: str, token: str, settings: Settings
) -> None:
    reader = bearer(settings)
    assert httpx.put(f"{address}/tika/text", content=b"x").status_code == 401
    assert httpx.put(f"{address}/tika/text", content=b"x", auth=("pagemill", "wrong")).status_code == 401
    assert httpx.get(f"{address}/api/jobs", auth=("pagemill", token)).status_code == 401
    assert httpx.get(f"{address}/api/jobs", headers={"X-Api-Key": token}).status_code == 401
    assert httpx.get(f"{address}/api/jobs", headers=reader).status_code == 200


def test_converters_are_off_by_default(system: System) -> None:
    settings = settings_for(system.database)
    with served(settings) as address:
        assert httpx.put(f"{address}/process", content=b"x", headers=bearer(settings)).status_code == 404


def test_a_slow_opencontracts_client_gives_its_slot_back(
    address: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(middleware, "LEFT_OVER_SECONDS", 0.1)

    head = f"POST /parse/ HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {token}\r\nContent-Length: 99\r\n\r\n{{"
    with connected(address) as line:
        line.sendall(head.encode())
        answer = line.recv(65536)

    assert answer.startswith(b"HTTP/1.1 408 ")
