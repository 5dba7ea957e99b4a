"""One job type for each way in which an attempt can go."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import logging
import os
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from worker_service.handlers import (
    Context,
    CrawlItem,
    CrawlPage,
    DocumentFacts,
    DocumentPages,
    Done,
    File,
    Handler,
    IsCurrent,
    KnownPages,
    Limits,
    NewJob,
    PageResult,
    PauseSource,
    Permanent,
    RepublishedFile,
    Retryable,
    Snooze,
)
from worker_service.runner import seccomp
from worker_service.runner.messages import Asked, Ended, How, PagesRead
from worker_service.runner.protocol import VERSION, encode_frame

MIB = 1 << 20

handlers: list[Handler[Any]] = []


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


@dataclass(frozen=True, slots=True)
class At:
    path: str = ""
    port: int = 0


Run = Callable[[Context[Any]], Done | None]


def saboteur(payload: type[Any] = Nothing, **declared: Any) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        handlers.append(Handler(run.__name__, run, payload, **declared))
        return run

    return register


# --- handlers that behave -------------------------------------------------------------------------


@saboteur(At)
def clean(context: Context[At]) -> Done:
    context.progress(10, "begun")
    context.log("first line")
    context.log("second line")
    (context.staging / "pages").mkdir()
    (context.staging / "pages" / "1.txt").write_text("text")
    context.checkpoint({"page": 1})
    context.progress(100, "done")
    return Done({"pages": 1}, files=["pages/1.txt"], follow_ups=[NewJob("assemble", payload="{}")])


@saboteur()
def silent(context: Context[Nothing]) -> None:
    return None


@saboteur()
def reports_itself(context: Context[Nothing]) -> Done:
    descriptors = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):  # noqa: PTH208
        with contextlib.suppress(OSError):
            descriptors[name] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
    return Done(
        {
            "environment": dict(os.environ),
            "seen_from_outside": Path("/proc/self/environ").read_bytes().decode().split("\0"),
            "descriptors": descriptors,
            "session": os.getsid(0) == os.getpid(),
            "cwd": str(Path.cwd()),
            "staging": str(context.staging),
            "mode": oct(context.staging.stat().st_mode & 0o777),
            "key": context.idempotency_key,
            "account": context.account,
            "state": context.state,
        }
    )


@saboteur(At, environment=("TEST_ASKED_FOR",))
def asks_for_a_variable(context: Context[At]) -> Done:
    return Done(os.environ.get("TEST_ASKED_FOR"))


@saboteur(At, credentials=("mine",))
def reads_credentials(context: Context[At]) -> Done:
    credentials = Path(os.environ["CREDENTIALS_DIRECTORY"])
    return Done([_try((credentials / name).read_text) for name in ("mine", "theirs")])


@saboteur(At, keep_key=lambda payload: payload.path)
def keeps(context: Context[At]) -> Done:
    part = context.keep / "file.part"
    part.write_text((part.read_text() if part.exists() else "") + "x")
    return Done(part.read_text())


@saboteur()
def stops_when_asked(context: Context[Nothing]) -> Done:
    context.progress(1, "waiting")
    while not context.cancelled():
        time.sleep(0.001)
    return Done("too late")


@saboteur()
def reads_a_document(context: Context[Nothing]) -> Done:
    known = context.ask(KnownPages(["d1", "d2"])).digests
    for number in (1, 2):
        if f"d{number}" not in known:
            context.save_page(PageResult(number, f"d{number}", f"page {number}", "layer", layout='{"words":[]}'))
    context.checkpoint({"read": 2}, [NewJob("leaf")], CrawlPage("c", [CrawlItem("a")]))
    pages = context.ask(DocumentPages(1, 2)).pages
    (context.staging / "all.txt").write_text(" ".join(page.text or "" for page in pages))
    return Done(
        {"known": len(known), "text": " ".join(page.text or "" for page in pages)},
        files=[File("all.txt", "text", "Report.txt", sha256="ab" * 32), RepublishedFile(7, "original")],
        document=DocumentFacts(pages=2),
        publishes=True,
    )


@saboteur()
def reads_its_inputs(context: Context[Nothing]) -> Done:
    original = context.inputs["original"]
    return Done(
        {
            "document": [context.document_id, context.generation],
            "input": original.read_text(),
            "write it": _try(lambda: original.write_text("x")),
            "beside it": _try(lambda: original.with_name("another").read_text()),
        }
    )


# --- handlers that raise --------------------------------------------------------------------------


@saboteur()
def raises(context: Context[Nothing]) -> None:
    raise RuntimeError("the paper is jammed")


@saboteur()
def divides(context: Context[Nothing]) -> None:
    _first_of_none([])


def _first_of_none(several: list[float]) -> float:
    return sum(several) / len(several)


@saboteur()
def trusts_a_library(context: Context[Nothing]) -> None:
    json.loads("{")


@saboteur()
def fails_at_length(context: Context[Nothing]) -> None:
    try:
        _first_of_none([])
    except ZeroDivisionError as error:
        raise ValueError("nothing to share\nask again later") from error


@saboteur()
def leaves(context: Context[Nothing]) -> None:
    sys.exit("on its own")


@saboteur()
def retryable(context: Context[Nothing]) -> None:
    raise Retryable("busy", after=42.0)


@saboteur()
def permanent(context: Context[Nothing]) -> None:
    raise Permanent("NOT_A_PDF", "it is a picture")


@saboteur()
def snoozes(context: Context[Nothing]) -> None:
    raise Snooze("not before noon", until=datetime.now(UTC) + timedelta(hours=1))


@saboteur()
def asks_for_rest(context: Context[Nothing]) -> None:
    raise PauseSource("the quota is used up", after=600)


@saboteur()
def returns_nonsense(context: Context[Nothing]) -> Any:
    return 17


@saboteur(At)
def publishes_what_is_not_its_own(context: Context[At]) -> Done:
    (context.staging / "link").symlink_to(context.payload.path)
    return Done(files=["link"])


# --- handlers that crash --------------------------------------------------------------------------


@saboteur()
def exits(context: Context[Nothing]) -> None:
    os._exit(3)


@saboteur()
def segfaults(context: Context[Nothing]) -> None:
    print("about to touch what is not there", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


@saboteur(limits=Limits(memory_bytes=512 * MIB))
def eats_memory(context: Context[Nothing]) -> None:
    hoard = []
    while True:
        hoard.append(bytearray(16 * MIB))


@saboteur(limits=Limits(cpu_seconds=1))
def burns(context: Context[Nothing]) -> None:
    while True:
        pass


@saboteur(limits=Limits(file_bytes=MIB))
def writes_too_much(context: Context[Nothing]) -> None:
    (context.staging / "big").write_bytes(bytes(2 * MIB))


# --- handlers that do not end ---------------------------------------------------------------------


@saboteur(limits=Limits(wall_seconds=1))
def loops(context: Context[Nothing]) -> None:
    while True:
        time.sleep(0.01)


@saboteur()
def ignores_sigterm(context: Context[Nothing]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context.progress(1, "deaf")
    # In native code, with Python's lock held.
    ctypes.PyDLL(None).sleep(3600)


@saboteur()
def waits(context: Context[Nothing]) -> None:
    try:
        context.progress(1, "waiting")
        signal.pause()
        time.sleep(3600)
    finally:
        context.log("cleaned up")


# --- handlers that print and log ------------------------------------------------------------------


@saboteur()
def floods_stdout(context: Context[Nothing]) -> None:
    context.progress(1, "flooding")
    line = b"x" * (1 << 16)
    while True:
        os.write(1, line)


@saboteur()
def prints(context: Context[Nothing]) -> None:
    context.log("logged")
    print("printed")
    print("wrong", file=sys.stderr)
    logging.getLogger("tests").warning("warned")
    libc = ctypes.CDLL(None)
    libc.puts(b"put by C")
    libc.fflush(None)
    os.write(1, b"written ")
    os.write(2, b"in two\n")
    subprocess.run(["/bin/echo", "echoed"], check=True)
    print("50 %\r", end="")
    print("100 %\r\nnot UTF-8: \udcff")
    os.write(1, b"z" * 70_000 + b" end\n")
    print("\x1b[31mred\x07")
    print()
    context.log("logged again")
    print("unfinished", end="")


@saboteur()
def floods_log_for_ever(context: Context[Nothing]) -> None:
    number = 0
    while True:
        number += 1
        context.log(f"line {number}")


@saboteur()
def prints_and_crashes(context: Context[Nothing]) -> None:
    print("the last thing that it did")
    os.abort()


@saboteur()
def floods_progress(context: Context[Nothing]) -> Done:
    for number in range(2000):
        context.progress(number / 100, f"{number}")
    context.progress(100, "last")
    return Done()


@saboteur()
def floods_log(context: Context[Nothing]) -> Done:
    for number in range(5000):
        context.log(f"line {number} " + "y" * 500)
    return Done(5000)


@saboteur()
def says_what_only_we_say(context: Context[Nothing]) -> None:
    os.write(_pipe_of(context), encode_frame(Ended(*_key(context), How.STOPPED)))
    os._exit(0)


# --- handlers that ask and save -------------------------------------------------------------------


@saboteur()
def asks_for_ever(context: Context[Nothing]) -> None:
    context.progress(1, "asking")
    while True:
        context.ask(IsCurrent())


@saboteur()
def asks_what_is_no_question(context: Context[Nothing]) -> None:
    context.ask(NewJob("x"))  # type: ignore[arg-type]


@saboteur()
def asks_again_without_reading(context: Context[Nothing]) -> None:
    os.write(_pipe_of(context), encode_frame(Asked(*_key(context), 1, "DocumentPages", '{"first":1,"last":1}')))
    time.sleep(0.2)
    os.write(_pipe_of(context), encode_frame(Asked(*_key(context), 2, "IsCurrent", "{}")))
    time.sleep(3600)


@saboteur()
def waits_for_an_answer(context: Context[Nothing]) -> Done:
    try:
        context.ask(IsCurrent())
        return Done("answered")
    finally:
        # The late answer to the interrupted question must not be taken for the answer to this one.
        context.log(f"{len(context.ask(KnownPages(['d'])).digests)} known")


@saboteur()
def saves_what_does_not_fit(context: Context[Nothing]) -> None:
    context.save_page(PageResult(1, "d", "x" * (9 * MIB)))


@saboteur()
def floods_pages(context: Context[Nothing]) -> Done:
    for number in range(1, 2001):
        context.save_page(PageResult(number, f"flood{number}", "y" * 20_000, "ocr"))
    return Done(2000)


@saboteur()
def saves_more_at_once_than_fits(context: Context[Nothing]) -> Done:
    context.save_pages([PageResult(number, f"d{number}", "y" * 3 * MIB) for number in range(1, 4)])
    context.save_pages([PageResult(number, f"d{number}", "y") for number in range(4, 304)])
    return Done(303)


def _writes(name: str, frames: Callable[[Any], bytes]) -> None:
    def run(context: Context[Nothing]) -> None:
        context.progress(1, "writing")
        os.write(_pipe_of(context), frames(lambda kind, *rest: encode_frame(kind(*_key(context), *rest))))
        time.sleep(3600)

    handlers.append(Handler(name, run, Nothing))


_writes("talks_nonsense", lambda frame: b"HTTP/1.1 200 OK\r\n\r\n")
_writes("claims_a_huge_message", lambda frame: bytes([*b"P", VERSION]) + b"\xff\xff\xff\xff" + b"z" * 1000)
_writes("asks_nonsense", lambda frame: frame(Asked, 1, "Everything", "{}"))
_writes("asks_for_too_much", lambda frame: frame(Asked, 1, "DocumentPages", '{"first":1,"last":1000000}'))
_writes("asks_after_its_end", lambda frame: frame(Ended, How.DONE) + frame(Asked, 1, "IsCurrent", "{}"))
_writes("asks_twice_at_once", lambda frame: frame(Asked, 1, "IsCurrent", "{}") + frame(Asked, 2, "IsCurrent", "{}"))
_writes("never_reads_its_answer", lambda frame: frame(Asked, 1, "DocumentPages", '{"first":1,"last":1}'))
_writes("saves_a_page_of_nothing", lambda frame: frame(PagesRead, [PageResult(0, "d", "text")]))


def _key(context: Any) -> tuple[int, int]:
    key: tuple[int, int] = context._order.key
    return key


def _pipe_of(context: Any) -> int:
    descriptor: int = context._pipe._messages
    return descriptor


# --- handlers that leave processes behind ---------------------------------------------------------


def _starts(kind: str, start: Callable[[str], None]) -> None:
    """Add two handlers that start such a process: one ends before it, one runs beside it."""

    def leaves(context: Context[At]) -> Done:
        start(context.payload.path)
        return Done("gone home")

    def runs_beside(context: Context[At]) -> None:
        start(context.payload.path)
        context.progress(1, "beside it")
        time.sleep(3600)

    handlers.append(Handler(f"leaves_a_{kind}", leaves, At, sandbox="off"))
    handlers.append(Handler(f"runs_beside_a_{kind}", runs_beside, At, sandbox="off"))


def _run_away(locked: str) -> None:
    """Start a process that forks and ends for ever. Each holds a lock on the file."""
    descriptor = os.open(locked or "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
    os.close(descriptor)


def _become_a_daemon(pid_file: str, program: list[str]) -> None:
    """Fork twice in a new session, ignore signals, close all descriptors, and run `program` if any."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            Path(pid_file).write_text(str(os.getpid()))
            os.write(writing, b"!")
            os.closerange(0, 1024)
            if program:
                os.execve(program[0], program, {})
            time.sleep(3600)
        os._exit(0)
    os.wait()
    os.read(reading, 1)


