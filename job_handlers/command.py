"""Run a program that the owner allowed in the settings: each table [commands.X] is a job type X of its own.

    [commands.scrape_account]
    argv = ["/opt/scrapers/instagram", "--user", "{account}", "--type", "{payload.scrape_type}"]
    timeout = "2h"

No shell. A placeholder is one value inside one argument, and never makes that argument an option unless it says so:
`{payload.flag:option}`. What the program writes becomes log lines; a line `progress: 40 message` becomes progress.
It is the owner's own program, so it is not jailed unless its table says `sandbox = "strict"`.
"""

from __future__ import annotations

import ctypes
import difflib
import os
import re
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from worker_service.handlers import (
    Context,
    Done,
    Family,
    Handler,
    Limits,
    Permanent,
    Retryable,
    parse_duration,
)

Payload = dict[str, Any]

_PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[\w-]+)*)(:option)?\}")
_PLAIN = ("account", "platform", "job_type", "job_id")
_PROGRESS = re.compile(r"progress:\s*(\d+(?:\.\d+)?)\s*%?\s*(.*)", re.IGNORECASE)
_LINE_BYTES_MAX = 8192
_READ_BYTES = 1 << 16
_LOOK_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


class Table(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What stands under [commands.X]."""

    argv: tuple[str, ...]
    timeout: str | int = "1h"
    done: tuple[int, ...] = (0,)
    retry: tuple[int, ...] = ()
    """Wins over `permanent`. What is named nowhere is tried again."""
    permanent: tuple[int, ...] = ()
    env: tuple[str, ...] = ()
    """Names of the service's variables that it gets."""
    cwd: str | None = None
    """None: its staging directory."""
    sandbox: str = "off"
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False
    """In a sandbox; outside one nothing is taken away."""
    class_: str = msgspec.field(default="io", name="class")
    max_running: int | None = None
    """Kept by the queue, not here."""
    at_most_once: bool = False


def make(job_type: str, written: Mapping[str, object]) -> Handler[Payload]:
    table = _read(written)
    if not table.argv or not table.argv[0].startswith("/") or _PLACEHOLDER.search(table.argv[0]):
        raise ValueError("argv begins with the program's full path, in which nothing is filled in")
    for argument in table.argv:
        for name, _ in _PLACEHOLDER.findall(argument):
            _check_name(name)
    if table.sandbox not in ("off", "strict"):
        raise ValueError(f"sandbox is off or strict, not {table.sandbox!r}")
    if table.class_ not in ("io", "cpu"):
        raise ValueError(f"class is io or cpu, not {table.class_!r}")
    for path in (*table.read, *table.write, *([] if table.cwd is None else [table.cwd])):
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is not a full path")
    program = Path(table.argv[0])
    return Handler(
        job_type=job_type,
        run=lambda context: run(context, table),
        payload=Payload,
        job_class="cpu" if table.class_ == "cpu" else "io",
        limits=_limits(table),
        at_most_once=table.at_most_once,
        missing=lambda: None if os.access(program, os.X_OK) else f"{program} is not a program that can be run",
        environment=table.env,
        reads=[program, program.resolve(), *map(Path, table.read)],
        writes=[*map(Path, table.write)],
        sandbox="strict" if table.sandbox == "strict" else "off",
    )


commands = Family("commands", make)


def run(context: Context[Payload], table: Table) -> Done:
    argv = [_filled(argument, context) for argument in table.argv]
    try:
        program = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=table.cwd,
            env={**os.environ, "PAGEMILL_IDEMPOTENCY_KEY": context.idempotency_key},
            # It stays in our group, which is how it is stopped; and it does not outlive us.
            preexec_fn=_die_with_parent,
        )
    except OSError as error:
        raise Retryable(f"{argv[0]} cannot be run: {error}", code="COMMAND_ABSENT") from error
    last_words = _listen(context, program)
    return _verdict(program.wait(), table, "\n".join(last_words))


# --- the table ------------------------------------------------------------------------------------


