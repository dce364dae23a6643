"""The filter of system calls: gone through as the kernel does, and tried in a sandbox."""

from __future__ import annotations

import errno
import struct

import pytest

from swarm.sandbox.seccomp import MACHINES, WATCH_PID, build_filter

ALLOWED = 0x7FFF0000
NEW_USER = 0x10000000


def answer(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter says to a call: 0 if it is allowed, else its error."""
    architecture = MACHINES[machine].architecture if architecture is None else architecture
    data = struct.pack("=IIQ6Q", number, architecture, 0, *(value % 2**64 for value in (*arguments, *[0] * 6)[:6]))
    program = list(struct.iter_unpack("=HBBI", build_filter(machine)))
    loaded = place = 0
    while True:
        code, if_true, if_false, value = program[place]
        place += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("=I", data, value)
            case 0x15:
                place += if_true if loaded == value else if_false
            case 0x35:
                place += if_true if loaded >= value else if_false
            case 0x45:
                place += if_true if loaded & value else if_false
            case 0x06:
                return 0 if value == ALLOWED else value & 0xFFFF
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


def test_dangerous_calls_are_refused_whatever_their_arguments(machine: str) -> None:
    names = [
        "mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "mount_setattr", "setns", "ptrace",
        "process_vm_readv", "process_vm_writev", "keyctl", "add_key", "request_key", "bpf", "perf_event_open",
        "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "kexec_load", "kexec_file_load",
        "init_module", "finit_module", "delete_module", "open_by_handle_at", "memfd_create", "shmget", "pidfd_getfd",
        "pidfd_send_signal", "tkill", "mknodat",
    ]  # fmt: skip
    calls = MACHINES[machine].calls
    assert {name: answer(machine, calls[name], 1, 2, 3) for name in names} == dict.fromkeys(names, errno.EPERM)


def test_namespaces_are_refused_and_processes_and_threads_are_not(machine: str) -> None:
    calls = MACHINES[machine].calls
    thread = 0x3D0F00
    assert answer(machine, calls["clone"], thread) == answer(machine, calls["clone"], 17) == 0
    for bit in (0x20000, 0x02000000, 0x04000000, 0x08000000, NEW_USER, 0x20000000, 0x40000000):
        assert answer(machine, calls["clone"], 17 | bit) == errno.EPERM
        assert answer(machine, calls["unshare"], bit) == errno.EPERM
    assert answer(machine, calls["unshare"], 0x80) == errno.EPERM
    assert answer(machine, calls["unshare"], 0x400) == 0
    # With ENOSYS libraries fall back on clone.
    assert answer(machine, calls["clone3"], 17) == errno.ENOSYS


def test_calls_are_told_apart_by_their_arguments(machine: str) -> None:
    calls = MACHINES[machine].calls
    assert answer(machine, calls["personality"], 0) == answer(machine, calls["personality"], 0xFFFFFFFF) == 0
    assert answer(machine, calls["personality"], 0x40000) == errno.EPERM
    assert answer(machine, calls["ioctl"], 0, 0x5412) == errno.EPERM
    # Only the lower half counts, as in the kernel.
    assert answer(machine, calls["ioctl"], 0, 0x5412 + 2**32) == errno.EPERM
    assert answer(machine, calls["ioctl"], 0, 0x5413) == 0
    assert {family: answer(machine, calls["socket"], family) for family in (1, 2, 10, 16, 17, 38, 40)} == {
        1: 0, 2: 0, 10: 0, 16: 0, 17: errno.EAFNOSUPPORT, 38: errno.EAFNOSUPPORT, 40: errno.EAFNOSUPPORT,
    }  # fmt: skip
    assert answer(machine, calls["fcntl"], 1, 10, 19) == errno.EPERM
    assert answer(machine, calls["fcntl"], 1, 1) == 0


def test_the_process_that_watches_can_not_be_signalled_or_slowed(machine: str) -> None:
    calls = MACHINES[machine].calls
    for victim in (WATCH_PID, -WATCH_PID, -1):
        assert answer(machine, calls["kill"], victim, 19) == errno.EPERM
    assert answer(machine, calls["kill"], 17, 9) == answer(machine, calls["kill"], 0, 15) == 0
    for name in ("tgkill", "pidfd_open", "prlimit64", "sched_setaffinity", "sched_setscheduler"):
        assert (answer(machine, calls[name], WATCH_PID, 1), answer(machine, calls[name], 0, 1)) == (errno.EPERM, 0)
    assert answer(machine, calls["setpriority"], 0, WATCH_PID, 19) == errno.EPERM
    assert answer(machine, calls["setpriority"], 0, 0, 19) == 0


def test_calls_of_other_architectures_are_refused(machine: str) -> None:
    assert answer(machine, 1, architecture=0x40000003) == errno.ENOSYS
    assert answer(machine, 1) == 0
    assert answer("x86_64", 0x40000000 + 1) == errno.ENOSYS


def test_a_machine_that_is_not_known_has_no_filter() -> None:
    assert build_filter("riscv64") == b""


def test_every_way_through_the_filter_ends(machine: str) -> None:
    program = list(struct.iter_unpack("=HBBI", build_filter(machine)))
    assert program[-1][0] == 0x06
    assert all(place + 1 + max(jump[1:3]) < len(program) for place, jump in enumerate(program[:-1]))
    assert {answer(machine, number, 7, 7, 7) for number in range(600)} <= {0, errno.EPERM, errno.ENOSYS, 97}
