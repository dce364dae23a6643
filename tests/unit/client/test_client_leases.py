"""The client tells the server that it lives, as long as it holds episodes, and remembers which it lost."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from waiting import wait_until

from swarm.client import AsyncSwarmClient, SwarmClient, heartbeat
from swarm.client.heartbeat import BEATS_PER_LEASE, MAX_REMEMBERED, Leases
from swarm.errors import EpisodeEnded
from swarm.types import Task, WorkflowOutput

pytestmark = pytest.mark.anyio

TASK = Task("2+2?", "sum/1")
HEARTBEAT = "/v1/swarm/heartbeat"
FindThreads = Callable[[], list[threading.Thread]]


def beats(server: Any) -> list[Any]:
    return [heard for heard in list(server.heard) if heard.path == HEARTBEAT]


def usual_pause(server: Any) -> float:
    """Seconds between heartbeats: a busy machine makes some of them late."""
    at = [beat.at for beat in beats(server)]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(at))


@pytest.fixture
def heartbeat_threads() -> FindThreads:
    """Those of this test: clients of other tests may be alive in this process."""
    others = set(threading.enumerate())
    return lambda: [
        thread for thread in threading.enumerate() if thread.name == "swarm heartbeat" and thread not in others
    ]


def test_one_thread_keeps_all_held_episodes_alive_and_stops_by_itself(
    swarm_double: Any, heartbeat_threads: FindThreads
) -> None:
    with SwarmClient(swarm_double.url, client_id="alive") as client:
        held = [client.begin_episode(lease_s=1.0)[0] for _ in range(3)]
        wait_until(lambda: len(beats(swarm_double)) >= 6)
        (thread,) = heartbeat_threads()
        assert thread.daemon
        assert beats(swarm_double)[0].body == {"client_id": "alive", "episode_ids": held}
        assert 0.25 < usual_pause(swarm_double) < 0.9
        for episode_id in held:
            client.end_episode(TASK, episode_id, WorkflowOutput(1.0))
        wait_until(lambda: not heartbeat_threads())
        count = len(beats(swarm_double))
        time.sleep(0.5)
        assert len(beats(swarm_double)) == count


def test_a_shorter_lease_quickens_the_heartbeat_at_once(swarm_double: Any) -> None:
    with SwarmClient(swarm_double.url) as client:
        client.begin_episode(lease_s=3600.0)
        client.begin_episode(lease_s=1.0)
        wait_until(lambda: beats(swarm_double))
        assert beats(swarm_double)[0].body["episode_ids"] == ["e0", "e1"]


def test_an_episode_without_a_lease_needs_no_heartbeat(swarm_double: Any, heartbeat_threads: FindThreads) -> None:
    with SwarmClient(swarm_double.url) as client:
        client.begin_episode(lease_s=None)
        assert swarm_double.heard[0].body["lease_s"] is None
        assert heartbeat_threads() == []


def test_a_closed_client_sends_no_more_heartbeats(swarm_double: Any, heartbeat_threads: FindThreads) -> None:
    with SwarmClient(swarm_double.url) as client:
        client.begin_episode(lease_s=1.0)
        assert len(heartbeat_threads()) == 1
    assert heartbeat_threads() == []


def test_an_episode_that_the_server_gave_up_is_known_at_once(swarm_double: Any) -> None:
    with SwarmClient(swarm_double.url) as client:
        lost, _ = client.begin_episode(lease_s=1.0)
        kept, _ = client.begin_episode(lease_s=1.0)
        swarm_double.ended = {lost: "idle_timeout"}
        wait_until(lambda: beats(swarm_double) and beats(swarm_double)[-1].body["episode_ids"] == [kept])
        asked = len(swarm_double.heard) - len(beats(swarm_double))
        for call in (lambda: client.end_episode(TASK, lost, WorkflowOutput(1.0)), lambda: client.heartbeat(lost)):
            with pytest.raises(EpisodeEnded, match="idle_timeout"):
                call()
        assert len(swarm_double.heard) - len(beats(swarm_double)) == asked
        assert client.end_episode(TASK, kept, WorkflowOutput(1.0)).state == "completed"


def test_a_failed_heartbeat_is_repeated_soon_and_harms_nothing(
    swarm_double: Any, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "RETRY_S", 0.1)
    with SwarmClient(swarm_double.url) as client:
        swarm_double.refusal = refusal(503, "engine_not_ready", "booting", retry_after="5")
        held, _ = client.begin_episode(lease_s=6.0)
        wait_until(lambda: len(beats(swarm_double)) >= 6)
        assert usual_pause(swarm_double) < 1
        swarm_double.refusal = None
        wait_until(lambda: len(beats(swarm_double)) >= 7)
        assert client.end_episode(TASK, held, WorkflowOutput(1.0)).state == "completed"


def test_a_program_that_forgot_an_episode_still_ends(swarm_double: Any) -> None:
    program = """
        import sys
        from swarm import SwarmClient
        client = SwarmClient(sys.argv[1])
        client.begin_episode()
        print("done", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), swarm_double.url], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


async def test_the_task_of_an_async_client_beats_and_ends(swarm_double: Any) -> None:
    async with AsyncSwarmClient(swarm_double.url, client_id="async") as client:
        held, _ = await client.begin_episode(lease_s=1.0)
        while len(beats(swarm_double)) < 2:
            await asyncio.sleep(0.05)
        assert beats(swarm_double)[0].body == {"client_id": "async", "episode_ids": [held]}
        swarm_double.ended = {held: "deadline"}
        while any(task.get_name() == "swarm heartbeat" for task in asyncio.all_tasks()):
            await asyncio.sleep(0.05)
        with pytest.raises(EpisodeEnded, match="deadline"):
            await client.end_episode(TASK, held, WorkflowOutput(1.0))
        await client.begin_episode(lease_s=1.0)
    assert not any(task.get_name() == "swarm heartbeat" for task in asyncio.all_tasks())


def test_a_result_on_its_way_is_not_taken_for_a_lost_episode() -> None:
    leases = Leases()
    leases.hold("e1", 30.0)
    leases.end("e1")
    assert leases.lose({"e1": "completed", "unheard of": "expired"}) == []
    assert leases.lost("e1") is None
    assert leases.holds("e1")


def test_the_interval_follows_the_shortest_lease_and_memory_is_bounded() -> None:
    leases = Leases()
    assert leases.beating() is None
    leases.hold("none", None)
    assert leases.beating() is None
    leases.hold("long", 30.0)
    leases.hold("short", 6.0)
    assert leases.beating() == (6.0 / BEATS_PER_LEASE, ["long", "short"])
    for number in range(MAX_REMEMBERED + 5):
        leases.hold(f"e{number}", 30.0)
        leases.lose({f"e{number}": "lease_expired"})
    assert leases.lost("e0") is None
    assert leases.lost(f"e{MAX_REMEMBERED}") == "lease_expired"
