"""JSON Schema of Python types, matching what `as_object` makes of their values."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePath
from typing import Any, NamedTuple

from worker_service.jobs.job import Job
from worker_service.services.serialize import HELD

TIME = {"type": "string", "description": "UTC: 2026-11-18T10:00:00.000Z"}
_PLAIN = {str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"}}


class Flat(NamedTuple):
    """An object with the fields of two types."""

    kind: Any
    more: Any
    """Type whose first field is of type `kind`; its other fields are added."""


class Schemas:
    """Collects one component schema per type."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def of(self, kind: Any) -> Any:
        if isinstance(kind, Flat):
            first, *_ = kind.more.__struct_fields__
            fields = self.fields_of(kind.kind) | self.fields_of(kind.more)
            del fields[first]
            return {"type": "object", "properties": fields, "required": list(fields)}
        if isinstance(kind, Mapping):
            return {key: self.of(one) for key, one in kind.items()}
        if isinstance(kind, list | tuple):
            return [self.of(one) for one in kind]
        if isinstance(kind, str | int | float):
            return kind  # part of a schema already
        if kind is Any or kind is object:
            return {}
        if kind is type(None):
            return {"type": "null"}
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in inner]}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        if origin is not None and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(inner[0])}
        if issubclass(kind, datetime):
            return dict(TIME)
        if issubclass(kind, PurePath):
            return {"type": "string"}
        if issubclass(kind, IntEnum):
            return {"type": "string", "enum": [one.name.lower() for one in kind]}
        if issubclass(kind, StrEnum | Enum):
            return {"type": "string", "enum": [str(one.value) for one in kind]}
        return self._named(kind)

    def fields_of(self, kind: Any) -> dict[str, Any]:
        hints = typing.get_type_hints(kind)
        fields = {name: self._field(name, hints[name]) for name in _field_names(kind)}
        return fields | ({"state": {"type": "string"}} if kind is Job else {})

    def _named(self, kind: Any) -> dict[str, Any]:
        name = kind.__name__
        if name not in self.components:
            self.components[name] = {}  # stops recursion in a type that contains itself
            fields = self.fields_of(kind)
            self.components[name] = {"type": "object", "properties": fields, "required": list(fields)}
        return {"$ref": f"#/components/schemas/{name}"}

    def _field(self, name: str, hint: Any) -> Any:
        # These strings hold JSON, and appear as the value they hold.
        if name in HELD:
            return {}
        return self.of(hint)


def _field_names(kind: Any) -> Sequence[str]:
    """Return the fields of a Struct, or of a NamedTuple such as `Job`."""
    names: Sequence[str] = kind._fields if issubclass(kind, tuple) else kind.__struct_fields__
    return names
