"""The servers of a study: own ones come up, come back and go; those of others are checked and left alone."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from psutil import Process
from server_processes import ServerProcess
from waiting import SetClock, wait_until

from researcher.errors import ServerInUse, ServerProblem
from researcher.servers import server_pool
from researcher.servers.server import FIRST_INTERVAL_S, LONGEST_INTERVAL_S, BreakerState, CircuitBreaker, LeaseHolder
from researcher.servers.server_pool import ServerPool, check_servers, connect
from swarm import ServerUnreachable
from swarm.processes.child import process_start
from swarm.processes.cores import usable_cores
from swarm.schemas import LeaseRequest

SHARE = "SWARM_MAX_TORCH_THREADS"
HOLDER = LeaseHolder("study-1", "/data/research.db")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Callable[..., ServerPool]]:
    """Makes pools; all are stopped at the end of the test."""
    made: list[ServerPool] = []

    def make(**options: Any) -> ServerPool:
        made.append(ServerPool(**{"home": tmp_path, "holder": HOLDER, **options}))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_own_server_serves_is_started_again_at_its_address_when_killed_and_ends_with_the_pool(
    pool: Callable[..., ServerPool],
) -> None:
    own = pool(local=1)
    own.start()
    slot = own.take()
    assert slot is not None and slot.url is not None and slot.child is not None
    assert own.take() is None
    assert SHARE not in Process(slot.child.pid).environ()
    first, url = slot.child, slot.url
    os.kill(first.pid, signal.SIGKILL)
    first.wait(10)

    wait_until(lambda: slot.child is not None and slot.child is not first and slot.is_answering)

    assert slot.url == url
    with own.connect(url) as client:
        assert client.status().state == "OFFLINE"
    assert [change.is_back for change in own.take_changes()] == [False, True]
    pid = slot.child.pid
    own.stop()
    assert process_start(pid) is None


def test_call_that_waits_for_an_own_server_ends_with_the_pool(pool: Callable[..., ServerPool]) -> None:
    own = pool(local=1)
    own.start()
    slot = own.take()
    assert slot is not None and slot.url is not None
    with own.connect(slot.url) as client, ThreadPoolExecutor(1) as others:
        waiting = others.submit(client.begin_episode, wait_timeout=600)
        time.sleep(0.5)
        assert not waiting.done()
        own.stop()
        with pytest.raises(ServerUnreachable):
            waiting.result(60)


def test_own_servers_share_the_cores_of_the_machine(pool: Callable[..., ServerPool]) -> None:
    own = pool(local=2)
    own.start()
    children = [slot.child for slot in own.slots if slot.child is not None]
    assert len(children) == 2
    assert {Process(child.pid).environ().get(SHARE) for child in children} == {str(max(1, usable_cores() // 2))}


def test_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pool, "MAX_FAILED_BOOTS", 2)
    blocked = tmp_path / "servers"
    (blocked / "0").mkdir(parents=True)
    # A folder where the server keeps its ledger file.
    (blocked / "0" / "ledger.db").mkdir()
    pool = ServerPool(local=1, home=blocked, holder=HOLDER)

    with pytest.raises(ServerProblem, match=r"did not start: .*stderr\.log"):
        pool.start()

    assert all(slot.child is None for slot in pool.slots)


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


def test_one_silent_server_is_no_reason_to_refuse_a_study(start_server: Callable[..., Any]) -> None:
    check_servers(["http://127.0.0.1:9", start_server().url])


def test_foreign_servers_are_left_running_and_are_free_again(
    start_server: Callable[..., Any], pool: Callable[..., ServerPool]
) -> None:
    url = start_server().url
    foreign = pool(urls=[url])
    foreign.start()
    slot = foreign.take_at(url)
    assert slot is not None and foreign.take() is None and foreign.take_at(url) is None
    with connect(url, None) as client:
        lease = client.status().lease
    assert lease is not None and (lease.study_id, lease.database) == ("study-1", "/data/research.db")

    foreign.stop()

    with connect(url, None) as client:
        assert (client.status().state, client.status().lease) == ("OFFLINE", None)


def test_second_study_is_refused_by_the_name_of_the_first(
    start_server: Callable[..., Any], pool: Callable[..., ServerPool]
) -> None:
    url = start_server().url
    pool(urls=[url]).start()

    with pytest.raises(ServerInUse, match=rf"{url} is used by study study-1 of "):
        check_servers([url])
    with pytest.raises(ServerInUse, match="used by study study-1"):
        pool(urls=[url], holder=LeaseHolder("study-2", "/data/other.db")).start()


def test_lease_of_a_dead_process_and_of_an_earlier_one_of_the_study_are_taken_over(
    start_server: Callable[..., Any], pool: Callable[..., ServerPool]
) -> None:
    url = start_server().url
    dead = {"holder": f"{socket.gethostname()}:0:1", "host": socket.gethostname(), "pid": 0, "ttl_s": 600.0}
    with connect(url, None) as client:
        client.take_lease(LeaseRequest(study_id="other", database="/data/other.db", **dead))
        first = pool(urls=[url])
        first.start()
        assert first.slots[0].is_answering
        first.stop()

        alive = {**dead, "holder": "unknown"}
        client.take_lease(LeaseRequest(study_id="study-1", database="/data/research.db", **alive))
        second = pool(urls=[url])
        second.start()
        assert second.slots[0].is_answering


def test_silent_server_gets_no_run_and_is_used_again_once_it_is_back(
    server_process: Callable[..., ServerProcess], pool: Callable[..., ServerPool]
) -> None:
    there, away = server_process(), server_process(is_running=False)
    foreign = pool(urls=[away.url, there.url])
    foreign.start()
    slot = foreign.take()
    assert slot is not None and slot.url == there.url and foreign.take() is None

    away.start()

    wait_until(lambda: foreign.slots[0].is_answering)
    back = foreign.take()
    assert back is not None and back.url == away.url


def test_study_whose_servers_are_out_for_longer_than_it_allows_says_so(
    server_process: Callable[..., ServerProcess], pool: Callable[..., ServerPool]
) -> None:
    away = server_process(is_running=False)
    foreign = pool(urls=[away.url], max_out_s=0.0)
    foreign.start()

    with pytest.raises(ServerProblem, match="no server has answered"):
        foreign.take()
    pool(urls=[away.url]).start()


def test_run_that_failed_on_a_server_goes_to_another_one_if_one_answers(
    start_server: Callable[..., Any], pool: Callable[..., ServerPool]
) -> None:
    urls = [start_server().url for _ in range(2)]
    foreign = pool(urls=urls)
    foreign.start()

    other = foreign.take(frozenset({urls[0]}))
    assert other is not None and other.url == urls[1]
    assert foreign.take(frozenset({urls[0]})) is None
    first = foreign.take(frozenset(urls))
    assert first is not None and first.url == urls[0]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def breaker(clock: SetClock) -> CircuitBreaker:
    return CircuitBreaker(clock=clock)


def test_failed_probes_come_at_growing_intervals_up_to_a_limit(breaker: CircuitBreaker, clock: SetClock) -> None:
    assert breaker.fail("no answer") and breaker.state is BreakerState.OPEN
    waited: list[float] = []
    for _ in range(10):
        assert not breaker.begin_probe()
        waited.append(breaker.due_in_s())
        clock.now += breaker.due_in_s()
        assert breaker.begin_probe() and breaker.state is BreakerState.HALF_OPEN
        assert not breaker.fail("still none")

    assert waited[:3] == [FIRST_INTERVAL_S, 2 * FIRST_INTERVAL_S, 4 * FIRST_INTERVAL_S]
    assert waited[-1] == LONGEST_INTERVAL_S
    assert breaker.out_s() == sum(waited) and breaker.reason == "still none"


def test_answer_closes_it_and_the_next_failure_begins_anew(breaker: CircuitBreaker, clock: SetClock) -> None:
    breaker.fail("no answer")
    clock.now += FIRST_INTERVAL_S
    breaker.begin_probe()
    breaker.fail("no answer")

    assert breaker.succeed() and breaker.is_closed
    assert not breaker.succeed()
    assert (breaker.out_s(), breaker.due_in_s()) == (0.0, 0.0) and not breaker.begin_probe()

    assert breaker.fail("again")
    assert breaker.due_in_s() == FIRST_INTERVAL_S


def test_what_is_heard_of_an_open_one_does_not_put_its_probe_off(breaker: CircuitBreaker, clock: SetClock) -> None:
    breaker.fail("no answer")
    clock.now += FIRST_INTERVAL_S

    assert not breaker.fail("a run met the same")

    assert breaker.begin_probe()
