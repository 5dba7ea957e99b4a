from __future__ import annotations

import io
import re
import zipfile
from html import unescape

import httpx
import pytest

from tests.cli.stored_documents import Shelf
from tests.web.conftest import PAGE, bearer
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.jobs.tokens import TokenScope
from worker_service.services import tokens
from worker_service.services.session import Session


@pytest.fixture
def three_documents(shelf: Shelf) -> Shelf:
    shelf.read("a.pdf", "one", "two", owner="alice", roles=("original", "text"))
    shelf.fail("b.pdf", "BROKEN", "it is broken")
    shelf.read("c.xlsx", "three", owner="alice", kind="sheet", roles=("original", "text"))
    shelf.store.tags.add([1, 3], ["invoice"])
    shelf.store.tags.add([1], ["paid"])
    return shelf


def titles(page: str) -> list[str]:
    return re.findall(r'class="(?:title name"><a|name") href="/documents/\d+"><bdi>([^<]*)</bdi>', page)


def tags_of(shelf: Shelf, document_id: int) -> list[str]:
    return [*shelf.store.library.document(document_id).tags]


NAMES_BY_QUERY = {
    "": ["c.xlsx", "b.pdf", "a.pdf"],
    "sort=name": ["a.pdf", "b.pdf", "c.xlsx"],
    "sort=-name": ["c.xlsx", "b.pdf", "a.pdf"],
    "sort=state": ["b.pdf", "a.pdf", "c.xlsx"],
    "tag=invoice": ["c.xlsx", "a.pdf"],
    "tag=invoice&tag=paid": ["a.pdf"],
    "kind=sheet&owner=alice": ["c.xlsx"],
    "status=failed": ["b.pdf"],
    "since=1d&name=A": ["a.pdf"],
    "until=1d": [],
}


def test_the_list_shows_the_documents_that_its_url_selects(site: httpx.Client, three_documents: Shelf) -> None:
    for query, names in NAMES_BY_QUERY.items():
        for view in ("grid", "table"):
            assert titles(site.get(f"/documents?view={view}&{query}", headers=PAGE).text) == names, query
        assert [document["name"] for document in site.get(f"/api/documents?{query}").json()["items"]] == names, query


def test_filters_are_links_that_keep_the_others(site: httpx.Client, three_documents: Shelf) -> None:
    page = unescape(site.get("/documents?tag=invoice&kind=pdf&before=9", headers=PAGE).text)

    assert 'href="/documents?kind=pdf&tag=invoice&tag=paid"' in page
    assert 'href="/documents?kind=pdf" aria-label="Remove filter: Tag"' in page
    assert 'href="/documents?tag=invoice&kind=pdf&sort=name"' in page
    assert "1 document, " in page
    assert site.get("/documents?sort=size", headers=PAGE).status_code == 400


def test_the_filtered_list_is_sent_as_csv_and_workbook(site: httpx.Client, three_documents: Shelf) -> None:
    lines = site.get("/documents.csv?tag=paid").text.splitlines()
    book = site.get("/documents.xlsx?tag=paid").content

    assert (len(lines), lines[1].split(",")[1], lines[1].endswith('"invoice, paid"')) == (2, "a.pdf", True)
    with zipfile.ZipFile(io.BytesIO(book)) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml").decode()
    assert ("a.pdf" in sheet, "c.xlsx" in sheet) == (True, False)


def test_several_documents_are_tagged_without_scripts_and_the_list_keeps_its_filters(
    site: httpx.Client, three_documents: Shelf
) -> None:
    form = site.get("/documents/change?id=1&id=3&verb=tag&kind=pdf&view=table", headers=PAGE).text
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="(\w+)"', form))
    answer = site.post(
        "/documents/change",
        data={**fields, "id": ["1", "3"], "add": "Urgent, 2026", "without": "paid"},
        headers=PAGE,
    )

    assert "Tag 2 documents" in form
    assert 'name="without" value="paid"' in form
    assert answer.headers["location"] == "/documents?kind=pdf&view=table&message=tagged"
    assert tags_of(three_documents, 1) == tags_of(three_documents, 3) == ["2026", "invoice", "urgent"]


