"""A problem keeps its parts: code, detail and remedy reach every surface as they were raised."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from job_handlers.fetch.errors import FetchError, RetryPolicy, Timeouts
from tests.store.kit import ByHand
from worker_service.handlers import Permanent
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import NewJob
from worker_service.services.health import Level, check_health
from worker_service.services.job_advice import why
from worker_service.services.notification_messages import messages
from worker_service.services.overview import CheckedNode, CheckedWorker, Overview
from worker_service.services.serialize import as_object
from worker_service.services.session import Session
from worker_service.settings.notifications import NotifyRule
from worker_service.store.errors import PAYLOAD_RULES
from worker_service.web.views.alerts import list_alerts

AT = "2026-11-18 09:59:50.000"
ALIVE = CheckedWorker("w1", "here", "boot", 1, "0", 2, 4, False, False, AT, AT, 1, state="alive")


def failed(session: Session, failure: Failure) -> int:
    job_id = session.store.intake.enqueue(NewJob("ocr_pages")).job_id
    [job] = session.store.leases.claim("w1", 1, "cpu")
    session.store.leases.fail(job.lease, failure, retry_at=None)
    return job_id


def test_a_node_that_is_down_is_no_full_disk_whatever_its_name(session: Session) -> None:
    down = CheckedNode("diskbox2", "w1", "down", 4, "", "", False)
    overview = Overview(session)
    overview.workers, overview.nodes = [ALIVE], [down]

    [matter] = list_alerts(session, overview)

    assert (matter.level, matter.title) == (Level.WARNING, "None of 1 node up: diskbox2 is down")
    assert [reason.code for reason in check_health(overview).reasons] == ["NODES_DOWN"]


def test_a_cause_after_a_colon_is_no_remedy(session: Session) -> None:
    trouble = FetchError("UNREADABLE", what="/srv/a.pdf", reason="Permission denied")
    with pytest.raises(Permanent) as ended:
        RetryPolicy(Timeouts()).after(trouble)
    error = ended.value
    job_id = failed(session, Failure(error.code, error.detail, remedy=error.remedy))

    advice = why(session, job_id).helps
    assert advice == f"it would fail again in the same way; when the cause is fixed: pagemill retry {job_id}"


def test_a_remedy_is_kept_apart_from_the_job_to_its_notice(session: Session) -> None:
    job_id = failed(session, Failure("LOCKED", "a.pdf: it is locked", remedy="save it without a password"))

    found = session.store.job_queries.get(job_id)
    [attempt] = session.store.history.attempts(job_id)
    [count] = session.store.overview.errors(since="2000")
    [notice] = session.store.notices.after(0)

    remedy = "save it without a password"
    assert [found.error_remedy, attempt.error_remedy, count.newest_remedy, notice.remedy] == [remedy] * 4
    assert why(session, job_id).helps.startswith(f"{remedy}; then: ")
    assert json.loads(json.dumps(as_object(found)))["error_message"] == "a.pdf: it is locked"
    [told] = messages(NotifyRule("ops", "mailto:ops@example.com"), [notice], {}, machine="here")
    assert f"LOCKED: a.pdf: it is locked: {remedy}" in told.text
    assert json.loads(json.dumps(told.data))["notices"][0]["remedy"] == remedy


def test_a_retry_forgets_the_remedy_and_a_message_set_by_hand_has_none(session: Session) -> None:
    job_id = failed(session, Failure("LOCKED", "it is locked", remedy="save it without a password"))

    by_hand = ByHand(session.settings.database)
    by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {job_id}")
    assert session.store.job_queries.get(job_id).error_remedy is None

    by_hand(f"UPDATE worker_job_queue SET error_message = 'look: at me' WHERE id = {job_id}")
    assert session.store.job_queries.get(job_id).error_text == "look: at me"


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
            at_colon = any(isinstance(one, ast.Constant) and one.value == ": " for one in node.args)
            named = {one.attr for one in ast.walk(node.func.value) if isinstance(one, ast.Attribute)} | {
                one.id for one in ast.walk(node.func.value) if isinstance(one, ast.Name)
            }
            at_line_end = any(isinstance(one, ast.Constant) and one.value == "\n" for one in node.args)
            if at_colon or (named & _FOR_PEOPLE and not at_line_end):
                lines.append(node.lineno)
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.In) for one in node.ops):
            [*names] = [one.id for one in node.comparators if isinstance(one, ast.Name)]
            names += [one.attr for one in node.comparators if isinstance(one, ast.Attribute)]
            if isinstance(node.left, ast.Constant) and set(names) & _FOR_PEOPLE:
                lines.append(node.lineno)
    return lines


def test_no_code_reads_a_sentence_that_was_written_for_people() -> None:
    for parsed in ('x.partition(": ")', 'reason.startswith("no")', '"disk" in reason'):
        assert cuts_in(parsed), parsed
    found = [
        f"{path}:{line}"
        for package in ("worker_service", "job_handlers")
        for path in Path(package).rglob("*.py")
        if _MAY_CUT.search(source := path.read_text())
        for line in cuts_in(source)
    ]

    assert found == []


def test_each_rule_about_payloads_is_one_of_the_schema() -> None:
    schema = Path("schema.sql").read_text("utf-8")

    for rule in PAYLOAD_RULES:
        assert rule in schema
