"""The filter's program, run by an interpreter instead of the kernel."""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
import stat
import struct
from pathlib import Path

import pytest

from worker_service.runner import seccomp
from worker_service.runner.seccomp import Architecture

MACHINES = ("x86_64", "aarch64")
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOWED, KILLED = "allowed", "killed"
CLONE_THREAD, NEW_USER, NEW_NETWORK = 0x10000, 0x10000000, 0x40000000

CALLS = [
    ("read", (3,), ALLOWED),
    ("clone", (17,), ALLOWED),
    ("clone", (CLONE_THREAD,), ALLOWED),
    ("clone", (17 | NEW_USER,), errno.EPERM),
    ("clone", (17 | NEW_NETWORK,), errno.EPERM),
    ("clone3", (1, 64), errno.ENOSYS),
    ("unshare", (NEW_USER,), errno.EPERM),
    ("sched_setaffinity", (0,), ALLOWED),
    ("sched_setaffinity", (1,), errno.EPERM),
    ("shmget", (), errno.EPERM),
    ("msgget", (), errno.EPERM),
    ("semget", (), errno.EPERM),
    ("mq_open", (), errno.EPERM),
    ("sethostname", (), errno.EPERM),
    ("mknodat", (0, 1, stat.S_IFBLK | 0o600), errno.EPERM),
    ("mknodat", (0, 1, stat.S_IFCHR | 0o600), errno.EPERM),
    ("mknodat", (0, 1, stat.S_IFIFO | 0o600), ALLOWED),
    ("mknodat", (0, 1, stat.S_IFREG | 0o600), ALLOWED),
    ("prlimit64", (0, resource.RLIMIT_NOFILE), ALLOWED),
    ("prlimit64", (0, resource.RLIMIT_RTTIME), errno.EPERM),
    ("prlimit64", (7, resource.RLIMIT_NOFILE), errno.EPERM),
    ("setrlimit", (resource.RLIMIT_RTTIME,), errno.EPERM),
    ("setrlimit", (resource.RLIMIT_NOFILE,), ALLOWED),
    ("utimensat", (3, 0, 0), 0),
    ("utimensat", (3, 1, 0), errno.EPERM),
    ("utimensat", (3, 1 << 32, 0), errno.EPERM),
    ("utimensat", (3, 1, 1), 0),
    ("utimensat", (3, 1, 1 << 32), 0),
    ("fchmodat", (3, 1, 0o600), 0),
    ("fchownat", (3, 1), errno.EPERM),
    ("setxattr", (1,), errno.ENOTSUP),
    ("file_setattr", (1,), errno.ENOSYS),
    ("ioctl", (3, 0x40086602), errno.ENOTTY),
    ("ioctl", (3, 0x5401), ALLOWED),
    ("socket", (2,), errno.EPERM),
    ("accept4", (2,), errno.EPERM),
    ("ptrace", (), errno.EPERM),
    ("mount_setattr", (), errno.EPERM),
]


def numbers_of(machine: str) -> dict[str, int]:
    """As the kernel's headers say."""
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


def on(machine: str) -> Architecture:
    found = seccomp.machine(machine)
    assert found is not None
    return found


def answer(program: bytes, number: int, arguments: tuple[int, ...] = (), *, architecture: int) -> str | int:
    """Run it as the kernel does, on one call."""
    call = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    at = accumulator = 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if operation == 0x20:
            [accumulator] = struct.unpack_from("<I", call, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x06:
            return ALLOWED if value == 0x7FFF0000 else KILLED if value == 0x80000000 else value & 0xFFFF
        else:
            is_true = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
            at += if_true if is_true[operation] else if_false


def asked(
    machine: str,
    name: str,
    arguments: tuple[int, ...] = (),
    *,
    network: bool = False,
    starts_programs: bool = True,
    guards_truncation: bool = False,
) -> str | int:
    here = on(machine)
    program = seccomp.compiled(seccomp.rules(network, starts_programs, guards_truncation), here)
    number = here.numbers.get(name, {"x86_64": 0, "aarch64": 63}[machine])
    return answer(program, number, arguments, architecture=here.audit_architecture)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("name", "arguments", "expected"), CALLS)
def test_answers_of_the_kernel(machine: str, name: str, arguments: tuple[int, ...], expected: str | int) -> None:
    assert asked(machine, name, arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_are_for_handlers_that_declare_the_network(machine: str) -> None:
    assert asked(machine, "socket", network=True) == ALLOWED
    assert asked(machine, "socket", network=False) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_a_child_that_starts_no_programs_starts_threads(machine: str) -> None:
    assert asked(machine, "clone", (CLONE_THREAD,), starts_programs=False) == ALLOWED
    assert asked(machine, "clone", (17,), starts_programs=False) == errno.EPERM
    assert asked("x86_64", "vfork", starts_programs=False) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_truncating_is_refused_where_landlock_does_not_look_at_it(machine: str) -> None:
    def opens(flags: int) -> str | int:
        return asked(machine, "openat", (0, 1, flags), guards_truncation=True)

    assert opens(os.O_RDONLY | os.O_TRUNC) == errno.EPERM
    assert opens(os.O_WRONLY | os.O_TRUNC) == opens(os.O_RDONLY) == ALLOWED
    assert asked(machine, "truncate", guards_truncation=True) == errno.EPERM
    assert asked(machine, "openat2", guards_truncation=True) == errno.ENOSYS
    assert asked(machine, "truncate") == asked(machine, "openat2") == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_under_the_numbers_of_another_machine_end_the_process(machine: str) -> None:
    here = on(machine)
    program = seccomp.compiled(seccomp.rules(False, True, False), here)

    i386 = 0x40000003
    assert answer(program, here.numbers["ioctl"], architecture=i386) == KILLED
    x32 = answer(program, 0x40000000, architecture=here.audit_architecture)
    assert x32 == (KILLED if machine == "x86_64" else ALLOWED)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.skipif(not all(map(Path.exists, HEADERS.values())), reason="the kernel's headers are not installed")
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    real = numbers_of(machine)
    newer = {"fchmodat2", "setxattrat", "removexattrat", "open_tree_attr", "file_setattr"}

    numbers = on(machine).numbers
    assert {name: number for name, number in numbers.items() if name not in real.keys() | newer} == {}
    assert {name: real[name] for name in numbers if name in real} == {
        name: number for name, number in numbers.items() if name in real
    }
    absent = {name for name in on("x86_64").numbers if name not in numbers}
    assert absent.isdisjoint(real)


def test_this_machine_is_known() -> None:
    assert (seccomp.this_machine() is not None) == (platform.machine() in MACHINES)
