"""The texts of notification messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from worker_service.base.errors import in_a_sentence
from worker_service.base.humanize import counted
from worker_service.handlers.contract import Message
from worker_service.jobs.history import Notice
from worker_service.settings.notifications import KINDS, OWNER, NotifyRule

_LINES_MOST = 20
_CHARACTERS_MOST = 500
"""Per notice. A message is a job, whose payload is limited."""


def messages(
    rule: NotifyRule,
    notices: Sequence[Notice],
    addresses: Mapping[str, str],
    *,
    machine: str,
    names: Mapping[int, str] = {},
    page: str | None = None,
    at: str = "",
) -> Iterator[Message]:
    """`names`: file or job by id of the notice."""
    by_address: dict[str, list[Notice]] = {}
    for notice in notices:
        to = addresses.get(notice.owner, "") if rule.to == OWNER else rule.to
        if to:
            by_address.setdefault(to, []).append(_shortened(notice))
    for to, some in by_address.items():
        subject = f"pagemill on {machine}: {_in_a_line(some)}"
        yield Message(to, subject, "\n".join(_in_words(some, names, page)), _in_data(rule, some), at)


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
    batch_id = notice.batch_id if notice.kind.startswith("batch.") else None
    places = (("batches", batch_id), ("documents", notice.document_id), ("jobs", notice.job_id))
    return next((f"{page}/{kind}/{number}" for kind, number in places if page and number is not None), "")


def _line(notice: Notice, name: str) -> str:
    what = " ".join(filter(None, (_subject(notice), name)))
    return ": ".join(filter(None, (what, notice.code, in_a_sentence(notice.message or "", notice.remedy))))


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
