"""Endpoints: declared once, for the router, the request parser and the OpenAPI file.

An endpoint's function takes a `Call` and returns a value, which is serialised as for `--json`. It runs in a thread with
a session of its own. Unknown parameters and fields are refused by name. A response to GET carries an ETag of two parts:
the version of the database and a digest of the response. If the first part still matches, the response is 304 without a
query.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from msgspec import Struct, field
from msgspec.structs import replace
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput, did_you_mean
from worker_service.base.sanitize import as_json
from worker_service.jobs.digest import digest
from worker_service.services.database import Session
from worker_service.services.idempotency import Told, once
from worker_service.services.serialize import as_object
from worker_service.web.access import Power, Visitor, visitor_of
from worker_service.web.changes import version_of
from worker_service.web.database_sessions import opened
from worker_service.web.error_responses import BodyTooLarge, NoSuchPage, WrongMediaType

Schema = Mapping[str, Any]
Streams = Callable[[Request, Visitor, Mapping[str, Any]], Awaitable[Response]]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": 2**53}
ID: Schema = {"type": "integer", "minimum": 1, "maximum": 2**53}
YES: Schema = {"type": "boolean"}

_YES = {"": True, "true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_KEY_MOST = 255
_BODY_SLACK = 64 * 1024
"""Bytes allowed in a body besides its payload."""

IDEMPOTENCY = "Idempotency-Key"


class Param(Struct, frozen=True):
    """A parameter in the query or a header."""

    name: str
    about: str
    schema: Schema = field(default_factory=lambda: TEXT)
    is_many: bool = False
    """May be repeated."""
    is_needed: bool = False


_IDEMPOTENT = Param(IDEMPOTENCY, "the same wish, sent again with it within 30 days, is granted once and answered alike")


class Field(Struct, frozen=True):
    """A field of the JSON or form body."""

    schema: Schema
    about: str
    is_needed: bool = False


class Call(Struct, frozen=True):
    """A request after parsing, with its session and visitor."""

    request: Request
    session: Session
    visitor: Visitor
    query: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def id(self) -> int:
        return cast(int, self.request.path_params["id"])

    def path(self, name: str) -> Any:
        return self.request.path_params[name]


class Answer(Struct, frozen=True):
    """A response with its own status or headers."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Endpoint(Struct, frozen=True):
    method: str
    path: str
    about: str
    run: Callable[[Call], Any]
    power: Power
    query: Sequence[Param]
    body: Mapping[str, Field] | None
    answer: Any
    """Type of the response value, which `as_object` serialises; or a JSON schema."""
    statuses: Sequence[int]
    """Status codes of success."""
    refusals: Sequence[int]
    headers: Sequence[Param]
    media: str
    is_of_the_moment: bool
    """The response also depends on the clock or on processes, so an unchanged database does not mean 304."""
    is_of_all: bool
    """Refused for a visitor of one owner."""
    streams: Streams | None
    """Coroutine called instead of `run`, without a thread or session."""
    body_media: str

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def route(self) -> Route:
        return Route(_with_kinds(self.path), self._answer, methods=[self.method], name=f"api.{self.name}")

    async def _answer(self, request: Request) -> Response:
        visitor = visitor_of(request)
        visitor.must(self.power)
        if self.is_of_all:
            visitor.must_be_of_all()
        if any(isinstance(one, int) and one > ID["maximum"] for one in request.path_params.values()):
            raise NoSuchPage(f"{request.url.path} does not exist")
        query = read_query(request, self.query)
        if self.streams is not None:
            return await self.streams(request, visitor, query)
        body = {} if self.body is None else await _read_body(request, self.body)
        return await run_in_threadpool(self._run, request, visitor, query, body)

    def _run(self, request: Request, visitor: Visitor, query: Mapping[str, Any], body: Mapping[str, Any]) -> Response:
        is_polled = self.method == "GET" and self.media == "application/json"
        asked = digest([str(request.url.query), visitor.name, visitor.owner])[:12]
        state = "" if not is_polled or self.is_of_the_moment else f"{version_of(request)}-{asked}"
        known = _etag_of(request) if is_polled else ("", "")
        if state and known[0] == state:
            return _unchanged(state, known[1])
        with opened(request) as session, _text_only():
            call = Call(request, session, visitor, query, body)
            if self.method == "POST":
                return granted(request, session, [dict(query), dict(body)], lambda: self._told(call))
            answer = self.run(call)
            if isinstance(answer, Response):
                return answer
            text, status, headers = _written(answer)
        if is_polled:
            content = digest([text, asked])[:16]
            if known[1] == content:
                return _unchanged(state, content)
            headers |= _kept(state, content)
        return Response(text + "\n", status, headers, media_type="application/json")

    def _told(self, call: Call) -> Told:
        text, status, headers = _written(self.run(call))
        return Told(status, text, headers.get("Location"))