def _read(written: Mapping[str, object]) -> Table:
    known = [field.encode_name for field in msgspec.structs.fields(Table)]
    for key in written:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            raise ValueError(f"there is no setting {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    try:
        return msgspec.convert(dict(written), Table)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def _limits(table: Table) -> Limits:
    seconds = table.timeout if isinstance(table.timeout, int) else int(parse_duration(table.timeout).total_seconds())
    if seconds < 1:
        raise ValueError("timeout is at least a second")
    # The owner's own program, run with what the service itself has; only its time is bounded.
    return Limits(
        memory_bytes=None,
        cpu_seconds=None,
        wall_seconds=seconds,
        open_files=None,
        file_bytes=None,
        network=table.network or table.sandbox == "off",
    )


def _check_name(name: str) -> None:
    first, _, rest = name.partition(".")
    if name not in _PLAIN and not (first == "payload" and rest):
        raise ValueError(f"{{{name}}} is not known; there are {{payload.KEY}}, {{{'}, {'.join(_PLAIN)}}}")


# --- its arguments --------------------------------------------------------------------------------


def _filled(template: str, context: Context[Payload]) -> str:
    may_be_option = template.startswith("-")

    def value_of(found: re.Match[str]) -> str:
        nonlocal may_be_option
        value = _value(found[1], context)
        if found[2] and found.start() == 0:
            may_be_option = True
        return value

    argument = _PLACEHOLDER.sub(value_of, template)
    if argument.startswith("-") and not may_be_option:
        raise Permanent(
            "PAYLOAD_INVALID", f"{template} would become the option {argument[:40]!r}, which is not allowed"
        )
    return argument


def _value(name: str, context: Context[Payload]) -> str:
    value: object
    if name == "job_id":
        value = context.idempotency_key
    elif name in _PLAIN:
        value = getattr(context, name)
    else:
        value = context.payload
        for key in name.split(".")[1:]:
            value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        raise Permanent("PAYLOAD_INVALID", f"the job has no {name}")
    if isinstance(value, bool):
        value = "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise Permanent("PAYLOAD_INVALID", f"{name} is not one value")
    text = str(value)
    # No argument can hold these.
    if "\0" in text or any("\ud800" <= one <= "\udfff" for one in text):
        raise Permanent("PAYLOAD_INVALID", f"{name} holds characters that cannot be passed to a program")
    return text


# --- while it runs --------------------------------------------------------------------------------


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _listen(context: Context[Payload], program: subprocess.Popen[bytes]) -> deque[str]:
    """Until it has ended. What it left running may hold its pipes open for ever, and is not waited for."""
    last_words: deque[str] = deque(maxlen=10)
    lines = {stream: b"" for stream in (program.stdout, program.stderr) if stream is not None}
    with selectors.DefaultSelector() as selector:
        for stream in lines:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, stream)
        while True:
            # Asked, so that a stop leaves us to hear what it says while it cleans up.
            context.cancelled()
            has_ended = program.poll() is not None
            heard = selector.select(0 if has_ended else _LOOK_SECONDS)
            for key, _ in heard:
                received = os.read(key.fd, _READ_BYTES)
                if not received:
                    selector.unregister(key.data)
                *whole, rest = (lines[key.data] + received).split(b"\n")
                if len(rest) > _LINE_BYTES_MAX or not received:
                    whole, rest = [*whole, rest], b""
                lines[key.data] = rest
                for line in filter(None, whole):
                    _tell(context, line, last_words)
            if not selector.get_map() or (has_ended and not heard):
                break
    for rest in filter(None, lines.values()):
        _tell(context, rest, last_words)
    return last_words


def _tell(context: Context[Payload], said: bytes, last_words: deque[str]) -> None:
    line = said[:_LINE_BYTES_MAX].decode("utf-8", "replace").rstrip("\r")
    progress = _PROGRESS.fullmatch(line)
    if progress:
        context.progress(float(progress[1]), progress[2])
        return
    last_words.append(line)
    context.log(line)


def _verdict(code: int, table: Table, last_words: str) -> Done:
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        raise Retryable(f"the program was ended by {name}\n{last_words}".strip(), code="COMMAND_CRASHED")
    if code in table.done:
        return Done({"exit_code": code})
    message = f"the program ended with exit code {code}\n{last_words}".strip()
    if code in table.permanent and code not in table.retry:
        raise Permanent(f"EXIT_{code}", message)
    raise Retryable(message, code=f"EXIT_{code}")
