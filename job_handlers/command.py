"""Run a program that the administrator allows in the settings: each table [commands.X] is a job type X of its own.

The lines that the program prints become log lines, a line `progress: 40 message` becomes progress, and the files in its
directory become the job's files. It runs in a sandbox only if its table says so.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import resource
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker_service.base.forks import die_with
from worker_service.handlers import (
    Context,
    Done,
    Family,
    File,
    Handler,
    KnownDocument,
    Limits,
    Permanent,
    PlaceholderError,
    Program,
    Retryable,
    counted,
    read_program,
)

CommandPayload = dict[str, Any]

_PROGRESS_LINE = re.compile(r"progress:\s*(\d+(?:\.\d+)?)\s*%?\s*(.*)", re.IGNORECASE)
_LINE_BYTES_MAX = 8192
_READ_BYTES = 1 << 16
_POLL_SECONDS = 0.1  # A program that prints nothing is checked for its end so often.
_LAST_LINES_MAX = 10  # Lines of output in the message of a failure.
_FILES_MAX = 10_000
_NAMES_SHOWN_MAX = 5
_NOT_IN_VARIABLE_NAME = re.compile(r"\W", re.ASCII)


def make_handler(job_type: str, table: Mapping[str, object]) -> Handler[CommandPayload]:
    program = read_program(table, f"commands.{job_type}")
    return Handler(
        job_type=job_type,
        run=lambda context: run(context, program),
        payload=CommandPayload,
        schema=program.schema(),
        job_class="cpu" if program.job_class == "cpu" else "io",
        limits=_limits(program),
        at_most_once=program.at_most_once,
        missing=lambda: _reason_not_runnable(program),
        environment=(*program.env, "WORKER_DATABASE", "WORKER_WORKSPACE"),
        reads=[program.path, program.path.resolve(), *program.read],
        writes=program.write,
        about=_description(program),
        sandbox="strict" if program.sandbox == "strict" else "off",
    )


commands = Family("commands", make_handler)


def run(context: Context[CommandPayload], program: Program) -> Done:
    job = {
        "payload": context.payload,
        "account": context.account,
        "platform": context.platform,
        "job_type": context.job_type,
        "job_id": context.idempotency_key,
    }
    try:
        argv, stdin = program.arguments(job), program.input(job)
    except PlaceholderError as error:
        raise Permanent("PAYLOAD_INVALID", str(error)) from error
    process = _start(argv, stdin, program, _variables(context))
    last_lines = _log_output(context, process)
    exit_code = process.wait()
    files = _files_to_publish(context, program, is_done=exit_code in program.done)
    _raise_unless_done(exit_code, program, "\n".join(last_lines))
    return Done({"exit_code": exit_code}, files)


# --- the declaration of its handler ---------------------------------------------------------------


def _reason_not_runnable(program: Program) -> str | None:
    if not (program.path.is_file() and os.access(program.path, os.X_OK)):
        return f"{program.path} is not a program that can be run"
    if program.cwd is not None and not program.cwd.is_dir():
        return f"{program.cwd}, where {program.path.name} is to run, is not a directory"
    return None


def _limits(program: Program) -> Limits:
    # The program runs with the limits of the service, except that `_prepare_process` limits its memory.
    return Limits(
        memory_bytes=None,
        cpu_seconds=None,
        wall_seconds=program.timeout,
        open_files=None,
        file_bytes=None,
        network=program.network or program.sandbox == "off",
    )


def _description(program: Program) -> dict[str, str]:
    # Only the placeholders, because fixed arguments may contain secrets.
    templates = [template for argument_group in program.argv for template in argument_group]
    placeholders = [str(placeholder) for template in templates for placeholder in template.placeholders]
    exit_codes = {"done": program.done, "retry": program.retry, "permanent": program.permanent}
    files = "all but hidden ones" if program.files is None else ", ".join(program.files) or "none"
    return {
        "program": str(program.path),
        "takes": " ".join(placeholders),
        "stdin": program.stdin.text if program.stdin is not None else "",
        "cwd": "an empty directory for each attempt" if program.cwd is None else str(program.cwd),
        "files": files if program.cwd is None else "",
        "memory": "" if program.memory is None else f"{program.memory >> 20:,} MiB for each process",
        **{f"exit_codes_{name}": ", ".join(map(str, numbers)) for name, numbers in exit_codes.items()},
    }


# --- the running program --------------------------------------------------------------------------


def _start(argv: list[str], stdin: str, program: Program, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    parent_pid = os.getpid()
    # A file, because writing to a pipe would wait for a program that does not read it.
    with os.fdopen(os.memfd_create("stdin"), "w+b") as stdin_file:
        stdin_file.write(stdin.encode())
        stdin_file.seek(0)
        try:
            return subprocess.Popen(
                argv,
                stdin=stdin_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=program.cwd,
                env={**os.environ, **variables},
                preexec_fn=lambda: _prepare_process(parent_pid, program.memory),
            )
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise Permanent(
                    "PAYLOAD_INVALID",
                    "the arguments are longer than the system allows",
                    'pass them with stdin = "{payload}"',
                ) from error
            raise Retryable(f"{argv[0]} cannot be run: {error}", code="COMMAND_ABSENT") from error


def _variables(context: Context[CommandPayload]) -> dict[str, str]:
    variables = {"PAGEMILL_IDEMPOTENCY_KEY": context.idempotency_key, "PAGEMILL_OWNER": context.owner}
    if context.document_id is None:
        return variables
    document = context.document or KnownDocument()
    document_values = {
        "DOCUMENT_ID": context.document_id,
        "NAME": document.name,
        "GENERATION": document.generation,
        "BATCH_ID": document.batch_id,
        **{f"FILE_{_NOT_IN_VARIABLE_NAME.sub('_', role).upper()}": path for role, path in context.inputs.items()},
    }
    return variables | {
        f"PAGEMILL_{key}": str(value).replace("\0", "") for key, value in document_values.items() if value is not None
    }


def _prepare_process(parent_pid: int, memory_bytes: int | None) -> None:
    die_with(parent_pid)
    if memory_bytes is not None:
        # RLIMIT_AS would count reserved memory: browsers and node reserve far more than they use.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _log_output(context: Context[CommandPayload], process: subprocess.Popen[bytes]) -> deque[str]:
    """Log the output, and return its last lines. Stop when the program ends: its children may keep the pipes open."""
    last_lines: deque[str] = deque(maxlen=_LAST_LINES_MAX)
    unfinished_lines = {stream: b"" for stream in (process.stdout, process.stderr) if stream is not None}
    with selectors.DefaultSelector() as selector:
        for stream in unfinished_lines:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, stream)
        while True:
            # Calling this keeps a stop from raising `Stopped`, so that the last lines of the program are logged, too.
            context.cancelled()
            has_ended = process.poll() is not None
            ready = selector.select(0 if has_ended else _POLL_SECONDS)
            for key, _ in ready:
                received = os.read(key.fd, _READ_BYTES)
                if not received:
                    selector.unregister(key.data)
                *lines, unfinished = (unfinished_lines[key.data] + received).split(b"\n")
                if len(unfinished) > _LINE_BYTES_MAX or not received:
                    lines, unfinished = [*lines, unfinished], b""
                unfinished_lines[key.data] = unfinished
                for line in filter(None, lines):
                    _log_line(context, line, last_lines)
            if not selector.get_map() or (has_ended and not ready):
                break
    for line in filter(None, unfinished_lines.values()):
        _log_line(context, line, last_lines)
    return last_lines


def _log_line(context: Context[CommandPayload], raw_line: bytes, last_lines: deque[str]) -> None:
    line = raw_line[:_LINE_BYTES_MAX].decode("utf-8", "replace").rstrip("\r")
    if progress := _PROGRESS_LINE.fullmatch(line):
        context.progress(float(progress[1]), progress[2])
        return
    last_lines.append(line)
    context.log(line)


# --- the end of the program -----------------------------------------------------------------------


def _raise_unless_done(exit_code: int, program: Program, last_lines: str) -> None:
    if exit_code in program.done:
        return
    if exit_code < 0:
        # A negative code is the number of the signal that ended the program.
        number = -exit_code
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        raise Retryable(f"the program was ended by {name}\n{last_lines}".strip(), code="COMMAND_CRASHED")
    message = f"the program ended with exit code {exit_code}\n{last_lines}".strip()
    if exit_code in program.permanent and exit_code not in program.retry:
        raise Permanent(f"EXIT_{exit_code}", message)
    raise Retryable(message, code=f"EXIT_{exit_code}")


def _files_to_publish(context: Context[CommandPayload], program: Program, *, is_done: bool) -> list[File]:
    if program.cwd is not None:
        return []
    paths = sorted(Path(folder, name) for folder, _, names in os.walk(context.staging) for name in names)
    files = [path for path in paths if is_done and _is_published(path, context.staging, program.files)]
    if len(files) > _FILES_MAX:
        raise Permanent(
            "TOO_MANY_FILES",
            f"the program left {counted(len(files), 'file')}; at most {_FILES_MAX:,} can be published",
            "let it write an archive, or set cwd",
        )
    published = set(files)
    dropped_names = [_printable_name(path, context.staging) for path in paths if path not in published]
    if dropped_names:
        reason = "`files` does not name them" if is_done else "the program failed"
        shown_names = dropped_names[:_NAMES_SHOWN_MAX]
        if len(dropped_names) > _NAMES_SHOWN_MAX:
            shown_names.append("…")
        context.log(f"files not published, because {reason}: {', '.join(shown_names)}")
    return [_printable_file(path, context.staging) for path in files]


def _is_published(path: Path, directory: Path, patterns: tuple[str, ...] | None) -> bool:
    relative_path = path.relative_to(directory)
    if path.is_symlink() or not path.is_file():
        return False
    if patterns is None:
        return not any(part.startswith(".") for part in relative_path.parts)
    return any(fnmatch.fnmatchcase(str(relative_path), pattern) for pattern in patterns)


def _printable_file(path: Path, directory: Path) -> File:
    """Rename a file whose name is not UTF-8."""
    name = _printable_name(path, directory)
    new_path = directory / name
    if new_path != path:
        new_path.parent.mkdir(parents=True, exist_ok=True)
        path.rename(new_path)
    return File(new_path, name=name)


def _printable_name(path: Path, directory: Path) -> str:
    return os.fsencode(path.relative_to(directory)).decode("utf-8", "backslashreplace")
