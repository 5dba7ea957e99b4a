"""Send notifications. A rule has a position in the notices.

The transaction that advances it enqueues the messages, so a crash neither loses nor repeats any.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import asdict, replace

from worker_service.base.clock import as_text, from_text
from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.base.sanitize import harmless
from worker_service.handlers.contract import NOTIFY, Message
from worker_service.handlers.registry import find
from worker_service.jobs.batches import ENDS_TO_REPORT
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.history import Episode, Notice
from worker_service.jobs.job import Enqueued, Job, NewJob
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import server_address
from worker_service.services.batches import describe_progress, get_batch_details, titled_progress
from worker_service.services.database import IDS_AT_ONCE, Session, chunks
from worker_service.services.documents import list_documents
from worker_service.services.failure_sentences import explanation_of
from worker_service.services.notification_messages import messages
from worker_service.services.overview import Overview
from worker_service.services.serialize import iso
from worker_service.settings.config import hide_secrets
from worker_service.settings.notifications import OWNER, NotifyRule

_CHANNELS = "worker_service.channels"
_READ_AT_ONCE = 10_000
_PRIORITY = 3


class RuleState(Struct, frozen=True):
    name: str
    when: Sequence[str]
    to: str
    waiting: int
    """For the grouping time, or for quiet hours to end."""


def send_due_notifications(session: Session) -> int:
    _note_lasting_conditions(session)
    return sum(_send_rule(session, rule) for rule in session.settings.notify) + _send_ends_of_batches(session)


def list_rules(session: Session) -> Sequence[RuleState]:
    return [
        RuleState(rule.name, rule.when, hide_secrets(rule.to), len(_concerning(session, rule)[1]))
        for rule in session.settings.notify
    ]


def send_test(session: Session, name: str | None) -> Sequence[Enqueued]:
    wanted = [rule for rule in session.settings.notify if name in (None, rule.name)]
    if not wanted:
        known = ", ".join(rule.name for rule in session.settings.notify)
        what = f"no [[notify]] is called {name!r}: there are {known}" if known else "the settings have no [[notify]]"
        raise BadInput(f"{what}; docs/notify.md shows one")
    to = dict.fromkeys(
        address
        for rule in wanted
        for address in (session.settings.addresses.values() if rule.to == OWNER else [rule.to])
    )
    for address in to:
        _refuse_unknown(address)
    text = "This is a test: pagemill can reach you. The settings [[notify]] say what it reports."
    subject = f"pagemill on {socket.gethostname()}: a test"
    return session.store.intake.enqueue_many(
        [_job(Message(one, subject, text, {"test": True}, _iso_now(session))) for one in to]
    )


# ── The end of a batch, for the user who submitted it ─────────────────────────────────────────────────────────────────

ME = "me"
"""The owner's address in the table [addresses]."""
_ENDED = ("batch.done", "batch.failed")
_FILES_MOST = 20


def read_address(session: Session, word: str, *, owner: str) -> str:
    """Read `me`, `ann@example.com`, `mailto:…`, `https://…` or `apprise:NAME`."""
    if word == ME:
        if address := session.settings.addresses.get(owner):
            return address
        raise BadInput(f"the settings have no address of {owner or 'work without owner'}", "name it in [addresses]")
    address = f"mailto:{word}" if "@" in word and ":" not in word else word
    if address:
        _refuse_unknown(address)
    return address


def channel_warnings(session: Session, address: str) -> list[str]:
    """Return what the channel of the address lacks."""
    session.settings.hand_to_handlers()
    channels = [point.load() for point in find(group=_CHANNELS) if point.name == address.partition(":")[0]]
    lacking = [channel.missing() for channel in channels if hasattr(channel, "missing")]
    return [f"no message can be sent to {address}: {one}" for one in lacking if one is not None]


def is_for_everybody(session: Session, address: str, *, owner: str) -> bool:
    """Otherwise users could have the service write to any address."""
    # Without the characters that end the host of an address, or begin a second address.
    allowed = (re.escape(one).replace(r"\*", r"[^/@?#\\%:,;\s]*") for one in session.settings.notify_allow)
    return address in ("", session.settings.addresses.get(owner)) or any(re.fullmatch(one, address) for one in allowed)


def _send_ends_of_batches(session: Session) -> int:
    notices = session.store.notices
    if not notices.is_read_by(ENDS_TO_REPORT):
        return 0
    since = notices.begin(ENDS_TO_REPORT)
    read = notices.after(since, most=_READ_AT_ONCE)
    if not read:
        return 0
    ended = [one.batch_id for one in read if one.kind in _ENDED and one.batch_id is not None]
    addresses = session.store.batches.addresses(ended) if ended else {}
    jobs = [_job(_end_of_batch(session, batch_id, to)) for batch_id, to in addresses.items()]
    return len(notices.advance(ENDS_TO_REPORT, since, read[-1].id, jobs) or ())


