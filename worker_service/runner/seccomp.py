"""The seccomp filter of a child process: the first rule that matches decides. It sees numbers and flags, not paths."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import resource
import stat
import struct
import sys
from collections.abc import Mapping, Sequence

from msgspec import Struct

# Name, number on x86-64, number on arm64; a dash if the machine lacks the call.
_TABLE = """
ptrace 101 117             process_vm_readv 310 270   process_vm_writev 311 271  pidfd_getfd 438 438
kcmp 312 272               process_madvise 440 440    process_mrelease 448 448   userfaultfd 323 282
migrate_pages 256 238      move_pages 279 239         perf_event_open 298 241    bpf 321 280
setpriority 141 140        ioprio_set 251 30          sched_setparam 142 118     sched_setscheduler 144 119
sched_setattr 314 274      sched_setaffinity 203 122
mount 165 40               umount2 166 39             mount_setattr 442 442      move_mount 429 429
open_tree 428 428          open_tree_attr 467 467     fsopen 430 430             fsconfig 431 431
fsmount 432 432            fspick 433 433             pivot_root 155 41          chroot 161 51
unshare 272 97             setns 308 268              open_by_handle_at 304 265  fanotify_init 300 262
init_module 175 105        finit_module 313 273       delete_module 176 106      kexec_load 246 104
kexec_file_load 320 294    reboot 169 142             swapon 167 224             swapoff 168 225
quotactl 179 60            quotactl_fd 443 443        acct 163 89                syslog 103 116
sethostname 170 161        setdomainname 171 162      settimeofday 164 170       clock_settime 227 112
add_key 248 217            request_key 249 218        keyctl 250 219
io_uring_setup 425 425     io_uring_enter 426 426     io_uring_register 427 427
shmget 29 194              shmat 30 196               shmctl 31 195              shmdt 67 197
semget 64 190              semctl 66 191              semop 65 193               semtimedop 220 192
msgget 68 186              msgctl 71 187              msgsnd 69 189              msgrcv 70 188
mq_open 240 180            mq_unlink 241 181
socket 41 198              socketpair 53 199          connect 42 203             bind 49 200
listen 50 201              accept 43 202              accept4 288 242
fork 57 -                  vfork 58 -                 clone 56 220               clone3 435 435
chown 92 -                 lchown 94 -                fchown 93 55               fchownat 260 54
chmod 90 -                 fchmod 91 52               fchmodat 268 53            fchmodat2 452 452
utime 132 -                utimes 235 -               futimesat 261 -            utimensat 280 88
setxattr 188 5             lsetxattr 189 6            fsetxattr 190 7            setxattrat 463 463
removexattr 197 14         lremovexattr 198 15        fremovexattr 199 16        removexattrat 466 466
file_setattr 469 469       ioctl 16 29                mknod 133 -                mknodat 259 33
open 2 -                   openat 257 56              openat2 437 437            truncate 76 45
setrlimit 160 164          prlimit64 302 261
""".split()

# Calls that no handler needs: access to other processes and their priority, mounts, namespaces, kernel modules, host
# name and clock, keys, BPF, io_uring, and changes of ownership.
_NEVER = """
ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp process_madvise process_mrelease userfaultfd
migrate_pages move_pages perf_event_open bpf
setpriority ioprio_set sched_setparam sched_setscheduler sched_setattr
mount umount2 mount_setattr move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick pivot_root chroot
unshare setns open_by_handle_at fanotify_init
init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff
quotactl quotactl_fd acct syslog sethostname setdomainname settimeofday clock_settime
add_key request_key keyctl io_uring_setup io_uring_enter io_uring_register
chown fchown lchown fchownat
""".split()
# Memory, semaphores and queues outlive the process, and no limit of the attempt counts them.
_LASTING = """
shmget shmat shmctl shmdt semget semctl semop semtimedop msgget msgctl msgsnd msgrcv mq_open mq_unlink
""".split()
# These report success and do nothing: programs that copy a file (shutil.copy, git, unzip) fail if its mode or time
# cannot be set, and need neither here.
_IGNORED = "chmod fchmod fchmodat fchmodat2 utime utimes futimesat utimensat".split()
# These fail as on a file system without extended attributes.
_ATTRIBUTES = """
setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
""".split()
# socketpair is included because its ends can send to any address.
_SOCKETS = "socket connect accept bind listen socketpair accept4".split()

# CLONE_NEW*: mount, cgroup, uts, ipc, user, pid and network namespaces. Only unshare and clone3 take the time
# namespace.
_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_CLONE_THREAD = 0x00010000
# ioctl requests for the flags, version, encryption and verity of a file. A descriptor open for reading is enough.
_FILE_IOCTLS = tuple(ord(letter) << 8 for letter in "fXv")
_X32_NUMBERS = 0x40000000

# BPF operations: load a word of `struct seccomp_data`; compare; mask; return a verdict.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_WHOLE_WORD = 0xFFFFFFFF

_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_SUCCEED, _EPERM, _ENOSYS, _ENOTTY, _ENOTSUP = (
    0x00050000 | number for number in (0, errno.EPERM, errno.ENOSYS, errno.ENOTTY, errno.ENOTSUP)
)


class Architecture(Struct, frozen=True):
    audit_architecture: int
    numbers: Mapping[str, int]
    has_x32: bool = False
    """The calls have a second set of numbers (the x32 ABI)."""


class Condition(Struct, frozen=True):
    data_offset: int
    test: int
    value: int
    is_true: bool = True
    mask: int = _WHOLE_WORD


class FilterRule(Struct, frozen=True):
    """Applies if all conditions hold; without calls, to every call."""

    calls: Sequence[str]
    verdict: int
    when: Sequence[Condition] = ()


@functools.cache
def this_machine() -> Architecture | None:
    """Return None for other machines: there, Landlock is the whole sandbox."""
    return machine(platform.machine()) if sys.maxsize > 2**32 else None


def machine(name: str) -> Architecture | None:
    if name == "x86_64":
        return Architecture(0xC000003E, _numbers(1), has_x32=True)
    if name == "aarch64":
        return Architecture(0xC00000B7, _numbers(2))
    return None


def _numbers(column: int) -> dict[str, int]:
    rows = zip(_TABLE[::3], _TABLE[column::3], strict=True)
    return {name: int(number) for name, number in rows if number != "-"}


@functools.cache
def program(
    network: bool, starts_programs: bool, guards_truncation: bool
) -> tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char]] | None:
    """Return `struct sock_fprog` and its instructions; the caller keeps both alive."""
    architecture = this_machine()
    if architecture is None:
        return None
    code = compiled(rules(network, starts_programs, guards_truncation), architecture)
    memory = ctypes.create_string_buffer(code, len(code))
    return ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(memory))), memory


# --- rules ---


def rules(network: bool, starts_programs: bool, guards_truncation: bool) -> list[FilterRule]:
    """`guards_truncation` is for Landlock before version 3."""
    return [
        *_limit_rules(),
        *_process_rules(starts_programs),
        *_file_rules(guards_truncation),
        FilterRule(_NEVER, _EPERM),
        FilterRule(_LASTING, _EPERM),
        *([] if network else [FilterRule(_SOCKETS, _EPERM)]),
    ]


def _limit_rules() -> list[FilterRule]:
    # Refuse limits of other processes (pid 0 is the caller), and RLIMIT_RTTIME, the mark of a child's processes.
    return [
        FilterRule(["prlimit64"], _EPERM, [_differs(0, 0)]),
        FilterRule(["prlimit64"], _EPERM, [_equals(1, resource.RLIMIT_RTTIME)]),
        FilterRule(["setrlimit"], _EPERM, [_equals(0, resource.RLIMIT_RTTIME)]),
    ]


def _process_rules(starts_programs: bool) -> list[FilterRule]:
    rules = [
        # The flags of clone3 are in memory, which a filter cannot read. After ENOSYS, glibc calls clone.
        FilterRule(["clone3"], _ENOSYS),
        FilterRule(["clone"], _EPERM, [_has_any(0, _NAMESPACES)]),
        # Thread id 0 is the calling thread.
        FilterRule(["sched_setaffinity"], _EPERM, [_differs(0, 0)]),
    ]
    if not starts_programs:
        rules += [
            FilterRule(["fork", "vfork"], _EPERM),
            FilterRule(["clone"], _EPERM, [_has_none(0, _CLONE_THREAD)]),
        ]
    return rules


def _file_rules(guards_truncation: bool) -> list[FilterRule]:
    times_are_now = [_equals(2, 0), _equals(2, 0, upper=True)]
    rules = [
        # Path.touch sets the time of a path to now, and creates the file if that fails: a pretended success would leave
        # no file. A call without a path applies to a descriptor.
        FilterRule(["utimensat"], _EPERM, [*times_are_now, _differs(1, 0)]),
        FilterRule(["utimensat"], _EPERM, [*times_are_now, _differs(1, 0, upper=True)]),
        FilterRule(_IGNORED, _SUCCEED),
        FilterRule(_ATTRIBUTES, _ENOTSUP),
        FilterRule(["file_setattr"], _ENOSYS),
        *(FilterRule(["ioctl"], _ENOTTY, [_equals(1, letter, mask=0xFF00)]) for letter in _FILE_IOCTLS),
    ]
    for call, mode in (("mknod", 1), ("mknodat", 2)):
        for kind in (stat.S_IFCHR, stat.S_IFBLK):
            rules.append(FilterRule([call], _EPERM, [_equals(mode, kind, mask=0o170000)]))
    if guards_truncation:
        # Truncating writes to the file, even if it is opened only for reading.
        for call, flags in (("open", 1), ("openat", 2)):
            rules.append(FilterRule([call], _EPERM, [_has_any(flags, os.O_TRUNC), _has_none(flags, os.O_ACCMODE)]))
        # The flags of openat2 are in memory, like those of clone3.
        rules += [FilterRule(["truncate"], _EPERM), FilterRule(["openat2"], _ENOSYS)]
    return rules


def _equals(argument: int, value: int, *, mask: int = _WHOLE_WORD, upper: bool = False) -> Condition:
    return Condition(_word(argument, upper), _EQUAL, value, mask=mask)


def _differs(argument: int, value: int, *, upper: bool = False) -> Condition:
    return Condition(_word(argument, upper), _EQUAL, value, is_true=False)


def _has_any(argument: int, bits: int) -> Condition:
    return Condition(_word(argument), _ANY_BIT, bits)


def _has_none(argument: int, bits: int) -> Condition:
    return Condition(_word(argument), _ANY_BIT, bits, is_true=False)


def _word(argument: int, upper: bool = False) -> int:
    """Return the offset of the lower half; both machines are little-endian."""
    return _FIRST_ARGUMENT + 8 * argument + 4 * upper


# --- BPF program ---


class _Instruction(Struct, frozen=True):
    operation: int
    operand: int
    if_true: str = ""
    if_false: str = ""


def compiled(filter_rules: Sequence[FilterRule], architecture: Architecture) -> bytes:
    # The numbers of calls mean other calls on another architecture.
    guards = [FilterRule([], _KILL, [Condition(_ARCHITECTURE, _EQUAL, architecture.audit_architecture, is_true=False)])]
    if architecture.has_x32:
        guards.append(FilterRule([], _KILL, [Condition(_NUMBER, _AT_LEAST, _X32_NUMBERS)]))
    program: list[_Instruction | str] = []
    for number, rule in enumerate((*guards, *filter_rules)):
        program += _compiled_rule(rule, architecture.numbers, f"rule {number}")
    return _assembled([*program, _Instruction(_RETURN, _ALLOW)])


def _compiled_rule(rule: FilterRule, numbers: Mapping[str, int], name: str) -> list[_Instruction | str]:
    calls = [numbers[call] for call in rule.calls if call in numbers]
    if rule.calls and not calls:
        return []
    conditions, end = f"conditions of {name}", f"end of {name}"
    code: list[_Instruction | str] = []
    if calls:
        code.append(_Instruction(_LOAD, _NUMBER))
        code += [_Instruction(_EQUAL, number, if_true=conditions) for number in calls[:-1]]
        code.append(_Instruction(_EQUAL, calls[-1], if_false=end))
    code.append(conditions)
    for condition in rule.when:
        code.append(_Instruction(_LOAD, condition.data_offset))
        if condition.mask != _WHOLE_WORD:
            code.append(_Instruction(_MASK, condition.mask))
        jump = {"if_false": end} if condition.is_true else {"if_true": end}
        code.append(_Instruction(condition.test, condition.value, **jump))
    return [*code, _Instruction(_RETURN, rule.verdict), end]


def _assembled(program: Sequence[_Instruction | str]) -> bytes:
    position_by_label: dict[str, int] = {}
    instructions: list[_Instruction] = []
    for item in program:
        if isinstance(item, str):
            position_by_label[item] = len(instructions)
        else:
            instructions.append(item)

    def skipped(label: str, position: int) -> int:
        return position_by_label[label] - position - 1 if label else 0

    code = b""
    for position, instruction in enumerate(instructions):
        if_true, if_false = skipped(instruction.if_true, position), skipped(instruction.if_false, position)
        code += struct.pack("<HBBI", instruction.operation, if_true, if_false, instruction.operand)
    return code
