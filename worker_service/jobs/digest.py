"""Same digest, same work: xxhash of canonical JSON. Good for reuse, not against forgery."""

from __future__ import annotations

import json


def canonical(value: object) -> str:
    """The one spelling of a JSON value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: object) -> str:
    import xxhash  # only for those who ask: `pagemill ls` does not

    return xxhash.xxh3_128_hexdigest(canonical(value).encode())
