"""The worker process from its parent's side, with a small script in place of the real worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from swarm.backends.process.worker_process import WorkerProcess
from swarm.errors import EngineFailure
from swarm.types import FinishReason

pytestmark = pytest.mark.anyio

SCRIPT = """
import os, sys, time
from swarm.backends.process.wire import Unpacker, pack
out = os.dup(1)
os.dup2(2, 1)
def send(message):
    os.write(out, pack(message))
unpacker = Unpacker()
while data := os.read(0, 2**16):
    for message in unpacker.feed(data):
        op, number = message["op"], message["id"]
        if op == "echo":
            print("a library prints", flush=True)
            send({"id": number, "result": message["args"]})
        elif op == "count":
            for token in range(message["args"]):
                send({"tokens": [[number, [token], [-0.5], None]], "version": 3})
            send({"tokens": [[number, [99], [-0.5], "stop"]], "version": 4})
        elif op == "die":
            print("out of memory", file=sys.stderr, flush=True)
            os._exit(3)
        elif op == "garble":
            os.write(out, bytes([0xC1]) * 10)
        elif op == "sleep":
            time.sleep(60)
"""


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    worker = build(tmp_path)
    await worker.start()
    async with asyncio.timeout(30):
        await worker.call("echo", 0, timeout_s=30)
        yield worker
        await worker.stop()


def build(directory: Path, **limits: float) -> WorkerProcess:
    return WorkerProcess([sys.executable, "-c", SCRIPT], directory / "logs" / "worker.log", **limits)


async def test_answers_and_prints_do_not_mix(worker: WorkerProcess, tmp_path: Path) -> None:
    big = list(range(200_000))
    assert await worker.call("echo", big, timeout_s=60) == big
    answers = await asyncio.gather(*(worker.call("echo", number, timeout_s=60) for number in range(50)))
    assert answers == list(range(50))
    assert "a library prints" in (tmp_path / "logs" / "worker.log").read_text()


async def test_stream_gives_all_tokens_in_order(worker: WorkerProcess) -> None:
    stream = await worker.open_stream("count", 5)
    deltas = [await stream.read()]
    while deltas[-1].finish_reason is None:
        deltas.append(await stream.read())
    assert [token for delta in deltas for token in delta.token_ids_T] == [0, 1, 2, 3, 4, 99]
    assert [version for delta in deltas for version in delta.weight_versions_T] == [3] * 5 + [4]
    assert deltas[-1].finish_reason is FinishReason.STOP


async def test_death_fails_all_who_wait_with_the_last_line_of_the_log(worker: WorkerProcess) -> None:
    stream = await worker.open_stream("nothing", None)
    waiting = asyncio.create_task(worker.call("nothing", None, timeout_s=30))
    await asyncio.sleep(0)
    with pytest.raises(EngineFailure, match=r"ended with status 3.*out of memory"):
        await worker.call("die", None, timeout_s=30)
    with pytest.raises(EngineFailure, match="status 3"):
        await waiting
    with pytest.raises(EngineFailure, match="status 3"):
        await stream.read()
    assert worker.exited.is_set()
    assert worker.pid is None
    with pytest.raises(EngineFailure, match="status 3"):
        await worker.call("echo", 1, timeout_s=5)


async def test_killed_worker_is_noticed_and_can_be_started_again(worker: WorkerProcess) -> None:
    stream = await worker.open_stream("nothing", None)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(EngineFailure, match="SIGKILL"):
        await stream.read()
    await worker.start()
    assert await worker.call("echo", 5, timeout_s=60) == 5


def test_streams_opened_while_the_worker_dies_say_that_it_is_lost(tmp_path: Path) -> None:
    program = Path(__file__).with_name("dying_worker.py")
    done = subprocess.run(
        [sys.executable, program, tmp_path / "worker.log"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "EngineLost\n", done.stderr


async def test_overrun_of_a_limit_ends_the_worker(worker: WorkerProcess) -> None:
    with pytest.raises(EngineFailure, match=r"no answer to 'sleep' within 0\.2 s"):
        await worker.call("sleep", None, timeout_s=0.2)
    async with asyncio.timeout(60):
        await worker.exited.wait()


async def test_unreadable_frame_ends_the_worker(worker: WorkerProcess) -> None:
    with pytest.raises(EngineFailure, match="unreadable frame"):
        await worker.call("garble", None, timeout_s=60)


async def test_silent_worker_that_owes_tokens_is_ended(tmp_path: Path) -> None:
    worker = build(tmp_path, longest_silence_s=1.0)
    await worker.start()
    try:
        await worker.call("echo", 0, timeout_s=30)
        await asyncio.sleep(1.5)
        stream = await worker.open_stream("nothing", None)
        async with asyncio.timeout(60):
            with pytest.raises(EngineFailure, match="silent"):
                await stream.read()
    finally:
        await worker.stop()


async def test_stop_ends_streams_with_abort_and_may_be_repeated(worker: WorkerProcess) -> None:
    stream = await worker.open_stream("nothing", None)
    await worker.stop()
    assert (await stream.read()).finish_reason is FinishReason.ABORT
    await worker.stop()
    assert worker.exit_reason == "the worker was stopped"


async def test_worker_that_does_not_end_is_killed_on_stop(tmp_path: Path) -> None:
    worker = build(tmp_path, stop_timeout_s=0.2)
    async with asyncio.timeout(60):
        await worker.start()
        await worker.call("echo", 0, timeout_s=30)
        pid = worker.pid
        await worker.open_stream("sleep", None)
        await asyncio.sleep(0.2)
        await worker.stop()
    assert pid is not None and not psutil.pid_exists(pid)


async def test_command_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    worker = WorkerProcess([str(tmp_path / "missing")], tmp_path / "worker.log")
    with pytest.raises(EngineFailure, match="cannot be started"):
        await worker.start()
    with pytest.raises(EngineFailure, match="not started"):
        await worker.call("echo", 1, timeout_s=1)
    await worker.stop()
