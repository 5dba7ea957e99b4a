"""The pictures that README and the manual show: `python -m tests.web.screenshots LINK DIRECTORY`.

`./run screenshots` starts a pagemill that has read `sample_documents`, and is reading the longest of them.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from tests.web.browser.conftest import CHROMIUM

SEARCH = "/search?q=climate+risk"
_SIZE = {"width": 1180, "height": 820}
_COLOURS = 256
_WHOLE = ("home", "batch")
_DECODED = """Promise.all([...document.images].map((image) => {
    image.loading = "eager";
    return image.decode().catch(() => undefined);
}))"""


def main(link: str, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(base_url=link, viewport=_SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(link)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/")
        expect(page.get_by_text("Reading now")).to_be_visible()
        for name, path in (
            ("home", "/"),
            ("documents", "/documents"),
            ("search", SEARCH),
            ("batch", "/batches/2"),
            ("queue", "/queue"),
        ):
            _take(page, path, directory / f"{name}.png")
        page.goto("/search?q=auditors")
        page.get_by_role("link", name="Audit letter 2019").first.click()
        page.locator("#sheet image").evaluate("(image) => image.decode()")
        _keep(page.screenshot(), directory / "page.png")
        browser.close()


def _take(page: Page, path: str, target: Path) -> None:
    page.goto(path)
    # The event stream never ends, so wait for the pictures instead.
    page.evaluate(_DECODED)
    _keep(page.screenshot(full_page=target.stem in _WHOLE), target)


def _keep(shot: bytes, target: Path) -> None:
    with Image.open(io.BytesIO(shot)) as image:
        few = image.convert("RGB").quantize(_COLOURS, Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE)
        few.save(target, optimize=True)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1].strip(), Path(sys.argv[2]))
