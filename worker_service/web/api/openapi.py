"""The OpenAPI document, generated from the endpoint declarations.

`./run docs` writes it to `openapi.json`, the published contract. A test compares the two, so that every change of the
API shows up in a commit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service import VERSION
from worker_service.services.documents import ROLES
from worker_service.web.api import batches, documents, events, jobs, metrics, system, uploads
from worker_service.web.api.endpoint import ID, TEXT, Endpoint, Param, schema_of_body
from worker_service.web.api.schemas import Schemas

_OF_ENDPOINTS = (jobs, batches, documents, uploads, events, system, metrics)

ENDPOINTS: Sequence[Endpoint] = [one for module in _OF_ENDPOINTS for one in module.ENDPOINTS]

_PROBLEM = {
    "type": "object",
    "description": "RFC 9457",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong"},
        "remedy": {"type": "string", "description": "what to do about it; empty: nothing is known"},
        "code": {"type": "string", "description": "stable, for programs"},
    },
    "required": ["type", "title", "status", "detail", "remedy", "code"],
}
_EVERYWHERE = (400, 401, 403, 429, 503)
_REFUSED = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_KEPT = Param("If-None-Match", "the ETag of an earlier answer: 304 if nothing has changed")
_WORDS = {
    200: "done", 201: "made", 202: "accepted", 206: "a part of it", 304: "nothing has changed", 400: "not understood",
    401: "say who you are", 403: "not allowed", 404: "there is none", 409: "not in its present state",
    410: "it is gone", 413: "too large", 415: "of another type", 416: "there is no such range",
    422: "the payload does not fit", 429: "too many", 503: "the database cannot be used now",
    507: "the disk is full",
}  # fmt: skip


def document() -> dict[str, Any]:
    schemas = Schemas()
    paths: dict[str, Any] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pagemill",
            "version": VERSION,
            "description": "What a person can do on the command line, for programs: docs/api.md begins with examples.",
            "license": {"name": "AGPL-3.0-or-later", "identifier": "AGPL-3.0-or-later"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM, **dict(sorted(schemas.components.items()))},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(one: Endpoint, schemas: Schemas) -> dict[str, Any]:
    is_polled = one.method == "GET" and one.media == "application/json"
    parameters = [_of_path(word) for word in _words_of(one.path)]
    parameters += [_parameter(param, "query") for param in one.query]
    parameters += [_parameter(param, "header") for param in (*one.headers, *((_KEPT,) if is_polled else ()))]
    answers = {str(status): _answer(one, status, schemas) for status in one.statuses}
    if is_polled:
        answers["304"] = {"description": _WORDS[304]}
    refusals = {*_EVERYWHERE, *one.refusals, *((413, 415) if one.body is not None else ())}
    refusals |= {404} if "{" in one.path else set()
    answers |= {str(status): {"description": _WORDS[status], **_REFUSED} for status in sorted(refusals)}
    made: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.about,
        "tags": [one.path.split("/")[2] if one.path.startswith("/api/") else "metrics"],
        "x-scope": one.power.value,
        "responses": answers,
    }
    if parameters:
        made["parameters"] = parameters
    if one.body is not None:
        is_needed = any(field.is_needed for field in one.body.values())
        schema = schemas.of(schema_of_body(one.body))
        # A form also carries options that are not listed here.
        schema["additionalProperties"] = one.body_media != "application/json"
        media = {one.body_media: {"schema": schema}}
        made["requestBody"] = {"required": is_needed, "content": media}
    return made


def _answer(one: Endpoint, status: int, schemas: Schemas) -> dict[str, Any]:
    schema = {"type": "string"} if one.answer is None else schemas.of(one.answer)
    content = {"schema": schema} if one.media not in ("application/octet-stream", "image/webp") else {}
    return {"description": _WORDS[status], "content": {one.media: content}}


def _words_of(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _of_path(word: str) -> dict[str, Any]:
    schema = {"id": ID, "number": ID, "form": {**TEXT, "enum": list(ROLES)}}.get(word, {**TEXT, "minLength": 1})
    return {"name": word, "in": "path", "required": True, "schema": schema}


def _parameter(param: Param, place: str) -> dict[str, Any]:
    schema = {"type": "array", "items": param.schema} if param.is_many else param.schema
    told = {"name": param.name, "in": place, "description": param.about, "schema": schema}
    return told | ({"required": True} if param.is_needed else {})


async def openapi(_: Request) -> Response:
    return Response(_written(), media_type="application/json")


@cache
def _written() -> str:
    import json

    return json.dumps(document(), ensure_ascii=False, indent=1)


routes = [Route("/api/openapi.json", openapi)]
MODULES = (*_OF_ENDPOINTS, sys.modules[__name__])
