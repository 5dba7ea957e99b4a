"""Template filters: times, durations, sizes, states and safe text."""

from __future__ import annotations

import json
import re
import shlex
from datetime import timedelta

from jinja2 import Environment
from markupsafe import Markup, escape

from worker_service.base.humanize import counted, format_length
from worker_service.base.humanize import format_size as format_size
from worker_service.base.sanitize import escaped_json, harmless, harmless_text
from worker_service.services.jobs import progress_in_words

_TONES = {
    "running": "reading", "indexing": "reading", "active": "reading", "alive": "reading", "reading": "reading",
    "completed": "ok", "done": "ok", "success": "ok", "read": "ok",
    "failed": "bad", "dead": "bad", "dying": "bad", "silent": "bad", "no row": "bad", "disk low": "bad",
    "finished": "warn", "stopping": "warn", "backoff": "warn", "stopped": "warn", "draining": "warn",
}  # fmt: skip
"""CSS class of a state; of all others, `wait`."""
_LABELS = {"success": "read", "indexing": "reading", "queued": "waiting", "not_indexed": "not read"}
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")


def register_filters(environment: Environment) -> None:
    environment.finalize = sanitise
    environment.filters.update(
        iso=iso,
        utc=utc,
        size=format_size,
        slug=slug,
        tone=tone,
        label=label,
        counted=counted,
        lines=lines,
        pretty=pretty,
        capitalised=capitalised,
        thousands=lambda number: f"{number:,}",
        short_number=short_number,
        progress=progress_in_words,
    )


def sanitise(value: object) -> object:
    """Jinja calls this with every value. Text with line breaks needs the filter `lines`."""
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def lines(text: str) -> Markup:
    return Markup(escape(harmless_text(text)))


def pretty(text: str | None) -> Markup:
    """Return JSON indented, and other text as it is."""
    if text is None:
        return Markup("")
    try:
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return lines(text)
    return Markup(escape(escaped_json(text)))


def iso(text: str) -> str:
    return text.replace(" ", "T") + "Z"


def utc(text: str) -> str:
    """Return a time in UTC, which the script replaces with local time."""
    return f"{text[:16]} UTC"


def length(seconds: float | timedelta) -> str:
    return format_length(seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds))


def short_number(number: int) -> str:
    """Return a number such as 1.2M, where the exact one is shown elsewhere."""
    if number >= 1_000_000:
        return f"{number / 1_000_000:.3g}M"
    return f"{number / 1000:.3g}k" if number >= 10_000 else str(number)


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def label(state: object) -> str:
    return capitalised(", ".join(_LABELS.get(part, part) for part in str(state).split(", ")))


def tone(state: object) -> str:
    """Return the CSS class of a state such as "failed" or "read, failed".

    A document whose previous text can be read is a warning at worst.
    """
    *earlier, last = str(state).split(", ")
    tone_of_last = _TONES.get(last, "wait")
    return "warn" if earlier and tone_of_last == "bad" else tone_of_last


def slug(state: object) -> str:
    return _NOT_ALPHANUMERIC.sub("-", str(state).lower())


def command(*arguments: object) -> str:
    return shlex.join(["pagemill", *map(str, arguments)])