def _end_of_batch(session: Session, batch_id: int, to: str) -> Message:
    found = get_batch_details(session, batch_id)
    chosen = DocumentSelector(batch_ids=(batch_id,))
    page = list_documents(session, replace(chosen, statuses=(IndexStatus.FAILED,)), limit=_FILES_MOST)
    unread: list[Document | Job] = [*page.items, *page.not_brought_in]
    failed = [(one.name or one.source_key or "", one.error_code, one.error_text) for one in unread]
    read = list_documents(session, replace(chosen, statuses=(IndexStatus.SUCCESS,)), limit=_FILES_MOST)
    lines = [describe_progress(found), ""]
    if failed:
        lines += ["Could not be read:", *(f"  {name}: {_what_happened(code, text)}" for name, code, text in failed), ""]
    if read.items:
        lines += ["Read:", *(f"  {one.name}" for one in read.items), *["  and more"] * bool(read.next), ""]
    if address := server_address.address(session.settings):
        lines.append(f"{address}/batches/{batch_id}")
    subject = f"pagemill on {socket.gethostname()}: {titled_progress(found)}"
    data = {
        "batch": batch_id,
        "name": found.batch.name,
        "state": found.batch.state,
        "failed": [{"name": name, "code": code} for name, code, _ in failed],
    }
    return Message(to, harmless(subject), "\n".join(map(harmless, lines)), data, _iso_now(session))


def _what_happened(code: str | None, text: str) -> str:
    explained = explanation_of(code or "")
    return text if explained is None else explained.happened


# ── Notices ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _send_rule(session: Session, rule: NotifyRule) -> int:
    since, concerned, newest = _concerning(session, rule)
    now = session.clock()
    if not concerned:
        # Advance the position past notices that do not concern the rule, so that they are not read again.
        if newest > since:
            session.store.notices.advance(_reader(rule), since, newest, [])
        return 0
    if not rule.is_time(concerned[0], now, session.settings.zone):
        return 0
    due = messages(
        rule,
        concerned,
        session.settings.addresses,
        machine=socket.gethostname(),
        names=_names(session, concerned),
        page=server_address.address(session.settings),
        at=_iso_now(session),
    )
    return len(session.store.notices.advance(_reader(rule), since, newest, list(map(_job, due))) or ())


def _names(session: Session, notices: Sequence[Notice]) -> dict[int, str]:
    documents = [one.document_id for one in notices if one.document_id is not None]
    jobs = [one.job_id for one in notices if one.document_id is None and one.job_id is not None]
    of_documents = {
        one.id: one.name
        for part in chunks(documents)
        for one in session.library.documents(DocumentSelector(ids=part), most=IDS_AT_ONCE)
    }
    of_jobs = {
        job.id: job.name for part in chunks(jobs) for job in session.reading.list(Selector(part), most=IDS_AT_ONCE)
    }
    found = {one.id: of_documents.get(one.document_id or 0) or of_jobs.get(one.job_id or 0) for one in notices}
    return {number: harmless(name) for number, name in found.items() if name}


def _concerning(session: Session, rule: NotifyRule) -> tuple[int, Sequence[Notice], int]:
    """Return the rule's position, the notices after it, and the new position."""
    notices = session.store.notices
    since = notices.begin(_reader(rule))
    read = notices.after(since, most=_READ_AT_ONCE)
    concerned = [one for one in read if rule.concerns(one)]
    # Failures of notification jobs cause no notification.
    failed = [one.job_id for one in concerned if one.kind == "job.failed" and one.job_id is not None]
    own = {
        job.id
        for part in chunks(failed)
        for job in session.reading.list(Selector(part, job_types=(NOTIFY,)), most=IDS_AT_ONCE)
    }
    return since, [one for one in concerned if one.job_id not in own], read[-1].id if read else since


def _reader(rule: NotifyRule) -> str:
    return f"notify:{rule.name}"


def _iso_now(session: Session) -> str:
    return str(iso(as_text(session.clock())))


def _job(message: Message) -> NewJob:
    payload = json.dumps(asdict(message), ensure_ascii=False)
    return NewJob(NOTIFY, payload=payload, name=message.subject, priority=_PRIORITY)


def _refuse_unknown(address: str) -> None:
    scheme = address.partition(":")[0]
    known = [point.name for point in find(group=_CHANNELS)]
    if scheme not in known:
        raise BadInput(f"{hide_secrets(address)} is not an address: it begins with one of {', '.join(known)}")


# ── Conditions that last too long ─────────────────────────────────────────────────────────────────────────────────────


def _note_lasting_conditions(session: Session) -> None:
    wanted = {kind for rule in session.settings.notify for kind in rule.when}
    looks = {"worker.silent": _silent, "disk.low": _disk_low, "queue.old": _old}
    for kind, look in looks.items():
        if kind in wanted:
            session.store.notices.note(kind, list(look(session)))


def _silent(session: Session) -> Iterator[Episode]:
    for one in Overview(session).lost_workers:
        yield Episode(one.id, f"worker {one.id} is {one.state}: {counted(one.running, 'job')} of it do not run")


def _disk_low(session: Session) -> Iterator[Episode]:
    for one in Overview(session).live_workers:
        if one.is_disk_low:
            yield Episode(one.id, f"worker {one.id} starts no jobs: its disk is nearly full")


def _old(session: Session) -> Iterator[Episode]:
    oldest = session.overview.counts().oldest_pending_at
    if oldest is None:
        return
    waited = (session.clock() - from_text(oldest)).total_seconds()
    if waited > session.settings.notify_old_after_seconds:
        yield Episode("", f"the oldest job that is ready has waited since {oldest} UTC: see pagemill status")