_starts("daemon", lambda pid_file: _become_a_daemon(pid_file, []))
_starts("nameless_daemon", lambda pid_file: _become_a_daemon(pid_file, ["/bin/sleep", "3600"]))
_starts("runaway", _run_away)


# --- handlers that test the sandbox ---------------------------------------------------------------


@saboteur(At)
def looks_over_the_wall(context: Context[At]) -> Done:
    outside = Path(context.payload.path)
    return Done(
        {
            "write outside": _try(lambda: (outside / "new").write_text("x")),
            "write a neighbour": _try(lambda: (context.staging.parent / "new").write_text("x")),
            "read outside": _try(lambda: (outside / "secret").read_text()),
            "list the root": _try(lambda: os.listdir("/")),  # noqa: PTH208
            "by a link": _try(lambda: _by_a_link(context.staging, outside)),
            "socket": _try(lambda: socket.socket()),
            "unix socket": _try(lambda: socket.socket(socket.AF_UNIX)),
            "pair": _try(lambda: socket.socketpair()),
            "signal the parent": _try(lambda: os.kill(os.getppid(), 0)),
            "parent's environment": _try(lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes()),
            "limits of the parent": _try(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE)),
            "its own mark": _try(lambda: resource.setrlimit(resource.RLIMIT_RTTIME, (1, 1))),
            "its own limits": _try(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))),
            "priority of the parent": _try(lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 5)),
            "write inside": _try(lambda: (context.staging / "new").write_text("x")),
            "run a program": _try(lambda: subprocess.run(["/bin/true"], check=True)),
        }
    )


