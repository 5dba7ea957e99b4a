"""`pagemill handlers` and `run-one`: what a handler's author asks for. No database is opened."""

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
from worker_service.cli import group, output
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

    List the handlers that are installed, what each may use, and why one cannot be used.
    """
    found = operations.installed_handlers(call.settings)
    if call.printed_json({"items": [_object(one, call) for one in found]}):
        return
    if found:
        output.show_table(_COLUMNS, [_row(one, call) for one in found])
    else:
        output.say("no handler is installed: pagemill handlers new NAME writes one")


@verb
@click.argument("job_type", metavar="TYPE", shell_complete=completes_type)
@click.option("--schema", is_flag=True, help="Only the JSON Schema of its payload.")
def show(call: Invocation, job_type: str, schema: bool) -> None:
    """\b
    pagemill handlers show ocr_pages
    pagemill handlers show ocr_pages --schema > ocr_pages.schema.json

    Everything that one handler declares, and the JSON Schema of its payload.
    """
    values = _object(operations.get_handler(call.settings, job_type), call)
    if schema and values["payload_schema"] is None:
        raise Refused(f"the payload of {job_type} is of a type that JSON Schema cannot describe, or it is set aside")
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

    Write NAME.py with a handler, test_NAME.py with its test and a pyproject.toml, here.

    Nothing is overwritten: where there is a pyproject.toml, the lines for it are printed. The test passes as it is:
    `pytest test_NAME.py`.
    """
    _refuse_as_name(name)
    files = {f"{name}.py": _HANDLER.replace("NAME", name), f"test_{name}.py": _TEST.replace("NAME", name)}
    for file in files:
        if Path(file).exists():
            raise Refused(f"{file} is there already, so nothing was written")
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
    output.say("then restart the daemon: systemctl restart pagemill")


handlers = group(
    "handlers",
    "\b\npagemill handlers ls\npagemill handlers show count_words\npagemill handlers new count_words\n\n"
    "The handlers that are installed, what they may use, and a new one to begin with.",
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
    help="The job type, as `enqueue` has it.",
)
@click.option("--payload", metavar="JSON|@FILE|-", help="The job's input: JSON, a file, or standard input.")
@click.option("--account", metavar="NAME", help="The remote account that the job is about.")
@click.option("--platform", default="local", metavar="NAME", help="'local' unless given.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Work in here and leave its files; else they are thrown away.",
)
def run_one(
    call: Invocation, job_type: str, payload: str | None, account: str | None, platform: str, directory: Path | None
) -> int:
    """\b
    pagemill run-one --type webhook --payload @job.json
    pagemill run-one --type scrape_account --account user123 --payload '{"scrape_type": "full"}'

    Run one attempt in a real child, with its limits and its sandbox, and without a database.

    Its log lines and progress go to stderr, its result to stdout. Nothing is enqueued, retried or published. Exit
    code 0 if it is done, 1 if not, 65 if the payload does not fit, 69 if nothing here can run it.
    """
    events = operations.run_one_job(
        call.settings, job_type, payload, read_stdin, account=account, platform=platform, directory=directory
    )
    for happening in events:
        if isinstance(happening, Ended):
            return _show_end(call, happening)
        _tell(happening)
    raise AssertionError("an attempt that was launched has an end")


def _tell(happening: AttemptEvent) -> None:
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
        output.say(f"it would be followed by: {follow_up.job_type}")
    if not is_done and not call.as_json:
        _say_why(ended)
    return 0 if is_done else _EXIT_CODES.get(ended.code, EXIT_NOT_DONE)


def _say_why(ended: Ended) -> None:
    after = "" if ended.after_seconds is None else f", again after {ended.after_seconds:g} s"
    output.say(f"{ended.how.value.replace('_', ' ')}{f' ({ended.code})' if ended.code else ''}{after}")
    for line in in_a_sentence(ended.message, ended.remedy).splitlines():
        output.say(f"    {line}")


# ── What is installed ───────────────────────────────────────────────────────────────────────────────────────────


def _row(one: Described, call: Invocation) -> Sequence[object]:
    state = "ready"
    if reason := one.set_aside or one.facts.missing_text:
        # Of a traceback the last line says the most.
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
    """All that is known of it; what was set aside could not say much."""
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
    """It becomes a job type and a module."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name) or keyword.iskeyword(name):
        raise BadInput(f"{name!r} cannot name a handler", "use small letters, digits and _, such as count_words")
    if name in sys.stdlib_module_names or name in ("worker_service", "job_handlers", "tests"):
        raise BadInput(f"{name} is a module already", f"choose another name, such as {name}_pages")


_HANDLER = '''"""NAME: find the longest of some words. Say here what yours does, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from worker_service.handlers import Context, Done, Handler, Limits, Permanent


@dataclass(frozen=True, slots=True)
class Payload:
    """What a job is given. What does not fit fails with PAYLOAD_INVALID before `run` is called."""

    words: list[str]


def run(context: Context[Payload]) -> Done:
    # It may be stopped between any two lines, and run again: write into context.staging only.
    words = context.payload.words
    if not words:
        # No other attempt can succeed. Where one can: raise Retryable("the server is busy", after=60).
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

_TEST = '''"""NAME in a real child, with its limits and its sandbox, and without a database."""

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
