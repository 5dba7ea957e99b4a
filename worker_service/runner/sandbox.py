"""Limits, environment and sandbox of a child process, which it sets on itself.

A sandboxed process reads programs and libraries, writes only its directories `staging` and `keep`, and has no
sockets unless its handler declares network access. A seccomp filter covers what Landlock does not check: changes of
mode, owner and time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from worker_service.base.forks import libc, prctl
from worker_service.handlers.contract import Limits
from worker_service.runner import seccomp

_PR_SET_CHILD_SUBREAPER = 36
FULL_SANDBOX = "landlock+seccomp"
# Time between SIGXCPU and SIGKILL.
_CPU_SECONDS_TO_END = 5
_OOM_SCORE = b"500"

_PR_SET_NO_NEW_PRIVS = 38
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
# System calls with the same numbers on x86-64 and arm64, and constants of theirs.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1

_EXECUTE, _WRITE, _READ_FILE, _READ_DIRECTORY = 1, 2, 4, 8
_MAKE_CHARACTER_DEVICE, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
# Landlock rejects other rights for a path that is not a directory.
_OF_FILES = _EXECUTE | _WRITE | _READ_FILE | _TRUNCATE | _IOCTL
_READING = _EXECUTE | _READ_FILE | _READ_DIRECTORY
# File access rights that each Landlock ABI version knows (4 added none); it rejects unknown ones.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_RIGHTS_LATEST = (1 << 16) - 1
# All rights but those to make devices.
_READING_AND_WRITING = _RIGHTS_LATEST & ~(_MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE)
_TCP_BIND_AND_CONNECT = 1 | 2
_ABSTRACT_SOCKETS_AND_SIGNALS = 1 | 2

_READABLE = """
    /usr /bin /sbin /lib /lib64 /lib32
    /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/alternatives /etc/fonts /etc/localtime /etc/timezone
    /etc/mime.types /etc/magic
    /dev/urandom /dev/random /dev/zero /proc/cpuinfo /proc/meminfo /proc/stat /proc/filesystems
    /sys/devices/system/cpu
""".split()
_READABLE_WITH_NETWORK = """
    /etc/resolv.conf /etc/hosts /etc/nsswitch.conf /etc/services /etc/gai.conf /etc/host.conf /etc/protocols
    /etc/ssl /etc/pki /etc/ca-certificates /run/systemd/resolve
""".split()

# Not among the common rules, because it is another directory in each process.
_PROC_SELF = Path("/proc/self")
_RULE = struct.Struct("<Qi")


class _OpenRule(NamedTuple):
    rights: int
    descriptor: int


# For the paths that every child reads, without (False) and with network access.
_common_rules: dict[bool, list[_OpenRule]] = {}


# --- limits, descriptors, environment ---


def adopt_orphans() -> None:
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def raise_oom_score() -> None:
    # The OOM killer then chooses a child before the daemon and the fork server.
    with contextlib.suppress(OSError):
        file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, _OOM_SCORE)
        finally:
            os.close(file)


def set_limits(limits: Limits, attempts: int) -> None:
    _set_limit(resource.RLIMIT_CORE, 0, 0)
    if limits.memory_bytes is not None:
        _set_limit(resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes)
    if limits.cpu_seconds is not None:
        # The soft limit sends SIGXCPU, which names the reason; the hard limit SIGKILL. The child runs up to `attempts`
        # attempts: `renew_cpu_limit` raises the soft limit before each. The hard limit cannot be raised.
        _set_limit(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds * attempts + _CPU_SECONDS_TO_END)
    if limits.open_files is not None:
        _set_limit(resource.RLIMIT_NOFILE, limits.open_files, limits.open_files)
    if limits.file_bytes is not None:
        _set_limit(resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes)


def renew_cpu_limit(limits: Limits) -> None:
    if limits.cpu_seconds is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        used_seconds = math.ceil(usage.ru_utime + usage.ru_stime)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        _set_limit(resource.RLIMIT_CPU, used_seconds + limits.cpu_seconds, hard)


def _set_limit(kind: int, soft: int, hard: int) -> None:
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def basic_environment() -> dict[str, str]:
    defaults = {"PATH": os.defpath, "LANG": "C.UTF-8", "TZ": "UTC"}
    return {name: os.environ.get(name) or default for name, default in defaults.items()}


def reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# --- the sandbox ---


class SandboxError(OSError):
    pass


class SandboxRules(Struct, frozen=True):
    reads: Sequence[Path]
    writes: Sequence[Path | int]
    """Unlike a path, a descriptor still names the directory after its path is replaced."""
    network: bool
    starts_programs: bool = True


def apply(rules: SandboxRules, setting: str) -> str:
    """Return the level reached: landlock+seccomp, landlock, seccomp, none or off.

    `setting` is strict (raise `SandboxError` if the kernel lacks a feature), best-effort or off.
    """
    if setting == "off":
        return "off"
    steps = (("no_new_privs", _renounce_privileges), ("landlock", _landlock), ("seccomp", _seccomp))
    reached: list[str] = []
    try:
        for name, step in steps:
            try:
                if step(rules):
                    reached.append(name)
            except OSError as error:
                if setting == "strict":
                    raise SandboxError(error.errno, f"no sandbox ({name}): {error.strerror}") from error
    finally:
        for descriptor in rule_descriptors():
            os.close(descriptor)
        _common_rules.clear()
    return "+".join(reached) or "none"


def prepare() -> None:
    """Build the parts that all children share, before they are forked."""
    for network in (False, True):
        for starts_programs in (False, True):
            # This fills the cache of `program`.
            seccomp.program(network, starts_programs, _must_filter_truncation())
        if network not in _common_rules:
            opened = [_open_rule(path, _READING) for path in _outermost(_readable(network))]
            _common_rules[network] = [rule for rule in opened if rule is not None]


def _outermost(paths: Iterable[Path]) -> list[Path]:
    # A rule covers all that the directory contains, and each rule costs time in every child.
    real = {path.resolve() for path in paths}
    return sorted(path for path in real if real.isdisjoint(path.parents))


def rule_descriptors() -> list[int]:
    return [rule.descriptor for rules in _common_rules.values() for rule in rules]


@functools.cache
def code_paths() -> tuple[Path, ...]:
    return tuple(code_paths_of(sys.path))


def code_paths_of(entries: Iterable[str]) -> list[Path]:
    """Return Python's own folders, but only packages and modules of other folders: databases may lie beside them."""
    own_folders = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent}
    code: set[Path] = set(own_folders)
    for entry in entries:
        place = Path(entry)
        if not entry or any(place.is_relative_to(folder) for folder in own_folders):
            continue
        if place.is_file():
            # A zip archive.
            code.add(place)
            continue
        with contextlib.suppress(OSError):
            code.update(child for child in place.iterdir() if _is_code(child))
    return sorted(code)


