"""The filter of system calls in the sandbox, as a BPF program for bubblewrap's --seccomp."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WATCH_PID = 2
"""Process id of inside.py, which watches the guest. Bubblewrap itself is 1, and the process that it starts is 2."""

# Operations of BPF: load a word of the call's data, compare, return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_NEW_TIME_NAMESPACE = 0x80
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. A network namespace does not confine all others, or they are rarely used
kernel code."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which write into the input of a terminal."""
_F_SETSIG = 10
_PERSONALITIES = (0, 0xFFFFFFFF)
"""The usual personality, and the value that only asks for the current one."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type: its AUDIT_ARCH value in the kernel, and its numbers of system calls by name."""

    architecture: int
    calls: dict[str, int]
    has_x32: bool = False


_SAME_NUMBERS = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "pidfd_send_signal": 424, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
    "process_mrelease": 448, "open_tree_attr": 467,
}  # fmt: skip

MACHINES = {
    "x86_64": Machine(
        0xC000003E,
        {
            **_SAME_NUMBERS,
            "ioctl": 16, "shmget": 29, "socket": 41, "clone": 56, "kill": 62, "semget": 64, "msgget": 68, "fcntl": 72,
            "ptrace": 101, "syslog": 103, "rt_sigqueueinfo": 129, "mknod": 133, "uselib": 134, "personality": 135,
            "sysfs": 139, "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "vhangup": 153,
            "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164,
            "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170,
            "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
            "nfsservctl": 180, "tkill": 200, "sched_setaffinity": 203, "lookup_dcookie": 212, "clock_settime": 227,
            "tgkill": 234, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
            "mknodat": 259, "unshare": 272, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "fanotify_init": 300,
            "prlimit64": 302, "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
            "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "sched_setattr": 314,
            "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
        },
        has_x32=True,
    ),
    "aarch64": Machine(
        0xC00000B7,
        {
            **_SAME_NUMBERS,
            "lookup_dcookie": 18, "fcntl": 25, "ioctl": 29, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41,
            "nfsservctl": 42, "chroot": 51, "vhangup": 58, "quotactl": 60, "acct": 89, "personality": 92, "unshare": 97,
            "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116,
            "ptrace": 117, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "kill": 129,
            "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "setpriority": 140, "reboot": 142, "sethostname": 161,
            "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "msgget": 186, "semget": 190,
            "shmget": 194, "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
            "swapon": 224, "swapoff": 225, "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "prlimit64": 261,
            "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266,
            "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273,
            "sched_setattr": 274, "memfd_create": 279, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
        },
    ),
}  # fmt: skip

_BY_ARGUMENT = frozenset({"clone", "clone3", "unshare", "personality", "ioctl", "socket", "fcntl"})
_NAMES_A_PROCESS = {
    "kill": 0, "tgkill": 0, "rt_sigqueueinfo": 0, "rt_tgsigqueueinfo": 0, "pidfd_open": 0, "prlimit64": 0,
    "sched_setparam": 0, "sched_setscheduler": 0, "sched_setaffinity": 0, "sched_setattr": 0, "setpriority": 1,
}  # fmt: skip
"""Calls that could stop or starve the watching process, each with the index of the argument that names a process."""


def build_filter(machine: str) -> bytes:
    """Return the program for a machine, named as by `os.uname`, or nothing for a machine without a table here.

    Most of these calls fail anyway because of namespaces and missing privileges. The filter also keeps a program away
    from the kernel's code behind them, denies memory that no limit counts, and protects the watching process. Sources:
    linux/seccomp.h and linux/bpf_common.h for the format, and the kernel's tables of calls for x86_64 and aarch64.
    """
    found = MACHINES.get(machine)
    return b"" if found is None else b"".join(_instructions(found))


def _instructions(machine: Machine) -> Iterable[bytes]:
    calls = machine.calls
    yield _load(_ARCHITECTURE)
    # For a 32-bit program, the same number means another call, so refuse all its calls.
    yield _jump(_EQUAL, machine.architecture, 1, 0)
    yield _refuse(errno.ENOSYS)
    yield _load(_NUMBER)
    if machine.has_x32:
        yield _jump(_AT_LEAST, 0x40000000, 0, 1)
        yield _refuse(errno.ENOSYS)
    for name in sorted(calls.keys() - _BY_ARGUMENT - _NAMES_A_PROCESS.keys()):
        yield from _if_call(calls[name], [_refuse(errno.EPERM)])
    # A filter cannot read the flags of clone3, which are in memory. Libraries then fall back on clone.
    yield from _if_call(calls["clone3"], [_refuse(errno.ENOSYS)])
    yield from _if_call(calls["clone"], _unless_bits(NEW_NAMESPACES))
    yield from _if_call(calls["unshare"], _unless_bits(NEW_NAMESPACES | _NEW_TIME_NAMESPACE))
    yield from _if_call(calls["personality"], _only(0, _PERSONALITIES, errno.EPERM))
    yield from _if_call(calls["socket"], _only(0, _FAMILIES, errno.EAFNOSUPPORT))
    yield from _if_call(calls["ioctl"], _all_but(1, _TERMINAL_INPUT))
    # With F_SETSIG, a program could send any signal to the owner of a file.
    yield from _if_call(calls["fcntl"], _all_but(1, (_F_SETSIG,)))
    for name, argument in sorted(_NAMES_A_PROCESS.items()):
        # kill reaches a process by its id, by its group, or as one of all processes.
        groups = (_word(-1), _word(-WATCH_PID)) if name == "kill" else ()
        yield from _if_call(calls[name], _all_but(argument, (WATCH_PID, *groups)))
    yield _answer(_ALLOW)


def _if_call(number: int, body: Sequence[bytes]) -> list[bytes]:
    """Return instructions that run `body` for one call.

    `body` must end with an answer in every case, because it may replace the loaded number.
    """
    return [_jump(_EQUAL, number, 0, len(body)), *body]


def _unless_bits(bits: int) -> list[bytes]:
    return [_argument(0), _jump(_ANY_BIT, bits, 0, 1), _refuse(errno.EPERM), _answer(_ALLOW)]


def _only(argument: int, values: Sequence[int], error: int) -> list[bytes]:
    checks = [_jump(_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [_argument(argument), *checks, _refuse(error), _answer(_ALLOW)]


def _all_but(argument: int, values: Sequence[int]) -> list[bytes]:
    checks = [_jump(_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [_argument(argument), *checks, _answer(_ALLOW), _refuse(errno.EPERM)]


def _argument(index: int) -> bytes:
    """Load the lower half of an argument.

    For these arguments, the kernel reads nothing else. Both machines store the lower half first.
    """
    return _load(_ARGUMENTS + 8 * index)


def _word(value: int) -> int:
    return value & 0xFFFFFFFF


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, 0, 0, offset)


def _jump(operation: int, value: int, if_true: int, if_false: int) -> bytes:
    return _instruction(operation, if_true, if_false, value)


def _refuse(error: int) -> bytes:
    return _answer(_ERRNO | error)


def _answer(value: int) -> bytes:
    return _instruction(_RETURN, 0, 0, value)


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
