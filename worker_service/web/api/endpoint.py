"""Declares API endpoints from the annotations of their functions, for router, parser and OpenAPI file.

An ETag has two parts: the state (version of the database, and the request) and a digest of the response. If the state
still matches, a request is answered with 304 and without a query.
"""

from __future__ import annotations

import inspect
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput
from worker_service.base.sanitize import as_json
from worker_service.base.suggestions import did_you_mean
from worker_service.jobs.digest import digest
from worker_service.services.idempotency import StoredResponse, run_once
from worker_service.services.serialize import as_object
from worker_service.services.session import Session
from worker_service.web.access import TokenScope, Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.error_responses import BodyTooLarge, WrongMediaType
from worker_service.web.parameters import NoParameters, read_parameters

T = TypeVar("T")
EndpointFunction = Callable[..., Any]

_IDEMPOTENCY_KEY_CHARACTERS_MAX = 255
_BODY_BYTES_BESIDE_PAYLOAD = 64 * 1024

IDEMPOTENCY = "Idempotency-Key"


class ApiRequest(Struct, frozen=True):
    request: Request
    session: Session
    visitor: Visitor

    @property
    def id(self) -> int:
        return cast(int, self.request.path_params["id"])

    def path(self, name: str) -> Any:
        return self.request.path_params[name]


class ApiResponse(Struct, Generic[T], frozen=True):
    value: T
    status: int = 200
    location: str | None = None


class Items(Struct, Generic[T], frozen=True):
    items: Sequence[T]


