"""Digests of canonical JSON, for recognising equal work. Not safe against forgery."""

from __future__ import annotations

import json

# One encoder for all calls: `json.dumps` with options would create one at each.
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def digest(value: object) -> str:
    import xxhash  # imported here to keep commands such as `pagemill ls` fast

    return xxhash.xxh3_128_hexdigest(canonical(value).encode())