def test_all_documents_that_match_the_filters_are_read_again_or_removed(
    site: httpx.Client, three_documents: Shelf, session: Session
) -> None:
    again = {"scope": "all", "tag": "invoice", "verb": "again", "lang": "deu"}
    assert site.post("/documents/change", data=again).headers["location"] == "/documents?tag=invoice&message=read-again"
    assert [three_documents.store.library.document(document_id).index_generation for document_id in (1, 3)] == [2, 2]
    three_documents.store.job_control.cancel(Selector(), actor="test")

    confirmation = site.get("/documents/change?scope=all&owner=alice&verb=remove", headers=PAGE).text
    assert "2 documents with 3 pages and 4 files" in confirmation
    remove = {"scope": "all", "owner": "alice", "verb": "remove"}
    changed = site.post("/documents/change", data={**remove, "expect": "3"}, headers=PAGE)
    assert (changed.status_code, "Now 2 documents match, not 3" in changed.text) == (400, True)
    done = site.post("/documents/change", data={**remove, "expect": "2"}, headers=PAGE, follow_redirects=True)

    assert "2 documents removed" in done.text
    assert [document.name for document in session.library.documents(DocumentSelector())] == ["b.pdf"]
    assert "No document was selected" in site.get("/documents/change?verb=remove", follow_redirects=True).text


def test_the_files_of_several_documents_are_one_zip_with_a_note_of_missing_ones(
    site: httpx.Client, three_documents: Shelf
) -> None:
    three_documents.read("sub/a.pdf", "again", roles=("original",))
    three_documents.read("..\\..\\d\n.pdf", "again")

    chosen = site.get("/documents.zip?id=1&id=3&id=4")
    all_documents = site.get("/documents.zip?scope=all&form=original&form=txt")

    with zipfile.ZipFile(io.BytesIO(chosen.content)) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["a-1.original", "a-4.original", "c-3.original"]
    with zipfile.ZipFile(io.BytesIO(all_documents.content)) as archive:
        assert archive.read("texts/a-1.txt") == b"one\x0ctwo"
        assert not [name for name in archive.namelist() if "\\" in name or "\n" in name]
        assert "document 2 (b.pdf) has no original" in archive.read("left-out.txt").decode()
    assert chosen.headers["content-disposition"] == 'attachment; filename="documents.zip"'


def test_a_visitor_of_one_owner_sees_and_changes_only_their_documents(
    site: httpx.Client, three_documents: Shelf, session: Session
) -> None:
    site.headers.update(bearer(session.settings, "bob", owner="bob"))

    page = site.get("/documents", headers=PAGE).text
    csv = site.get("/documents.csv").text
    zipped = site.get("/documents.zip?id=1&id=3")
    change = site.post("/documents/change", data={"id": ["1", "3"], "verb": "tag", "add": "mine"})

    assert ("a.pdf" in page, "invoice" in page, "a.pdf" in csv) == (False, False, False)
    with zipfile.ZipFile(io.BytesIO(zipped.content)) as archive:
        assert archive.namelist() == []
    assert change.headers["location"] == "/documents?message=nothing-chosen"
    assert tags_of(three_documents, 1) == ["invoice", "paid"]


def test_a_visitor_who_may_only_read_can_download_but_change_nothing(
    site: httpx.Client, three_documents: Shelf, session: Session
) -> None:
    token_text = tokens.create_token(session, "reader", [TokenScope.READ]).text
    site.headers["Authorization"] = f"Bearer {token_text}"

    assert 'value="tag"' not in site.get("/documents", headers=PAGE).text
    assert site.get("/documents/change?id=1&verb=download", headers=PAGE).status_code == 200
    assert site.get("/documents/change?id=1&verb=remove", headers=PAGE).status_code == 403
    assert site.post("/documents/change", data={"id": "1", "verb": "tag", "add": "x"}).status_code == 403


def test_the_tags_page_counts_tags_and_changes_their_actions(site: httpx.Client, three_documents: Shelf) -> None:
    action = {"tag": "Paid", "type": "tell", "payload": '{"of": "{name}"}', "on_end": "success", "owner": "alice"}

    added = site.post("/tags/actions", data=action, headers=PAGE, follow_redirects=True).text
    assert "Action added" in added
    assert re.findall(r'href="/documents\?tag=(\w+)"', added) == ["invoice", "paid"]
    assert "documents of alice" in added
    assert site.post("/tags/actions", data=action | {"payload": "{"}).status_code == 422

    site.post("/tags/actions", data=action | {"verb": "remove"})
    assert three_documents.store.tags.actions(None) == []