class Endpoint(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    summary: str
    run: EndpointFunction
    query: type[Struct]
    body: type[Struct] | None
    answer: Any
    """Type of the JSON response; None: not JSON."""
    statuses: Sequence[int] = (200,)
    refusals: Sequence[int] = ()
    """Errors besides those that follow from method, path and body."""
    headers: Mapping[str, str]
    media: str = "application/json"
    body_media: str = "application/json"
    is_time_dependent: bool = False
    """The response also depends on the clock or on processes."""
    needs_all_owners: bool = False

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def required_scope(self) -> TokenScope:
        return TokenScope.READ if self.method == "GET" else TokenScope.OPERATE

    @property
    def has_etag(self) -> bool:
        return self.method == "GET" and self.media == "application/json"

    @property
    def route(self) -> Route:
        path = self.path.replace("{id}", "{id:id}").replace("{number}", "{number:id}")
        return Route(path, self._respond, methods=[self.method], name=f"api.{self.name}")

    async def _respond(self, request: Request) -> Response:
        visitor = visitor_of(request)
        visitor.require(self.required_scope)
        if self.needs_all_owners:
            visitor.require_all_owners()
        query = _read_query(request, self.query)
        arguments = {} if self.query is NoParameters else {"query": query}
        if inspect.iscoroutinefunction(self.run):
            return cast(Response, await self.run(request, visitor, **arguments))
        if self.body is not None:
            arguments["body"] = await _read_body(request, self.body)
        return await run_in_threadpool(self._run, request, visitor, arguments)

    def _run(self, request: Request, visitor: Visitor, arguments: Mapping[str, Struct]) -> Response:
        request_digest = digest([str(request.url.query), visitor.name, visitor.owner])[:12]
        state = ""
        if self.has_etag and not self.is_time_dependent:
            state = f"{request.app.state.database_version.read()}-{request_digest}"
        known_state, known_content = _known_etag(request) if self.has_etag else ("", "")
        if state and known_state == state:
            return _not_modified(state, known_content)
        with session_of(request) as session:
            call = ApiRequest(request, session, visitor)
            if self.method == "POST":
                identity = msgspec.to_builtins(arguments)
                return respond_once(request, session, identity, lambda: stored_response(self.run(call, **arguments)))
            answer = self.run(call, **arguments)
            if isinstance(answer, Response):
                return answer
            response = stored_response(answer)
        headers = {}
        if self.has_etag:
            content = digest([response.answer, request_digest])[:16]
            if known_content == content:
                return _not_modified(state, content)
            headers = _etag_headers(state, content)
        return Response(response.answer + "\n", response.status, headers, media_type="application/json")


def endpoint(
    method: str,
    path: str,
    *,
    answer: Any = None,
    body: type[Struct] | None = None,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> Callable[[EndpointFunction], Endpoint]:
    """Declare an endpoint, whose docstring describes it in the OpenAPI file.

    A coroutine function gets request and visitor, others an `ApiRequest`. `options`: other fields of `Endpoint`.
    """
    headers = headers or {}
    if method == "POST":
        headers = {**headers, IDEMPOTENCY: "A request repeated with the same key within 30 days is executed once."}

    def declare(run: EndpointFunction) -> Endpoint:
        types = get_type_hints(run, include_extras=True)
        returns = answer or types["return"]
        if get_origin(returns) is ApiResponse:
            [returns] = get_args(returns)
        return Endpoint(
            method=method,
            path=path,
            summary=" ".join((run.__doc__ or "").split()),
            run=run,
            query=types.get("query", NoParameters),
            body=types.get("body", body),
            answer=None if returns is Response else returns,
            headers=headers,
            **options,
        )

    return declare


# ── Responses ───────────────────────────────────────────────────────────────────────────────────────────────────────


def respond_once(
    request: Request, session: Session, identity: object, execute: Callable[[], StoredResponse]
) -> Response:
    """Call `execute`, or return the stored response to an earlier request with this Idempotency-Key and `identity`."""
    key = request.headers.get(IDEMPOTENCY)
    if key is None:
        response = execute()
    elif not 0 < len(key) <= _IDEMPOTENCY_KEY_CHARACTERS_MAX or not key.isprintable():
        raise BadInput(f"an {IDEMPOTENCY} is one line of at most {_IDEMPOTENCY_KEY_CHARACTERS_MAX} characters")
    else:
        visitor = visitor_of(request)
        response = run_once(
            session, f"{visitor.name}\n{visitor.owner or ''}\n{key}", digest([request.url.path, identity]), execute
        )
    headers = {} if response.location is None else {"Location": response.location}
    return Response(response.answer + "\n", response.status, headers, media_type="application/json")


def stored_response(answer: Any) -> StoredResponse:
    response = answer if isinstance(answer, ApiResponse) else ApiResponse(answer)
    text = as_json(as_object(response.value), indent=None, is_ascii=False)
    return StoredResponse(response.status, text, response.location)


def _known_etag(request: Request) -> tuple[str, str]:
    """Return state and content digest; empty if the ETag is not ours."""
    state, _, content = request.headers.get("if-none-match", "").strip().removeprefix("W/").strip('"').rpartition(".")
    return state, content


def _etag_headers(state: str, content: str) -> dict[str, str]:
    # Only the visitor's own cache may store it, and must revalidate it each time.
    return {"ETag": f'W/"{state}.{content}"', "Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie"}


def _not_modified(state: str, content: str) -> Response:
    return Response(status_code=304, headers=_etag_headers(state, content))


# ── Parsing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_query(request: Request, kind: type[Struct]) -> Struct:
    pairs = [(name.replace("-", "_"), value) for name, value in request.query_params.multi_items()]
    _refuse_unknown([name for name, _ in pairs], kind, f"{request.url.path} has no parameter")
    return read_parameters(pairs, kind)


async def _read_body(request: Request, kind: type[Struct]) -> Struct:
    raw = await receive_body(request, request.app.state.settings.payload_bytes_max + _BODY_BYTES_BESIDE_PAYLOAD)
    if raw.strip():
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise WrongMediaType("the body must be JSON", "send it with Content-Type: application/json")
    return await run_in_threadpool(_decode_body, raw, kind)


async def receive_body(request: Request, size_max: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > size_max:
            raise BodyTooLarge(f"the body is larger than {size_max} bytes", "give the path of a file, or upload it")
        chunks.append(chunk)
    return b"".join(chunks)


def _decode_body(raw: bytes, kind: type[Struct]) -> Struct:
    try:
        value = msgspec.json.decode(raw.removeprefix(BOM_UTF8).strip() or b"{}")
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput("the body must be a JSON object, such as {}")
    _refuse_unknown(value, kind, "the body has an unknown field")
    _refuse_nul("body", value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"the body does not fit: {str(error).replace('$', 'body')}") from None


def _refuse_unknown(names: Iterable[str], kind: type[Struct], problem: str) -> None:
    known_names = kind.__struct_encode_fields__
    for name in names:
        if name not in known_names:
            choices = f"there are {', '.join(known_names) or 'none'}"
            raise BadInput(f"{problem} {name!r}", did_you_mean(name, known_names, choices))


def _refuse_nul(place: str, value: object) -> None:
    """Raise `BadInput` for NUL bytes outside the payload, which its handler checks."""
    if isinstance(value, str) and "\0" in value:
        raise BadInput(f"{place} holds a NUL byte")
    if isinstance(value, list):
        for number, item in enumerate(value):
            _refuse_nul(f"{place}[{number}]", item)
    if isinstance(value, dict):
        for name, field_value in value.items():
            if name != "payload":
                _refuse_nul(f"{place}.{name}", field_value)
