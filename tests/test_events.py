from __future__ import annotations

import io
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from worker_service.base import events
from worker_service.base.events import begin_logging

if TYPE_CHECKING:
    from worker_service.base.events import Log


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def say(log: Log) -> None:
    log.debug(events.JOB_STARTED, job_id=41)
    log.info(events.JOB_CLAIMED, job_id=42, name="a report", owner=None)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.error(events.DAEMON_FAILED, turn=3, exc_info=True)


def test_a_json_line_has_the_event_and_its_fields() -> None:
    lines = io.StringIO()

    say(begin_logging("auto", environ={}, stream=lines))

    claimed, failed = map(json.loads, lines.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", claimed.pop("timestamp"))
    assert claimed == {"event": "job.claimed", "level": "info", "job_id": 42, "name": "a report", "owner": None}
    assert (failed["level"], failed["turn"]) == ("error", 3)
    assert failed["exception"].splitlines()[0] == "Traceback (most recent call last):"
    assert failed["exception"].endswith("ValueError: two\nlines")


@pytest.mark.parametrize("is_coloured", [True, False])
def test_a_line_on_a_terminal_is_coloured_text(is_coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "" if is_coloured else "1")
    lines = Terminal()

    say(begin_logging("auto", environ={}, stream=lines))

    assert ("\x1b[" in lines.getvalue()) is is_coloured
    claimed, failed, *traceback = re.sub(r"\x1b\[[\d;]*m", "", lines.getvalue()).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[info +\] job\.claimed +job_id=42 name='a report' owner=None", claimed)
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[error +\] daemon\.failed +turn=3", failed)
    assert traceback[-2:] == ["ValueError: two", "lines"]


# Whoever logs goes on until its process ends.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_journal_entry_has_a_field_per_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind(str(tmp_path / "journal"))
    monkeypatch.setattr(events, "_JOURNAL", str(tmp_path / "journal"))

    say(begin_logging("journal"))

    claimed, failed = journal.recv(1 << 16), journal.recv(1 << 16)
    journal.close()
    assert b"PRIORITY=6\nSYSLOG_IDENTIFIER=pagemill\nPAGEMILL_EVENT=job.claimed\nPAGEMILL_JOB_ID=42\n" in claimed
    assert b"MESSAGE=job.claimed job_id=42 name=a report owner=null\n" in claimed
    assert b"PRIORITY=3\n" in failed
    # A field of several lines has its length before it.
    assert b"PAGEMILL_TRACEBACK\n" in failed


def test_logging_ignores_a_closed_stream() -> None:
    lines = io.StringIO()
    log = begin_logging("json", stream=lines)
    lines.close()

    say(log)
