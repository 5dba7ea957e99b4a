from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, time
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from worker_service.base.clock import from_text, zone_of
from worker_service.base.errors import ConfigError, in_a_sentence
from worker_service.base.humanize import counted
from worker_service.jobs.history import Notice
from worker_service.settings.value_types import (
    TIME_FROM_ZERO,
    ZONE,
    FilledText,
    ValueType,
    parse_words,
    read_struct,
    read_table,
)

OWNER = "owner"
"""Value of `to` that means the address of the notice's owner."""

KINDS = {
    "job.failed": ("job failed", "jobs failed"),
    "document.failed": ("document failed", "documents failed"),
    "document.ready": ("document is read", "documents are read"),
    "batch.done": ("batch is done", "batches are done"),
    "batch.failed": ("batch ended with failures", "batches ended with failures"),
    "batch.stopped": ("batch was stopped", "batches were stopped"),
    "batch.waiting": ("batch waits for another of its owner", "batches wait for others of their owner"),
    "worker.silent": ("worker is silent", "workers are silent"),
    "queue.old": ("job waits too long", "jobs wait too long"),
    "schedule.missed": ("schedule missed some of its times", "schedules missed some of their times"),
    "disk.low": ("disk is nearly full", "disks are nearly full"),
}
"""Notices that a rule may name, in singular and plural, worst first."""
_LINES_MOST = 20
_CHARACTERS_MOST = 500
"""Per notice. A message is a job, whose payload is limited."""


def _parse_address(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str) or ":" not in raw or not raw.isprintable():
        raise ValueError
    return raw


def _parse_to(raw: object, label: str, base: Path) -> str:
    return OWNER if raw == OWNER else _parse_address(raw, label, base)


def _parse_kinds(raw: object, _: str, __: Path) -> tuple[str, ...]:
    kinds = tuple(parse_words(raw))
    if not kinds or not set(kinds) <= KINDS.keys():
        raise ValueError
    return kinds


def _parse_quiet(raw: object, _: str, __: Path) -> tuple[time, time]:
    begins, ends = (time.fromisoformat(word.strip()) for word in str(raw).split("-"))
    return begins, ends


_ADDRESS = ValueType("an address such as mailto:ops@example.com, https://example.com/hook or apprise:", _parse_address)


class NotifyRule(Struct, frozen=True):
    name: FilledText
    to: Annotated[str, ValueType(f"{_ADDRESS.what}, or {OWNER!r}", _parse_to)]
    when: Annotated[Sequence[str], ValueType(f"a list of {', '.join(KINDS)}", _parse_kinds)] = (
        "job.failed",
        "document.failed",
        "batch.done",
        "batch.failed",
        "worker.silent",
        "queue.old",
        "schedule.missed",
        "disk.low",
    )
    owners: Annotated[Sequence[str], ValueType("a list of owners", lambda raw, _, __: tuple(parse_words(raw)))] = ()
    """Empty: all owners."""
    group_seconds: Annotated[float, TIME_FROM_ZERO] = field(default=60.0, name="group")
    """Notices that follow the first one within this time share its message."""
    quiet: Annotated[tuple[time, time] | None, ValueType("hours such as 22:00-07:00", _parse_quiet)] = None
    """Hours without messages, which may span midnight."""
    zone: Annotated[str, ZONE] = ""

    def is_quiet(self, moment: datetime, zone: str) -> bool:
        if self.quiet is None:
            return False
        begins, ends = self.quiet
        local = moment.astimezone(zone_of(self.zone or zone)).time()
        return begins <= local < ends if begins <= ends else local >= begins or local < ends

    def concerns(self, notice: Notice) -> bool:
        if notice.kind == "job.failed" and notice.generation is not None and "document.failed" in self.when:
            # The notice about its document covers it.
            return False
        return notice.kind in self.when and (not self.owners or notice.owner in self.owners)

    def is_time(self, oldest: Notice, now: datetime, zone: str) -> bool:
        return not self.is_quiet(now, zone) and (now - from_text(oldest.at)).total_seconds() >= self.group_seconds


class Notification(Struct, frozen=True):
    to: str
    subject: str
    text: str
    data: Mapping[str, object]


