"""Same digest, same work: xxhash of canonical JSON. Good for reuse, not against forgery."""

from __future__ import annotations

import json

# Made once: `json.dumps` makes one for each call that has a wish.
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical(value: object) -> str:
    """The one spelling of a JSON value: sorted keys, no spaces, no NaN."""
    return _canonical(value)


def digest(value: object) -> str:
    import xxhash  # only for those who ask: `pagemill ls` does not

    return xxhash.xxh3_128_hexdigest(canonical(value).encode())
