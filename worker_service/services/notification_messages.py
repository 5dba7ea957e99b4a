"""Write the messages that notification rules send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import asdict, replace

from worker_service.base.errors import in_a_sentence
from worker_service.base.humanize import counted
from worker_service.handlers.contract import Message
from worker_service.jobs.history import Notice
from worker_service.settings.notifications import KINDS, OWNER, NotifyRule

_NOTICES_LISTED_MAX = 20
"""Maximum number for each kind."""
_NOTICE_CHARACTERS_MAX = 500
"""A message becomes the payload of a job, and payloads are limited."""


def write_messages(
    rule: NotifyRule,
    notices: Sequence[Notice],
    addresses: Mapping[str, str],
    *,
    machine: str,
    names: Mapping[int, str] = {},
    web_address: str | None = None,
) -> Iterator[Message]:
    """Yield a message for each address. `names` maps ids of notices to names of files or jobs."""
    notices_by_address: dict[str, list[Notice]] = {}
    for notice in notices:
        to = addresses.get(notice.owner, "") if rule.to == OWNER else rule.to
        if to:
            notices_by_address.setdefault(to, []).append(_shortened(notice))
    for to, notices_of_address in notices_by_address.items():
        subject = f"pagemill on {machine}: {_summary(notices_of_address)}"
        text = "\n".join(_text_lines(notices_of_address, names, web_address))
        yield Message(to, subject, text, _data_of_message(rule, notices_of_address))


def _shortened(notice: Notice) -> Notice:
    text = notice.message or ""
    if len(text) <= _NOTICE_CHARACTERS_MAX:
        return notice
    return replace(notice, message=f"{text[:_NOTICE_CHARACTERS_MAX]}…")


def _summary(notices: Iterable[Notice]) -> str:
    """Return, for example, `300 jobs failed, 1 batch is done`."""
    number_by_kind = Counter(notice.kind for notice in notices)
    return ", ".join(counted(number_by_kind[kind], *KINDS[kind]) for kind in KINDS if number_by_kind[kind])


def _text_lines(notices: Sequence[Notice], names: Mapping[int, str], web_address: str | None) -> Iterator[str]:
    for kind, (_, plural) in KINDS.items():
        notices_of_kind = [notice for notice in notices if notice.kind == kind]
        if not notices_of_kind:
            continue
        yield f"{plural[0].upper()}{plural[1:]}:"
        codes = Counter(notice.code for notice in notices_of_kind if notice.code)
        if len(notices_of_kind) > 1 and codes:
            yield "  " + ", ".join(f"{code}: {number}" for code, number in codes.most_common())
        for notice in notices_of_kind[:_NOTICES_LISTED_MAX]:
            yield f"  {_notice_line(notice, names.get(notice.id, ''))}"
            if web_address and (path := _web_path(notice)):
                yield f"    {web_address}/{path}"
        if len(notices_of_kind) > _NOTICES_LISTED_MAX:
            yield f"  and {len(notices_of_kind) - _NOTICES_LISTED_MAX} more"
        yield ""


def _web_path(notice: Notice) -> str:
    if notice.kind.startswith("batch.") and notice.batch_id is not None:
        return f"batches/{notice.batch_id}"
    if notice.document_id is not None:
        return f"documents/{notice.document_id}"
    return "" if notice.job_id is None else f"jobs/{notice.job_id}"


def _notice_line(notice: Notice, name: str) -> str:
    subject = " ".join(filter(None, (_subject(notice), name)))
    return ": ".join(filter(None, (subject, notice.code, in_a_sentence(notice.message or "", notice.remedy))))


def _subject(notice: Notice) -> str:
    if notice.kind.startswith("batch."):
        return f"batch:{notice.batch_id}"
    if notice.kind.startswith("document."):
        return f"document:{notice.document_id}"
    return f"job {notice.job_id}" if notice.job_id else ""


def _data_of_message(rule: NotifyRule, notices: Sequence[Notice]) -> dict[str, object]:
    return {
        "rule": rule.name,
        "counts": dict(Counter(notice.kind for notice in notices)),
        "codes": dict(Counter(notice.code for notice in notices if notice.code).most_common()),
        "notices": [
            {name: value for name, value in asdict(notice).items() if value not in (None, "")}
            for notice in notices[:_NOTICES_LISTED_MAX]
        ],
    }
