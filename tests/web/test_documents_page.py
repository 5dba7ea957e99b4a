from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from html import unescape
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from python_calamine import CalamineWorkbook

from tests.cli.stored_documents import Shelf
from tests.job_handlers.reading.documents import bomb, digital
from tests.web.conftest import PAGE, bearer, bearing
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.documents import DocumentFacts, DocumentRequest, PageResult
from worker_service.jobs.job import NewJob
from worker_service.services import batches, tokens
from worker_service.services.session import Session
from worker_service.settings.config import Settings


def add_recognised(shelf: Shelf, name: str, words_with_confidence: list[tuple[float, str]]) -> int:
    line = [
        [10.0 * number, 20.0, 10.0 * number + 8, 30.0, confidence, word]
        for number, (confidence, word) in enumerate(words_with_confidence)
    ]
    layout = json.dumps({"size": [200.0, 100.0], "lines": [line]})
    text = " ".join(word for _, word in words_with_confidence)
    return shelf.read(name, text, roles=("original",), layout=layout, confidence=80.0)


def test_a_locked_pdf_is_opened_with_its_password(site: httpx.Client, settings: Settings, shelf: Shelf) -> None:
    document_id = shelf.read("locked.pdf", "words", owner="ann", roles=("original",))
    original = shelf.workspace / shelf.store.library.files(document_id)[0].path
    digital(original, ["words"], encryption=5, user_pw="sesame", owner_pw="y")
    shelf.store.database.writer.execute("UPDATE document SET is_locked = 1")
    address, bob = f"/documents/{document_id}/password", bearer(settings, "bob", owner="bob")

    wrong = site.post(address, data={"password": "Sesame", "remember": "1"}, headers=PAGE)
    assert list((shelf.workspace / "passwords").iterdir()) == []
    right = site.post(address, data={"password": "sesame", "remember": "1"}, headers=PAGE)
    assert site.post(address, data={"password": "open"}, headers=PAGE).status_code == 422
    shown = site.get(f"/documents/{document_id}/pages/1/image")
    refused = [site.post(path, data={"password": "x"}, headers=bob) for path in (address, f"{address}/forget")]
    forgotten = site.delete(f"/api{address}")

    assert (wrong.status_code, "This password does not open the PDF" in wrong.text) == (422, True)
    assert (right.status_code, right.headers["location"]) == (303, f"/documents/{document_id}?message=unlocked")
    assert (shown.status_code, shown.content[:4]) == (200, b"RIFF")
    assert [answer.status_code for answer in refused] == [404, 404]
    assert (forgotten.status_code, list((shelf.workspace / "passwords").iterdir())) == (200, [])
    assert "its password was not kept" in site.get(f"/documents/{document_id}", headers=PAGE).text
    assert site.put(f"/api{address}", json={"password": "Sesame"}).json()["code"] == "wrong_password"


