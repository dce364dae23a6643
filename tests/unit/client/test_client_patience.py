"""A server that is killed and started again is invisible to a rollout: begin, end and status wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from client_answers import BEGUN, ENDED
from server_processes import free_port

from swarm.client import AsyncSwarmClient, SwarmClient
from swarm.errors import ServerUnreachable
from swarm.types import Task, WorkflowOutput

TASK = Task("2+2?", "sum/1")
JOB = {"job": None, "resolved": None}


def begin(client: SwarmClient) -> object:
    return client.begin_episode(wait_timeout=10)[0]


def end(client: SwarmClient) -> object:
    return client.end_episode(TASK, "e1", WorkflowOutput(1.0)).state.value


@pytest.mark.parametrize(
    ("call", "answer", "expected"),
    [(begin, BEGUN, "e1"), (end, ENDED, "completed"), (SwarmClient.job, JOB, None)],
)
def test_a_restart_with_boot_in_between_is_waited_out(
    scripted: Any, canned: Any, refusal: Any, call: Callable[[SwarmClient], Any], answer: Any, expected: object
) -> None:
    booting = refusal(503, "engine_not_ready", "booting", retry_after="0")
    scripted.script(canned(body=JOB), booting, booting, canned(body=answer))
    scripted.closes_connections = True
    with SwarmClient(scripted.url, timeout=60) as client, ThreadPoolExecutor(1) as pool:
        client.job()
        scripted.close()
        waiting = pool.submit(call, client)
        time.sleep(0.3)
        assert not waiting.done()
        scripted.start()
        result = waiting.result(timeout=60)
    assert getattr(result, "job", result) == expected


def test_an_end_waits_longer_than_other_calls(scripted: Any, canned: Any) -> None:
    scripted.script(canned(body=JOB), canned(body=ENDED))
    scripted.closes_connections = True
    with SwarmClient(scripted.url, timeout=1.0) as client, ThreadPoolExecutor(1) as pool:
        client.job()
        scripted.close()
        with pytest.raises(ServerUnreachable):
            client.job()
        waiting = pool.submit(end, client)
        time.sleep(1.3)
        scripted.start()
        assert waiting.result(timeout=60) == "completed"
        scripted.close()
        with pytest.raises(ServerUnreachable):
            client.end_episode(TASK, "e2", WorkflowOutput(1.0), wait_timeout=0.3)
        scripted.start()


def test_a_begin_waits_even_for_a_server_that_never_answered() -> None:
    started_at = time.monotonic()
    with SwarmClient(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(ServerUnreachable):
        client.begin_episode(wait_timeout=0.7)
    assert time.monotonic() - started_at > 0.6


def test_closing_a_client_ends_the_wait_of_its_calls(scripted: Any, canned: Any) -> None:
    scripted.script(canned(body=JOB))
    scripted.closes_connections = True
    client = SwarmClient(scripted.url, timeout=600)
    client.job()
    scripted.close()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(end, client)
        time.sleep(0.3)
        assert not waiting.done()
        client.close()
        with pytest.raises(ServerUnreachable, match="closed"):
            waiting.result(timeout=60)


@pytest.mark.anyio
async def test_closing_an_asyncio_client_ends_the_wait_of_its_calls(scripted: Any, canned: Any) -> None:
    scripted.script(canned(body=JOB))
    scripted.closes_connections = True
    client = AsyncSwarmClient(scripted.url, timeout=600)
    await client.job()
    scripted.close()
    waiting = asyncio.create_task(client.job())
    await asyncio.sleep(0.3)
    await client.close()
    with pytest.raises(ServerUnreachable, match="closed"):
        await asyncio.wait_for(waiting, 60)
