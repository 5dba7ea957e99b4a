"""Every command runs over hostile values in rows, files and arguments, and prints none of their control characters.

The values have escape sequences, direction marks and lines that imitate our own. With --json, values are unchanged.
"""

from __future__ import annotations

import ast
import io
import json
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import worker_service.cli
from tests.cli.conftest import run_on_terminal
from tests.cli.stored_documents import Shelf
from tests.store.kit import ByHand
from worker_service.base.clock import wall_clock
from worker_service.base.events import begin_logging
from worker_service.cli import pagemill
from worker_service.jobs.attempts import Failure, Report
from worker_service.jobs.documents import DocumentFacts
from worker_service.jobs.job import NewJob
from worker_service.jobs.workers import HandlerFacts, Worker
from worker_service.store.opening import open_store

FORGED = "FORGED 100 completed"
EVIL = f"ev\x1b]0;pwned\x07\x9b31m\x7f\u202e\u2066il\r\n{FORGED}"
ONE_LINE = EVIL.replace("\r\n", " ")
NOT_UTF_8 = "latin\udce9\x1b[2J.pdf"
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
OWN_SEQUENCES = re.compile(r"\x1b\[(?:\?25[lh]|[\d;]*[mAHJK])")

COMMANDS = """
ls | stats | failures | why 1 | why 2 | why 3 | show 1 | show 2 | show 3 | logs 1 | ls --status running
ls --type EVIL | ls --owner EVIL --since 1d | ls --match payload.source=EVIL | cluster | cluster ls
cluster drain EVIL | cluster use EVIL | cluster test | cluster init EVIL | why | logs | wait 1 2 --timeout 0s
wait --type EVIL --timeout 0s --progress | wait document:1 | documents | documents ls --name ev | show document:1
show document:2 | text 1 | search climate | tables 1 | tables 1 --pages 1- | tables 2 --json | keywords TERMS
keywords TERMS --csv | export 1 -o out | export 1 -o out | export --owner EVIL -o EVIL | export --job 1 -o out
add DIR | add DIR --wait --timeout 0s | add DIR/NOT_UTF_8 | add EVIL | add DIR --watch | add EVIL --watch
add DIR/NOT_UTF_8 --watch | crawl DIR --depth 1 | add DIR --depth 1 --dry-run | crawl EVIL
reindex --owner EVIL --dry-run | reindex 1 2 | documents adopt DIR --dry-run | documents adopt DIR --yes
documents EVIL | cancel --owner EVIL --dry-run | retry --owner EVIL --dry-run | delete --owner EVIL --dry-run
cancel 3 | priority 1 --owner EVIL --dry-run | priority 1 2 | undo --dry-run | undo --list | undo
prune --older-than 0s --dry-run | prune --older-than 0s | retry 1 | retry --owner EVIL | delete 2 | delete 2 --yes
pause EVIL --reason EVIL --for 1h | pause --owner EVIL | unpause EVIL | unpause EVIL | top | top --once | workers
workers ls | workers slots | status | status --oldest EVIL | doctor | doctor --audit | handlers ls
handlers show evil | handlers show EVIL | handlers new EVIL | run-one --type evil | run-one --type EVIL
run-one --type evil --payload EVIL | doctor --online | init | init --database EVIL/nowhere | db migrate --dry-run
db backup EVIL | db backup EVIL | db restore EVIL --yes | db check | db rebuild-search | config show | config docs
completion bash | service install --dry-run | service uninstall --dry-run | enqueue EVIL --owner EVIL --payload EVIL
enqueue EVIL --set EVIL=EVIL | enqueue EVIL --payload @EVIL | EVIL | ls --EVIL | ls --status EVIL | ls --since EVIL
ls --match EVIL | show EVIL | why EVIL | enqueue NOT_UTF_8 --owner NOT_UTF_8 | ls --owner NOT_UTF_8 | search NOT_UTF_8
--database EVIL ls | schedules | failures ls | failures dismiss 3 | failures dismiss --all --owner EVIL --yes
schedules add EVIL --crawl EVIL --every 1h | schedules add EVIL --job EVIL --cron EVIL --payload EVIL
schedules add evil2 --job EVIL --every 1d | schedules change evil2 --every 1h | schedules pause evil2
schedules resume evil2 | schedules rm evil2 | schedules rm EVIL | schedules ls | schedules tick
schedules run-now evil | schedules run-now EVIL | schedules example | batch ls | batch ls --owner EVIL | batch show 1
run-now 1 | batch stop 1 | batch resume 1 | batch retry 1 | batch EVIL | batch cancel 1 --dry-run
batch cancel 1 --yes | batch rm 1 --dry-run | batch rm 1 --yes | batch show EVIL | add DIR --owner EVIL
add NOT_UTF_8 | add DIR --watch --owner EVIL | ingest DIR --batch EVIL | add DIR --name evil --owner EVIL
add DIR --dry-run | batch show 2 | notify ls | notify test | notify test EVIL | token make EVIL
token make evil --owner EVIL | token link EVIL | token link --owner EVIL | token ls | token rm EVIL | token rm evil
token make NOT_UTF_8 | serve --listen EVIL | serve --listen EVIL/web.sock | actions ls | actions ls 1
actions add EVIL EVIL | actions rm EVIL --owner EVIL EVIL | tag ls | tag ls --owner EVIL | tag add EVIL 1
tag rm EVIL --name EVIL | documents --tag EVIL | documents rm --owner EVIL --dry-run | documents rm --owner EVIL
documents rm 1 2 --yes | undo --list
"""
# `pagemill` alone, and each command above. Words in capitals stand for hostile values.
COMMAND_LINES = ["", *re.split(r" \| |\n", COMMANDS.strip())]
# `db shell` is the sqlite3 program, the daemon's log has its own test, and a report and the answers of `mcp` are JSON.
NOT_RUN = {"db shell", "mcp", "report", "run", "reload", "upgrade", "help"}
CALLS_THAT_WRITE_FILES = {"file.write", "opened.write", "sheet.write"}


