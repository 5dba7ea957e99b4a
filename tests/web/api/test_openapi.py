from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from tests import manual
from tests.cli.stored_documents import Shelf
from tests.full_length import short
from tests.store.kit import work_as
from tests.web.conftest import bearer, served
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.web import app

ROOT = Path(__file__).resolve().parents[3]


def test_the_openapi_file_matches_the_endpoints(site: httpx.Client) -> None:
    generated = manual.openapi_file()

    assert manual.OPENAPI.read_text("utf-8") == generated, "generate it again: ./run docs"
    assert site.get("/api/openapi.json").json() == json.loads(generated)


def test_every_route_below_api_is_in_the_openapi_file() -> None:
    paths = json.loads(manual.OPENAPI.read_text("utf-8"))["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    routes = {
        (method, route.path.replace(":id}", "}"))
        for route in app.routes()
        if isinstance(route, Route) and route.path.startswith("/api/")
        for method in (route.methods or set()) - {"HEAD"}
    }

    assert routes - documented == {("GET", "/api/openapi.json")}
    assert documented - routes == {("GET", "/metrics")}


def test_every_response_matches_the_openapi_file(settings: Settings, session: Session, tmp_path: Path) -> None:
    work_as(session.store)
    shelf = Shelf(session.store, settings.workspace)
    shelf.read("a.pdf", "climate risk", roles=("text",), owner="alice")
    session.store.job_control.pause("type", "other", reason="x")
    with served(settings) as address:
        schemathesis = subprocess.run(
            [
                Path(sys.executable).with_name("schemathesis"), "run", manual.OPENAPI, "--url", address,
                "--header", f"Authorization: {bearer(settings)['Authorization']}",
                "--phases", "fuzzing", "--max-examples", short("1", full="10"), "--generation-deterministic",
                "--workers", "2", "--no-color", "--request-timeout", "60", "--suppress-health-check", "too_slow",
                # An endless stream, and a form with files instead of JSON: other tests cover both.
                "--exclude-path", "/api/events", "--exclude-path", "/api/uploads",
                "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
                "response_schema_conformance,response_headers_conformance",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip

    assert schemathesis.returncode == 0, schemathesis.stdout[-8000:] + schemathesis.stderr[-2000:]
    endpoints = sum(map(len, json.loads(manual.OPENAPI.read_text("utf-8"))["paths"].values()))
    assert f"Tested: {endpoints - 2}" in schemathesis.stdout


def test_the_commands_of_the_manual_work(settings: Settings, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    blocks = re.findall(r"^```sh\n(.*?)^```$", (manual.DOCS / "api.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    text = "".join(blocks)
    with served(settings) as address:
        script = text.replace("at=http://127.0.0.1:8470\n", f"at={address}\n")
        script = script.replace("$(pagemill token make laptop --scope admin)", bearer(settings)["Authorization"][7:])
        script = script.replace("command curl", "command curl --fail-with-body -sS")
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    assert done.returncode == 0, done.stdout + done.stderr
    assert '"name": "report.pdf"' in done.stdout
    assert "event: hello" in done.stdout