def _is_code(path: Path) -> bool:
    # Libraries bundled with a wheel lie beside its package in NAME.libs. A namespace package is a folder of packages.
    has_code_suffix = path.suffix in {".py", ".so", ".libs", ".dist-info", ".egg-info"}
    return has_code_suffix or any(any(path.glob(pattern)) for pattern in ("__init__.*", "*/__init__.py"))


def _renounce_privileges(_: SandboxRules) -> bool:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _drop_capabilities()
    # Alone, this is no level of the sandbox.
    return False


def _drop_capabilities() -> None:
    # EPERM: the process may not lower its bounding set; because of no_new_privs, programs that it starts gain nothing.
    # EINVAL: the number is beyond the last capability that the kernel knows.
    with contextlib.suppress(OSError):
        for capability in itertools.count():
            prctl(_PR_CAPBSET_DROP, capability)
    with contextlib.suppress(OSError):
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    # pid 0 is the calling process; the sets (effective, permitted, inheritable) are all empty.
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    if libc.capset(header, bytes(24)):
        number = ctypes.get_errno()
        # systemd's `SystemCallFilter=~@privileged` refuses the call itself, also where nothing is left to drop.
        held = ctypes.create_string_buffer(24)
        if libc.capget(ctypes.create_string_buffer(header), held) or any(held.raw):
            raise OSError(number, f"capset: {os.strerror(number)}")


# --- Landlock ---


def landlock_version() -> int:
    try:
        return _query_landlock_version()
    except OSError:
        return 0


def _query_landlock_version() -> int:
    return _call(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_CREATE_RULESET_VERSION))


def _landlock(rules: SandboxRules) -> bool:
    version = _query_landlock_version()
    rights = _RIGHTS.get(version, _RIGHTS_LATEST)
    # Each version of the kernel knows a longer `struct landlock_ruleset_attr`, and rejects unknown bytes.
    attributes = struct.pack("<Q", rights)
    if version >= 4:
        attributes += struct.pack("<Q", 0 if rules.network else _TCP_BIND_AND_CONNECT)
    if version >= 6:
        attributes += struct.pack("<Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = _call(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    try:
        common = _common_rules.get(rules.network)
        readable = [_PROC_SELF, *rules.reads]
        if common is None:
            # `prepare` has not run in this process.
            readable += _readable(rules.network)
        for rule in common or ():
            _add_rule(ruleset, rule._replace(rights=rule.rights & rights))
        for path in readable:
            _allow(ruleset, path, _READING & rights)
        for place in (Path("/dev/null"), *rules.writes):
            _allow(ruleset, place, _READING_AND_WRITING & rights)
        _call(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)
    return True


def _readable(network: bool) -> list[Path]:
    names = [*_READABLE, *_READABLE_WITH_NETWORK] if network else _READABLE
    return [*map(Path, names), *code_paths()]


def _allow(ruleset: int, place: Path | int, rights: int) -> None:
    if isinstance(place, int):
        _add_rule(ruleset, _OpenRule(rights, place))
        return
    rule = _open_rule(place, rights)
    if rule is not None:
        try:
            _add_rule(ruleset, rule)
        finally:
            os.close(rule.descriptor)


def _open_rule(path: Path, rights: int) -> _OpenRule | None:
    """Return None if the path cannot be opened."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    return _OpenRule(rights if is_directory else rights & _OF_FILES, descriptor)


def _add_rule(ruleset: int, rule: _OpenRule) -> None:
    attributes = _RULE.pack(rule.rights, rule.descriptor)
    _call(_LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), attributes, ctypes.c_uint(0))


def _call(number: int, *values: object) -> int:
    answer: int = libc.syscall(ctypes.c_long(number), *values)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return answer


# --- seccomp ---


def _seccomp(rules: SandboxRules) -> bool:
    program = seccomp.program(rules.network, rules.starts_programs, _must_filter_truncation())
    if program is None:
        return False
    header, _instructions = program
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header))
    return True


def _must_filter_truncation() -> bool:
    # Landlock checks truncation from version 3.
    return landlock_version() < 3
