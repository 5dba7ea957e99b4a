from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from PIL import Image
from playwright.sync_api import FilePayload, Page, Route, expect

from tests.job_handlers.reading.documents import digital, picture, scan
from tests.web.browser.conftest import Scheme, Site, Visit
from worker_service.services.enqueue import enqueue

PATHS = (
    "/", "/documents", "/documents?view=table&kind=pdf", "/documents/change?id=1&verb=tag",
    "/documents/change?id=1&verb=remove", "/tags", "/search?q=icecap", "/documents/1?q=icecap",
    "/documents/1/remove", "/documents/1/reindex", "/documents/1/password", "/documents/1?tab=tables",
    "/upload?job=1", "/batches", "/batches/new", "/jobs", "/jobs/1", "/jobs/new", "/queue", "/failures", "/workers",
    "/schedules", "/schedules/new", "/keywords", "/activity", "/system", "/session/me",
)  # fmt: skip
_UNKNOWN_TYPE = "scrape_account"


def report(folder: Path, name: str, *texts: str) -> Path:
    return digital(folder / name, texts)


def search_from_home(page: Page, query: str) -> None:
    page.goto("/")
    page.get_by_role("searchbox").fill(query)
    page.get_by_role("button", name="Search").click()


def pixels_of_first_hit(page: Page) -> list[tuple[int, int, int]]:
    hit = page.locator("#sheet rect.hit").first
    expect(hit).to_be_visible()
    page.locator("#sheet image").evaluate("(image) => image.decode()")
    hit.scroll_into_view_if_needed()
    box = hit.bounding_box()
    assert box is not None
    shot = page.screenshot(clip={"x": box["x"], "y": box["y"], "width": box["width"], "height": box["height"]})
    with Image.open(io.BytesIO(shot)) as image:
        shown = image.convert("RGB").tobytes()
    return [(shown[at], shown[at + 1], shown[at + 2]) for at in range(0, len(shown), 3)]


def assert_marked_and_legible(page: Page) -> None:
    pixels = pixels_of_first_hit(page)
    yellow = sum(red > 180 and green > 140 and blue < 140 for red, green, blue in pixels)
    ink = sum(red + green + blue < 300 for red, green, blue in pixels)
    assert yellow > 0.4 * len(pixels)
    assert ink > 0.02 * len(pixels)


# ── Upload, watch, search, read ────────────────────────────────────────────────────────────────────────────────


def test_a_report_is_uploaded_watched_searched_and_viewed(visit: Visit, site: Site, tmp_path: Path) -> None:
    page = visit("/upload")

    page.get_by_label("Files:").set_input_files(report(tmp_path, "glaciers.pdf", "first page", "a glacier melts"))
    page.get_by_role("button", name="Upload").click()
    expect(page.locator(".state", has_text=re.compile(r"^Read \d"))).to_be_visible()

    search_from_home(page, "glacier")
    expect(page.locator(".tile mark")).to_have_text("glacier")
    page.get_by_role("link", name="glaciers.pdf").click()

    expect(page.locator(".words mark")).to_have_text("glacier")
    expect(page.locator(".tools [role=status]")).to_have_text("1 of 1")
    assert_marked_and_legible(page)


def test_without_scripts_a_report_is_uploaded_searched_and_tagged(visit: Visit, site: Site, tmp_path: Path) -> None:
    page = visit("/upload", script=False)

    page.get_by_label("Files:").set_input_files(report(tmp_path, "moraines.pdf", "the moraine stands"))
    page.get_by_label("Tags").fill("alps")
    page.get_by_role("button", name="Upload").click()
    # The page reloads by itself.
    expect(page.locator(".state", has_text=re.compile(r"^Read \d"))).to_be_visible()

    search_from_home(page, "moraine")
    page.get_by_role("link", name="moraines.pdf").click()
    expect(page.locator(".words mark")).to_have_text("moraine")
    expect(page.locator("#sheet rect.hit")).to_have_count(1)

    page.goto("/documents?tag=alps")
    page.get_by_label("Select moraines.pdf").check()
    page.get_by_role("button", name="Tag…").click()
    page.get_by_label("Tags to add").fill("Ice, snow")
    page.get_by_role("button", name="Change tags").click()
    expect(page.locator(".doc .tag")).to_have_text(["alps", "ice", "snow"])