@contextmanager
def _text_only() -> Iterator[None]:
    """Refuse lone surrogates, which JSON can express and UTF-8 cannot store."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the request contains an incomplete character (a lone surrogate): {error.object[:50]!a}"
        ) from error


def granted(request: Request, session: Session, asked: Sequence[Any], grant: Callable[[], Told]) -> Response:
    """Call `grant`, or return its stored response if the same Idempotency-Key was used before.

    `asked` is everything that distinguishes this request from others with the same key.
    """
    key = request.headers.get(IDEMPOTENCY)
    if key is None:
        told = grant()
    elif not 0 < len(key) <= _KEY_MOST or not key.isprintable():
        raise BadInput(f"an {IDEMPOTENCY} is one line of at most {_KEY_MOST} characters")
    else:
        visitor = visitor_of(request)
        told = once(session, f"{visitor.name}\n{visitor.owner or ''}\n{key}", digest([request.url.path, *asked]), grant)
    headers = {} if told.location is None else {"Location": told.location}
    return Response(told.answer + "\n", told.status, headers, media_type="application/json")


def _written(answer: Any) -> tuple[str, int, dict[str, str]]:
    if not isinstance(answer, Answer):
        answer = Answer(answer)
    return as_json(as_object(answer.value), indent=None, is_ascii=False), answer.status, dict(answer.headers)


def endpoint(
    method: str,
    path: str,
    about: str,
    *,
    power: Power | None = None,
    query: Sequence[Param] = (),
    body: Mapping[str, Field] | None = None,
    answer: Any = None,
    statuses: Sequence[int] = (200,),
    refusals: Sequence[int] = (),
    headers: Sequence[Param] = (),
    media: str = "application/json",
    is_of_the_moment: bool = False,
    is_of_all: bool = False,
) -> Callable[[Callable[[Call], Any]], Endpoint]:
    """Declare an endpoint. `power` defaults to `read` for GET and `operate` for other methods."""
    needed = power or (Power.READ if method == "GET" else Power.OPERATE)
    if method == "POST":
        headers, refusals = (*headers, _IDEMPOTENT), sorted({*refusals, 400, 409})

    def declare(run: Callable[[Call], Any]) -> Endpoint:
        return Endpoint(
            method, path, about, run, needed, query, body, answer, statuses, refusals, headers, media,
            is_of_the_moment, is_of_all, None, "application/json",
        )  # fmt: skip

    return declare


def streamed(
    method: str,
    path: str,
    about: str,
    *,
    body: Mapping[str, Field] | None = None,
    body_media: str = "application/json",
    **more: Any,
) -> Callable[[Streams], Endpoint]:
    """Declare an endpoint whose coroutine streams the body or the response."""

    def declare(streams: Streams) -> Endpoint:
        made = endpoint(method, path, about, body=body, **more)(cast(Any, streams))
        return replace(made, streams=streams, body_media=body_media)

    return declare


def _with_kinds(path: str) -> str:
    return path.replace("{id}", "{id:int}").replace("{number}", "{number:int}")


# ── Parsing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_query(request: Request, declared: Sequence[Param]) -> dict[str, Any]:
    """Return the query by parameter name: a list if the parameter may be repeated, no entry if it is absent."""
    known = {param.name: param for param in declared}
    said: dict[str, Any] = {}
    for word, value in request.query_params.multi_items():
        name = word.replace("-", "_")
        param = known.get(name)
        if param is None:
            meant = did_you_mean(name, known, f"there are {', '.join(known) or 'none'}")
            raise BadInput(f"{request.url.path} has no parameter {word!r}", meant)
        if "\0" in value:
            raise BadInput(f"{name} holds a NUL byte")
        read = _read(name, value, param.schema)
        if param.is_many:
            said.setdefault(name, []).append(read)
        elif name in said:
            raise BadInput(f"{name} is given twice")
        else:
            said[name] = read
    for param in declared:
        if param.is_needed and param.name not in said:
            raise BadInput(f"the parameter {param.name} is missing", param.about)
    return said


def _read(name: str, value: str, schema: Schema) -> Any:
    if "enum" in schema and value not in schema["enum"]:
        raise BadInput(f"{name} must be one of {', '.join(schema['enum'])}, not {value!r}")
    if schema["type"] == "integer":
        least, most = schema["minimum"], schema["maximum"]
        if not (value.isascii() and value.isdigit() and len(value) < 19 and least <= int(value) <= most):
            raise BadInput(f"{name} must be a number from {least} to {most}, not {value!r}")
        return int(value)
    if schema["type"] == "boolean":
        if value.lower() not in _YES:
            raise BadInput(f"{name} must be true or false, not {value!r}")
        return _YES[value.lower()]
    return value


async def _read_body(request: Request, declared: Mapping[str, Field]) -> Mapping[str, Any]:
    raw = await _received(request, request.app.state.settings.payload_bytes_max + _BODY_SLACK)
    if raw.strip():
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise WrongMediaType("the body must be JSON", "send it with Content-Type: application/json")
    return await run_in_threadpool(read_object, raw, declared)


async def _received(request: Request, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise BodyTooLarge(f"the body is larger than {most} bytes", "give the path of a file, or upload it")
        parts.append(part)
    return b"".join(parts)


def read_object(raw: bytes, declared: Mapping[str, Field]) -> Mapping[str, Any]:
    from worker_service.jobs.payloads import PayloadCheck  # imports the JSON Schema validator

    try:
        text = raw.decode("utf-8-sig").strip() or "{}"
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput("the body must be a JSON object, such as {}")
    for name in value:
        if name not in declared:
            meant = did_you_mean(name, declared, f"there are {', '.join(declared)}")
            raise BadInput(f"the body has an unknown field {name!r}", meant)
    if (fault := PayloadCheck(json.dumps(schema_of_body(declared))).fault(text)) is not None:
        raise BadInput(f"the body does not fit: {fault.replace('payload', 'body', 1)}")
    _refuse_nul("body", value)
    return value


def _refuse_nul(place: str, value: object) -> None:
    """Raise `BadInput` for NUL bytes outside the payload, which its handler checks."""
    if isinstance(value, str) and "\0" in value:
        raise BadInput(f"{place} holds a NUL byte")
    if isinstance(value, list):
        for number, one in enumerate(value):
            _refuse_nul(f"{place}[{number}]", one)
    if isinstance(value, dict):
        for name, one in value.items():
            if name != "payload":
                _refuse_nul(f"{place}.{name}", one)


def schema_of_body(declared: Mapping[str, Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {**one.schema, "description": one.about} for name, one in declared.items()},
        "required": [name for name, one in declared.items() if one.is_needed],
        "additionalProperties": False,
    }


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


# ── ETags ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _etag_of(request: Request) -> tuple[str, str]:
    """Return the two parts of the ETag in If-None-Match; empty if it is not one of ours."""
    state, _, content = request.headers.get("if-none-match", "").strip().removeprefix("W/").strip('"').rpartition(".")
    return state, content


def _kept(state: str, content: str) -> dict[str, str]:
    # Only the visitor's own cache may store it, and must revalidate it each time.
    return {"ETag": f'W/"{state}.{content}"', "Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie"}


def _unchanged(state: str, content: str) -> Response:
    return Response(status_code=304, headers=_kept(state, content))