def messages(
    rule: NotifyRule,
    notices: Sequence[Notice],
    addresses: Mapping[str, str],
    *,
    machine: str,
    names: Mapping[int, str] = {},
    page: str | None = None,
) -> Iterator[Notification]:
    """Yield one per address. `names`: file or job by id of the notice; `page`: address of the web page."""
    by_address: dict[str, list[Notice]] = {}
    for notice in notices:
        to = addresses.get(notice.owner, "") if rule.to == OWNER else rule.to
        if to:
            by_address.setdefault(to, []).append(_shortened(notice))
    for to, some in by_address.items():
        yield Notification(
            to,
            f"pagemill on {machine}: {_in_a_line(some)}",
            "\n".join(_in_words(some, names, page)),
            _in_data(rule, some),
        )


def _shortened(notice: Notice) -> Notice:
    text = notice.message or ""
    return notice if len(text) <= _CHARACTERS_MOST else replace(notice, message=f"{text[:_CHARACTERS_MOST]}…")


def _in_a_line(notices: Iterable[Notice]) -> str:
    """Return such as `300 jobs failed, 1 batch is done`."""
    numbers = Counter(notice.kind for notice in notices)
    return ", ".join(counted(numbers[kind], *KINDS[kind]) for kind in KINDS if numbers[kind])


def _in_words(notices: Sequence[Notice], names: Mapping[int, str], page: str | None) -> Iterator[str]:
    for kind, (_, several) in KINDS.items():
        some = [notice for notice in notices if notice.kind == kind]
        if not some:
            continue
        yield f"{several[0].upper()}{several[1:]}:"
        codes = Counter(notice.code for notice in some if notice.code)
        if len(some) > 1 and codes:
            yield "  " + ", ".join(f"{code}: {number}" for code, number in codes.most_common())
        for notice in some[:_LINES_MOST]:
            yield f"  {_line(notice, names.get(notice.id, ''))}"
            if link := _link(notice, page):
                yield f"    {link}"
        if len(some) > _LINES_MOST:
            yield f"  and {len(some) - _LINES_MOST} more"
        yield ""


def _link(notice: Notice, page: str | None) -> str:
    kind, number = next(
        (
            (kind, number)
            for kind, number in (
                ("batches", notice.batch_id if notice.kind.startswith("batch.") else None),
                ("documents", notice.document_id),
                ("jobs", notice.job_id),
            )
            if number is not None
        ),
        ("", None),
    )
    return f"{page}/{kind}/{number}" if page and number is not None else ""


def _line(notice: Notice, name: str) -> str:
    return ": ".join(
        part
        for part in (
            " ".join(filter(None, (_subject(notice), name))),
            notice.code,
            in_a_sentence(notice.message or "", notice.remedy),
        )
        if part
    )


def _subject(notice: Notice) -> str:
    if notice.kind.startswith("batch."):
        return f"batch:{notice.batch_id}"
    if notice.kind.startswith("document."):
        return f"document:{notice.document_id}"
    return f"job {notice.job_id}" if notice.job_id else ""


def _in_data(rule: NotifyRule, notices: Sequence[Notice]) -> dict[str, object]:
    return {
        "rule": rule.name,
        "counts": dict(Counter(notice.kind for notice in notices)),
        "codes": dict(Counter(notice.code for notice in notices if notice.code).most_common()),
        "notices": [
            {name: value for name in Notice.__struct_fields__ if (value := getattr(notice, name)) not in (None, "")}
            for notice in notices[:_LINES_MOST]
        ],
    }


# ── Parsing the tables ────────────────────────────────────────────────────────────────────────────────────────────────


def read_rules(raw: object, label: str) -> tuple[NotifyRule, ...]:
    if not isinstance(raw, list):
        raise ConfigError(f"{label}: notify is a list of tables", "write [[notify]]")
    rules = tuple(_read_rule(table, f"{label}: notify[{number}]") for number, table in enumerate(raw))
    twice = [name for name, number in Counter(rule.name for rule in rules).items() if number > 1]
    if twice:
        raise ConfigError(f"{label}: two tables [[notify]] are called {twice[0]!r}", "give each a name of its own")
    return rules


def _read_rule(raw: object, label: str) -> NotifyRule:
    name = read_table(raw, label).get("name")
    return read_struct(NotifyRule, raw, f"{label} ({name})" if isinstance(name, str) else label)


def read_addresses(raw: object, label: str) -> dict[str, str]:
    addresses = read_table(raw, f"{label}: addresses")
    return {owner: _ADDRESS.read(address, f"{label}: addresses.{owner}") for owner, address in addresses.items()}
