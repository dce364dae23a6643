"""The servers of a study: own ones come up, come back and go; those of others are checked and left alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from researcher.errors import ServerProblem
from researcher.execution.servers import MAX_RESTARTS, ServerPool, check_servers, connect
from swarm.processes.child import process_start


def test_own_server_serves_is_started_again_when_killed_and_ends_with_the_pool(tmp_path: Path) -> None:
    pool = ServerPool(local=1, home=tmp_path)
    pool.start()
    try:
        slot = pool.take()
        assert slot is not None and slot.url is not None and slot.child is not None
        assert pool.take() is None
        with pool.connect(slot.url) as client:
            assert client.status().state == "OFFLINE"
        first = slot.child
        os.kill(first.pid, signal.SIGKILL)
        first.wait(10)
        pool.give_back(slot)

        again = pool.take()

        assert again is slot and slot.child is not first and slot.url is not None
        with pool.connect(slot.url) as client:
            assert client.status().state == "OFFLINE"
        pid = slot.child.pid
    finally:
        pool.stop()
    assert process_start(pid) is None


def test_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "servers"
    (blocked / "0").mkdir(parents=True)
    # A folder where the server keeps its ledger file.
    (blocked / "0" / "ledger.db").mkdir()
    pool = ServerPool(local=1, home=blocked)

    with pytest.raises(ServerProblem, match=r"did not start: .*stderr\.log"):
        pool.start()

    assert all(slot.child is None for slot in pool.slots)


def test_slot_whose_server_keeps_dying_is_given_up(tmp_path: Path) -> None:
    pool = ServerPool(local=1, home=tmp_path)
    pool.start()
    try:
        with pytest.raises(ServerProblem, match="no swarm server is left"):
            for _ in range(MAX_RESTARTS + 2):
                slot = pool.take()
                assert slot is not None and slot.child is not None
                os.kill(slot.child.pid, signal.SIGKILL)
                slot.child.wait(10)
                pool.give_back(slot)
    finally:
        pool.stop()


def test_unreachable_server_is_named() -> None:
    with pytest.raises(ServerProblem, match=r"http://127\.0\.0\.1:9"):
        check_servers(["http://127.0.0.1:9"])


def test_server_at_work_for_somebody_else_is_refused(start_server: Callable[..., Any]) -> None:
    url = start_server().url
    check_servers([url])
    with connect(url, None) as client:
        client.auto_sync_train_config_and_start_engine({"engine": "fake", "project_name": "theirs", "total_steps": 3})

        with pytest.raises(ServerProblem, match="busy with theirs/default"):
            check_servers([url])


def test_foreign_servers_are_left_running(start_server: Callable[..., Any], tmp_path: Path) -> None:
    url = start_server().url
    pool = ServerPool(urls=[url], home=tmp_path)
    pool.start()
    slot = pool.take_at(url)
    assert slot is not None and pool.take() is None and pool.take_at(url) is None

    pool.stop()

    with connect(url, None) as client:
        assert client.status().state == "OFFLINE"
