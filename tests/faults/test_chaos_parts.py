"""The parts of the chaos harness that need no study: its disk, its clock, its lock, its language model."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from chaos.clock import Clock, compile_library
from chaos.storage import SmallDisk, hold_database, let_go
from chaos.study import ChaosStudy
from llm_replies.server import DROP, HANG, ReplyServer

STUDY = ChaosStudy((1e-3, 1e-4), seeds=3, plans=2, steps=2, eval_episodes=4)


def test_full_disk_takes_no_byte_and_is_free_again_afterwards(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk", 4)
    if not disk.mount():
        pytest.skip("nothing may be mounted here")
    stop = threading.Event()
    filling = threading.Thread(target=disk.fill_for, args=(60.0, stop))
    try:
        filling.start()
        deadline = time.monotonic() + 60
        while not _is_full(disk.path):
            assert time.monotonic() < deadline
        stop.set()
        filling.join()
        (disk.path / "file").write_bytes(bytes(1 << 20))
    finally:
        stop.set()
        filling.join()
        disk.unmount()
    assert not any((tmp_path / "disk").iterdir())


def _is_full(folder: Path) -> bool:
    try:
        (folder / "probe").write_bytes(bytes(1 << 16))
    except OSError:
        return True
    return False


def test_held_database_takes_no_writer(tmp_path: Path) -> None:
    path, stop = tmp_path / "any.db", threading.Event()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (n)")
    connection.close()
    held = hold_database(path)
    assert held is not None
    writer = sqlite3.connect(path, timeout=0.01)
    with pytest.raises(sqlite3.OperationalError, match="locked"), writer:
        writer.execute("INSERT INTO t VALUES (1)")
    stop.set()
    let_go(held, 60.0, stop)
    with writer:
        writer.execute("INSERT INTO t VALUES (2)")
    writer.close()


def test_clock_of_a_process_jumps_and_its_sleeps_do_not(tmp_path: Path) -> None:
    library = compile_library(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    clock = Clock(tmp_path / "host.clock", library)
    script = "import time\nfor _ in range(2):\n print(time.time(), flush=True); input(); time.sleep(0.2)"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.env},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        before = float(process.stdout.readline())
        clock.move(-7200)
        process.stdin.write("\n")
        process.stdin.flush()
        after = float(process.stdout.readline())
        process.stdin.write("\n")
        process.stdin.flush()
    assert before - 7300 < after < before - 7000


def test_language_model_gives_the_answer_of_the_plan_it_is_asked_about(tmp_path: Path) -> None:
    STUDY.write(tmp_path)
    with ReplyServer(tmp_path / "replies", failures=[503, DROP, HANG], by_iteration=True, hang_s=0.01) as model:

        def ask(question: str) -> httpx.Response:
            body = {"model": "any", "messages": [{"role": "user", "content": question}]}
            return httpx.post(f"{model.url}/chat/completions", json=body)

        assert ask("# decide: x").status_code == 503
        for _ in (DROP, HANG):
            with pytest.raises(httpx.TransportError):
                ask("# decide: x")
        assert len(model.failed_at) == 3
        for number, action in ((2, "stop"), (1, "refine"), (1, "refine")):
            assert action in ask(f"# decide: x\n\nIterations so far: {number}").text
        assert "lr=0.0001" in ask("# plan: x\n\nIteration: 2 (the first is 1)").text
