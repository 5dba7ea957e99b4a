"""The pictures that README and the manual show: `python -m tests.web.screenshots LINK DIRECTORY`.

Of the pages of a pagemill that has read what the demo reads; `./run screenshots` starts one.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.web.browser.conftest import CHROMIUM

SEARCH = "/search?q=climate+NEAR+risk"
_SIZE = {"width": 1180, "height": 760}
_COLOURS = 64


def main(link: str, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(base_url=link, viewport=_SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(link)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/")
        for name, path, title in (
            ("home", "/", None),
            ("search", SEARCH, None),
            ("page", SEARCH, "Audit, scanned.pdf"),
        ):
            page.goto(path)
            if title is not None:
                page.get_by_role("link", name=title).first.click()
                # One stream of news goes on for ever: what is waited for are the images.
                page.locator("#sheet image").evaluate("(image) => image.decode()")
            _keep(page.screenshot(), directory / f"{name}.png")
        browser.close()


def _keep(shot: bytes, target: Path) -> None:
    with Image.open(io.BytesIO(shot)) as image:
        few = image.convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(target, optimize=True)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1].strip(), Path(sys.argv[2]))
