from __future__ import annotations

import io
import json
import zipfile
from xml.etree import ElementTree

import httpx
import pytest

from tests.cli.stored_documents import Shelf
from tests.web.conftest import bearer, site_of
from worker_service.jobs.blocks import Role
from worker_service.settings.config import Settings

TEXT = "Risks\nWater is short in the south.\nYear\tEUR\n2024\t10\n7\n"


def layout() -> str:
    def line(y: float, *words: str) -> list[object]:
        return [[72 + 50 * at, y, 112 + 50 * at, y + 10, 96, word] for at, word in enumerate(words)]

    at = {begin: TEXT.index(begin) for begin in ("Risks", "Water", "Year", "7")}
    return json.dumps(
        {
            "size": [595, 842], "dpi": 200,
            "lines": [line(80, "Risks"), line(100, "Water", "is", "short"), line(120, "Year", "EUR"), line(800, "7")],
            "blocks": [
                [72, 80, 112, 90, at["Risks"], at["Water"], Role.HEADING, 2, 14, 1],
                [72, 100, 212, 110, at["Water"], at["Year"], Role.PARAGRAPH, 0, 10, 0],
                [72, 120, 172, 145, at["Year"], at["7"], Role.TABLE, 0, 10, 0],
                [72, 800, 112, 810, at["7"], len(TEXT), Role.PARAGRAPH, 0, 10, 0],
            ],
            "tables": [
                {
                    "box": [72, 120, 172, 145],
                    "begin": at["Year"],
                    "end": at["7"],
                    "rows": [[[72, 120, 90, 130, "Year"], [122, 120, 140, 130, "EUR"]],
                             [[72, 135, 90, 145, "2024"], [122, 135, 140, 145, "10"]]],
                }
            ],
        },
        separators=(",", ":"),
    )  # fmt: skip


@pytest.fixture
def document(shelf: Shelf) -> int:
    return shelf.read("Bericht ü.pdf", TEXT, owner="alice", layout=layout())


def test_markdown_is_sent_as_a_file(site: httpx.Client, document: int) -> None:
    answer = site.get(f"/api/documents/{document}/files/md")

    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert "filename*=utf-8''Bericht%20%C3%BC-1.md" in answer.headers["content-disposition"]
    assert answer.text == (
        "<!-- page 1 -->\n\n## Risks\n\nWater is short in the south.\n\n"
        "| Year | EUR |\n| --- | --- |\n| 2024 | 10 |\n\n"
    )


def test_a_passage_has_its_page_and_heading(site: httpx.Client, document: int) -> None:
    [line] = site.get(f"/api/documents/{document}/files/jsonl").text.splitlines()

    passage = json.loads(line)
    assert passage["text"] == "Water is short in the south.\n\n| Year | EUR |\n| --- | --- |\n| 2024 | 10 |"
    assert (passage["headings"], passage["pages"], passage["generation"]) == (["Risks"], [1], 1)
    assert passage["boxes"] == [[1, 72, 100, 212, 110], [1, 72, 120, 172, 145]]
    assert passage["tokens"] > 10


def test_docling_json_has_the_labels_and_cells_that_docling_core_reads(site: httpx.Client, document: int) -> None:
    docling = site.get(f"/api/documents/{document}/files/docling").json()

    assert (docling["schema_name"], docling["pages"]["1"]["size"]) == ("DoclingDocument", {"width": 595, "height": 842})
    assert [text["label"] for text in docling["texts"]] == ["section_header", "text", "page_footer"]
    assert [text["content_layer"] for text in docling["texts"]] == ["body", "body", "furniture"]
    assert docling["texts"][0]["prov"][0]["bbox"] == {"l": 72, "t": 80, "r": 112, "b": 90, "coord_origin": "TOPLEFT"}
    [table] = docling["tables"]
    assert (table["data"]["num_rows"], [cell["text"] for cell in table["data"]["table_cells"]]) == (
        2, ["Year", "EUR", "2024", "10"],
    )  # fmt: skip
    assert {element["$ref"] for element in docling["body"]["children"]} == {
        element["self_ref"] for element in [*docling["texts"], *docling["tables"]]
    }


def test_pawls_alto_and_hocr_have_a_box_for_each_word(site: httpx.Client, document: int) -> None:
    [page] = site.get(f"/api/documents/{document}/files/pawls").json()
    alto = ElementTree.fromstring(site.get(f"/api/documents/{document}/files/alto").content)

    hocr = ElementTree.fromstring(site.get(f"/api/documents/{document}/files/hocr").text.partition("\n")[2])

    assert page["page"] == {"width": 595, "height": 842, "index": 0}
    assert page["tokens"][0] == {"x": 72, "y": 80, "width": 40, "height": 10, "text": "Risks"}
    words = [element for element in alto.iter() if element.tag.endswith("}String")]
    assert [word.get("CONTENT") for word in words] == [word["text"] for word in page["tokens"]]
    assert (words[0].get("HPOS"), words[0].get("WIDTH")) == ("1200", "667")
    spans = [span for span in hocr.iter("span") if span.get("class") == "ocrx_word"]
    assert [span.text for span in spans] == [span["text"] for span in page["tokens"]]
    assert spans[0].get("title") == "bbox 200 222 311 250; x_wconf 96"


def test_a_zip_holds_the_documents_that_the_visitor_may_see(
    settings: Settings, site: httpx.Client, shelf: Shelf, document: int
) -> None:
    shelf.read("b.pdf", "water", owner="bob", content="c2")

    whole = zipfile.ZipFile(io.BytesIO(site.get("/api/exports/md").content))
    of_bob = zipfile.ZipFile(
        io.BytesIO(site.get("/api/exports/md", headers=bearer(settings, "bob", owner="bob")).content)
    )

    assert sorted(whole.namelist()) == ["Bericht ü-1.md", "b-2.md"]
    assert of_bob.read("b-2.md") == b"<!-- page 1 -->\n\nwater\n\n"
    assert of_bob.namelist() == ["b-2.md"]


def test_no_format_of_another_owners_document_is_sent(settings: Settings, document: int) -> None:
    with site_of(settings) as site:
        answer = site.get(f"/api/documents/{document}/files/md", headers=bearer(settings, "bob", owner="bob"))

    assert answer.json()["code"] == "document_not_found"