_NEW_USER, _EXIT_SIGNAL = 0x10000000, 17
_CREATE, _PRIVATE_KEY = 0o1600, 0


@saboteur(At, limits=Limits(network=True))
def knocks_at_the_kernel(context: Context[At]) -> Done:
    """Call what reaches beyond the child without a file. The arguments do no harm if a call succeeds."""
    staging = context.staging
    time_stood_still: tuple[object, ...] = (None, None)
    found = {
        "clone a user namespace": _call("clone", _NEW_USER | _EXIT_SIGNAL, 0, 0, 0, 0),
        "clone3": _call("clone3", bytes(64), 64),
        "unshare": _call("unshare", _NEW_USER),
        "bind another to a core": _call("sched_setaffinity", os.getppid(), 8, bytes([255] * 8)),
        "bind itself to a core": _call("sched_setaffinity", 0, 8, bytes([255] * 8)),
        "shared memory": _call("shmget", _PRIVATE_KEY, 4096, _CREATE),
        "semaphores": _call("semget", _PRIVATE_KEY, 1, _CREATE),
        "message queue": _call("msgget", _PRIVATE_KEY, _CREATE),
        "named queue": _call("mq_open", b"pagemill-test", os.O_RDONLY, 0, 0),
        "name of the machine": _call("sethostname", os.uname().nodename.encode(), len(os.uname().nodename)),
        "accounting": _call("acct", None),
        "clock": _call("settimeofday", *time_stood_still),
        "log of the kernel": _call("syslog", 10, None, 0),
        "block device": _try(lambda: os.mknod(staging / "block", stat.S_IFBLK | 0o600, os.makedev(7, 0))),
        "character device": _try(lambda: os.mknod(staging / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))),
        "pipe with a name": _try(lambda: os.mkfifo(staging / "pipe")),
        "a thread": _try(lambda: ThreadPoolExecutor(1).submit(int).result()),
        "a program": _try(lambda: subprocess.run(["/bin/true"], check=True)),
    }
    status = Path("/proc/self/status").read_text().splitlines()
    return Done([found, [line.split()[1] for line in status if line.startswith("Cap")]])


