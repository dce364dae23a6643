"""An episode on two servers counts on both or on none, whoever is killed between which two calls."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from faults.storm import end_process
from server_processes import ServerProcess, server_processes
from tests_support import wait_for_state

from swarm import SwarmClient

CLIENT_PROGRAM = Path(__file__).with_name("team_client.py")
# Every episode that counts is a batch, so that no case waits for the repeats of the case before.
JOB = {"engine": "fake", "batch_size": 1, "num_repeat": 1, "drain_timeout_s": 20}
COUNTED = {"completed", "trained", "dropped"}
SETTLE_LIMIT_S = 40.0

POINTS = ("begin b", "prepare a", "prepare b", "commit a", "commit b")
VICTIMS = ("client", "a", "b", "a b", "client a", "client b", "client a b")
SAMPLE = (
    ("prepare b", "client"), ("commit a", "client"), ("commit a", "b"), ("prepare b", "client a b"),
)  # fmt: skip
WHOLE = tuple((point, victims) for point in POINTS for victims in VICTIMS)


@dataclass
class Pair:
    """Two servers in processes of their own, which keep their ports and homes when they are killed."""

    servers: Mapping[str, ServerProcess]
    http: dict[str, httpx.Client] = field(default_factory=dict[str, httpx.Client])

    def begin(self, name: str) -> None:
        url = self.servers[name].url
        with SwarmClient(url) as client:
            client.auto_sync_train_config_and_start_engine(JOB)
        self.http[name] = httpx.Client(base_url=url, timeout=20)

    def restart(self, name: str) -> None:
        self.servers[name].start()
        wait_for_state(self.http[name], "ROLLING")

    def urls(self) -> list[str]:
        return [str(http.base_url).rstrip("/") for http in self.http.values()]

    def states(self, task_id: str) -> dict[str, list[str]]:
        """Of the episodes of a task, by server."""
        found: dict[str, list[str]] = {}
        for name, http in self.http.items():
            page = http.get("/v1/swarm/episodes", params={"task_id": task_id}).json()
            found[name] = [episode["state"] for episode in page["episodes"]]
        return found

    def settled(self, task_id: str, passing: Set[str] = frozenset({"running", "prepared"})) -> dict[str, list[str]]:
        """The states of the episodes of a task, once none of them is a passing one and no train episode runs."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while self._is_running() or any(passing.intersection(states) for states in self.states(task_id).values()):
            assert time.monotonic() < deadline, self.states(task_id)
            time.sleep(0.1)
        return self.states(task_id)

    def _is_running(self) -> bool:
        statuses = (http.get("/v1/swarm/status").json() for http in self.http.values())
        return any(status["pool"]["running_train"] for status in statuses)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with (
        tempfile.TemporaryDirectory(prefix="swarm-disk-", ignore_cleanup_errors=True) as directory,
        server_processes(Path(directory)) as make,
        ExitStack() as stack,
    ):
        servers = Pair({name: make() for name in "ab"})
        for name in "ab":
            servers.begin(name)
            stack.enter_context(servers.http[name])
        yield servers


def run_team(pair: Pair, task_id: str, at: Callable[[str, subprocess.Popen[str]], None]) -> str | None:
    """One team episode; `at` is called after every call while the client waits. Returns the client's last line."""
    command = [sys.executable, str(CLIENT_PROGRAM), task_id, *pair.urls()]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout is not None and client.stdin is not None
        for line in client.stdout:
            if line.startswith("{"):
                return line
            at(line.strip(), client)
            if client.poll() is not None:
                return None
            client.stdin.write("\n")
            client.stdin.flush()
        return None
    finally:
        end_process(client, 9)
        for stream in (client.stdin, client.stdout):
            assert stream is not None
            stream.close()


def strike_at(pair: Pair, point: str, victims: str) -> Callable[[str, subprocess.Popen[str]], None]:
    def at(reached: str, client: subprocess.Popen[str]) -> None:
        if reached != point:
            return
        for victim in victims.split():
            if victim == "client":
                client.kill()
                client.wait(timeout=20)
            else:
                pair.servers[victim].kill()
        for name in set(victims.split()) - {"client"}:
            pair.restart(name)

    return at


def check(pair: Pair, point: str, victims: str) -> None:
    task_id = f"{point}, {victims}"
    told = run_team(pair, task_id, strike_at(pair, point, victims))
    states = pair.settled(task_id)
    outcome = (told, states)
    assert [len(each) for each in states.values()] == [1, 1], outcome
    counted = {name: each[0] in COUNTED for name, each in states.items()}
    assert counted["a"] == counted["b"], outcome
    if told is None:
        assert counted["a"] == point.startswith("commit"), outcome
    else:
        # A server that lives, or comes back, costs a living client nothing.
        assert "error" not in told, outcome
        assert counted["a"], outcome


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("point", "victims"), SAMPLE)
def test_whoever_dies_between_two_calls_both_servers_count_the_episode_or_none(
    pair: Pair, point: str, victims: str
) -> None:
    check(pair, point, victims)


@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("point", "victims"), sorted(set(WHOLE) - set(SAMPLE)))
def test_the_same_with_everybody_killed_at_every_point(pair: Pair, point: str, victims: str) -> None:
    check(pair, point, victims)


def test_afterwards_both_servers_train_on_whole_episodes(pair: Pair) -> None:
    told = run_team(pair, "last", lambda point, client: None)
    assert told is not None and json.loads(told) == {"a": "completed", "b": "completed"}
    assert pair.settled("last", passing=frozenset({"completed"})) == {"a": ["trained"], "b": ["trained"]}
