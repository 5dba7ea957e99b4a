"""The OpenAPI file is what the server does: it is written from the endpoints, and tried out against a real one."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from starlette.routing import Route

from tests import manual
from worker_service.web import server

ROOT = Path(__file__).resolve().parents[3]


def test_the_file_is_what_the_endpoints_say(site: httpx.Client) -> None:
    told = manual.openapi_file()

    assert manual.OPENAPI.read_text("utf-8") == told, "write it again: ./run docs"
    assert site.get("/api/openapi.json").json() == json.loads(told)


def test_every_route_below_api_stands_in_the_file() -> None:
    paths = json.loads(manual.OPENAPI.read_text("utf-8"))["paths"]
    told = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    routes = {
        (method, route.path.replace(":int", ""))
        for route in server.routes()
        if isinstance(route, Route) and route.path.startswith("/api/")
        for method in (route.methods or set()) - {"HEAD"}
    }

    assert routes - told == {("GET", "/api/openapi.json")}
    assert told - routes == {("GET", "/metrics")}
