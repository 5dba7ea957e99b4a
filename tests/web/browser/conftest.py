from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.job_handlers.reading.documents import digital
from tests.web.conftest import served, settings_for
from worker_service.cli import pagemill
from worker_service.services import database_maintenance, tokens
from worker_service.services.session import Session, open_session
from worker_service.settings.config import Settings

# The headless shell needs half of the processor time.
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _BROWSERS)), None)
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
        # Chromium as root needs --no-sandbox; emulating a graphics card is slower than using none.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    settings = settings_for(folder / "pagemill.db")
    database_maintenance.initialise(settings)
    session = open_session(settings, actor="test")
    with _daemon(settings, folder / "daemon.log"), served(settings) as address:
        _add_documents(settings, folder / "alps")
        yield Site(address, settings, session)
    session.close()


def _add_documents(settings: Settings, folder: Path) -> None:
    """Document 1 is a report, so that every page has something to show."""
    folder.mkdir()
    digital(folder / "icecaps.pdf", ["An icecap melts."])
    (folder / "icecaps.csv").write_text("year,icecaps\n2025,12\n")
    for name in ("icecaps.pdf", "icecaps.csv"):
        arguments = ["add", str(folder / name), "--wait", "--timeout", f"{_SECONDS}s"]
        done = CliRunner(env={"WORKER_DATABASE": str(settings.database)}).invoke(pagemill, arguments)
        assert done.exit_code == 0, done.output


@contextmanager
def _daemon(settings: Settings, log: Path) -> Iterator[None]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WORKER_")}
    environment = {**inherited, "WORKER_DATABASE": str(settings.database), "WORKER_LOG_FORMAT": "json"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker_service"], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(_SECONDS) == 0, log.read_text()


class Window:
    """A signed-in page and its errors. It is shared, because opening one takes longer than most tests."""

    def __init__(self, chromium: Browser, site: Site, *, script: bool) -> None:
        self._has_script = script
        self._faults: list[str] = []
        self._is_refused = False
        context = chromium.new_context(base_url=site.address, java_script_enabled=script)
        context.set_default_timeout(1000 * _SECONDS)
        self._session = site.session
        self.page = context.new_page()
        self.page.on("console", self._note_console_error)
        self.page.on("pageerror", lambda error: self._faults.append(str(error)))
        self.page.on("request", lambda request: self._note_request(request.url, site.address))

    def visit(self, path: str, *, width: int, scheme: Scheme, refused: bool) -> Page:
        self._is_refused = refused
        if not self.page.context.cookies():
            self._sign_in()
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme)
        self.page.goto(path)
        return self.page

    def _sign_in(self) -> None:
        self.page.goto(f"/session?link={tokens.create_link(self._session, 'admin').text}")
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/")

    def reset(self) -> list[str]:
        self.page.unroute_all()
        if self._has_script:
            self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        # For a page of another site, such as about:blank, Chromium would start another process.
        self.page.goto("/session/me")
        faults, self._faults = self._faults, []
        return faults

    def _note_console_error(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not self._is_refused:
            self._faults.append(message.text)

    def _note_request(self, url: str, address: str) -> None:
        if _is_elsewhere(url, address):
            self._faults.append(url)


@pytest.fixture(scope="module")
def windows(chromium: Browser, site: Site) -> Callable[[bool], Window]:
    return cache(lambda script: Window(chromium, site, script=script))


Visit = Callable[..., Page]


@pytest.fixture
def visit(windows: Callable[[bool], Window]) -> Iterator[Visit]:
    windows_used: list[Window] = []

    def open_page(
        path: str, *, width: int = 1280, scheme: Scheme = "light", script: bool = True, refused: bool = False
    ) -> Page:
        window = windows(script)
        assert window not in windows_used, "a test opens one page"
        windows_used.append(window)
        return window.visit(path, width=width, scheme=scheme, refused=refused)

    yield open_page
    assert [fault for window in windows_used for fault in window.reset()] == []


def _is_elsewhere(url: str, address: str) -> bool:
    return urlsplit(url).netloc != urlsplit(address).netloc and urlsplit(url).scheme not in ("data", "blob")
