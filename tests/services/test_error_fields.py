"""Code, detail and remedy of an error reach every surface as separate fields."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from job_handlers.fetch.error_rules import FetchError, RetryPolicy, Timeouts
from tests.store.kit import ByHand
from worker_service.handlers import Permanent
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import NewJob
from worker_service.services.health import Level, check_health
from worker_service.services.job_advice import why
from worker_service.services.notification_messages import write_messages
from worker_service.services.overview import CheckedNode, CheckedWorker, Overview
from worker_service.services.serialize import as_object
from worker_service.services.session import Session
from worker_service.settings.notifications import NotifyRule
from worker_service.store.errors import PAYLOAD_RULES
from worker_service.web.views.alerts import list_alerts

HEARTBEAT_AT = "2026-11-18 09:59:50.000"
ALIVE = CheckedWorker("w1", "here", "boot", 1, "0", 2, 4, False, False, HEARTBEAT_AT, HEARTBEAT_AT, 1, state="alive")


def failed(session: Session, failure: Failure) -> int:
    job_id = session.store.intake.enqueue(NewJob("ocr_pages")).job_id
    [job] = session.store.leases.claim("w1", 1, "cpu")
    session.store.leases.fail(job.lease, failure, retry_at=None)
    return job_id


def test_a_reason_is_recognised_by_its_code_and_not_by_a_name_in_it(session: Session) -> None:
    down = CheckedNode("diskbox2", "w1", "down", 4, "", "", False)
    overview = Overview(session)
    overview.workers, overview.nodes = [ALIVE], [down]

    [alert] = list_alerts(session, overview)

    assert (alert.level, alert.title) == (Level.WARNING, "None of 1 node up: diskbox2 is down")
    assert [reason.code for reason in check_health(overview).reasons] == ["NODES_DOWN"]


def test_a_cause_after_a_colon_is_no_remedy(session: Session) -> None:
    fetch_error = FetchError("UNREADABLE", what="/srv/a.pdf", reason="Permission denied")
    with pytest.raises(Permanent) as raised:
        RetryPolicy(Timeouts()).decide_after(fetch_error)
    error = raised.value
    job_id = failed(session, Failure(error.code, error.detail, remedy=error.remedy))

    advice = why(session, job_id).helps
    assert advice == f"it would fail again in the same way; when the cause is fixed: pagemill retry {job_id}"


def test_a_remedy_is_kept_apart_from_the_job_to_its_notice(session: Session) -> None:
    job_id = failed(session, Failure("LOCKED", "a.pdf: it is locked", remedy="save it without a password"))

    job = session.job_queries.get(job_id)
    [attempt] = session.history.attempts(job_id)
    [count] = session.overview.errors(since="2000")
    [notice] = session.store.notices.after(0)

    remedy = "save it without a password"
    assert [job.error_remedy, attempt.error_remedy, count.newest_remedy, notice.remedy] == [remedy] * 4
    assert why(session, job_id).helps.startswith(f"{remedy}; then: ")
    assert json.loads(json.dumps(as_object(job)))["error_message"] == "a.pdf: it is locked"
    [message] = write_messages(NotifyRule("ops", "mailto:ops@example.com"), [notice], {}, machine="here")
    assert f"LOCKED: a.pdf: it is locked: {remedy}" in message.text
    assert json.loads(json.dumps(message.data))["notices"][0]["remedy"] == remedy


def test_a_retry_removes_the_remedy_and_a_message_set_by_hand_has_none(session: Session) -> None:
    job_id = failed(session, Failure("LOCKED", "it is locked", remedy="save it without a password"))

    by_hand = ByHand(session.settings.database)
    by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {job_id}")
    assert session.job_queries.get(job_id).error_remedy is None

    by_hand(f"UPDATE worker_job_queue SET error_message = 'look: at me' WHERE id = {job_id}")
    assert session.job_queries.get(job_id).error_text == "look: at me"


_FOR_PEOPLE = {"detail", "error_message", "newest_message", "reason", "remedy"}
_CUTS = {"endswith", "partition", "rpartition", "rsplit", "split", "startswith"}
_PEOPLE = "|".join(_FOR_PEOPLE)
_MAY_CUT = re.compile(rf'": "\)|({_PEOPLE})\.({"|".join(_CUTS)})\(|" in [\w.]*({_PEOPLE})\b')
"""Parsing all modules takes seconds; a module without these has nothing to find."""


def cuts_in(source: str) -> list[int]:
    """Return the lines that split at a colon, or cut or search a sentence that was written for people."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CUTS:
            arguments = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
            cuts_sentence = names_in(node.func.value) & _FOR_PEOPLE and "\n" not in arguments
            if ": " in arguments or cuts_sentence:
                lines.append(node.lineno)
        if isinstance(node, ast.Compare) and any(isinstance(operator, ast.In) for operator in node.ops):
            names = {name for comparator in node.comparators for name in names_in(comparator)}
            if isinstance(node.left, ast.Constant) and names & _FOR_PEOPLE:
                lines.append(node.lineno)
    return lines


def names_in(expression: ast.expr) -> set[str]:
    nodes = list(ast.walk(expression))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_no_code_reads_a_sentence_that_was_written_for_people() -> None:
    for source in ('x.partition(": ")', 'reason.startswith("no")', '"disk" in reason'):
        assert cuts_in(source), source
    cuts = [
        f"{path}:{line}"
        for package in ("worker_service", "job_handlers")
        for path in Path(package).rglob("*.py")
        if _MAY_CUT.search(source := path.read_text())
        for line in cuts_in(source)
    ]

    assert cuts == []


def test_each_payload_rule_is_a_message_of_the_schema() -> None:
    schema = Path("schema.sql").read_text("utf-8")

    for rule in PAYLOAD_RULES:
        assert rule in schema
