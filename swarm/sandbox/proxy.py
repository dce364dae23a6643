"""The two ends of the only way out of the sandbox, as a script of its own: `proxy.py outside|inside ... -- COMMAND`.

Place in the flow: `sandbox.py` starts the outside end on the host; it starts bubblewrap, which starts the inside end,
which starts the client. Bytes go: client -> TCP port inside -> Unix socket -> TCP connection to the one swarm server.
The inside end also sets the limits and ends the sandbox when they are exceeded as a whole; that is all it does where
there is no way out.

Uses the standard library alone: inside, nothing of ours but this file and the `swarm` package can be read. It knows
nothing of HTTP: what a client may do on the server is for the server's tokens to say.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

LIMIT_EXIT_CODE = 125
"""What the sandbox exits with when it was ended for exceeding a limit; the reason is the last line on stderr."""

CHUNK_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 30.0
# Short enough to catch a fork bomb while it is some hundred processes, long enough to cost under 1 % of a core.
WATCH_PERIOD_S = 0.1
DISK_CHECK_EVERY = 20
PAGE_BYTES = resource.getpagesize()


def main(argv: list[str]) -> int:
    options, command = _parse(argv)
    run = _run_outside if options.end == "outside" else _run_inside
    return asyncio.run(run(options, command))


async def _run_outside(options: argparse.Namespace, command: list[str]) -> int:
    tls = ssl.create_default_context() if options.tls else None

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(options.host, options.port, ssl=tls)

    server = await asyncio.start_unix_server(_forwarder(connect), path=options.socket)
    # The user inside may be another one; the folder of the socket is not listed to anyone else.
    os.chmod(options.socket, 0o666)
    async with server:
        return await _supervise(command, options, watch=None)


async def _run_inside(options: argparse.Namespace, command: list[str]) -> int:
    if os.getuid() != options.user:
        os.setgroups([])
        os.setresgid(options.user, options.user, options.user)
        os.setresuid(options.user, options.user, options.user)
    os.chdir(options.workdir)
    if options.socket is None:
        return await _supervise(command, options, watch=_watch)

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(options.socket)

    server = await asyncio.start_server(_forwarder(connect), host="127.0.0.1", port=options.port)
    async with server:
        return await _supervise(command, options, watch=_watch)


def _forwarder(connect: Connect) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A connection handler that copies bytes both ways; a connection that cannot be made is closed at once."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.wait_for(connect(), CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError):
            writer.close()
            return
        await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))

    return forward


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _supervise(
    command: list[str],
    options: argparse.Namespace,
    watch: Callable[[argparse.Namespace], Awaitable[str]] | None,
) -> int:
    """Run the command to its end, pass signals on to it and return its exit code (128 + N for signal N)."""
    limit = (lambda: _set_limits(options)) if watch else None
    process = await asyncio.create_subprocess_exec(*command, preexec_fn=limit)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _send, process, number)
    if watch is None:
        code = await process.wait()
        return code if code >= 0 else 128 - code
    ended = asyncio.ensure_future(process.wait())
    watching = asyncio.ensure_future(watch(options))
    await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        sys.stderr.write(f"sandbox: stopped: {watching.result()}\n")
        sys.stderr.flush()
        # With this process the whole process namespace goes.
        os._exit(LIMIT_EXIT_CODE)
    watching.cancel()
    code = ended.result()
    return code if code >= 0 else 128 - code


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is None:
        process.send_signal(number)


async def _watch(options: argparse.Namespace) -> str:
    """Return the limit that was exceeded. Counts what rlimits cannot: all processes together, root's too."""
    rounds = 0
    while True:
        await asyncio.sleep(WATCH_PERIOD_S)
        tasks, memory = _usage()
        if tasks > options.max_tasks:
            return f"more than {options.max_tasks} processes and threads"
        if memory > options.max_memory_bytes:
            return f"more than {options.max_memory_bytes >> 20} MiB of memory"
        rounds += 1
        if rounds % DISK_CHECK_EVERY == 0 and _disk_usage(Path.cwd()) > options.max_disk_bytes:
            return f"more than {options.max_disk_bytes >> 20} MiB of files in the working directory"


def _usage() -> tuple[int, int]:
    """Processes with their threads, and bytes resident, of everything in this process namespace."""
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


def _disk_usage(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:
                continue
    return total


def _set_limits(options: argparse.Namespace) -> None:
    # A client that takes all the processor must not keep the watch from running.
    os.nice(5)
    for kind, wanted in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 4096),
        (resource.RLIMIT_FSIZE, options.max_file_bytes),
        (resource.RLIMIT_AS, options.max_address_bytes),
        (resource.RLIMIT_CPU, options.max_cpu_s),
    ):
        _, hard = resource.getrlimit(kind)
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))
    if tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdigit()) >= (5, 14):
        # Older kernels count the user's processes outside as well, which would leave none for the client.
        resource.setrlimit(resource.RLIMIT_NPROC, (options.max_tasks, options.max_tasks))


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    split = argv.index("--")
    parser = argparse.ArgumentParser()
    ends = parser.add_subparsers(dest="end", required=True)
    outside = ends.add_parser("outside")
    outside.add_argument("--host", required=True)
    outside.add_argument("--tls", action="store_true")
    inside = ends.add_parser("inside")
    inside.add_argument("--user", type=int, required=True)
    inside.add_argument("--workdir", required=True)
    for name in ("tasks", "memory-bytes", "disk-bytes", "file-bytes", "address-bytes", "cpu-s"):
        inside.add_argument(f"--max-{name}", type=int, required=True)
    for end in (outside, inside):
        end.add_argument("--socket", required=end is outside)
        end.add_argument("--port", type=int, required=end is outside)
    return parser.parse_args(argv[:split]), argv[split + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