def test_a_scan_is_recognised_and_doubtful_words_are_marked(visit: Visit, site: Site, tmp_path: Path) -> None:
    page = visit("/upload")
    scan(tmp_path / "scan.pdf", [picture("The crevasse is deep and wide", dpi=150)], dpi=150)

    page.get_by_label("Files:").set_input_files(tmp_path / "scan.pdf")
    page.get_by_role("button", name="Upload").click()
    expect(page.locator(".state", has_text=re.compile(r"^Read \d"))).to_be_visible()
    page.get_by_role("link", name="scan.pdf").click()
    page.get_by_role("searchbox", name="Find in this document").fill("crevasse")
    page.get_by_role("button", name="Find").click()

    assert_marked_and_legible(page)
    expect(page.get_by_text(re.compile(r"recognised, with \d+ % confidence"))).to_be_visible()


def expect_loaded_page(page: Page, number: str) -> None:
    expect(page.get_by_label("Page", exact=True)).to_have_value(number)
    # Before the script is loaded, it hears no keys.
    page.wait_for_load_state()


def test_keys_turn_pages_go_from_match_to_match_and_change_the_view(visit: Visit, site: Site, tmp_path: Path) -> None:
    report(tmp_path, "keys.pdf", "an icefall here and an icefall there", "nothing", "the last icefall")
    page = visit("/upload")
    page.get_by_label("Files:").set_input_files(tmp_path / "keys.pdf")
    page.get_by_role("button", name="Upload").click()
    expect(page.locator(".state", has_text=re.compile(r"^Read \d"))).to_be_visible()
    page.get_by_role("link", name="keys.pdf").click()
    page.keyboard.press("/")
    page.get_by_role("searchbox", name="Find in this document").fill("icefall")
    page.keyboard.press("Enter")
    position = page.locator(".tools [role=status]")

    page.locator("h1").click()
    expect(position).to_have_text("1 of 3")
    page.keyboard.press("n")
    expect(position).to_have_text("2 of 3")
    page.keyboard.press("n")
    expect_loaded_page(page, "3")
    expect(position).to_have_text("3 of 3")
    expect(page.locator("mark.here")).to_have_text("icefall")
    page.keyboard.press("ArrowLeft")
    expect_loaded_page(page, "2")
    page.keyboard.press("p")
    expect_loaded_page(page, "1")
    expect(position).to_have_text("2 of 3")
    page.keyboard.press("+")
    expect(page.locator("#sheet")).to_have_class("sheet z150")
    page.keyboard.press("r")
    expect(page.locator("#sheet g")).to_have_attribute("transform", re.compile("rotate"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog").get_by_text("Previous and next match")).to_be_visible()


def test_files_dropped_anywhere_on_a_page_are_uploaded(visit: Visit, site: Site, tmp_path: Path) -> None:
    page = visit("/documents")
    data = page.evaluate_handle(
        """() => { const data = new DataTransfer();
                   data.items.add(new File(["year,fjord\\n2025,12"], "fjords.csv", {type: "text/csv"}));
                   return data; }"""
    )

    page.dispatch_event("main", "dragover", {"dataTransfer": data})
    page.dispatch_event("main", "drop", {"dataTransfer": data})

    expect(page.get_by_role("link", name="fjords.csv")).to_be_visible()
    expect(page.locator(".state", has_text=re.compile(r"^Read \d"))).to_be_visible()


def test_a_refused_upload_says_why_on_the_page_it_was_sent_from(visit: Visit, site: Site) -> None:
    page = visit("/upload", refused=True)

    empty: FilePayload = {"name": "empty.pdf", "mimeType": "application/pdf", "buffer": b""}
    page.get_by_label("Files:").set_input_files(empty)
    page.get_by_role("button", name="Upload").click()

    expect(page.locator(".sending [role=status]")).to_contain_text("empty.pdf")


def test_ticked_documents_are_counted_and_downloaded_together(visit: Visit, site: Site) -> None:
    page = visit("/documents?view=table&sort=name")
    boxes = page.locator(".pick input[name=id]")

    boxes.first.click()
    boxes.last.click(modifiers=["Shift"])
    expect(page.locator(".selection-bar b")).to_have_text(f"{boxes.count()} selected")
    page.get_by_role("button", name="Clear selection").click()
    expect(page.locator(".selection-bar")).not_to_be_visible()
    page.get_by_label("Select all on this page").click()
    page.get_by_role("button", name="Download…").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()

    assert download.value.suggested_filename == "documents.zip"
    with zipfile.ZipFile(download.value.path()) as archive:
        assert archive.testzip() is None


# ── Ticked jobs ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_range_of_jobs_is_ticked_and_counted(visit: Visit, site: Site) -> None:
    for _ in range(5):
        enqueue(site.session, {"job_type": _UNKNOWN_TYPE, "owner": "eve"}, lambda _: b"", is_payload_checked=False)
    page, listed = visit("/jobs"), "**/jobs?owner=eve"
    boxes = page.locator(".pick input[name=id]")
    # The refresh that the page requests by itself: its answer is held back until a box is ticked.
    held: list[Route] = []
    page.route(listed, lambda route: route.continue_() if route.request.is_navigation_request() else held.append(route))
    with page.expect_request(lambda request: request.url.endswith("=eve") and not request.is_navigation_request()):
        page.goto(f"{page.url}?owner=eve")

    boxes.nth(1).click()
    with page.expect_response(listed):
        for route in held:
            route.continue_()
    page.unroute(listed)
    boxes.nth(3).click(modifiers=["Shift"])

    assert [box.is_checked() for box in boxes.all()] == [False, True, True, True, False]
    expect(page.locator("option[value=ticked]")).to_have_text("3 ticked")
    boxes.nth(3).click()
    boxes.nth(2).click(modifiers=["Shift"])
    assert [box.is_checked() for box in boxes.all()] == [False, True, False, False, False]


# ── All pages ───────────────────────────────────────────────────────────────────────────────────────────────


_SIZES: Sequence[tuple[int, Scheme]] = [(1280, "light"), (360, "dark")]


def test_every_page_is_accessible_and_fits_the_screen(visit: Visit, site: Site) -> None:
    page = visit(PATHS[0])

    faults = []
    # The pages share one stylesheet, so each is checked once: in turn wide and light, narrow and dark.
    for path, (width, scheme) in zip(PATHS, cycle(_SIZES), strict=False):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(path, wait_until="domcontentloaded")
        page.evaluate(AXE_SCRIPT)
        results = AxeResults(page.evaluate("axe.run({resultTypes: ['violations'], preload: false})"))
        if results.violations_count:
            faults.append(f"{path}, {width} {scheme}: {results.generate_report()}")
        page.set_viewport_size({"width": 360, "height": 900})
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            faults.append(f"{path}: wider than 360 pixels")

    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_have_different_backgrounds(visit: Visit, site: Site, scheme: Scheme) -> None:
    page = visit("/documents", scheme=scheme)

    with Image.open(io.BytesIO(page.screenshot(clip={"x": 0, "y": 300, "width": 4, "height": 4}))) as shown:
        lightness = shown.convert("L").getpixel((1, 1))

    assert isinstance(lightness, int | float)
    assert (lightness > 200) is (scheme == "light")
