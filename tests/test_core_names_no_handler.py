"""The packages below `services` name no shipped job type, no key of a payload and no source.

`test_layers` checks imports; this test checks strings. Docstrings and comments may show an example.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from tests.fake_distributions import shipped
from tests.test_layers import strings
from worker_service.base.entry_points import EntryPoint
from worker_service.handlers import NOTIFY, Handler
from worker_service.handlers.embedding import EMBED

ROOT = Path(__file__).resolve().parent.parent
SURFACES = ("services", "cli", "web")
"""Packages that may import the shipped handlers."""
CORE = [
    path
    for pattern in ("*.py", "*.sql")
    for path in sorted((ROOT / "worker_service").rglob(pattern))
    if path.relative_to(ROOT / "worker_service").parts[0] not in SURFACES
]

# Keys that are words of the core too: columns, roles of files, its own options. What a payload calls `pages` is told to
# people whose document fails, whichever handler it is of.
OWN = set("local name source path pages tags text note hocr export dry_run standing url event read then force".split())
# A line that a person is shown, to be typed at a prompt.
SHOWN_LINE = re.compile(r"\bpagemill \w+")
DOCUMENTATION = re.compile(r"\]\(\w+\.md\)")
"""Marks a sentence of the generated documentation."""


def names() -> set[str]:
    """Return job types, and the platforms of sources."""
    shipped_names = {*shipped(), *shipped("worker_service.sources"), "drive_identity"}
    return shipped_names - OWN - {"adopt", "command", "https", EMBED, NOTIFY}


def keys() -> set[str]:
    """Return the keys of payloads. The keys of EMBED and NOTIFY belong to the core."""
    loaded: list[Any] = [EntryPoint(name, spec, "pagemill").load() for name, spec in shipped().items()]
    provided = chain.from_iterable(value if isinstance(value, tuple) else (value,) for value in loaded)
    handlers = [value for value in provided if isinstance(value, Handler) and value.job_type not in (EMBED, NOTIFY)]
    return {field.name for handler in handlers for field in msgspec.structs.fields(handler.payload)} - OWN


def sayings(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text("utf-8")
    if path.suffix == ".sql":
        yield from enumerate((line.partition("--")[0] for line in text.splitlines()), 1)
    else:
        yield from strings(ast.parse(text))


def test_the_core_names_no_shipped_handler() -> None:
    name = re.compile(rf"\b(?:{'|'.join(sorted(names()))})\b")
    key = re.compile(rf"(?:.*\$\.|\A)(?:{'|'.join(sorted(keys()))})(?:'.*|\Z)", re.DOTALL)

    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:100]!r}"
        for path in [*CORE, ROOT / "schema.sql"]
        for line, text in sayings(path)
        if (name.search(SHOWN_LINE.sub("", text)) or key.match(text)) and not DOCUMENTATION.search(text)
    ]

    assert not found, "\n".join(found)


def test_this_test_knows_the_shipped_names() -> None:
    assert {"ocr_pages", "drive_crawl", "download", "webhook", "gdrive"} <= names()
    assert {"reconcile", "languages", "force_ocr", "credential", "expected_md5"} <= keys()
