"""Send notifications about notices: events for people. Each rule has read the notices up to its position.

The transaction that advances the position also enqueues the messages, so a crash neither loses nor repeats a message.
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
from worker_service.handlers.registry import find_entry_points
from worker_service.jobs.batches import BATCH_ENDS_READER
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.history import Episode, Notice
from worker_service.jobs.job import Enqueued, Job, NewJob
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import server_address
from worker_service.services.batches import describe_progress, get_batch_details, titled_progress
from worker_service.services.documents import list_documents
from worker_service.services.failure_sentences import explanation_of
from worker_service.services.jobs import each_job
from worker_service.services.notification_messages import write_messages
from worker_service.services.overview import Overview
from worker_service.services.serialize import iso
from worker_service.services.session import IDS_AT_ONCE, Session, chunks
from worker_service.settings.notifications import OWNER, NotifyRule, hide_secrets

_CHANNEL_GROUP = "worker_service.channels"
_NOTICES_AT_ONCE = 10_000
_PRIORITY = 3
"""Before other jobs, whose default is 5."""


class RuleState(Struct, frozen=True):
    name: str
    when: Sequence[str]
    to: str
    waiting: int
    """Notices that wait for the grouping time or the end of quiet hours."""


class _RuleNotices(Struct, frozen=True):
    position: int
    notices: Sequence[Notice]
    """Notices after the position that concern the rule."""
    new_position: int


def send_due_notifications(session: Session) -> int:
    _note_lasting_conditions(session)
    by_rules = sum(_send_by_rule(session, rule) for rule in session.settings.notify)
    return by_rules + _send_ends_of_batches(session)


def list_rules(session: Session) -> Sequence[RuleState]:
    return [
        RuleState(rule.name, rule.when, hide_secrets(rule.to), len(_unread_notices(session, rule).notices))
        for rule in session.settings.notify
    ]


def send_test(session: Session, name: str | None) -> Sequence[Enqueued]:
    rules = [rule for rule in session.settings.notify if name in (None, rule.name)]
    if not rules:
        names = ", ".join(rule.name for rule in session.settings.notify)
        detail = f"no [[notify]] is called {name!r}: there are {names}" if names else "the settings have no [[notify]]"
        raise BadInput(f"{detail}; docs/notify.md shows one")
    addresses: dict[str, None] = {}
    for rule in rules:
        addresses |= dict.fromkeys(session.settings.addresses.values() if rule.to == OWNER else [rule.to])
    for address in addresses:
        _require_channel(address)
    text = "This is a test: pagemill can reach you. The settings [[notify]] say what it reports."
    subject = f"pagemill on {socket.gethostname()}: a test"
    return session.store.intake.enqueue_many(
        [_notify_job(session, Message(to, subject, text, {"test": True})) for to in addresses]
    )


# ── The end of a batch, for the user who submitted it ─────────────────────────────────────────────────────────────────

_ME = "me"
"""Stands for the owner's address in the table [addresses]."""
_BATCH_ENDED = ("batch.done", "batch.failed")
_FILES_NAMED_MAX = 20


def read_address(session: Session, word: str, *, owner: str) -> str:
    """Read `me`, `ann@example.com`, `mailto:…`, `https://…` or `apprise:NAME`."""
    if word == _ME:
        if address := session.settings.addresses.get(owner):
            return address
        raise BadInput(f"the settings have no address of {owner or 'work without owner'}", "name it in [addresses]")
    address = f"mailto:{word}" if "@" in word and ":" not in word else word
    if address:
        _require_channel(address)
    return address


def channel_warnings(session: Session, address: str) -> list[str]:
    """Return what the channel lacks, such as a setting, in sentences."""
    session.settings.export_handler_settings()
    scheme = address.partition(":")[0]
    channels = [point.load() for point in find_entry_points(group=_CHANNEL_GROUP) if point.name == scheme]
    reasons = [channel.missing() for channel in channels if hasattr(channel, "missing")]
    return [f"no message can be sent to {address}: {reason}" for reason in reasons if reason is not None]


def is_allowed_address(session: Session, address: str, *, owner: str) -> bool:
    """Allow only the owner's own address and the patterns of `notify_allow`."""
    # A * must not match a character that ends the host of an address, or that begins a second address.
    patterns = [re.escape(text).replace(r"\*", r"[^/@?#\\%:,;\s]*") for text in session.settings.notify_allow]
    is_own = address in ("", session.settings.addresses.get(owner))
    return is_own or any(re.fullmatch(pattern, address) for pattern in patterns)


def _send_ends_of_batches(session: Session) -> int:
    notice_store = session.store.notices
    if not notice_store.has_reader(BATCH_ENDS_READER):  # no batch was ever submitted with an address
        return 0
    position = notice_store.begin(BATCH_ENDS_READER)
    unread = notice_store.after(position, most=_NOTICES_AT_ONCE)
    if not unread:
        return 0
    batch_ids = [notice.batch_id for notice in unread if notice.kind in _BATCH_ENDED and notice.batch_id is not None]
    addresses = session.store.batches.addresses(batch_ids) if batch_ids else {}
    jobs = [_notify_job(session, _batch_report(session, batch_id, to)) for batch_id, to in addresses.items()]
    return len(notice_store.advance(BATCH_ENDS_READER, position, unread[-1].id, jobs) or ())


