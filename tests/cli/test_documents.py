"""`documents`, `text`, `search`, `tables`, `keywords`, `export` and `show document:7`."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.cli.conftest import Run, items, run_on_terminal, states
from tests.cli.stored_documents import Shelf, sha256_of
from tests.system.test_bad_surroundings import unwritable
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import NewJob
from worker_service.workspace import update_due_links

# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────

ACCOUNTS = [["EUR", "2024"], ["Revenue", "1,204"], ["Costs", ""]]


def test_tables_are_printed_row_by_row(run: Run, shelf: Shelf) -> None:
    shelf.with_tables("a.pdf", ACCOUNTS, [["Other", "7"], ["More", "8"]])

    result = run("tables", 1)

    assert result.stdout == "EUR\t2024\nRevenue\t1,204\nCosts\nOther\t7\nMore\t8\n"
    assert "page 2, table 1" in result.stderr
    assert run("tables", 1, "--pages", "2").stdout == "Other\t7\nMore\t8\n"
    [first, _] = items(run("tables", 1, "--json"))
    assert (first["page"], first["number"], first["rows"]) == (1, 1, ACCOUNTS)


def test_each_table_becomes_a_file_or_a_sheet(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    shelf.with_tables("a.pdf", ACCOUNTS, [["Other", "7"], ["More", "8"]])
    book = tmp_path / "tables.xlsx"

    run("tables", 1, "--csv", tmp_path / "out")
    run("tables", 1, "--xlsx", book)

    assert [*csv.reader(io.StringIO((tmp_path / "out/page-1-table-1.csv").read_text()))] == ACCOUNTS
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["page-1-table-1.csv", "page-2-table-1.csv"]
    with zipfile.ZipFile(book) as archive:
        assert 'name="page-2-table-1"' in archive.read("xl/workbook.xml").decode()
    assert "--force" in run("tables", 1, "--csv", tmp_path / "out", fails=1).stderr
    assert "--force" in run("tables", 1, "--xlsx", book, fails=1).stderr
    run("tables", 1, "--csv", tmp_path / "out", "--xlsx", book, "--force")


def test_tables_without_boxes_and_worksheets_are_tables(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    layout = json.dumps({"tables": [{"begin": 0, "end": 31, "rows": ACCOUNTS}]}, separators=(",", ":"))
    shelf.read("a.docx", "EUR\t2024\nRevenue\t1,204\nCosts", kind="docx", layout=layout)
    shelf.with_sheet("b.xlsx", [["year", "cost"]], [[2026, 1.5]])

    assert run("tables", 1).stdout == "EUR\t2024\nRevenue\t1,204\nCosts\n"
    assert items(run("tables", 1, "--json"))[0]["box"] == []
    run("tables", 2, "--csv", tmp_path)
    assert (tmp_path / "page-1-table-1.csv").read_text() == "year,cost\n2026,1.5\n"


def test_a_document_without_tables_says_so(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "no row is here")

    assert "has no table" in run("tables", 1, fails=1).stderr


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_prints_pages_with_form_feeds_between_them(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one\n", "two", "three")

    assert run("text", 1).stdout == "one\n\ftwo\n\fthree\n"
    assert run("text", "document:1", "--pages", "2-3").stdout == "two\n\fthree\n"
    assert [run("text", 1, "--pages", pages).stdout for pages in ("2", "3-", "-1")] == ["two\n", "three\n", "one\n"]
    answer = json.loads(run("text", 1, "--pages", "2", "--json").stdout)
    assert answer == {
        "document": 1,
        "name": "a.pdf",
        "items": [{"number": 2, "method": "ocr", "confidence": 90.4, "text": "two"}],
    }


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("9",), 66, "there is no document 9: `pagemill documents` shows"),
        (("x",), 2, "'x' is not a document id, which is a number"),
        (("1", "--pages", "0-3"), 2, "names no pages: the first is 1"),
        (("1", "--pages", "5-3"), 2, "the last comes after it"),
        (("1", "--pages", "-"), 2, "names no pages: write 3, 3-5, 3- or -5"),
        (("1", "--pages", "a"), 2, "names no pages"),
    ],
)
def test_an_unknown_document_or_page_range_is_refused(
    run: Run, shelf: Shelf, words: tuple[str, ...], code: int, sentence: str
) -> None:
    shelf.read("a.pdf", "one")

    assert sentence in run("text", *words, fails=code).stderr


def test_text_says_why_there_is_none_to_print(run: Run, shelf: Shelf) -> None:
    shelf.fail("a.pdf", "PDF_BROKEN", "it cannot be opened")
    shelf.read("b.pdf", "one", "two")

    assert "it could not be read (PDF_BROKEN: it cannot be opened)" in run("text", 1, fails=1).stderr
    assert "it has 2 pages" in run("text", 2, "--pages", 9, fails=1).stderr
    shelf.wish("c.pdf")
    assert "document 3 has no text to show: it is indexing" in run("text", 3, fails=1).stderr


# ── search ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_search_prints_documents_and_passages_with_the_hits_marked(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "nothing", "the climate and its risk", owner="ann")
    shelf.read("b.pdf", "climate", owner="bob")

    near = run("search", "climate NEAR risk").stdout
    assert near == "1  a.pdf · ann · 1 page found\n    1:2  the [climate] and its [risk]\n"
    assert run("search", "climate", "--owner", "bob").stdout.startswith("2  b.pdf · bob · ")
    assert run("search", "climate", "--document", 1).stdout.startswith("1  a.pdf")
    first = run("search", "climate", "--limit", 1)
    assert len(first.stdout.splitlines()) == 2
    assert "--skip 1 shows the next" in first.stderr
    assert run("search", "climate", "--skip", 1).stdout.startswith("1  a.pdf")
    assert run("search", "climate", "--since", "2020-01-01", "--kind", "image", fails=1).stdout == ""
    answer = json.loads(run("search", "climate", "--owner", "ann", "--json").stdout)
    assert answer["is_partial"] is False
    [document] = answer["items"]
    [page] = document["best_pages"]
    assert (document["document_id"], page["number"], page["snippet"]) == (1, 2, "the [climate] and its risk")


def test_a_search_finds_phrases_in_rows_but_not_in_columns_of_a_table(run: Run, shelf: Shelf) -> None:
    shelf.with_tables("a.pdf", [["EUR million", "2024", "2023"], ["Cost of sales", "310", "290"], ["Tax", "20", "18"]])

    assert "[cost of sales 310]" in run("search", '"cost of sales 310"').stdout.replace("\t", " ").casefold()
    assert run("search", '"cost of sales" NEAR 290').stdout.startswith("1  a.pdf")
    assert run("search", '"310 20"', fails=1).stdout == ""


def test_a_query_needs_no_quotes(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "the climate is a risk", "the climate")

    assert run("search", "climate", "risk").stdout == run("search", "climate risk").stdout
    assert run("search", "climate", "risk").stdout.splitlines()[1].startswith("    1:1 ")


def test_pages_with_some_words_follow_those_with_all_unless_all_is_given(run: Run, shelf: Shelf) -> None:
    shelf.read("b.pdf", "the climate")
    shelf.read("a.pdf", "the climate is a risk")

    some = run("search", "climate", "risk")
    assert [line.split()[0] for line in some.stdout.splitlines()] == ["2", "2:1", "1", "1:1"]
    assert some.stdout.endswith("the [climate]  (without risk)\n")
    assert "some of them in 1 other document; --all leaves those out" in some.stderr
    assert "no page has all of these words; these have some of them" in run("search", "climate", "of", "mars").stderr
    assert len(run("search", "climate", "risk", "--all").stdout.splitlines()) == 2


def test_a_search_without_hits_ends_with_1_and_an_invalid_one_with_2(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "climate")

    result = run("search", "water", fails=1)
    assert (result.stdout, result.stderr) == ("", "no page matches\n")
    assert json.loads(run("search", "water", "--json", fails=1).stdout)["items"] == []
    for query in (" ", "--", '"*"'):
        assert "cannot be searched for: it has no letter and no digit" in run("search", "--", query, fails=2).stderr


def _terms(*lines: str) -> Path:
    path = Path("terms.txt").absolute()
    path.write_text("\n".join(lines))
    return path


def test_text_keeps_its_lines_and_loses_control_characters(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one \x1b]0;title\x07 line\n\tand more", "climate")

    assert run_on_terminal("text", "1", columns=80) == (0, "one �]0;title� line\n\tand more\n\fclimate\n")
    assert run("text", 1).stdout == "one �]0;title� line\n\tand more\n\fclimate\n"
    assert "\x1b[1mclimate\x1b[0m" in run_on_terminal("search", "climate", columns=80)[1]


# ── keywords ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_keywords_have_a_column_for_each_term_and_a_row_for_each_document(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "climate risk, climate", "sustainable risk", owner="ann")
    shelf.read("b.pdf", "climate", owner="bob")
    shelf.read("c.pdf", "nothing of it", owner="bob")
    shelf.wish("d.pdf", "bob")
    terms = _terms("climate  # comment", "", "# all", "climate", "sustainab*", "water", "climate risk")

    counted = run("keywords", terms, "--csv")

    assert list(csv.reader(io.StringIO(counted.stdout))) == [
        ["DOCUMENT", "NAME", "climate", "sustainab*", "water", "climate risk"],
        ["1", "a.pdf", "2", "1", "0", "1"],
        ["2", "b.pdf", "1", "0", "0", "0"],
        ["3", "c.pdf", "0", "0", "0", "0"],
        ["4", "d.pdf", "", "", "", ""],
    ]
    assert "1 document without text" in counted.stderr
    table = [line.split() for line in run("keywords", terms, "--owner", "ann").stdout.splitlines()]
    assert table[1:] == [["1", "a.pdf", "2", "1", "0", "1"]]
    assert items(run("keywords", terms, "--json"))[2:] == [
        {"document_id": 3, "name": "c.pdf", "counts": dict.fromkeys([*table[0][2:4], "water", "climate risk"], 0)},
        {"document_id": 4, "name": "d.pdf", "counts": None},
    ]
    assert list(csv.reader(io.StringIO(run("keywords", terms, "--pages", "--csv").stdout))) == [
        ["DOCUMENT", "NAME", "PAGE", "climate", "sustainab*", "water", "climate risk"],
        ["1", "a.pdf", "1", "2", "0", "0", "1"],
        ["1", "a.pdf", "2", "0", "1", "0", "0"],
        ["2", "b.pdf", "1", "1", "0", "0", "0"],
    ]
    assert items(run("keywords", terms, "--pages", "--json"))[1]["page"] == 2


def test_no_cell_of_a_csv_file_or_a_workbook_becomes_a_formula(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    shelf.with_tables("=b.pdf", [["=1+1", "@SUM(A1)"], ["climate", "+2+3"]])
    terms = _terms("=climate", "@climate")
    tables, counts, documents = (tmp_path / name for name in ("tables.xlsx", "counts.xlsx", "documents.xlsx"))

    run("tables", 1, "--csv", tmp_path / "out", "--xlsx", tables)
    run("keywords", terms, "--xlsx", counts)
    run("documents", "--xlsx", documents)

    [table] = (tmp_path / "out").iterdir()
    for text in (table.read_text(), run("keywords", terms, "--csv").stdout, run("documents", "--csv").stdout):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert any(cell.startswith("'") for cell in cells)
        assert not any(cell.startswith(("=", "+", "@")) for cell in cells)
    for workbook in (tables, counts, documents):
        with zipfile.ZipFile(workbook) as archive:
            sheets = "".join(archive.read(name).decode() for name in archive.namelist() if "worksheets" in name)
            styles = archive.read("xl/styles.xml").decode()
        assert "<f>" not in sheets
        # Style 1 keeps a cell a text even after a user edits it.
        assert 's="1" t="inlineStr"' in sheets
        assert 'quotePrefix="1"' in styles


def test_a_workbook_is_replaced_only_with_force(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    shelf.read("a.pdf", "climate")
    book = tmp_path / "counts.xlsx"
    assert f"wrote {book}" in run("keywords", _terms("climate"), "--xlsx", book).stderr
    before = book.read_bytes()

    assert f"{book} exists: --force replaces it" in run("keywords", _terms("water"), "--xlsx", book, fails=1).stderr

    assert book.read_bytes() == before
    run("keywords", _terms("water"), "--xlsx", book, "--force")
    assert book.read_bytes() != before


def test_an_unwritable_workbook_is_a_file_error_and_not_a_bug(run: Run, shelf: Shelf) -> None:
    Path("terms.txt").write_text("one\n")
    shelf.read("a.pdf", "one")

    assert "nowhere/a.xlsx" in run("keywords", "terms.txt", "--xlsx", "nowhere/a.xlsx", fails=74).stderr


def test_keywords_without_terms_or_matches_are_reported(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "climate")

    assert "no term occurs on any page" in run("keywords", _terms("water")).stderr
    assert "the file has no terms" in run("keywords", _terms("# nothing"), fails=2).stderr
    assert "no letter and no digit" in run("keywords", _terms("--"), fails=2).stderr
    assert "nowhere.txt" in run("keywords", "nowhere.txt", fails=2).stderr
    Path("terms.txt").write_bytes(b"caf\xe9")
    assert "UTF-8" in run("keywords", "terms.txt", fails=2).stderr


# ── export ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_export_copies_the_files_of_documents(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one", "two", owner="ann", roles=("text", "pdf", "pages", "original"))
    shelf.read("a.pdf", "other", owner="bob")
    shelf.fail("c.pdf", "PDF_BROKEN", "it is broken")

    assert run("export", 1).stdout == "a-1.txt\n"
    assert Path("a-1.txt").read_text() == "one\ftwo"
    assert run("export", 1, 2, "-o", "out").stdout.splitlines() == ["out/a-2.txt", "out/a-1.txt"]
    for form, name in (("pdf", "a-1.pdf"), ("json", "a-1.json"), ("original", "a-1.original")):
        assert items(run("export", 1, "--format", form, "-o", "out", "--json")) == [f"out/{name}"]
    # Documents that only match a selector may have no file.
    assert run("export", "--name", "PDF", "-o", "all").stdout.splitlines() == ["all/a-2.txt", "all/a-1.txt"]


def test_a_failed_export_leaves_no_partial_file(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one")
    shelf.fail("b.pdf", "PDF_BROKEN", "it is broken")
    run("export", 1)

    assert "a-1.txt exists already: --update replaces what has changed, --force" in run("export", 1, fails=1).stderr
    assert run("export", 1, "--force").stdout == "a-1.txt\n"
    shelf.read("c.xlsx", "one", kind="sheet")
    shelf.read("d.pdf", "one", note="no searchable PDF could be made")
    assert "has no pdf: it is a spreadsheet" in run("export", 3, "--format", "pdf", fails=1).stderr
    assert "has no pdf: no searchable PDF could be made" in run("export", 4, "--format", "pdf", fails=1).stderr
    assert "document 2 (b.pdf) has no txt: it is failed" in run("export", 2, fails=1).stderr
    assert "say which documents to export" in run("export", fails=2).stderr
    assert "there is no document 7" in run("export", 7, fails=66).stderr
    for file in shelf.workspace.rglob("text"):
        file.unlink()
    stderr = run("export", 1, "--force", fails=74).stderr
    assert "is no longer in the workspace: pagemill reindex 1 --force creates it again" in stderr
    assert [path.name for path in Path().iterdir() if "unfinished" in path.name] == []
    assert Path("a-1.txt").read_text() == "one"


def test_export_update_skips_equal_files_and_replaces_changed_ones(run: Run, shelf: Shelf) -> None:
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        shelf.read(name, name, key=name, content=name)
    nightly = ("export", "--name", "pdf", "-o", "out")
    run(*nightly)
    same = Path("out/a-1.txt").stat().st_ino
    Path("out/b-2.txt").write_text("of yesterday")
    Path("out/c-3.txt").unlink()

    refused = run(*nightly, fails=1)
    result = run(*nightly, "--update")

    # A missing file is always written.
    assert refused.stdout == "out/c-3.txt\n"
    assert len(refused.stderr.splitlines()) == 2
    assert "out/b-2.txt exists already: --update replaces what has changed, --force everything" in refused.stderr
    assert "1 other file already there" in refused.stderr
    assert (result.stdout, result.stderr) == ("out/b-2.txt\n", "2 files already there, unchanged\n")
    assert Path("out/b-2.txt").read_text() == "b.pdf"
    assert Path("out/a-1.txt").stat().st_ino == same
    answer = json.loads(run(*nightly, "--update", "--json").stdout)
    assert (answer["items"], answer["unchanged"]) == ([], ["out/c-3.txt", "out/b-2.txt", "out/a-1.txt"])
    assert "use one of them" in run(*nightly, "--update", "--force", fails=2).stderr


# ── documents, show ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_document_that_cannot_be_exported_does_not_stop_the_others(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one", key="/srv/a", content="c1")
    broken = shelf.read("b.pdf", "two", key="/srv/b", content="c2", roles=())
    shelf.read("c.pdf", "three", key="/srv/c", content="c3")

    result = run("export", "--name", "pdf", "-o", "out", fails=1)

    assert [Path(line).name for line in result.stdout.splitlines()] == ["c-3.txt", "a-1.txt"]
    assert f"document {broken} (b.pdf) has no txt" in result.stderr
    assert "no document matches" in run("export", "--name", "zzz").stderr


def test_documents_are_listed_chosen_and_paged(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one", owner="ann")
    shelf.fail("b.pdf", "PDF_BROKEN", "it is broken")
    shelf.wish("c.pdf", "ann")

    table = run("documents").stdout.splitlines()
    assert [line.split()[:4] for line in table[1:]] == [
        ["3", "indexing", "0%", "-"],
        ["2", "failed", "0%", "-"],
        ["1", "success", "100%", "1"],
    ]
    assert table[2].split("  ")[-3:] == ["PDF_BROKEN", "b.pdf", "it is broken"]
    for words, expected in (
        (("--status", "failed,success"), [2, 1]),
        (("--owner", "ann"), [3, 1]),
        (("ls", "--name", "B.P"), [2]),
        (("1", "document:3"), [3, 1]),
        (("--before", "3", "--limit", "1"), [2]),
    ):
        assert [item["id"] for item in items(run("documents", *words, "--json"))] == expected, words
    first = run("documents", "--limit", 2)
    assert "for more, add --before 2" in first.stderr
    assert json.loads(run("documents", "--limit", 2, "--json").stdout)["next"] == 2
    assert json.loads(run("documents", "--json").stdout)["next"] is None


def test_the_csv_has_the_origin_and_digests_of_all_documents(run: Run, shelf: Shelf) -> None:
    for number in range(60):
        shelf.read(f"{number}.pdf", "one", owner="bob", content=f"c{number}")
    shelf.read("a.pdf", "one", "two", owner="ann", key="/srv/Q1/a.pdf", roles=("original", "text"), content="c-a")
    shelf.read("b.pdf", "one", owner="ann", key="https://ann@example.org/2026/b.pdf")
    shelf.ask("c.pdf", "ann", key="/srv/c.pdf", content="c-c")
    shelf.store.intake.enqueue(NewJob("download", owner="ann", name="d.xls", source_key="/srv/d.xls"))
    download = shelf.next_job(["io"])
    failure = Failure("NOT_WHAT_IT_SAYS", "it is no spreadsheet")
    shelf.store.leases.fail(download.lease, failure, retry_at=None)

    stdout = run("documents", "--owner", "ann", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(stdout)))

    cells = [[row[name] for name in ("DOCUMENT", "NAME", "FOLDER", "STATE", "PAGES", "ERROR")] for row in rows]
    assert cells == [
        ["63", "c.pdf", "/srv", "queued", "", ""],
        ["62", "b.pdf", "example.org/2026", "success", "1", ""],
        ["61", "a.pdf", "/srv/Q1", "success", "2", ""],
        ["", "d.xls", "", "failed", "", "NOT_WHAT_IT_SAYS"],
    ]
    assert rows[3]["MESSAGE"] == "it is no spreadsheet"
    assert run("documents", "--owner", "ann", "--excel").stdout == f"\ufeff{stdout}"
    assert [row["READ_AT"] != "" for row in rows] == [False, True, True, False]
    assert {name: rows[2][name] for name in ("SOURCE", "KEY", "OWNER", "KIND", "SIZE", "SHA256", "MD5")} == {
        "SOURCE": "local", "KEY": "/srv/Q1/a.pdf", "OWNER": "ann", "KIND": "pdf", "SIZE": "7",
        "SHA256": sha256_of("one\ftwo"), "MD5": "bb",
    }  # fmt: skip
    assert (rows[0]["SHA256"], rows[0]["SIZE"]) == ("c-c", "")
    assert len(list(csv.DictReader(io.StringIO(run("documents", "--csv").stdout)))) == 64
    assert "--json cannot be combined with --csv" in run("documents", "--csv", "--json", fails=2).stderr
    assert "leave out --limit and --before" in run("documents", "--csv", "--limit", 5, fails=2).stderr


def test_the_folder_of_a_crawled_document_is_its_folder_at_the_source(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one", owner="ann", key="file1")
    crawled = """
        INSERT INTO crawl (key, owner, updated_at) VALUES ('k', 'ann', '2026-01-01 00:00:00.000');
        INSERT INTO crawl_item (crawl, id, parent_id, name, seen_at)
        VALUES ('k', 'root', '', 'Reports', ''), ('k', 'q1', 'root', 'Q1', ''), ('k', 'file1', 'q1', 'a.pdf', '')"""
    subprocess.run(["sqlite3", "pagemill.db", crawled], check=True)

    [row] = csv.DictReader(io.StringIO(run("documents", "--csv").stdout))

    assert (row["FOLDER"], row["KEY"]) == ("Reports/Q1", "file1")


def test_an_earlier_generation_stays_readable_when_a_newer_reading_fails(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one", roles=("text", "original"))
    run("reindex", "1", "--lang", "fra")
    under_way = run("documents", "--json")
    shelf.store.leases.fail(shelf.next_job().lease, Failure("ENGINE_CRASHED", "it fell over"), retry_at=None)

    assert [(item["status"], item["state"]) for item in items(under_way)] == [("queued", "readable, queued")]
    [document] = items(run("documents", "--status", "failed", "--json"))
    assert (document["state"], document["percent"], document["current_generation"]) == ("readable, failed", 100, 1)
    assert "readable, failed  100%" in run("documents").stdout
    assert "generation 2 failed: it fell over" in run("documents").stdout
    result = run("show", "document:1")
    assert "readable, failed" in result.stdout
    assert "readers see generation 1; generation 2 failed: it fell over." in result.stderr
    assert "pagemill reindex 1 restores its settings" in result.stderr
    assert run("export", "--name", "a").stdout == "a-1.txt\n"
    assert "readable, failed" in run("documents", "rm", "1", "--dry-run").stdout


def test_files_that_failed_before_they_became_documents_are_listed(run: Run, shelf: Shelf) -> None:
    shelf.fail("b.pdf", "PDF_BROKEN", "it is broken")
    Path("slides from the annual meeting.pdf").write_text("no slides")
    run("add", "slides from the annual meeting.pdf", "--owner", "ann")
    shelf.fail_next("NOT_WHAT_IT_SAYS", "it is HTML and no PDF", "have its owner put the file there once more")

    result = run("documents", "--status", "failed")
    assert [line.split()[:1] for line in result.stdout.splitlines()] == [["ID"], ["1"], [], ["JOB"], ["2"]]
    assert "NOT_WHAT_IT_SAYS  slides from the annual meeting.pdf  it is HTML" in result.stdout
    assert "what to do: pagemill why JOB" in result.stderr
    [lost] = json.loads(run("documents", "--name", "slides", "--json").stdout)["not_brought_in"]
    assert (lost["id"], lost["error_code"], lost["owner"]) == (2, "NOT_WHAT_IT_SAYS", "ann")
    assert "no document matches" in run("documents", "--name", "slides", "--status", "success").stderr

    # On 80 columns each list shows the name of the file and the whole error code.
    for words, code in (("documents", "NOT_WHAT_IT_SAYS"), ("ls", "NOT_WHAT_IT_SAYS"), ("failures", "")):
        _, screen = run_on_terminal(words, columns=80)
        lines = re.sub(r"\x1b\[\d*m", "", screen).splitlines()
        assert max(map(len, lines)) <= 80, screen
        [line] = [line for line in lines if "slides from" in line]
        assert code in line, screen
    assert "job 2 (download, slides from the annual meeting.pdf) failed with NOT_WHAT" in run("why", 2).stdout


# ── documents rm ────────────────────────────────────────────────────────────────────────────────────────────────────


def left_of(shelf: Shelf) -> list[str]:
    return sorted(str(path.relative_to(shelf.workspace)) for path in shelf.workspace.rglob("*") if path.is_file())


def test_removing_a_document_deletes_its_files_and_reports_the_freed_space(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "solar", "wind", roles=("original", "text"))
    shelf.read("b.pdf", "solar")
    update_due_links(shelf.store, shelf.workspace)

    stdout = run("documents", "rm", 1, "--dry-run").stdout
    removed = run("documents", "rm", 1, "--yes").stdout

    assert stdout.startswith("would remove 1 document (2 pages, 2 files of 20 B)\n")
    assert "a.pdf" in stdout
    assert removed == "removed 1 document (2 pages, 2 files of 20 B)\n"
    assert left_of(shelf) == ["by-owner/unowned/srv/b.txt", "objects/2-1/text"]
    assert not (shelf.workspace / "objects/1-1").exists()
    assert [item["id"] for item in items(run("documents", "--json"))] == [2]
    assert "b.pdf" in run("search", "solar").stdout
    assert run("search", "wind", fails=1).stdout == ""
    run("text", 1, fails=66)


def test_documents_are_removed_by_selectors(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "text", owner="alice")
    shelf.read("draft.pdf", "text", owner="bob")
    shelf.fail("c.pdf", "PDF_BROKEN", "half of it is missing")

    answer = json.loads(run("documents", "rm", "--status", "failed", "--dry-run", "--json").stdout)
    assert (answer["documents"], answer["items"]) == (1, [3])
    run("documents", "rm", "--owner", "alice", "--yes")
    run("documents", "rm", "--name", "DRAFT", "--yes")
    answer = json.loads(run("documents", "rm", "--status", "failed", "--yes", "--json").stdout)

    assert (answer["items"], answer["files"], answer["size"], answer["refused"]) == ([3], 0, 0, [])
    assert items(run("documents", "--json")) == []
    assert "no document matches" in run("documents", "rm", "--owner", "alice", "--yes").stderr


def test_documents_are_removed_only_after_confirmation(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "text")

    assert "name the documents" in run("documents", "rm", "--yes", fails=2).stderr
    assert "This deletes 1 document" in run("documents", "rm", 1, fails=1).stderr
    assert "there is no document 9" in run("documents", "rm", 1, 9, "--yes", fails=66).stderr
    assert len(items(run("documents", "--json"))) == 1


def test_on_a_terminal_the_number_of_documents_is_typed(run: Run, shelf: Shelf) -> None:
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        shelf.read(name, "text")

    code, screen = run_on_terminal("documents", "rm", "1", "2", columns=100, typed="y\n")
    assert (code, "nothing was done" in screen) == (1, True)
    code, screen = run_on_terminal("documents", "rm", "1", "2", columns=100, typed="2\n")

    assert (code, "removed 2 documents" in screen) == (0, True)
    assert [item["id"] for item in items(run("documents", "--json"))] == [3]


def test_a_document_that_is_being_read_is_not_removed(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "text")
    job = shelf.wish("b.pdf")

    result = run("documents", "rm", 1, 2, "--yes", fails=1)

    assert result.stdout.startswith("removed 1 document")
    assert f"document 2: job {job.id} (ingest) still works for it: pagemill cancel {job.id}" in result.stderr
    assert [item["id"] for item in items(run("documents", "--json"))] == [2]


def test_a_removal_is_listed_as_an_action_and_undo_skips_it(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "text")
    run("enqueue", "ocr_pages")
    run("cancel", 2)
    action = json.loads(run("documents", "rm", 1, "--yes", "--json").stdout)["action"]

    lines = [line.split() for line in run("undo", "--list").stdout.splitlines()]

    assert lines[0] == "ACTION AT (UTC) USER VERB BATCH JOBS DOCUMENTS UNDONE (UTC) OF".split()
    assert lines[1][-6:] == ["remove", "-", "-", "1", "-", "-"]
    assert "it was a remove, which removes permanently" in run("undo", action, "--yes", fails=1).stderr
    run("undo", "--yes")
    assert states(run)[2] == "pending"


def test_a_file_without_permission_to_delete_is_left_to_the_daemon(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "text", roles=("original", "text"))

    with unwritable(shelf.workspace / "objects/1-1/original"):
        result = run("documents", "rm", 1, "--yes")

    assert "no permission to delete 1 file in the workspace; the daemon" in result.stderr
    assert shelf.store.removal.files_to_delete() == left_of(shelf) == ["objects/1-1/original"]


def test_stats_shows_the_documents_and_files_of_each_owner(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "x" * 1500, owner="alice", roles=("original", "text"))
    shelf.read("b.pdf", "text", "text")

    lines = [line.split() for line in run("stats").stdout.splitlines()]
    answer = json.loads(run("stats", "--json").stdout)

    assert ["alice", "1", "1", "2", "3.0", "kB"] in lines
    assert ["all", "2", "3", "3", "3.0", "kB"] in lines
    assert answer["by_owner"][0] == {"owner": "alice", "documents": 1, "pages": 1, "files": 2, "size": 3000}
    assert (answer["files"], answer["size"]) == (3, 3009)
    assert [item["size"] for item in items(run("documents", "--json"))] == [0, 1500]


def test_an_invalid_filter_of_documents_is_refused(run: Run, shelf: Shelf) -> None:
    assert "there are no documents yet: pagemill add report.pdf" in run("documents").stderr
    shelf.read("a.pdf", "one")
    assert "no document matches" in run("documents", "--status", "failed").stderr
    assert "there is no status 'done': it is one of not_indexed" in run("documents", "--status", "done", fails=2).stderr
    stderr = run("documents", "--kind", "pfd", fails=2).stderr
    assert "there is no kind 'pfd': did you mean pdf?" in stderr
    assert run("documents", "--kind", "pdf").stdout != ""


def test_show_lists_the_pages_and_files_of_a_document(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one", "two", roles=("text", "pdf"))

    stdout = run("show", "document:1").stdout
    assert "PAGE  METHOD  CONFIDENCE  CHARACTERS" in stdout
    assert "   2  ocr             90           3" in stdout
    assert str(shelf.workspace / "objects/1-1/pdf") in stdout
    whole = json.loads(run("show", "document:1", "--json").stdout)
    assert (whole["status"], whole["pages"], len(whole["page_items"])) == ("success", 2, 2)
    assert {file["path"] for file in whole["files"]} == {
        str(shelf.workspace / f"objects/1-1/{role}") for role in ("text", "pdf")
    }
    assert "there is no document 5" in run("show", "document:5", fails=66).stderr


def test_show_names_the_ocr_engines_of_each_page(run: Run, shelf: Shelf) -> None:
    word = [0, 0, 9, 9, 90, "one"]
    readers = ["tesseract 5.5.4 (tesserocr)", "PP-OCRv6 small (rapidocr 3.10.0, onnxruntime 1.31.1)"]
    layout = {
        "size": [595, 842],
        "lines": [[word], [], [word, word], [word]],
        "readers": readers,
        "second": [2],
        "written_in": ["eng"],
    }
    shelf.read("a.pdf", "one", layout=json.dumps(layout))

    stdout = run("show", "document:1").stdout
    [page] = json.loads(run("show", "document:1", "--json").stdout)["page_items"]

    assert "   1  ocr             90           3  eng       tesseract 5.5.4; 1 of 3 lines PP-OCRv6 small" in stdout
    assert (page["readers"], page["lines"], page["second"], page["written_in"]) == (readers, 3, 1, ["eng"])
    assert "is not a document" in run("show", "document:x", fails=2).stderr


def test_show_cuts_long_lists_of_pages_and_explains_a_failure(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", *(f"page {number}" for number in range(60)))
    shelf.fail("b.pdf", "PDF_BROKEN", "it is broken", "fetch it again")

    assert "and 10 pages more: --json lists all" in run("show", "document:1").stderr
    result = run("show", "document:2")
    assert "it is broken" in result.stdout
    assert "to read it again: pagemill reindex 2" in result.stderr


def test_sure_leaves_out_pages_with_a_low_confidence(run: Run, shelf: Shelf) -> None:
    shelf.read("good.pdf", "climate risk")
    shelf.read("bad.pdf", "climate rlsk", confidence=31.0)

    def names_found(*words: str) -> list[str]:
        return sorted(item["name"] for item in json.loads(run("search", "climate", "--json", *words).stdout)["items"])

    assert names_found() == ["bad.pdf", "good.pdf"]
    assert names_found("--sure") == ["good.pdf"]
    assert names_found("--sure", "--document", "1") == ["good.pdf"]
    assert run("search", "climate", "--sure", "--document", "2", fails=1).stdout == ""


def test_the_help_of_documents_lists_the_options_of_its_list(run: Run) -> None:
    stdout = run("documents", "--help").stdout

    assert "--status" in stdout
    assert "adopt" in stdout
