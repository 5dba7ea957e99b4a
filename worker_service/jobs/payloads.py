"""Check payloads before their jobs run. The handler's decoder decides, so nothing that it accepts is rejected."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import msgspec

_DROPPED_KEYWORDS = frozenset(
    {
        "pattern",  # regular expressions of another dialect
        "format",
        "multipleOf",  # floats are rounded differently
        "uniqueItems",  # a decoder that builds a set accepts duplicates
        # These become stricter when a schema inside them is loosened:
        "if",
        "then",
        "else",
        "maxContains",
        "unevaluatedProperties",
        "unevaluatedItems",
    }
)
_MAPS_OF_SCHEMAS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_LISTS_OF_SCHEMAS = ("anyOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "propertyNames", "contains")


class PayloadCheck:
    def __init__(self, schema: str | None) -> None:
        self._validator = None if schema is None else _validator(schema)

    def fault(self, payload: str | None) -> str | None:
        """Describe the first mismatch without quoting values. Ignore invalid JSON, which the decoder reports."""
        if self._validator is None:
            return None
        try:
            value = msgspec.json.decode(payload if payload is not None else "{}")
            if self._validator.is_valid(value):
                return None
            error = next(iter(self._validator.iter_errors(value)))
        except (ValueError, RecursionError, StopIteration):
            return None
        return f"{_path_text(error.instance_path)}: {error.message}"


def _validator(schema: str) -> Any:
    try:
        return jsonschema_rs.Draft202012Validator(_loosen(json.loads(schema)), mask="the value")
    except (ValueError, RecursionError):
        # A schema that cannot be compiled rejects nothing.
        return None


def _loosen(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "decimal":
        return {}  # the decoder also accepts a number
    loosened = _without_stricter_keywords(schema)
    if loosened.get("not") != _loosen(loosened.get("not")):
        del loosened["not"]  # loosening it would refuse more
    if isinstance(alternatives := loosened.pop("oneOf", None), list):
        # Loosened alternatives may overlap, so a value may fit several of them.
        loosened["allOf"] = [*loosened.get("allOf", []), {"anyOf": alternatives}]
    for key in _MAPS_OF_SCHEMAS:
        if isinstance(loosened.get(key), dict):
            loosened[key] = {name: _loosen(inner) for name, inner in loosened[key].items()}
    for key in _LISTS_OF_SCHEMAS:
        if isinstance(loosened.get(key), list):
            loosened[key] = [_loosen(inner) for inner in loosened[key]]
    for key in _SCHEMAS:
        if key in loosened:
            loosened[key] = _loosen(loosened[key])
    return loosened


def _without_stricter_keywords(schema: dict[str, Any]) -> dict[str, Any]:
    loosened = {key: value for key, value in schema.items() if key not in _DROPPED_KEYWORDS}
    if "title" in loosened:
        # Only an enum class has a title beside its values, and it may accept others through its `_missing_`.
        loosened.pop("enum", None)
    if "contentEncoding" in loosened:
        # The decoder counts decoded bytes, but these keywords count characters of the encoded text.
        loosened.pop("minLength", None)
        loosened.pop("maxLength", None)
    if not str(loosened.get("$ref", "#")).startswith("#"):
        del loosened["$ref"]  # external schemas are not fetched
    return loosened


def _path_text(path: Any) -> str:
    return "payload" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
