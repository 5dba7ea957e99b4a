"""`pagemill handlers` and `run-one`: for authors of handlers. No database is opened."""

from __future__ import annotations

import json
import keyword
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import click

from worker_service.base.errors import BadInput, Refused, in_a_sentence
from worker_service.cli import VerbGroup, output
from worker_service.cli.context import Invocation, completes_type, read_stdin, verb
from worker_service.runner.messages import AttemptEvent, Declared, Described, Ended, How, Logged, Progressed
from worker_service.services import handlers as operations
from worker_service.services.serialize import as_object

EXIT_NOT_DONE = 1
EXIT_BAD_PAYLOAD = 65
EXIT_ABSENT = 69

_EXIT_CODES = {
    "PAYLOAD_INVALID": EXIT_BAD_PAYLOAD,
    "HANDLER_SET_ASIDE": EXIT_ABSENT,
    "SANDBOX_UNAVAILABLE": EXIT_ABSENT,
}


_COLUMNS = ("TYPE", "CLASS", "MEMORY", "CPU TIME", "TIME", "NETWORK", "SANDBOX", "FROM", "STATE")


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill handlers ls
    pagemill handlers ls --json

    List the installed handlers, the limits of each, and why one cannot be used.
    """
    found = operations.installed_handlers(call.settings)
    if call.printed_json({"items": [_object(one, call) for one in found]}):
        return
    if found:
        output.show_table(_COLUMNS, [_row(one, call) for one in found])
    else:
        output.say("no handler is installed; to create one: pagemill handlers new NAME")


@verb
@click.argument("job_type", metavar="TYPE", shell_complete=completes_type)
@click.option("--schema", is_flag=True, help="Print only the JSON Schema of the payload.")
def show(call: Invocation, job_type: str, schema: bool) -> None:
    """\b
    pagemill handlers show ocr_pages
    pagemill handlers show ocr_pages --schema > ocr_pages.schema.json

    Show everything that a handler declares, and the JSON Schema of its payload.
    """
    values = _object(operations.get_handler(call.settings, job_type), call)
    if schema and values["payload_schema"] is None:
        raise Refused(f"{job_type} has no JSON Schema: its payload has an unusual type, or the handler is set aside")
    if schema or call.as_json:
        output.show_json(_as_table(values["payload_schema"]) if schema else values)
        return
    written, about = values.pop("payload_schema"), values.pop("about", None)
    output.show_values({**values, **_as_table(about)})
    if written is not None:
        output.show()
        output.show_json_text(json.dumps(written, ensure_ascii=False, indent=2))


@verb
@click.argument("name", metavar="NAME")
def new(call: Invocation, name: str) -> None:
    """\b
    pagemill handlers new count_words

    Create a handler in the current directory: NAME.py, test_NAME.py and pyproject.toml.

    No file is overwritten; for an existing pyproject.toml, the lines to add are printed. The test passes as it is:
    `pytest test_NAME.py`.
    """
    _refuse_as_name(name)
    files = {f"{name}.py": _HANDLER.replace("NAME", name), f"test_{name}.py": _TEST.replace("NAME", name)}
    for file in files:
        if Path(file).exists():
            raise Refused(f"{file} exists already, so nothing was written")
    for file, text in files.items():
        with Path(file).open("x", encoding="utf-8") as opened:
            opened.write(text)
    project, lines = Path("pyproject.toml"), _ENTRY_POINT.replace("NAME", name)
    is_new = not project.exists()
    if is_new:
        with project.open("x", encoding="utf-8") as opened:
            opened.write(_PROJECT.replace("NAME", name) + lines)
        files[project.name] = lines
    if call.printed_json({"files": list(files), "entry_point": lines}):
        return
    output.say(f"wrote {', '.join(files)}")
    if not is_new:
        output.say("add this to your pyproject.toml:")
        output.show_text(lines)
    output.say(f"to install it: {shlex.quote(sys.executable)} -m pip install . (or copy {name}.py to handlers_dir)")
    output.say(f"then restart the daemon: {call.settings.restart_command}")


handlers = VerbGroup(
    "handlers",
    "\b\npagemill handlers ls\npagemill handlers show count_words\npagemill handlers new count_words\n\n"
    "List the installed handlers, or create one.",
    *(ls, show, new),
)


# ── run-one ─────────────────────────────────────────────────────────────────────────────────────────────────────


@verb
@click.option(
    "--type",
    "job_type",
    required=True,
    metavar="TYPE",
    shell_complete=completes_type,
    help="The job type.",
)
@click.option("--payload", metavar="JSON|@FILE|-", help="The job's input: JSON, a file, or standard input.")
@click.option("--account", metavar="NAME", help="The remote account that the job is about.")
@click.option("--platform", default="local", metavar="NAME", help="Default: local.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Work in this directory and keep its files. Default: a temporary one.",
)
def run_one(
    call: Invocation, job_type: str, payload: str | None, account: str | None, platform: str, directory: Path | None
) -> int:
    """\b
    pagemill run-one --type webhook --payload @job.json
    pagemill run-one --type scrape_account --account user123 --payload '{"scrape_type": "full"}'

    Run one attempt in a child process, with its limits and sandbox, but without a database.

    Log lines and progress go to stderr, the result to stdout. Nothing is enqueued, retried or published. Exit code 0 if
    the attempt succeeded, 1 if it failed, 65 if the payload does not fit, 69 if no installed handler can run it.
    """
    events = operations.run_one_job(
        call.settings, job_type, payload, read_stdin, account=account, platform=platform, directory=directory
    )
    for happening in events:
        if isinstance(happening, Ended):
            return _show_end(call, happening)
        _show_event(happening)
    raise AssertionError("an attempt that was launched has an end")


def _show_event(happening: AttemptEvent) -> None:
    if isinstance(happening, Logged):
        for line in happening.lines:
            output.say(line)
    elif isinstance(happening, Progressed):
        output.say(f"{happening.percent:3.0f} % {happening.message}".rstrip())


def _show_end(call: Invocation, ended: Ended) -> int:
    is_done = ended.how is How.DONE
    if call.as_json:
        output.show_json(
            {
                "outcome": ended.how.value,
                "result": as_object(ended)["result"],
                "error_code": ended.code or None,
                "error_message": ended.message or None,
                "error_remedy": ended.remedy or None,
                "after_seconds": ended.after_seconds,
                "files": ended.files,
                "follow_ups": [follow_up.job_type for follow_up in ended.follow_ups],
                **as_object(ended.usage),
            }
        )
    elif is_done:
        output.show_json_text("null" if ended.result is None else ended.result)
    for file in ended.files:
        output.say(f"file: {file}")
    for follow_up in ended.follow_ups:
        output.say(f"follow-up job: {follow_up.job_type}")
    if not is_done and not call.as_json:
        _show_failure(ended)
    return 0 if is_done else _EXIT_CODES.get(ended.code, EXIT_NOT_DONE)


def _show_failure(ended: Ended) -> None:
    after = "" if ended.after_seconds is None else f", again after {ended.after_seconds:g} s"
    output.say(f"{ended.how.value.replace('_', ' ')}{f' ({ended.code})' if ended.code else ''}{after}")
    for line in in_a_sentence(ended.message, ended.remedy).splitlines():
        output.say(f"    {line}")


# ── What is installed ───────────────────────────────────────────────────────────────────────────────────────────


def _row(one: Described, call: Invocation) -> Sequence[object]:
    state = "ready"
    if reason := one.set_aside or one.facts.missing_text:
        # The last line of a traceback has the reason.
        state = f"{'set aside' if one.set_aside else 'missing'}: {reason.strip().splitlines()[-1].strip()}"
    if one.declared is None:
        return (one.facts.job_type, None, None, None, None, None, None, one.distribution, state)
    limits = one.declared.limits
    memory = None if limits.memory_bytes is None else f"{limits.memory_bytes >> 20:,} MiB"
    return (
        one.facts.job_type, one.facts.job_class, memory, _time(limits.cpu_seconds), _time(limits.wall_seconds),
        "yes" if limits.network else "no", _sandbox(one.declared, call), one.distribution, state,
    )  # fmt: skip


def _object(one: Described, call: Invocation) -> dict[str, object]:
    facts = one.facts
    values: dict[str, object] = {
        "type": facts.job_type,
        "distribution": one.distribution,
        "spec": one.spec,
        "set_aside": one.set_aside,
        "missing": facts.missing,
        "missing_remedy": facts.missing_remedy,
    }
    if one.declared is not None:
        values |= {"class": facts.job_class, "at_most_once": facts.at_most_once, "reuse": one.reuse}
        values |= {"sandbox": _sandbox(one.declared, call), "keeps_files": one.declared.has_keep}
        declared = as_object(one.declared)
        values |= declared["limits"]
        told = ("environment", "credentials", "reads", "writes", "about", "offers")
        values |= {name: declared[name] for name in told}
    values["payload_schema"] = None if facts.payload_schema is None else json.loads(facts.payload_schema)
    return values


def _sandbox(declared: Declared, call: Invocation) -> str:
    return call.settings.sandbox if declared.sandbox == "default" else declared.sandbox


def _as_table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else output.length(timedelta(seconds=seconds))


# ── A new one ───────────────────────────────────────────────────────────────────────────────────────────────────


def _refuse_as_name(name: str) -> None:
    """Raise `BadInput` if the name cannot be a job type and a module."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name) or keyword.iskeyword(name):
        raise BadInput(f"{name!r} cannot name a handler", "use small letters, digits and _, such as count_words")
    if name in sys.stdlib_module_names or name in ("worker_service", "job_handlers", "tests"):
        raise BadInput(f"{name} is an existing module", f"choose another name, such as {name}_pages")