@pytest.fixture
def hostile_files(shelf: Shelf, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database, a directory and settings with a hostile value in every field that a user can set."""
    store = shelf.store
    facts = [HandlerFacts(EVIL, missing=EVIL), *map(HandlerFacts, ("download", "ingest", "crawl"))]
    store.workers.register(Worker("w2", EVIL, EVIL, 1, EVIL, 4, 4, facts))
    store.workers.register(Worker("w1", "here", "boot", 1, "0", 1000, 1000, [HandlerFacts(EVIL), *facts[1:]]))
    evil = json.dumps({"source": EVIL, "\x9b": "\u202e"}, ensure_ascii=False)
    for _ in range(3):
        store.intake.enqueue(NewJob(EVIL, EVIL, EVIL, evil, owner=EVIL, name=EVIL, source=EVIL, concurrency_key=EVIL))
    [failed] = store.leases.claim("w1", 1)
    store.leases.report([Report(failed.lease, 40, EVIL, [EVIL, "\x1b[2J"])])
    store.leases.fail(failed.lease, Failure(f"CODE{EVIL}", EVIL), retry_at=None)
    [running] = store.leases.claim("w1", 1)
    store.leases.report([Report(running.lease, 40, EVIL)])
    store.leases.rest_source(EVIL, wall_clock() + timedelta(hours=1), EVIL)
    store.job_control.pause("type", EVIL, reason=EVIL)
    shelf.read(EVIL, f"climate {EVIL} risk", owner=EVIL, note=EVIL, key=f"/srv/{EVIL}")
    shelf.publish(
        shelf.wish(f"2{EVIL}", key=f"/{EVIL}"), "plain", f"climate {EVIL}", facts=DocumentFacts(EVIL, 1, note=EVIL)
    )
    store.leases.fail(shelf.wish(EVIL, EVIL, key="3").lease, Failure(f"CODE{EVIL}", EVIL), retry_at=None)
    evil_node = ", ".join([_sql(EVIL), "'w1'", "'down'", _sql(EVIL), _sql(EVIL)])
    by_hand = ByHand(database)
    by_hand(f"INSERT INTO node (name, worker_id, state, reason, version) VALUES ({evil_node})")
    by_hand(f"UPDATE file SET name = name || {_sql(EVIL)}")

    directory = tmp_path / "dir"
    for name in (f"{EVIL}.pdf", f"in{EVIL}/b.pdf", NOT_UTF_8, f"{EVIL}.docx"):
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("%PDF-")
    (directory / f"{EVIL}.txt").write_text("read elsewhere")
    Path("terms.txt").write_text(f"climate\n=climate\n{ONE_LINE}\n")
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(ONE_LINE)}\n")
    script.chmod(0o755)
    evil_text = json.dumps(EVIL)
    Path("pagemill.toml").write_text(
        f'[commands.evil]\nargv = ["{script}"]\n[retries]\n{evil_text} = {{}}\n'
        f'[[schedule]]\nname = "evil"\ncron = "@daily"\nowner = {evil_text}\njob = {{ type = {evil_text} }}\n'
        f'[[schedule]]\nname = "folder"\ncron = "@daily"\ncrawl = {evil_text}\n'
    )
    monkeypatch.setenv("WORKER_CONFIG", str(tmp_path / "pagemill.toml"))
    return directory


def _sql(text: str) -> str:
    return "char(" + ",".join(str(ord(letter)) for letter in text) + ")"


def words_of(line: str, directory: Path) -> list[str]:
    value_by_word = {"EVIL": EVIL, "NOT_UTF_8": NOT_UTF_8, "DIR": str(directory), "TERMS": "terms.txt"}
    return [re.sub("EVIL|NOT_UTF_8|DIR|TERMS", lambda found: value_by_word[found[0]], word) for word in line.split()]


@contextmanager
def crawls_completed(database: Path) -> Iterator[None]:
    """Complete each crawl with hostile results, as a daemon would."""
    is_over = threading.Event()

    def answer() -> None:
        store = open_store(database)
        while not is_over.wait(0.05):
            for job in store.leases.claim("w1", 1):
                names = {"would_enqueue": [EVIL, "\x9b31m"], EVIL: 3}
                if job.job_type == "crawl":
                    store.leases.complete(job.lease, json.dumps(names))
        store.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def invoke(words: list[str]) -> Result:
    result = CliRunner().invoke(pagemill, words)
    assert result.exit_code != 70, (words, result.output)
    return result


def commands(group: click.Group, above: str = "") -> Iterator[str]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}"


def test_every_command_is_run_with_hostile_values() -> None:
    lines = [f"{line} " for line in COMMAND_LINES]
    not_run = {name for name in commands(pagemill) if not any(line.startswith(f"{name} ") for line in lines)}

    assert not_run - {"documents ls"} == NOT_RUN


def test_no_command_prints_control_characters_of_stored_values(hostile_files: Path, database: Path) -> None:
    with crawls_completed(database):
        for line in COMMAND_LINES:
            words = words_of(line, hostile_files)
            plain, structured = invoke(words), invoke(["--json", *words])
            for text in (structured.stdout, *re.findall("^{.*", structured.stderr, re.MULTILINE)):
                json.loads(text or "{}")
            for result in (plain, structured):
                for text in (result.stdout, result.stderr):
                    assert not CONTROL_CHARACTERS.search(text.replace("\f", "")), (words, text)
                    is_text = line.startswith("text")
                    assert is_text or not any(row.startswith(FORGED) for row in text.splitlines()), (words, text)


def test_only_output_and_progress_print() -> None:
    """`output` sanitises what it prints, so no other module may print."""
    package = Path(worker_service.cli.__file__).parent
    printing_modules = {path.name: found for path in package.glob("*.py") if (found := _printing(path.read_text()))}

    # `progress` writes lines that `output` has sanitised.
    assert printing_modules.keys() == {"output.py", "progress.py"}
    assert _printing("import sys\nprint(1)\nsys.stdout.write('x')\nclick.secho('x')") == [
        "print", "sys.stdout.write", "click.secho",
    ]  # fmt: skip


def _printing(source: str) -> list[str]:
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    printing = {"print", "click.echo", "click.secho"} | {call for call in calls if call.endswith(".write")}
    return [call for call in calls if call in printing - CALLS_THAT_WRITE_FILES]


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_the_log_of_the_daemon_has_no_control_characters(log_format: str) -> None:
    lines = io.StringIO()
    log = begin_logging(log_format, stream=lines)

    log.info("source.rested", source=EVIL, reason=f"{EVIL}\udce9")

    [line] = lines.getvalue().splitlines()
    assert not CONTROL_CHARACTERS.search(OWN_SEQUENCES.sub("", line))
    assert log_format != "json" or json.loads(line)["source"] == EVIL


def test_json_has_the_real_values(hostile_files: Path) -> None:
    [job, *_] = json.loads(invoke(["ls", "--json", "--status", "failed"]).stdout)["items"]
    [page] = json.loads(invoke(["text", "1", "--json"]).stdout)["items"]
    [refused] = [json.loads(invoke(["show", EVIL, "--json"]).stderr)["error"]]

    assert (job["owner"], job["error_code"]) == (EVIL, f"CODE{EVIL}")
    assert page["text"] == f"climate {EVIL} risk"
    assert repr(EVIL) in refused["message"]


@pytest.mark.parametrize("line", ["ls", "search climate", "top --once", "delete 1 2"])
def test_a_terminal_gets_only_our_own_escape_sequences(hostile_files: Path, line: str) -> None:
    _, screen = run_on_terminal(*words_of(line, hostile_files), typed="n\n", columns=90)

    assert "ev" in screen
    assert not CONTROL_CHARACTERS.search(OWN_SEQUENCES.sub("", screen))


def test_completion_skips_names_with_control_characters(hostile_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PAGEMILL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "pagemill ls --owner ")
    monkeypatch.setenv("COMP_CWORD", "3")

    completions = CliRunner().invoke(pagemill, [], prog_name="pagemill").output

    assert not CONTROL_CHARACTERS.search(completions)
    assert FORGED not in completions
