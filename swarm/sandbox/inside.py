"""The sandbox's end of the only way out, and the watch over the guest: `inside OPTIONS COMMAND ...`."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.sandbox.seccomp import WATCH_PID

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Connection]]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

CHUNK_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 30.0
LIMIT_EXIT_CODE = 125
"""Exit code of a sandbox that exceeded a limit. The last line on standard error says which."""

# Short enough to catch a fork bomb at some hundred processes, and long enough to take under 1 % of a core.
WATCH_PERIOD_S = 0.1
LAST_OUTPUT_S = 2.0
"""Seconds to read the guest's last output after its end. Its descendants may keep the output open."""
PAGE_BYTES = resource.getpagesize()
PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True)
class GuestLimits:
    """The resources that one guest may use.

    `memory_bytes`, `tasks` (processes and threads) and `files` (inodes) are totals of the sandbox; memory includes the
    content of files. `disk_bytes` is the size of the working directory, `tmp_bytes` that of each other writable folder,
    and `log_bytes` that of a file for output.
    """

    tasks: int = 512
    memory_bytes: int = 2 * 2**30
    address_bytes: int = 16 * 2**30
    files: int = 20_000
    file_bytes: int = 256 * 2**20
    disk_bytes: int = 512 * 2**20
    tmp_bytes: int = 256 * 2**20
    log_bytes: int = 8 * 2**20
    cpu_s: int = 24 * 3600


@dataclass(frozen=True, slots=True)
class GuestOptions:
    """The user, the place and the limits of the guest. With a `socket`, the way out listens on a local `port`."""

    user: int
    workdir: str
    writable: Sequence[str]
    limits: GuestLimits
    socket: str | None
    port: int


def main(argv: list[str]) -> int:
    given: dict[str, Any] = json.loads(argv[0])
    limits = GuestLimits(**given.pop("limits"))
    return asyncio.run(_run(GuestOptions(limits=limits, **given), argv[1:]))


async def _run(options: GuestOptions, command: list[str]) -> int:
    _become(options.user)
    os.chdir(options.workdir)
    if options.socket is None:
        return await _supervise(command, options)

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(options.socket)

    server = await asyncio.start_server(forwarder(connect), host="127.0.0.1", port=options.port)
    async with server:
        return await _supervise(command, options)


def _become(user: int) -> None:
    if os.getpid() != WATCH_PID:
        sys.exit(f"this is process {os.getpid()} of the sandbox, but the filter protects process {WATCH_PID}")
    if os.getuid() != user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    # Otherwise the guest, as the same user, could write to /proc/2/mem.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the memory of the watch cannot be protected")


async def _supervise(command: list[str], options: GuestOptions) -> int:
    """Run the command to its end, pass signals on to it and return its exit code."""
    outputs = {"stdout": 1, "stderr": 2}
    # The guest gets no file of the host: it could truncate the file, or fill the disk. The reader of a pipe bounds it.
    files = {name: fd for name, fd in outputs.items() if stat.S_ISREG(os.fstat(fd).st_mode)}
    process = await asyncio.create_subprocess_exec(
        *command,
        preexec_fn=lambda: _set_limits(options.limits),
        # Signals to a group do not reach this process.
        start_new_session=True,
        **dict.fromkeys(files, asyncio.subprocess.PIPE),  # pyright: ignore[reportArgumentType]
    )
    pass_signals_on(process)
    keeping = [
        asyncio.ensure_future(_keep(getattr(process, name), fd, options.limits.log_bytes)) for name, fd in files.items()
    ]
    ended = asyncio.ensure_future(process.wait())
    watching = asyncio.ensure_future(_watch(options))
    await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        _report(f"sandbox: stopped: {watching.result()}")
        # The whole process namespace ends with this process.
        os._exit(LIMIT_EXIT_CODE)
    watching.cancel()
    if keeping:
        await asyncio.wait(keeping, timeout=LAST_OUTPUT_S)
    return exit_code(ended.result())


async def _keep(output: asyncio.StreamReader, file: int, max_bytes: int) -> None:
    """Append output to a file until it has `max_bytes`, and drop the rest."""
    is_full = False
    while data := await output.read(CHUNK_BYTES):
        capacity = max_bytes - os.fstat(file).st_size
        if capacity > 0:
            os.write(file, data[:capacity])
        elif not is_full:
            is_full = True
            _report(f"sandbox: output beyond {max_bytes >> 10} KiB is dropped")


def _report(line: str) -> None:
    os.write(2, f"\n{line}\n".encode())


async def _watch(options: GuestOptions) -> str:
    """Wait until a limit is exceeded, and return which.

    It counts all processes and files together, including root's, which rlimits cannot do.
    """
    limits = options.limits
    while True:
        await asyncio.sleep(WATCH_PERIOD_S)
        tasks, memory = _processes()
        files, in_files = _files(options.writable)
        if tasks > limits.tasks:
            return f"more than {limits.tasks} processes and threads"
        if memory + in_files > limits.memory_bytes:
            return f"more than {limits.memory_bytes >> 20} MiB of memory, files included"
        if files > limits.files:
            return f"more than {limits.files} files"


def _processes() -> tuple[int, int]:
    """Return the number of threads and the resident bytes of all processes in this process namespace."""
    tasks = memory = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            tasks += len(os.listdir(f"/proc/{name}/task"))
            with open(f"/proc/{name}/statm", encoding="ascii") as file:
                memory += int(file.read().split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            continue
    return tasks, memory


def _files(folders: Sequence[str]) -> tuple[int, int]:
    """Return the inodes and bytes in use on these filesystems, including those of deleted files that are open."""
    used = [os.statvfs(folder) for folder in folders]
    return (
        sum(each.f_files - each.f_ffree for each in used),
        sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in used),
    )


def _set_limits(limits: GuestLimits) -> None:
    # A guest that uses all CPU time must not keep the watch from running.
    os.nice(5)
    for kind, wanted in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 4096),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_AS, limits.address_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s),
    ):
        _, hard = resource.getrlimit(kind)
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))
    if tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdigit()) >= (5, 14):
        # Older kernels also count the user's processes outside, which might leave none for the guest.
        resource.setrlimit(resource.RLIMIT_NPROC, (limits.tasks, limits.tasks))


def forwarder(connect: Connect) -> Handler:
    """Return a connection handler that copies bytes both ways, or closes the connection if it cannot connect."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await connected(connect, writer)
        if upstream is not None:
            await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))

    return forward


async def connected(connect: Connect, writer: asyncio.StreamWriter) -> Connection | None:
    """Return the connection to the other side, or close `writer` and return None if it cannot be reached."""
    try:
        return await asyncio.wait_for(connect(), CONNECT_TIMEOUT_S)
    except (OSError, TimeoutError):
        writer.close()
        return None


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until one of the sides ends, and close `writer`."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def pass_signals_on(process: asyncio.subprocess.Process) -> None:
    def send(number: int) -> None:
        if process.returncode is None:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, send, number)


def exit_code(code: int) -> int:
    """Return the exit code as a shell reports it: 128 + N for a process that signal N ended."""
    return code if code >= 0 else 128 - code