_HANDLER = '''"""NAME: find the longest word. Describe here what your handler does, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from worker_service.handlers import Context, Done, Handler, Limits, Permanent


@dataclass(frozen=True, slots=True)
class Payload:
    """Input of a job. A payload that does not fit fails with PAYLOAD_INVALID before `run` is called."""

    words: list[str]


def run(context: Context[Payload]) -> Done:
    # It may be stopped at any line, and run again: write into context.staging only.
    words = context.payload.words
    if not words:
        # A permanent failure. For a temporary one: raise Retryable("the server is busy", after=60).
        raise Permanent("NO_WORDS", "there are no words")
    longest = ""
    for number, word in enumerate(words, start=1):
        longest = max(longest, word, key=len)
        context.progress(done=number, total=len(words), unit="words")
    return Done({"longest": longest})


handler = Handler("NAME", run, Payload, limits=Limits(wall_seconds=600, network=False))
'''

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "NAME"
version = "0.1"
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
only-include = ["NAME.py"]

"""
_ENTRY_POINT = """[project.entry-points."worker_service.handlers"]
NAME = "NAME:handler"
"""

_TEST = '''"""Run NAME in a child process, with its limits and sandbox, but without a database."""

from pathlib import Path

import NAME
from worker_service.testing import How, run_handler


def test_the_longest_word_is_found(tmp_path: Path) -> None:
    run = run_handler(NAME.handler, {"words": ["a", "abc", "ab"]}, directory=tmp_path)

    assert run.how is How.DONE, run.ended.message
    assert run.result == {"longest": "abc"}


def test_without_words_no_attempt_can_succeed(tmp_path: Path) -> None:
    run = run_handler(NAME.handler, {"words": []}, directory=tmp_path)

    assert (run.how, run.ended.code) == (How.PERMANENT, "NO_WORDS")
'''