def test_a_search_result_shows_the_sentence_with_the_match(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.read("report.pdf", "nothing here", "the climate\nchanges and with it the risks")

    results = site.get("/search?q=the+climate", headers=PAGE).text

    assert f'href="/documents/{document_id}?page=2&amp;q=the+climate"' in results
    assert "<mark>the</mark> <mark>climate</mark> changes" in results.replace("\n", " ")
    assert "1 page in 1 document" in results
    assert "No matches" in site.get("/search?q=zebra", headers=PAGE).text


def test_the_markdown_of_a_page_is_shown_as_text(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.read("report.pdf", "# not a heading\n\n<b>water</b> of-\nten")

    page = site.get(f"/documents/{document_id}?tab=markdown", headers=PAGE).text

    assert "\\# not a heading\n\n\\&lt;b&gt;water\\&lt;/b&gt; often" in page
    assert f"/api/documents/{document_id}/files/md" in page


def test_tables_of_a_page_are_shown_and_go_into_a_workbook(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.with_tables("report.pdf", [["Revenue", "<b>1,204</b>"], ["Costs", "7"]])

    page = site.get(f"/documents/{document_id}?tab=tables", headers=PAGE).text
    csv = site.get(f"/documents/{document_id}/pages/1/tables/1.csv")
    book = site.get(f"/documents/{document_id}/tables.xlsx")
    tables = site.get(f"/api/documents/{document_id}/tables").json()

    assert "Tables <small>1</small>" in page
    assert csv.text.splitlines() == ['Revenue,"<b>1,204</b>"', "Costs,7"]
    assert site.get(f"/documents/{document_id}/pages/1/tables/2.csv").status_code == 404
    assert "<td>&lt;b&gt;1,204&lt;/b&gt;</td>" in page
    assert book.content.startswith(b"PK")
    assert tables["items"][0]["rows"] == [["Revenue", "<b>1,204</b>"], ["Costs", "7"]]


def test_a_waiting_document_shows_its_gate_and_a_read_one_its_duration(site: httpx.Client, shelf: Shelf) -> None:
    read = shelf.read("first.pdf", "words")
    for name in ("second.pdf", "third.pdf"):
        shelf.ask(name)

    assert "1 job is ahead of it" in site.get(f"/documents/{read + 2}", headers=PAGE).text
    assert re.search(r"Reading 1 \(shown\).* · took \d+ s<", site.get(f"/documents/{read}", headers=PAGE).text)


def test_a_worksheet_is_a_table_over_all_of_its_pages(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.with_sheet("costs.xlsx", [["year", "cost"], [2025, 1.5]], [["2026", None, "x"]])

    page = site.get(f"/documents/{document_id}?tab=tables", headers=PAGE).text
    csv = site.get(f"/documents/{document_id}/pages/2/tables/1.csv")
    book = BytesIO(site.get(f"/documents/{document_id}/tables.xlsx").content)

    assert "Tables <small>1</small>" in page
    assert csv.text.splitlines() == ["year,cost", "2025,1.5", "2026,,x"]
    rows = CalamineWorkbook.from_filelike(book).get_sheet_by_index(0).to_python()
    assert rows == [["year", "cost", ""], [2025, 1.5, ""], [2026, "", "x"]]


@pytest.mark.parametrize("query", ["'", '"', "((", "NEAR(", "*", "<script>", "a AND", "%"])
def test_no_search_text_is_an_error(site: httpx.Client, shelf: Shelf, query: str) -> None:
    shelf.read("report.pdf", "words")

    assert site.get("/search", params={"q": query}, headers=PAGE).status_code == 200


def test_the_next_page_of_the_list_begins_after_the_last_document(site: httpx.Client, shelf: Shelf) -> None:
    for number in range(53):
        shelf.read(f"report-{number}.pdf", f"words {number}")

    first = site.get("/documents", headers=PAGE).text
    [older] = re.findall(r'href="(/documents\?before=\d+)"', first)
    second = site.get(older, headers=PAGE).text

    assert ("report-52.pdf" in first, "report-2.pdf" in first) == (True, False)
    assert ("report-52.pdf" in second, "report-2.pdf" in second) == (False, True)


def test_matches_and_doubtful_words_are_marked_on_the_image_and_in_the_text(site: httpx.Client, shelf: Shelf) -> None:
    document_id = add_recognised(shelf, "scan.pdf", [(95, "climate"), (75, "and"), (40, "risc")])

    page = site.get(f"/documents/{document_id}?q=climate", headers=PAGE).text

    assert 'viewBox="0 0 200.0 100.0"' in page
    assert '<rect class="hit here" x="0.0" y="20.0" width="8.0" height="10.0"/>' in page
    assert '<path class="weak" d="M20.0 30.0h8.0"/>' in page
    assert re.findall(r'<(?:rect|path) class="([^"]*)"', page) == ["hit here", "frame", "weak"]
    assert '<mark class="here" id="here">climate</mark> and <span class="doubt">risc</span>' in page
    assert "80 % confidence" in page


def test_text_is_reflowed_and_divided_words_are_joined_and_marked(site: httpx.Client, shelf: Shelf) -> None:
    text = "A cli-\nmate policy of the\nAnglo-\nSaxon board.\n\nAnd climate again.\n"
    document_id = shelf.read("report.pdf", text)

    page = site.get(f"/documents/{document_id}?q=climate&match=-1", headers=PAGE).text

    assert "<p>A <mark>climate</mark> policy of the Anglo-Saxon board.</p>" in page
    assert '<p>And <mark class="here" id="here">climate</mark> again.</p>' in page


def test_each_control_of_the_view_is_a_link_that_keeps_the_others(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.read("report.pdf", "climate, climate", "none", "climate", roles=("original",))
    at = f"/documents/{document_id}"

    page = unescape(site.get(f"{at}?q=climate&page=1&match=2&zoom=150&turn=90&tab=tables", headers=PAGE).text)

    assert "<b>2</b> of 3<" in page
    assert 'transform="translate(842 0) rotate(90)"' in page
    for changed in ("page=2", "page=1&match=1", "page=3&match=1", "page=1&match=2&turn=180"):
        address = re.escape(at) + r"\?(?=[^\"]*q=climate)(?=[^\"]*zoom=150)(?=[^\"]*tab=tables)"
        wanted = "".join(rf'(?=[^"]*{parameter}(?:[&#"]))' for parameter in changed.split("&"))
        assert re.search(f'href="{address}{wanted}', page), changed
    last = unescape(site.get(f"{at}?q=climate&page=1&match=-1", headers=PAGE).text)
    assert "<b>2</b> of 3<" in last


def test_tags_are_changed_on_the_page_of_the_document(site: httpx.Client, shelf: Shelf, session: Session) -> None:
    document_id = shelf.read("report.pdf", "words")

    site.post(f"/documents/{document_id}/tags", data={"tags": "invoice, paid"})
    site.post(f"/documents/{document_id}/tags", data={"tags": "paid, 2026"})

    assert sorted(session.library.document(document_id).tags) == ["2026", "paid"]


def test_hits_in_a_pages_own_text_are_marked_word_by_word(site: httpx.Client, shelf: Shelf) -> None:
    layout = json.dumps({"size": [595.0, 842.0], "blocks": [[60, 60, 500, 90, 0, 30]]})
    document_id = shelf.read("own.pdf", "the climate of the board\n", roles=("original",), layout=layout)
    [file] = shelf.store.library.files(document_id)
    digital(shelf.workspace / file.path, ["the climate of the board"])

    image = site.get(f"/documents/{document_id}/pages/1/image?width=600")
    shown = site.get(f"/documents/{document_id}?q=climate", headers=PAGE).text

    [(x, width)] = re.findall(r'<rect class="hit here" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', shown)
    assert 60 < float(x) < 100
    assert 20 < float(width) < 60
    assert (image.headers["content-type"], image.content[:4]) == ("image/webp", b"RIFF")
    again = site.get(
        f"/documents/{document_id}/pages/1/image?width=600", headers={"If-None-Match": image.headers["etag"]}
    )
    assert again.status_code == 304
    assert site.get(f"/api/documents/{document_id}/pages/1/image?width=600").content == image.content
    assert site.get(f"/api/documents/{document_id}/pages/7/image").status_code == 404


def test_pages_can_be_turned_and_pages_with_matches_are_marked(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.read("report.pdf", "one", "the climate", "three", "a climate")

    page = site.get(f"/documents/{document_id}?page=3&q=climate", headers=PAGE).text

    assert re.search(r'href="[^"]*page=2&amp;match=-1#here" aria-label="Previous match"', page)
    assert re.search(r'href="[^"]*page=4&amp;match=1#here" aria-label="Next match"', page)
    assert page.count("has matches") == 2
    assert "none here, 2 on 2 pages" in page
    # Without a page number, the first page with a match is shown.
    assert "Page 2:" in site.get(f"/documents/{document_id}?q=climate", headers=PAGE).text
    assert 'value="4"' in site.get(f"/documents/{document_id}?page=99", headers=PAGE).text
    assert site.get(f"/documents/{document_id}?page=-1", headers=PAGE).status_code == 400


def test_a_spreadsheet_is_shown_in_rows_with_its_matches(site: httpx.Client, shelf: Shelf) -> None:
    job = shelf.wish("sheet.csv")
    layout = json.dumps({"sheet": "Data", "first": 11, "values": [["year", "scope 1"], [2012, None, True]]})
    page = PageResult(1, "sheet", "year\tscope 1\n2012\t\tTRUE", "rows", None, layout)
    shelf.store.attempts.save_pages([(job.lease, page)])
    shelf.store.leases.complete_many([Completion(job.lease, document=DocumentFacts("sheet", 1), publishes=True)])

    shown = site.get(f"/documents/{job.document_id}?q=2012", headers=PAGE).text

    assert '<td class="num"><mark class="here" id="here">2012</mark></td>' in shown
    assert ">12</th>" in shown
    assert "<img" not in shown


def test_files_of_a_document_are_downloads_and_never_pages_of_this_site(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.read("page.html", "words", roles=("original", "text"))
    shown = site.get(f"/documents/{document_id}", headers=PAGE).text
    links = re.findall(rf'href="(/documents/{document_id}/files/\d+)"', shown)

    answers = [site.get(link) for link in links]

    assert len(links) == 2
    assert {answer.headers["content-type"] for answer in answers} == {"application/octet-stream"}
    assert all(answer.headers["content-disposition"].startswith("attachment") for answer in answers)
    for path in (Path(shelf.workspace) / "objects").rglob("*"):
        if path.is_file():
            path.unlink()
    assert site.get(links[0]).status_code == 410
    assert site.get(f"/documents/{document_id}/files/999").status_code == 404


def test_a_document_is_read_again_in_another_language_by_a_plain_form(
    site: httpx.Client, shelf: Shelf, session: Session
) -> None:
    document_id = shelf.read("report.pdf", "words", roles=("original",))
    address = f"/documents/{document_id}/reindex"

    form = site.get(f"{address}?quality=best", headers=PAGE).text
    again = site.post(address, data={"lang": "deu", "quality": ""}, headers=PAGE, follow_redirects=True)

    document = session.store.library.document(document_id)
    assert '<option value="best" selected>' in form
    assert "comes from the file itself" not in form
    assert "The document will be read again" in again.text
    assert (document.index_generation, json.loads(document.settings)["languages"]) == (2, ["deu"])
    refused = site.post(address, data={"lang": "../x"}, headers=PAGE)
    assert refused.status_code == 400
    assert "is not a language" in unescape(refused.text)


def test_reading_again_says_when_nothing_would_be_recognised(site: httpx.Client, shelf: Shelf) -> None:
    address = f"/documents/{shelf.with_tables('report.pdf', [['Revenue', '7']])}/reindex"

    form = site.get(address, headers=PAGE).text

    assert "All text of this document comes from the file itself" in form


def test_removing_a_document_needs_a_confirmation(site: httpx.Client, shelf: Shelf, session: Session) -> None:
    document_id = shelf.read("report.pdf", "words", roles=("original",))

    confirmation = site.get(f"/documents/{document_id}/remove", headers=PAGE)
    assert "1 page and 1 file" in confirmation.text
    assert session.store.library.document(document_id).id == document_id

    gone = site.post(f"/documents/{document_id}/remove", headers=PAGE, follow_redirects=True)
    assert "Document removed" in gone.text
    assert site.get(f"/documents/{document_id}", headers=PAGE).status_code == 404


def test_a_failed_document_says_why_and_shows_its_previous_text(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.read("report.pdf", "the words of before")
    job = shelf.wish("report.pdf", content="c2")
    shelf.store.leases.fail(job.lease, Failure("UNREADABLE", "it is broken"), retry_at=None)

    page = site.get(f"/documents/{document_id}", headers=PAGE).text

    assert "This file cannot be read where it is stored." in page
    assert "It is broken <code" in page
    assert "the words of before" in page
    assert "Reading 2" in page
    assert "Reading 1 (shown)" in page


def test_only_the_documents_of_a_batch_are_listed_and_searched(
    site: httpx.Client, shelf: Shelf, session: Session
) -> None:
    shelf.read("other.pdf", "a word of others")
    download = NewJob("download", platform="local", source_key="/srv/mine.pdf")
    batch_id = batches.add_batch(session, [download], batches.BatchRequest()).batch.id
    shelf.brought_in(DocumentRequest("/srv/mine.pdf", "mine.pdf", "c7"))
    job = shelf.next_job()
    shelf.publish(job, "mine.pdf", "a word of mine")

    listed = site.get(f"/documents?batch={batch_id}", headers=PAGE).text
    results = site.get(f"/search?batch={batch_id}&q=word", headers=PAGE).text

    for shown in (listed, results):
        assert ("mine.pdf" in shown, "other.pdf" in shown) == (True, False)
    assert f"pagemill search word --batch {batch_id}" in results
    assert site.get("/documents?batch=no", headers=PAGE).status_code == 400
    assert site.get("/documents?batch=99", headers=PAGE).status_code == 404


# ── Uploads ──


def test_an_upload_by_a_plain_form_leads_to_its_progress(site: httpx.Client, shelf: Shelf, session: Session) -> None:
    sent = site.post("/upload", files={"file": ("a report.pdf", b"%PDF-1.7")}, data={"owner": "alice", "lang": "deu"})
    [job_id] = re.fullmatch(r"/upload\?job=(\d+)", sent.headers["location"]).groups()  # type: ignore[union-attr]
    page = site.get(sent.headers["location"], headers=PAGE).text

    job = session.store.job_queries.get(int(job_id))
    assert sent.status_code == 303
    assert (job.owner, job.name, json.loads(job.payload or "")["read"]) == (
        "alice",
        "a report.pdf",
        {"languages": ["deu"]},
    )
    assert "a report.pdf" in page
    assert "adding" in page
    # Without scripts, the page reloads itself.
    assert '<noscript><meta http-equiv="refresh"' in page

    assert job.source_key is not None
    shelf.brought_in(DocumentRequest(job.source_key, "a report.pdf", "c1"))
    assert "Waiting" in site.get(sent.headers["location"], headers=PAGE).text
    shelf.publish(shelf.next_job(), "a report.pdf", "words")
    over = site.get(sent.headers["location"], headers=PAGE).text
    assert '<span class="state ok">Read ' in over
    assert "http-equiv" not in over


def test_uploads_of_another_owner_are_not_shown(site: httpx.Client, shelf: Shelf, session: Session) -> None:
    sent = site.post("/upload", files={"file": ("bobs.pdf", b"%PDF-1.7")}, data={"owner": "bob"})
    alice = tokens.create_token(session, "alice", owner="alice").text

    answer = site.get(sent.headers["location"], headers=PAGE | bearing(alice))

    assert answer.status_code == 404
    assert "bobs.pdf" not in answer.text


def test_a_page_that_takes_long_to_draw_does_not_block_other_requests(site: httpx.Client, shelf: Shelf) -> None:
    document_id = shelf.read("bomb.pdf", "one", "two", roles=("original",))
    [file] = shelf.store.library.files(document_id)
    bomb(shelf.workspace / file.path)
    address = f"/documents/{document_id}/pages/2/image"

    with ThreadPoolExecutor(12) as threads:
        for _ in range(12):
            threads.submit(_give_up_soon, str(site.base_url.join(address)))
        began = time.monotonic()
        answers = [site.get("/search?q=one", headers=PAGE).status_code for _ in range(5)]

    assert answers == [200] * 5
    # Waiting for a rendering would take up to half a minute.
    assert time.monotonic() - began < 15


def _give_up_soon(address: str) -> None:
    with suppress(httpx.TimeoutException):
        httpx.get(address, timeout=1)


def test_a_paragraph_is_never_marked_as_a_hit(site: httpx.Client, shelf: Shelf) -> None:
    layout = json.dumps({"size": [595.0, 842.0], "blocks": [[60, 60, 500, 90, 0, 30]]})
    # Its original is no PDF: the page cannot be drawn.
    document_id = shelf.read("report.pdf", "the climate changes the risks", roles=("original",), layout=layout)

    shown = site.get(f"/documents/{document_id}?q=climate", headers=PAGE).text

    assert '<mark class="here" id="here">climate</mark>' in shown
    assert '<rect class="hit' not in shown
    assert "Matches are marked in the text only" in shown


def test_a_page_says_why_its_text_is_doubtful(site: httpx.Client, shelf: Shelf) -> None:
    unread = {"script": "Arabic", "language": "ara", "install": "apt-get install tesseract-ocr-ara"}
    layout = json.dumps({"size": [595.0, 842.0], "unread": unread})
    script = shelf.read("arabic.pdf", "gibberish", layout=layout, confidence=0.0)
    weak = shelf.read("weak.pdf", "gibberish too", confidence=31.0)

    assert (
        "apt-get install tesseract-ocr-ara, then read it again in ara."
        in site.get(f"/documents/{script}", headers=PAGE).text
    )
    assert "Recognised with little confidence" in site.get(f"/documents/{weak}", headers=PAGE).text
