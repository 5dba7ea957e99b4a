"""Drives that nobody here wrote, to crawl: backlot (PyPI) and google-drive-mock (npm). Neither is needed to run the
tests; where they are is told by PAGEMILL_PEERS, a directory that was filled with

    pip install --target DIRECTORY backlot==0.1.0
    npm install --prefix DIRECTORY google-drive-mock@1.2.0 cors
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.drive_server import DriveServer, Item
from tests.drive_server.model import FOLDER

PEERS = os.environ.get("PAGEMILL_PEERS", "")
_START_SECONDS = 30.0


@dataclass(frozen=True)
class Thing:
    """What is to lie in a Drive; `parent` is the name of a folder."""

    name: str
    parent: str = ""
    content: str = ""
    is_trashed: bool = False

    @property
    def mime(self) -> str:
        return "text/csv" if self.content else FOLDER


class Place(Protocol):
    url: str
    token: str
    ids: dict[str, str]

    def add(self, thing: Thing) -> None: ...
    def write(self, name: str, content: str) -> None: ...
    def trash(self, name: str) -> None: ...
    def remove(self, name: str) -> None: ...


class Ours:
    """The server of our own tests."""

    token = ""

    def __init__(self, server: DriveServer) -> None:
        self.url = server.url
        self.ids: dict[str, str] = {}
        self._server = server

    def add(self, thing: Thing) -> None:
        parents = [self.ids[thing.parent]] if thing.parent else []
        item = self._server.store.add(thing.name, thing.content.encode(), mime=thing.mime, parents=parents)
        item.is_trashed = thing.is_trashed
        self.ids[thing.name] = item.id

    def write(self, name: str, content: str) -> None:
        self._server.store.write(self._item(name), content.encode())

    def trash(self, name: str) -> None:
        self._server.store.trash(self._item(name))

    def remove(self, name: str) -> None:
        self._server.store.remove(self._item(name))

    def _item(self, name: str) -> Item:
        return self._server.store.items[self.ids[name]]


class Mock:
    """google-drive-mock, over its own API."""

    token = "valid-token"

    def __init__(self, url: str) -> None:
        self.url = url
        self.ids: dict[str, str] = {}

    def add(self, thing: Thing) -> None:
        parents = [self.ids[thing.parent]] if thing.parent else []
        told = self._ask("POST", "/drive/v3/files", {"name": thing.name, "mimeType": thing.mime, "parents": parents})
        self.ids[thing.name] = told["id"]
        if thing.content:
            self.write(thing.name, thing.content)
        if thing.is_trashed:
            self.trash(thing.name)

    def write(self, name: str, content: str) -> None:
        path = f"/upload/drive/v3/files/{self.ids[name]}?uploadType=media"
        self._ask("PATCH", path, content, kind="text/csv")

    def trash(self, name: str) -> None:
        self._ask("PATCH", f"/drive/v3/files/{self.ids[name]}", {"trashed": True})

    def remove(self, name: str) -> None:
        self._ask("DELETE", f"/drive/v3/files/{self.ids[name]}")

    def _ask(self, method: str, path: str, body: object = None, *, kind: str = "application/json") -> Any:
        said = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        request = urllib.request.Request(f"{self.url}{path}", said, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            told = answer.read()
        return json.loads(told) if told else None


class Backlot:
    """Takes nothing but what it begins with."""

    def __init__(self, url: str, token: str, ids: dict[str, str]) -> None:
        self.url, self.token, self.ids = url, token, ids

    def add(self, thing: Thing) -> None:
        raise NotImplementedError

    def write(self, name: str, content: str) -> None:
        raise NotImplementedError

    def trash(self, name: str) -> None:
        raise NotImplementedError

    def remove(self, name: str) -> None:
        raise NotImplementedError


def why_absent(name: str) -> str:
    """Empty: it is there."""
    parts = {"backlot": "backlot", "google-drive-mock": "node_modules/google-drive-mock"}
    if name == "google-drive-mock" and shutil.which("node") is None:
        return "there is no node"
    if not PEERS or not (Path(PEERS) / parts[name]).is_dir():
        return f"{name} is not in PAGEMILL_PEERS (see tests/job_handlers/crawl/peers.py)"
    return ""


@contextmanager
def mock() -> Iterator[Mock]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = f"require('google-drive-mock').startServer({port}, '127.0.0.1')"
    with _running(["node", "-e", script], cwd=PEERS):
        url = f"http://127.0.0.1:{port}"
        _wait_for(url)
        yield Mock(url)


_SERVE = """
import json, sys, backlot
with backlot.serve(json.load(open(sys.argv[1])), telemetry=False) as server:
    print(json.dumps([server.base_url, server.token]), flush=True)
    sys.stdin.read()
"""


@contextmanager
def backlot(things: Sequence[Thing], place: Path) -> Iterator[Backlot]:
    """Begun twice: it makes ids of its own from ours, and a parent is named by its id."""
    with _backlot(things, {}, place) as (url, token):
        ids = {one["name"]: one["id"] for one in _listed(url, token)}
    with _backlot(things, ids, place) as (url, token):
        yield Backlot(url, token, ids)


@contextmanager
def _backlot(things: Sequence[Thing], ids: Mapping[str, str], place: Path) -> Iterator[tuple[str, str]]:
    records = place / "records.json"
    records.write_text(json.dumps([_record(thing, ids) for thing in things]))
    environment = {**os.environ, "PYTHONPATH": PEERS, "HOME": str(place)}
    command = [sys.executable, "-c", _SERVE, str(records)]
    with _running(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url, token = json.loads(process.stdout.readline())
        yield url, token


def _record(thing: Thing, ids: Mapping[str, str]) -> dict[str, object]:
    kind = {"subtype": "csv", "mime_type": "text/csv"} if thing.content else {"subtype": "folder"}
    return {
        "source_type": "google_drive",
        "doc_id": f"thing-{thing.name}",
        "folder": "all of it",
        "title": thing.name,
        "content": thing.content or "a folder",
        "author_email": "anna@example.com",
        "created": "2026-01-01T00:00:00Z",
        "updated": "2026-01-02T00:00:00Z",
        "visibility": "public",
        "trashed": thing.is_trashed,
        **({"parents": [ids[thing.parent]]} if thing.parent in ids else {}),
        **kind,
    }


def _listed(url: str, token: str) -> Any:
    request = urllib.request.Request(
        f"{url}/drive/v3/files?pageSize=1000", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())["files"]


@contextmanager
def _running(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, **how) as process:
        try:
            yield process
        finally:
            process.terminate()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.monotonic() > deadline:
                pytest.fail(f"{url} did not answer")
            time.sleep(0.05)