def _batch_report(session: Session, batch_id: int, to: str) -> Message:
    details = get_batch_details(session, batch_id)
    of_batch = DocumentSelector(batch_ids=(batch_id,))
    failures = list_documents(session, replace(of_batch, statuses=(IndexStatus.FAILED,)), limit=_FILES_NAMED_MAX)
    failed_files: list[Document | Job] = [*failures.items, *failures.not_brought_in]
    read = list_documents(session, replace(of_batch, statuses=(IndexStatus.SUCCESS,)), limit=_FILES_NAMED_MAX)
    lines = [describe_progress(details), ""]
    if failed_files:
        lines += ["Could not be read:", *(f"  {_name_of(file)}: {_what_happened(file)}" for file in failed_files), ""]
    if read.items:
        lines += ["Read:", *(f"  {document.name}" for document in read.items)]
        lines += ["  and more", ""] if read.next else [""]
    if address := server_address.address(session.settings):
        lines.append(f"{address}/batches/{batch_id}")
    subject = f"pagemill on {socket.gethostname()}: {titled_progress(details)}"
    data = {
        "batch": batch_id,
        "name": details.batch.name,
        "state": details.batch.state,
        "failed": [{"name": _name_of(file), "code": file.error_code} for file in failed_files],
    }
    return Message(to, harmless(subject), "\n".join(map(harmless, lines)), data)


def _name_of(file: Document | Job) -> str:
    return file.name or file.source_key or ""


def _what_happened(file: Document | Job) -> str:
    explanation = explanation_of(file.error_code or "")
    return file.error_text if explanation is None else explanation.happened


# ── Notices ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _send_by_rule(session: Session, rule: NotifyRule) -> int:
    unread = _unread_notices(session, rule)
    if not unread.notices:
        # Advance the position past notices that do not concern the rule, so that they are not read again.
        if unread.new_position > unread.position:
            session.store.notices.advance(_reader_name(rule), unread.position, unread.new_position, [])
        return 0
    if not rule.is_due(unread.notices[0], session.clock(), session.settings.zone):
        return 0
    due = write_messages(
        rule,
        unread.notices,
        session.settings.addresses,
        machine=socket.gethostname(),
        names=_names_by_notice(session, unread.notices),
        web_address=server_address.address(session.settings),
    )
    jobs = [_notify_job(session, message) for message in due]
    # None: another process has sent the messages since the position was read.
    return len(session.store.notices.advance(_reader_name(rule), unread.position, unread.new_position, jobs) or ())


def _names_by_notice(session: Session, notices: Sequence[Notice]) -> dict[int, str]:
    document_ids = [notice.document_id for notice in notices if notice.document_id is not None]
    job_ids = [notice.job_id for notice in notices if notice.document_id is None and notice.job_id is not None]
    document_names: dict[int, str] = {}
    for chunk in chunks(document_ids):
        documents = session.library.documents(DocumentSelector(ids=chunk), most=IDS_AT_ONCE)
        document_names |= {document.id: document.name for document in documents}
    job_names = {job.id: job.name for job in each_job(session, job_ids)}
    names: dict[int, str] = {}
    for notice in notices:
        if name := document_names.get(notice.document_id or 0) or job_names.get(notice.job_id or 0):
            names[notice.id] = harmless(name)
    return names


def _unread_notices(session: Session, rule: NotifyRule) -> _RuleNotices:
    notice_store = session.store.notices
    position = notice_store.begin(_reader_name(rule))
    unread = notice_store.after(position, most=_NOTICES_AT_ONCE)
    concerned = [notice for notice in unread if rule.concerns(notice)]
    # A failed notification job causes no notification, which could fail in the same way.
    failed_ids = [notice.job_id for notice in concerned if notice.kind == "job.failed" and notice.job_id is not None]
    notify_job_ids = {job.id for job in each_job(session, failed_ids) if job.job_type == NOTIFY}
    to_report = [notice for notice in concerned if notice.job_id not in notify_job_ids]
    return _RuleNotices(position, to_report, unread[-1].id if unread else position)


def _reader_name(rule: NotifyRule) -> str:
    return f"notify:{rule.name}"


def _notify_job(session: Session, message: Message) -> NewJob:
    fields = asdict(message) | {"at": iso(as_text(session.clock()))}
    payload = json.dumps(fields, ensure_ascii=False)
    return NewJob(NOTIFY, payload=payload, name=message.subject, priority=_PRIORITY)


def _require_channel(address: str) -> None:
    scheme = address.partition(":")[0]
    schemes = [channel.name for channel in find_entry_points(group=_CHANNEL_GROUP)]
    if scheme not in schemes:
        raise BadInput(f"{hide_secrets(address)} is not an address: it begins with one of {', '.join(schemes)}")


# ── Conditions that last too long ─────────────────────────────────────────────────────────────────────────────────────


def _note_lasting_conditions(session: Session) -> None:
    kinds_of_rules = {kind for rule in session.settings.notify for kind in rule.when}
    find_by_kind = {"worker.silent": _lost_workers, "disk.low": _full_disks, "queue.old": _old_queue}
    for kind, find_episodes in find_by_kind.items():
        if kind in kinds_of_rules:
            session.store.notices.note(kind, list(find_episodes(session)))


def _lost_workers(session: Session) -> Iterator[Episode]:
    for worker in Overview(session).lost_workers:
        jobs = counted(worker.running, "job")
        yield Episode(worker.id, f"worker {worker.id} is {worker.state}: {jobs} of it do not run")


def _full_disks(session: Session) -> Iterator[Episode]:
    for worker in Overview(session).live_workers:
        if worker.is_disk_low:
            yield Episode(worker.id, f"worker {worker.id} starts no jobs: its disk is nearly full")


def _old_queue(session: Session) -> Iterator[Episode]:
    oldest = session.overview.counts().oldest_pending_at
    if oldest is None:
        return
    waited = (session.clock() - from_text(oldest)).total_seconds()
    if waited > session.settings.notify_old_after_seconds:
        yield Episode("", f"the oldest job that is ready has waited since {oldest} UTC: see pagemill status")
