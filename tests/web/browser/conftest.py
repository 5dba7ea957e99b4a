"""A real chromium, before a real server and a real daemon over one database.

Every page that a test looks at is watched: nothing may be asked for elsewhere, and nothing may go wrong unseen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.web.conftest import served
from worker_service.config import Settings, load_settings
from worker_service.operations import database
from worker_service.operations.database import Session, open_session

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_SECONDS = 20

Scheme = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Site:
    address: str
    settings: Settings
    session: Session


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: ./run setup installs it, as root")
    expect.set_options(timeout=1000 * _SECONDS)
    with sync_playwright() as playwright:
        # Who runs as root has no sandbox of its own to run it in.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("site")
    settings = load_settings({"database": str(place / "pagemill.db")}, environ={"WORKER_LOG_FORMAT": "json"})
    database.initialise(settings)
    session = open_session(settings, actor="test")
    with _daemon(settings, place / "daemon.log"), served(settings) as address:
        yield Site(address, settings, session)
    session.close()


@contextmanager
def _daemon(settings: Settings, log: Path) -> Iterator[None]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKER_")}
    environment = {**kept, "WORKER_DATABASE": str(settings.database), "WORKER_LOG_FORMAT": "json"}
    with log.open("wb") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker_service"], env=environment, stdout=told, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(_SECONDS) == 0, log.read_text()


Look = Callable[..., Page]


@pytest.fixture
def look(chromium: Browser, site: Site) -> Iterator[Look]:
    """`look(path)` opens a page. `refused`: it is to be answered with a refusal, of which the browser tells, too."""
    faults: list[str] = []
    contexts = []

    def opened(
        path: str, *, width: int = 1280, scheme: Scheme = "light", script: bool = True, refused: bool = False
    ) -> Page:
        context = chromium.new_context(
            base_url=site.address,
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=script,
        )
        contexts.append(context)
        context.set_default_timeout(1000 * _SECONDS)
        page = context.new_page()
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" and not refused else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda asked: faults.append(asked.url) if _is_elsewhere(asked.url, site.address) else None)
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def _is_elsewhere(url: str, address: str) -> bool:
    return urlsplit(url).netloc != urlsplit(address).netloc and urlsplit(url).scheme not in ("data", "blob")
