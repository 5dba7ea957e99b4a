"""Generates the OpenAPI document, `openapi.json`, from the endpoint declarations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service import VERSION
from worker_service.jobs.batches import InBatch
from worker_service.jobs.job import Job
from worker_service.services.exports import FORMAT_NAMES
from worker_service.services.health import Level
from worker_service.services.job_details import Needed
from worker_service.services.serialize import JSON_TEXT_FIELDS
from worker_service.web.api import batches, documents, events, failures, jobs, schedules, system, tags, uploads
from worker_service.web.api.endpoint import Endpoint
from worker_service.web.parameters import FilledText, Id

_MODULES = (jobs, batches, documents, tags, uploads, events, failures, schedules, system)

ENDPOINTS = [value for module in _MODULES for value in vars(module).values() if isinstance(value, Endpoint)]

_PROBLEM = {
    "type": "object",
    "description": "RFC 9457",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong"},
        "remedy": {"type": "string", "description": "what to do about it; empty if unknown"},
        "code": {"type": "string", "description": "stable, for programs"},
    },
    "required": ["type", "title", "status", "detail", "remedy", "code"],
}
_COMMON_REFUSALS = (400, 401, 403, 429, 503)
_REFUSAL = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_ETAG_HEADER = {"If-None-Match": "The ETag of an earlier response: 304 if nothing has changed."}


def openapi_document() -> dict[str, Any]:
    schemas = _Schemas(ENDPOINTS)
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pagemill",
            "version": VERSION,
            "description": "Everything that the command line can do. docs/api.md begins with examples.",
            "license": {"name": "AGPL-3.0-or-later", "identifier": "AGPL-3.0-or-later"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM, **dict(sorted(schemas.components.items()))},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    headers = {**endpoint.headers, **(_ETAG_HEADER if endpoint.has_etag else {})}
    parameters = [*_path_parameters(endpoint.path), *_query_parameters(endpoint.query)]
    parameters += [
        {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}
        for name, description in headers.items()
    ]
    responses = {status: _response(endpoint, status, schemas) for status in endpoint.statuses}
    if endpoint.has_etag:
        responses[304] = {"description": HTTPStatus(304).phrase}
    refusals = {*_COMMON_REFUSALS, *endpoint.refusals, *((413, 415) if endpoint.body is not None else ())}
    refusals |= {404} if "{" in endpoint.path else set()
    refusals |= {409} if endpoint.method != "GET" else set()
    responses |= {status: {"description": HTTPStatus(status).phrase, **_REFUSAL} for status in sorted(refusals)}
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.path.split("/")[2] if endpoint.path.startswith("/api/") else "metrics"],
        "x-scope": endpoint.required_scope.value,
        "responses": {str(status): response for status, response in responses.items()},
    }
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        is_required = any(field.required for field in fields(endpoint.body))
        operation["requestBody"] = {
            "required": is_required,
            "content": {endpoint.body_media: {"schema": schemas.get(endpoint.body)}},
        }
    return operation


_BINARY = ("*/*", "application/octet-stream", "application/zip", "image/webp")


def _response(endpoint: Endpoint, status: int, schemas: _Schemas) -> dict[str, Any]:
    schema = {"type": "string"} if endpoint.answer is None else schemas.get(endpoint.answer)  # None: text or file
    content = {} if endpoint.media in _BINARY else {"schema": schema}
    return {"description": HTTPStatus(status).phrase, "content": {endpoint.media: content}}


# ── Parameters ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    schemas = {"id": msgspec.json.schema(Id), "number": msgspec.json.schema(Id)}
    schemas["form"] = {"type": "string", "enum": list(FORMAT_NAMES)}
    for name in re.findall(r"{(\w+)}", path):
        schema = schemas.get(name, msgspec.json.schema(FilledText))
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(query: type[Struct]) -> Iterable[dict[str, Any]]:
    for field in fields(query):
        # An optional parameter is left out, never null. No parameter has two other types.
        [kind] = [kind for kind in _union_members(field.type) if kind is not NoneType]
        schema = msgspec.json.schema(kind)
        parameter = {"name": field.name, "in": "query", "description": schema.pop("description", ""), "schema": schema}
        yield parameter | ({"required": True} if field.required else {})


def _union_members(kind: Any) -> Sequence[Any]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


# ── Schemas ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Schemas:
    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        # As keys of dicts, the types are unique and keep their order. No body is also an answer.
        bodies = dict.fromkeys(endpoint.body for endpoint in endpoints if endpoint.body is not None)
        with_answer = [endpoint for endpoint in endpoints if endpoint.answer is not None]
        answers = dict.fromkeys(kind for endpoint in with_answer for kind in _union_members(endpoint.answer))
        body_schemas, self.components = _components(bodies)
        answer_schemas, components = _components(answers)
        self._schemas = dict(zip([*bodies, *answers], [*body_schemas, *answer_schemas], strict=True))
        self.components |= _adapt_to_serializer(components)

    def get(self, kind: Any) -> Any:
        schemas = [self._schemas[member] for member in _union_members(kind)]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _components(kinds: Iterable[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of_path, ref_template="#/components/schemas/{name}"
    )
    # Titles repeat the names, and docstrings are for those who read the code.
    for component in components.values():
        component.pop("title", None)
        component.pop("description", None)
    return schemas, components


def _schema_of_path(kind: type) -> dict[str, Any]:
    if issubclass(kind, PurePath):
        return {"type": "string"}
    raise NotImplementedError


def _adapt_to_serializer(components: dict[str, Any]) -> Mapping[str, Any]:
    """Adapt the schemas of responses to the results of `serialize.as_object`."""
    for kind in (Job, Needed, InBatch):
        # Tuples with names become objects.
        field_schemas = components[kind.__name__]["prefixItems"]
        components[kind.__name__] = {
            "type": "object",
            "properties": dict(zip(kind._fields, field_schemas, strict=True)),
            "required": [*kind._fields],
        }
    components["Job"]["properties"]["state"] = {"type": "string"}  # added by `as_object`
    components["Job"]["required"].append("state")
    components["Level"] = {"enum": [level.name.lower() for level in Level]}
    for component in components.values():
        properties: dict[str, Any] = component.get("properties", {})
        # A response has all fields except UNSET ones, for which msgspec's schema has no default.
        required = {*component.get("required", ())} | {name for name in properties if "default" in properties[name]}
        for name, schema in properties.items():
            schema.pop("default", None)
            # These strings hold JSON, and appear as the value they hold. Other fields have the same names.
            is_json_text = name in JSON_TEXT_FIELDS and '"string"' in json.dumps(schema)
            properties[name] = {} if is_json_text else schema
        if properties:
            component["required"] = [name for name in properties if name in required]
    return components


async def openapi(_: Request) -> Response:
    return Response(_text(), media_type="application/json")


@cache
def _text() -> str:
    return json.dumps(openapi_document(), ensure_ascii=False, indent=1)


routes = [*(endpoint.route for endpoint in ENDPOINTS), Route("/api/openapi.json", openapi)]
