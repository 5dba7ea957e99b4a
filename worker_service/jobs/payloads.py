"""Whether a payload fits the JSON Schema that its handler described. Pure, and microseconds for a payload that fits.

It saves a child, and tells a person at once; the child decides, whose decoder is the handler's own. So nothing may be
refused here that the child would take: what the two read differently is left out of the schema first, and where
anything is in doubt the payload passes.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import msgspec

_LEFT_OUT = frozenset(
    {
        "pattern",  # of another dialect
        "format",
        "multipleOf",  # of floats is rounded in other ways
        "uniqueItems",  # a decoder that makes a set drops what comes twice
    }
)
_MAPS_OF_SCHEMAS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_LISTS_OF_SCHEMAS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "propertyNames", "not", "contains")


class PayloadCheck:
    """Made once for each handler, asked for each payload."""

    def __init__(self, schema: str | None) -> None:
        """None: the handler cannot describe it, and anything passes."""
        self._validator = None if schema is None else _validator(schema)

    def fault(self, payload: str | None) -> str | None:
        """A sentence about the first thing that does not fit, without any value of the payload; None: all is well."""
        if self._validator is None:
            return None
        try:
            value = msgspec.json.decode(payload if payload is not None else "{}")
            if self._validator.is_valid(value):
                return None
            error = next(iter(self._validator.iter_errors(value)))
        except (ValueError, RecursionError, StopIteration):
            return None
        return f"{_place(error.instance_path)}: {error.message}"


def _validator(schema: str) -> Any:
    try:
        return jsonschema_rs.Draft202012Validator(_loosened(json.loads(schema)), mask="the value")
    except (ValueError, RecursionError):
        # A schema that nobody understands refuses nothing.
        return None


def _loosened(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "decimal":
        return {}  # a number is taken as well
    kept = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    if "title" in kept:
        kept.pop("enum", None)  # of a class, which may take other values by its _missing_
    if "contentEncoding" in kept:
        kept.pop("minLength", None)
        kept.pop("maxLength", None)
    if not str(kept.get("$ref", "#")).startswith("#"):
        del kept["$ref"]  # nothing is fetched
    for key in _MAPS_OF_SCHEMAS:
        if isinstance(kept.get(key), dict):
            kept[key] = {name: _loosened(inner) for name, inner in kept[key].items()}
    for key in _LISTS_OF_SCHEMAS:
        if isinstance(kept.get(key), list):
            kept[key] = [_loosened(inner) for inner in kept[key]]
    for key in _SCHEMAS:
        if key in kept:
            kept[key] = _loosened(kept[key])
    return kept


def _place(path: Any) -> str:
    """``payload.pages[3]``"""
    return "payload" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
