"""Documents become text, page by page, in real child processes."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest
from PIL import Image

from benchmarks.accuracy import character_errors
from job_handlers.reading.ocr import OcrSettings
from job_handlers.reading.ocr_pages import ocr_pages
from job_handlers.reading.page_recognition import page_request_handler
from tests.job_handlers.reading.documents import (
    digital,
    drawn_only,
    garbage,
    jpeg,
    picture,
    plain,
    prose,
    scan,
    tiff,
    workbook,
)
from tests.job_handlers.reading.kit import Library, published
from worker_service.handlers import KnownDocument, PageResult
from worker_service.jobs.documents import RepublishedFile
from worker_service.testing import How, run_stopped_and_again

pymupdf: Any = partly_typed

TEXT = prose(1, 60)
OTHER = prose(2, 60)
SHORT_TEXT = "The board has looked at the annual report and approves all of it, this page included. Page"


# --- pages with text of their own ---


def test_a_page_with_good_text_is_taken_as_it_is(library: Library, tmp_path: Path) -> None:
    texts = [prose(1), prose(2), prose(3)]

    run = library.read(digital(tmp_path / "report.pdf", texts))

    assert run.how is How.DONE, run.ended
    assert library.methods == ["layer"] * 3
    assert plain(library.text) == plain(" ".join(texts))
    assert [job for job, _ in library.runs] == ["ingest"]
    assert run.ended.publishes
    files = published(run)
    assert plain(files["text"].read_text().replace("\f", " ")) == plain(" ".join(texts))
    assert files["thumbnail"].read_bytes().startswith(b"\xff\xd8\xff")
    assert run.published_again == [RepublishedFile(77, "pdf", "report.pdf")]
    assert {file.name for file in run.published} == {"report.txt", "report.pages.json", "report.jpg"}
    pages = json.loads(files["pages"].read_text())["pages"]
    assert [page["number"] for page in pages] == [1, 2, 3]
    assert pages[0]["layout"]["size"] == [595.0, 842.0]


@pytest.mark.parametrize("rotation", [90, 270])
def test_blocks_of_a_turned_page_lie_where_they_are_shown(library: Library, tmp_path: Path, rotation: int) -> None:
    library.read(digital(tmp_path / "turned.pdf", ["A single line."], rotation=rotation))

    layout = json.loads(library.by_number[1].layout or "")
    x0, y0, x1, y1, begin, end = layout["blocks"][0][:6]
    assert layout["size"] == [842.0, 595.0]
    assert (library.by_number[1].text or "")[begin:end] == "A single line.\n"
    assert x1 - x0 < y1 - y0
    assert (x0 > 700) == (rotation == 90)


def test_empty_pages_are_blank_and_need_no_ocr(library: Library, tmp_path: Path) -> None:
    library.read(digital(tmp_path / "a.pdf", ["Some words", "", "More words"]))

    assert library.methods == ["layer", "blank", "layer"]
    assert not library.jobs("ocr_pages")


# --- pages that need OCR ---


def test_a_scan_becomes_text_words_with_boxes_and_a_searchable_pdf(library: Library, tmp_path: Path) -> None:
    image = picture(TEXT, dpi=200)
    original = scan(tmp_path / "scan.pdf", [image, Image.new("L", image.size, 255)], dpi=200)

    run = library.read(original)

    assert run.how is How.DONE, run.ended
    assert library.methods == ["ocr", "blank"]
    assert character_errors([library.text], [TEXT]) < 1
    assert (library.by_number[1].confidence or 0) > 85
    files = published(run)
    assert set(files) == {"text", "pages", "pdf", "thumbnail"}
    assert files["pdf"].stat().st_size < original.stat().st_size + 10_000
    with pymupdf.open(original) as before, pymupdf.open(files["pdf"]) as after:
        for number in range(2):
            assert before[number].get_pixmap(dpi=80).samples == after[number].get_pixmap(dpi=80).samples
        assert character_errors([after[0].get_text()], [TEXT]) < 2
        word = next(word for line in json.loads(library.by_number[1].layout or "")["lines"] for word in line)
        box = after[0].search_for(word[5])[0]
        assert tuple(box) == pytest.approx(word[:4], abs=1.0)


def test_a_page_scanned_sideways_is_turned(library: Library, tmp_path: Path) -> None:
    run = library.read(scan(tmp_path / "turned.pdf", [picture(TEXT, dpi=150, turn=90)], dpi=150))

    layout = json.loads(library.by_number[1].layout or "")
    assert layout["turn"] == 270
    assert character_errors([library.text], [TEXT]) < 2
    # The invisible words run in the direction of the shown ones.
    with pymupdf.open(published(run)["pdf"]) as document:
        assert character_errors([document[0].get_text()], [TEXT]) < 2
        line = document[0].get_text("dict")["blocks"][0]["lines"][0]
    assert [round(component) for component in line["dir"]] == [0, 1]


def test_a_skewed_page_is_straightened_and_its_words_keep_their_positions(library: Library, tmp_path: Path) -> None:
    straight = library.read(scan(tmp_path / "straight.pdf", [picture(TEXT, dpi=200)], dpi=200))
    assert straight.how is How.DONE
    upright = json.loads(library.by_number[1].layout or "")["lines"]
    library.read(scan(tmp_path / "skewed.pdf", [picture(TEXT, dpi=200, skew=2.0)], dpi=200))

    layout = json.loads(library.by_number[1].layout or "")
    assert character_errors([library.text], [TEXT]) < 1
    assert layout["skew"] == pytest.approx(2.0, abs=0.1)
    # A word right of the page's middle is lower by the slope.
    before = {word[5]: word for line in upright for word in line}
    after = {word[5]: word for line in layout["lines"] for word in line}
    unique = [text for text in before if text in after and TEXT.split().count(text) == 1]
    assert len(unique) > 5
    for text in unique:
        shift = after[text][1] - before[text][1]
        middle = (before[text][0] + before[text][2]) / 2 - 297.5
        assert shift == pytest.approx(middle * 0.0349, abs=2.0)


def test_invisible_text_of_another_ocr_program_is_not_used(library: Library, tmp_path: Path) -> None:
    library.read(scan(tmp_path / "a.pdf", [picture(TEXT, dpi=150)], dpi=150, hidden="wrong words " * 20))

    assert library.methods == ["ocr"]
    assert character_errors([library.text], [TEXT]) < 2


def test_garbage_and_drawn_text_need_ocr(library: Library, tmp_path: Path) -> None:
    undecodable = library.run("ingest", {}, garbage(tmp_path / "garbage.pdf"))
    outlines = library.run("ingest", {}, drawn_only(tmp_path / "drawn.pdf"))

    assert [job.job_type for job in undecodable.follow_ups] == ["ocr_pages", "assemble"]
    assert [job.job_type for job in outlines.follow_ups] == ["ocr_pages", "assemble"]


def test_each_frame_of_an_image_is_a_page(library: Library, tmp_path: Path) -> None:
    pages = [picture(TEXT, dpi=150), picture(OTHER, dpi=150)]

    run = library.read(tiff(tmp_path / "two.tif", pages, dpi=150))

    assert run.how is How.DONE, run.ended
    assert library.methods == ["ocr", "ocr"]
    assert character_errors([library.text], [f"{TEXT} {OTHER}"]) < 2
    with pymupdf.open(published(run)["pdf"]) as document:
        for page, text in zip(document, (TEXT, OTHER), strict=True):
            assert character_errors([page.get_text()], [text]) < 2


def test_a_photo_without_a_resolution_is_read_at_full_size(library: Library, tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(jpeg(picture(TEXT, dpi=200)))

    run = library.read(photo)

    assert character_errors([library.text], [TEXT]) < 1
    assert json.loads(library.by_number[1].layout or "")["dpi"] < 120
    assert published(run)["pdf"].stat().st_size < photo.stat().st_size + 10_000


# --- nothing is read twice ---


def mixed(path: Path) -> Path:
    """Save a page with text, a scan, and a page with text."""
    image = scan(path.with_name("image.pdf"), [picture(TEXT, dpi=150)], dpi=150)
    with pymupdf.open(digital(path, [prose(5), prose(6)])) as document, pymupdf.open(image) as scanned:
        document.insert_pdf(scanned, start_at=1)
        path.write_bytes(document.tobytes())
    return path


def test_stored_pages_are_not_read_again_and_another_language_reads_only_scans(
    library: Library, tmp_path: Path
) -> None:
    original = mixed(tmp_path / "mixed.pdf")
    before = library.read(original)
    assert library.methods == ["layer", "ocr", "layer"]
    first = library.text
    assert [job for job, _ in library.runs] == ["ingest", "ocr_pages", "assemble"]

    # The same content under another name.
    after = library.read(original.rename(tmp_path / "other name.pdf"))
    assert library.text == first
    assert [job for job, _ in library.runs] == ["ingest"]
    assert all(page.text is None for page in after.pages)
    files, files_before = published(after), published(before)
    assert set(files) == set(files_before) == {"text", "pages", "pdf", "thumbnail"}
    assert all(files[role].read_bytes() == files_before[role].read_bytes() for role in ("text", "pages"))

    again = library.run("ingest", {"languages": ["deu"]}, tmp_path / "other name.pdf")
    assert [page.number for page in again.pages] == [1, 3]
    assert all(page.text is None for page in again.pages)
    assert json.loads(again.follow_ups[0].payload or "")["pages"] == "2"


def test_pages_of_an_earlier_attempt_keep_their_places(library: Library, tmp_path: Path) -> None:
    original = digital(tmp_path / "a.pdf", [prose(1), prose(2), "", prose(4)])
    before = library.read(original)
    library.by_digest = {digest: page for digest, page in library.by_digest.items() if page.number in (2, 3)}

    after = library.read(original)

    assert [(page.number, page.text is None) for page in after.pages] == [(2, True), (3, True), (1, False), (4, False)]
    assert all(published(after)[role].read_bytes() == path.read_bytes() for role, path in published(before).items())


def test_a_page_with_known_pixels_is_not_recognised_again_in_another_file(library: Library, tmp_path: Path) -> None:
    lines = [f"{SHORT_TEXT} {page}" for page in ("one", "two", "three")]
    original = scan(tmp_path / "report.pdf", [picture(line, dpi=150) for line in lines], dpi=150)
    library.read(original)
    first = [page.text for _, page in sorted(library.by_number.items())]
    # Apart from one question for each range, there is one for every two pages that it draws.
    assert sum(len(run.questions) - 1 for run in library.jobs("ocr_pages")) == 2

    # A file with another digest and the same pixels.
    original.write_bytes(original.read_bytes() + b"\n%")
    library.read(original)
    assert recognised(library) == 0
    assert [page.text for _, page in sorted(library.by_number.items())] == first
    assert all(page.text is None for run in library.jobs("ocr_pages") for page in run.pages)

    # Now its pages are stored under the digest of the file, too.
    library.read(original)
    assert not library.jobs("ocr_pages")

    changed = scan(
        tmp_path / "changed.pdf", [picture(line, dpi=150) for line in [*lines[:2], f"{SHORT_TEXT} four"]], dpi=150
    )
    library.read(changed)
    assert recognised(library) == 1
    assert library.by_number[2].text == first[1]
    assert library.by_number[3].text != first[2]

    # With another size on paper, words have other positions.
    library.read(scan(tmp_path / "larger.pdf", [picture(lines[0], dpi=150)], dpi=140))
    assert recognised(library) == 1


def test_pictures_of_pages_with_stored_results_are_dropped(tmp_path: Path) -> None:
    images = [picture(f"{TEXT} {page}", dpi=150) for page in range(8)]
    size = images[0].width * images[0].height
    read = page_request_handler(
        scan(tmp_path / "a.pdf", images, dpi=150), "", OcrSettings(("eng",), "fast"), {}, is_forced=False
    )
    tracemalloc.start()
    try:
        for number in range(1, 9):
            read(number)
        bytes_in_use, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert bytes_in_use < 4 * size


def recognised(library: Library) -> int:
    return sum(run.result["recognised"] for run in library.jobs("ocr_pages"))


def test_a_forced_reading_recognises_every_page(library: Library, tmp_path: Path) -> None:
    run = library.run("ingest", {"force_ocr": True}, mixed(tmp_path / "mixed.pdf"))

    assert not run.pages
    ranges = [json.loads(job.payload or "")["pages"] for job in run.follow_ups if job.job_type == "ocr_pages"]
    assert ",".join(ranges) in ("1-3", "1-2,3", "1,2,3")


def test_a_killed_range_resumes_after_its_last_saved_page(tmp_path: Path) -> None:
    original = scan(tmp_path / "a.pdf", [picture(f"{SHORT_TEXT} {page}", dpi=150) for page in ("one", "two")], dpi=150)

    # The seventh message reports progress after the first page has been saved.
    killed, again = run_stopped_and_again(
        ocr_pages,
        {"pages": "1-2"},
        directory=tmp_path,
        step=7,
        document_id=1,
        inputs={"original": original},
    )

    assert killed.how is How.CRASHED
    assert [(page.number, page.text is None) for page in killed.pages] == [(1, False)]
    assert again.result["recognised"] == 1
    assert [(page.number, page.text is None) for page in again.pages] == [(1, True), (2, False)]


def test_a_stale_generation_is_refused_before_pages_are_read(library: Library, tmp_path: Path) -> None:
    original = scan(tmp_path / "a.pdf", [picture(TEXT, dpi=150)], dpi=150)
    jobs = library.run("ingest", {}, original).follow_ups
    range_job, _ = jobs

    # (range_job, 1): the generation becomes stale between the question about its pages and the one about their pixels.
    for job, current_for in ((range_job, 0), (range_job, 1), (jobs[-1], 0)):
        library.current_for = current_for
        run = library.run_job(job, original)

        assert (run.how, run.ended.code) == (How.PERMANENT, "STALE_GENERATION")
        assert not run.pages


@pytest.mark.parametrize("job_type", ["ocr_pages", "extract_rows", "assemble"])
def test_a_digest_in_the_payload_neither_reads_nor_writes_results_of_another_file(
    library: Library, tmp_path: Path, job_type: str
) -> None:
    """Payloads of an earlier version named the file. These fields are ignored."""
    original = tmp_path / "mine.csv" if job_type == "extract_rows" else digital(tmp_path / "mine.pdf", ["mine"])
    if job_type == "extract_rows":
        original.write_text("mine;1\nmine;2\n")
    library.run("ingest", {}, original)
    own_run = library.run(job_type, {"pages": "1"}, original)

    run = library.run(job_type, {"pages": "1", "kind": "image", "content": "0" * 64}, original)

    assert (own_run.how, run.how) == (How.DONE, How.DONE), run.ended
    assert [page.alias_digest or page.digest for page in run.pages] == [
        page.alias_digest or page.digest for page in own_run.pages
    ]
    assert "0" * 64 not in str(run.questions)


def test_reading_settings_of_a_job_apply_to_its_follow_ups(library: Library, tmp_path: Path) -> None:
    library.known = KnownDocument(settings='{"languages": ["deu"], "force_ocr": true}')
    original = scan(tmp_path / "a.pdf", [picture(TEXT, dpi=150)], dpi=150)

    by_document = library.run("ingest", {}, original).follow_ups
    by_payload = library.run("ingest", {"languages": ["eng"], "quality": "fast"}, original).follow_ups

    assert [json.loads(job.payload or "") for job in by_document] == [{"pages": "1"}, {}]
    settings = {"languages": ["eng"], "quality": "fast"}
    assert [json.loads(job.payload or "") for job in by_payload] == [{"pages": "1", **settings}, settings]
    assert by_document[0].concurrency_key != by_payload[0].concurrency_key


def test_missing_pages_are_named(library: Library, tmp_path: Path) -> None:
    original = digital(tmp_path / "a.pdf", [prose(1), prose(2), prose(3)])
    library.read(original)
    del library.by_number[2]

    run = library.run("assemble", {}, original)

    assert (run.how, run.ended.code) == (How.PERMANENT, "PAGES_MISSING")
    assert "page 2" in run.ended.message


def test_pages_too_large_for_one_answer_are_asked_for_in_smaller_parts(library: Library, tmp_path: Path) -> None:
    original = digital(tmp_path / "a.pdf", ["x"])
    for number in range(1, 31):
        library.keep(PageResult(number, f"d{number}", f"{number} " + "word " * 180_000, "layer"))

    library.known = KnownDocument(kind="pdf", pages=30)
    run = library.run("assemble", {}, original)

    assert run.how is How.DONE, run.ended
    pages = published(run)["text"].read_text().split("\f")
    assert [page.partition(" ")[0] for page in pages[:-1]] == [str(number) for number in range(1, 31)]


# --- rows ---


def test_a_spreadsheet_becomes_text_and_typed_values(library: Library, tmp_path: Path) -> None:
    original = workbook(
        tmp_path / "book.xlsx",
        {"Figures": [["name", "tonnes", "audited"], ["Scope 1", 12.5, True], ["Scope 2", 7, False]], "Notes": [["n"]]},
    )

    run = library.read(original)

    assert run.how is How.DONE, run.ended
    assert library.methods == ["rows", "rows"]
    assert library.text == "name\ttonnes\taudited\nScope 1\t12.5\tTRUE\nScope 2\t7\tFALSE\nFigures\nn\nNotes"
    pages = json.loads(published(run)["pages"].read_text())["pages"]
    assert pages[0]["layout"] == {
        "sheet": "Figures",
        "first": 1,
        "values": [["name", "tonnes", "audited"], ["Scope 1", 12.5, True], ["Scope 2", 7, False]],
    }


def test_text_boxes_of_a_workbook_are_read_after_its_rows(library: Library, tmp_path: Path) -> None:
    original = workbook(tmp_path / "book.xlsx", {"Figures": [[1]]})
    with zipfile.ZipFile(original, "a") as archive:
        text = "<a:p xmlns:a='http://a'><a:r><a:t>A note beside it</a:t></a:r></a:p>"
        archive.writestr("xl/drawings/drawing1.xml", f"<d>{text}</d>")

    library.read(original)

    assert library.text == "1\nFigures\nA note beside it\nText boxes"


def test_a_broken_drawing_costs_no_row_of_its_workbook(library: Library, tmp_path: Path) -> None:
    original = workbook(tmp_path / "book.xlsx", {"Figures": [[1]]})
    with zipfile.ZipFile(original, "a") as archive:
        archive.writestr("xl/drawings/drawing1.xml", "<d>")

    library.read(original)

    assert library.text == "1\nFigures"


def test_rows_are_extracted_in_ranges_of_three_thousand(library: Library, tmp_path: Path) -> None:
    original = tmp_path / "rows.csv"
    original.write_text("".join(f"{row};{row * row}\n" for row in range(7000)))

    run = library.read(original)

    assert run.how is How.DONE, run.ended
    assert [job.result["pages"] for job in library.jobs("extract_rows")] == [30, 30, 10]
    assert library.by_number[31].text is not None
    assert library.by_number[31].text.startswith("3000\t9000000\n")
    assert library.text.count("\n") == 6999


# --- follow-ups ---


def test_the_jobs_of_a_document_wait_for_those_before_them(library: Library, tmp_path: Path) -> None:
    original = scan(tmp_path / "a.pdf", [picture("x", dpi=150)] * 2, dpi=150)

    *ranges, last = library.run("ingest", {}, original).follow_ups

    assert last.job_type == "assemble"
    assert last.after_earlier
    assert {job.job_type for job in ranges} == {"ocr_pages"}
    assert not any(job.after_earlier for job in ranges)
    # A job with the same range of the same file waits for the first.
    assert [job.concurrency_key for job in library.run("ingest", {}, original).follow_ups[:-1]] == [
        job.concurrency_key for job in ranges
    ]


def test_a_job_without_a_document_says_what_to_enqueue_instead(library: Library) -> None:
    refused = library.run("ingest", {}, None, document_id=None)

    assert (refused.ended.code, "enqueue `download`" in refused.ended.remedy) == ("NO_DOCUMENT", True)
