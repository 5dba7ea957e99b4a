"""Digests of canonical JSON, for recognising equal work. Not safe against forgery."""

from __future__ import annotations

import json

# Created once: `json.dumps` with options creates an encoder at each call.
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical(value: object) -> str:
    return _canonical(value)


def digest(value: object) -> str:
    import xxhash  # imported here to keep commands such as `pagemill ls` fast

    return xxhash.xxh3_128_hexdigest(canonical(value).encode())
