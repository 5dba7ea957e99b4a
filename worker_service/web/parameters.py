"""Parameters of URLs and forms, declared as Structs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, UnsetType
from msgspec.structs import FieldInfo, fields
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import HTTPConnection

from worker_service.base.errors import BadInput

S = TypeVar("S", bound=Struct)
T = TypeVar("T")

Given: TypeAlias = T | UnsetType
"""Left out of the JSON if UNSET."""

NUMBER_MAX = 2**53  # exact in JavaScript


def about(description: str) -> Meta:
    return Meta(description=description)


Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Id = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
FilledText = Annotated[str, Meta(min_length=1)]
OwnersParameter = Annotated[tuple[str, ...], about("Only what belongs to this owner.")]
DryRunParameter = Annotated[bool, about("Only return what would be done.")]

_NUMBER_DIGITS_MAX = 15  # at most `NUMBER_MAX`
_BOOLEANS = {"": "true", "yes": "true", "no": "false"}
"""Spellings besides msgspec's own (true, false, 1 and 0); `?dry_run` without a value is true."""


class NoParameters(Struct, frozen=True):
    pass


class DryRunQuery(Struct, frozen=True):
    dry_run: DryRunParameter = False


class PageQuery(Struct, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of items; default 50.")] = 50
    before: Annotated[Id, about("The `next` of the previous page.")] | None = None


def read_parameters(pairs: Iterable[tuple[str, str]], kind: type[S]) -> S:
    """Return the parameters, all of which must be fields of `kind`. Its tuple fields may be repeated."""
    field_by_name = {field.name: field for field in fields(kind)}
    values: dict[str, list[str]] = {}
    for name, text in pairs:
        if "\0" in text:
            raise BadInput(f"{name} holds a NUL byte")
        is_boolean = isinstance(field_by_name[name].default, bool)
        values.setdefault(name, []).append(_BOOLEANS.get(text, text) if is_boolean else text)
    for name, field in field_by_name.items():
        if field.required and name not in values:
            raise BadInput(f"the parameter {name} is missing")
    return kind(**{name: _convert(field_by_name[name], texts) for name, texts in values.items()})


def _convert(field: FieldInfo, texts: Sequence[str]) -> object:
    is_repeatable = _is_tuple(field.type)
    if len(texts) > 1 and not is_repeatable:
        raise BadInput(f"{field.name} is given twice")
    try:
        return msgspec.convert(texts if is_repeatable else texts[0], field.type, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"{field.name} cannot be {', '.join(texts)[:50]!r}", str(error)) from None


def parse_number(text: str, label: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX):
        raise BadInput(f"{label} must be a number, not {text[:50]!r}")
    return int(text)


def query_of(request: HTTPConnection, kind: type[S]) -> S:
    return read_known_parameters(request.query_params.multi_items(), kind)


def read_known_parameters(pairs: Iterable[tuple[str, object]], kind: type[S]) -> S:
    """Return the parameters that are fields of `kind`, without the empty ones that forms send."""
    names = {field.name for field in fields(kind)}
    return read_parameters(
        [(name, text) for name, text in pairs if name in names and isinstance(text, str) and text], kind
    )


def _is_tuple(kind: Any) -> bool:
    return get_origin(get_args(kind)[0] if get_origin(kind) is Annotated else kind) is tuple


class IdConvertor(Convertor[int]):
    """`{job_id:id}` in a path."""

    regex = f"[1-9][0-9]{{0,{_NUMBER_DIGITS_MAX - 1}}}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("id", IdConvertor())