def _call(name: str, *arguments: object) -> str:
    here = seccomp.this_machine()
    assert here is not None
    libc = ctypes.CDLL(None, use_errno=True)
    values = (ctypes.c_long(value) if isinstance(value, int) else value for value in arguments)
    if libc.syscall(ctypes.c_long(here.numbers[name]), *values) >= 0:
        return "allowed"
    return errno.errorcode[ctypes.get_errno()]


@saboteur(At)
def exchanges_its_staging(context: Context[At]) -> Done:
    context.staging.rename(context.staging.with_name("old"))
    context.staging.symlink_to(context.payload.path)
    return Done(files=["canary"])


@saboteur(At)
def changes_modes(context: Context[At]) -> Done:
    own = context.staging / "own"
    own.write_text("x")
    for place in (Path(context.payload.path), *context.inputs.values(), own):
        _by_every_call(place)
    return Done([f"{own.stat().st_mode & 0o777:o}", own.stat().st_size])


def _by_every_call(place: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    path, opened, here, long_ago = bytes(place), -1, -100, bytes(64)
    with contextlib.suppress(OSError):
        opened = os.open(place, os.O_RDONLY)
    value = ctypes.create_string_buffer(b"x")
    arguments = struct.pack("@QII", ctypes.addressof(value), 1, 0)
    calls: list[tuple[object, ...]] = [
        (90, path, 0o4), (91, opened, 0o4), (268, here, path, 0o4), (452, here, path, 0o4, 0),
        (92, path, 1, 1), (93, opened, 1, 1), (94, path, 1, 1), (260, here, path, 1, 1, 0),
        (132, path, long_ago), (235, path, long_ago), (261, here, path, long_ago),
        (280, here, path, long_ago, 0), (280, opened, None, long_ago, 0),
        (188, path, b"user.a", b"x", 1, 0), (189, path, b"user.b", b"x", 1, 0), (190, opened, b"user.c", b"x", 1, 0),
        (463, here, path, 0, b"user.d", arguments, 16),
        (197, path, b"user.1"), (198, path, b"user.2"), (199, opened, b"user.3"), (466, here, path, 0, b"user.4"),
        (469, here, path, struct.pack("@Q4I", 0x80, 0, 0, 0, 0), 24, 0),
        # FS_IOC_SETFLAGS: not to be dumped. FS_IOC_FSSETXATTR: the same. FS_IOC_SETVERSION.
        (16, opened, 0x40086602, struct.pack("@q", 0x40)),
        (16, opened, 0x401C5820, struct.pack("@5I8x", 0x80, 0, 0, 0, 0)),
        (16, opened, 0x40087602, struct.pack("@q", 7)),
    ]  # fmt: skip
    for call in calls:
        libc.syscall(*(ctypes.c_long(value) if isinstance(value, int) else value for value in call))


@saboteur(At)
def copies(context: Context[At]) -> Done:
    original = context.inputs["original"]
    (context.staging / "tree").mkdir()
    shutil.copy(original, "tree/copy")
    shutil.copy2(original, "tree/copy2")
    shutil.copytree("tree", "other")
    with tempfile.TemporaryDirectory() as scratch:
        shutil.move(shutil.copy2(original, scratch), "moved")
    with tarfile.open("all.tar", "w") as packed:
        packed.add(original, "file")
    with tarfile.open("all.tar") as packed:
        packed.extractall("unpacked")
    programs: list[list[str | Path]] = [
        ["cp", "--preserve=mode,timestamps,xattr", original, "copied"],
        ["install", "-m", "600", original, "installed"],
        ["tar", "xf", "all.tar", "--no-same-owner"],
        ["touch", "-d", "yesterday", "file"],
        ["touch", "new"],
        ["chmod", "a+r", "file"],
        ["dd", f"if={original}", "of=by-dd", "status=none"],
    ]
    for program in programs:
        subprocess.run(program, check=True)
    (context.staging / "marker").touch()
    assert {"marker", "new"} <= set(os.listdir(context.staging))  # noqa: PTH208
    (context.staging / "marker").unlink()
    (context.staging / "new").unlink()
    found = [path.read_text() for path in context.staging.rglob("*") if path.is_file() and path.suffix != ".tar"]
    return Done([len(found), *set(found)])


@saboteur(At, limits=Limits(network=True))
def calls_home(context: Context[At]) -> Done:
    with socket.create_connection(("127.0.0.1", context.payload.port), 5) as line:
        return Done(line.recv(100).decode())


def _by_a_link(staging: Path, outside: Path) -> str:
    (staging / "link").symlink_to(outside / "secret")
    return (staging / "link").read_text()


def _try(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "allowed"
