"""Limits, environment and sandbox of a child process, which it sets on itself.

A sandboxed process reads programs and libraries, writes only its staging and keep directories, and has no sockets
unless its handler declares network access. A seccomp filter covers what Landlock does not check: changes of mode, owner
and time.
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

from msgspec import Struct

from worker_service.base.forks import libc, prctl
from worker_service.handlers.contract import Limits
from worker_service.runner import seccomp

_PR_SET_CHILD_SUBREAPER = 36
FULL_SANDBOX = "landlock+seccomp"
_CPU_SECONDS_TO_END = 5
_OOM_SCORE = b"500"

_PR_SET_NO_NEW_PRIVS = 38
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446

_EXECUTE, _WRITE, _READ_FILE, _READ_DIRECTORY = 1, 2, 4, 8
_MAKE_CHARACTER_DEVICE, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ_FILE | _TRUNCATE | _IOCTL
_READING = _EXECUTE | _READ_FILE | _READ_DIRECTORY
# File access rights that each Landlock ABI version knows; it rejects unknown ones.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_RIGHTS_LATEST = (1 << 16) - 1
_WRITING = _RIGHTS_LATEST & ~(_MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE)
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

_OWN = Path("/proc/self")
_RULE = struct.Struct("<Qi")

# Rights and open descriptors of the paths that every child reads, without and with network access.
_common_rules: dict[bool, list[tuple[int, int]]] = {}


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
        # SIGXCPU first, which names the reason; SIGKILL a few seconds later.
        _set_limit(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds * attempts + _CPU_SECONDS_TO_END)
    if limits.open_files is not None:
        _set_limit(resource.RLIMIT_NOFILE, limits.open_files, limits.open_files)
    if limits.file_bytes is not None:
        _set_limit(resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes)


def renew_cpu_limit(limits: Limits) -> None:
    if limits.cpu_seconds is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        used = math.ceil(usage.ru_utime + usage.ru_stime)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        soft = used + limits.cpu_seconds
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _set_limit(kind: int, soft: int, hard: int) -> None:
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def basic_environment() -> dict[str, str]:
    wanted = {name: os.environ.get(name) for name in ("PATH", "LANG", "TZ")}
    environment = {name: value for name, value in wanted.items() if value}
    environment.setdefault("PATH", os.defpath)
    environment.setdefault("LANG", "C.UTF-8")
    environment.setdefault("TZ", "UTC")
    return environment


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
    reached: list[str] = []
    try:
        for name, step in (("", _renounce_privileges), ("landlock", _landlock), ("seccomp", _seccomp)):
            try:
                if step(rules) and name:
                    reached.append(name)
            except OSError as error:
                if setting == "strict":
                    reason = f"no sandbox ({name or 'no_new_privs'}): {error.strerror}"
                    raise SandboxError(error.errno, reason) from error
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
            seccomp.program(network, starts_programs, _filter_guards_truncation())
        if network not in _common_rules:
            _common_rules[network] = [
                rule for path in _outermost(_readable(network)) for rule in _open_rule(path, _READING)
            ]


def _outermost(paths: Iterable[Path]) -> list[Path]:
    # A rule covers all that the directory contains, and each rule costs time in every child.
    real = {path.resolve() for path in paths}
    return sorted(path for path in real if real.isdisjoint(path.parents))


def rule_descriptors() -> list[int]:
    return [descriptor for rules in _common_rules.values() for _, descriptor in rules]


@functools.cache
def code_paths() -> tuple[Path, ...]:
    return tuple(code_paths_of(sys.path))


def code_paths_of(path: Iterable[str]) -> list[Path]:
    """Return Python's own folders, but only packages and modules of other folders: databases may lie beside them."""
    roots = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent}
    found: set[Path] = set(roots)
    for entry in path:
        directory = Path(entry)
        if not entry or any(directory.is_relative_to(root) for root in roots):
            continue
        if directory.is_file():
            found.add(directory)
            continue
        with contextlib.suppress(OSError):
            found.update(path for path in directory.iterdir() if _is_code(path))
    return sorted(found)


def _is_code(path: Path) -> bool:
    # Libraries bundled with a wheel lie beside its package in NAME.libs. A namespace package is a folder of packages.
    is_named = path.suffix in {".py", ".so", ".libs", ".dist-info", ".egg-info"}
    return is_named or any(any(path.glob(inside)) for inside in ("__init__.*", "*/__init__.py"))


def _renounce_privileges(rules: SandboxRules) -> bool:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _drop_capabilities()
    return True


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
        return _call(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def _landlock(rules: SandboxRules) -> bool:
    version = _call(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
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
        readable = [_OWN, *rules.reads]
        if common is None:
            readable += _readable(rules.network)
        for allowed, descriptor in common or ():
            _add_rule(ruleset, allowed & rights, descriptor)
        for path in readable:
            _allow(ruleset, path, _READING & rights)
        for place in (Path("/dev/null"), *rules.writes):
            _allow(ruleset, place, _WRITING & rights)
        _call(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)
    return True


def _readable(network: bool) -> list[Path]:
    names = [*_READABLE, *_READABLE_WITH_NETWORK] if network else _READABLE
    return [*map(Path, names), *code_paths()]


def _allow(ruleset: int, place: Path | int, wanted: int) -> None:
    if isinstance(place, int):
        _add_rule(ruleset, wanted, place)
        return
    for allowed, descriptor in _open_rule(place, wanted):
        try:
            _add_rule(ruleset, allowed, descriptor)
        finally:
            os.close(descriptor)


def _open_rule(path: Path, wanted: int) -> list[tuple[int, int]]:
    """Return rights and descriptor, or nothing if the path cannot be opened."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    return [(wanted if is_directory else wanted & _OF_FILES, descriptor)]


def _add_rule(ruleset: int, allowed: int, descriptor: int) -> None:
    _call(_LANDLOCK_ADD_RULE, ruleset, 1, _RULE.pack(allowed, descriptor), 0)


def _call(number: int, *values: object) -> int:
    answer: int = libc.syscall(ctypes.c_long(number), *values)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return answer


# --- seccomp ---


def _seccomp(rules: SandboxRules) -> bool:
    program = seccomp.program(rules.network, rules.starts_programs, _filter_guards_truncation())
    if program is None:
        return False
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program[0]))
    return True


def _filter_guards_truncation() -> bool:
    return landlock_version() < 3
