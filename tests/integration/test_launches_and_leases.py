"""Runs that are started once whoever asks, and servers that one study uses at a time, over real HTTP."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from server_processes import ServerProcess

from swarm import SwarmClient
from swarm.errors import BadRequest, LaunchConflict, LeaseLost, ServerLeased
from swarm.schemas import LeaseRequest

JOB = {"engine": "fake", "total_steps": 3, "experiment_name": "first"}
OTHER = {"engine": "fake", "total_steps": 3, "experiment_name": "second"}


def _lease(study: str, **changes: Any) -> LeaseRequest:
    fields: dict[str, Any] = {"study_id": study, "holder": f"lab:{study}", "host": "lab", "pid": 7, "ttl_s": 600.0}
    return LeaseRequest(**{**fields, **changes})


def test_launch_sent_again_starts_nothing_and_tells_what_became_of_the_run(start_server: Callable[..., Any]) -> None:
    with SwarmClient(start_server().url) as client:
        assert client.find_launch("s/a/0/1") is None

        first, again = client.launch("s/a/0/1", JOB), client.launch("s/a/0/1", JOB)

        assert (first.is_new, again.is_new, again.outcome) == (True, False, "running")
        assert _launches(client) == {"s/a/0/1": 1}
        with pytest.raises(LaunchConflict, match="launched as s/a/0/1"):
            client.launch("s/b/0/1", OTHER)
        with pytest.raises(LaunchConflict, match="used for another job"):
            client.launch("s/a/0/1", OTHER)

        client.stop_engine()
        assert client.launch("s/a/0/1", JOB).outcome == "stopped"
        client.launch("s/b/0/1", OTHER)
        replaced = client.find_launch("s/a/0/1")
        assert replaced is not None and (replaced.outcome, replaced.step, replaced.total_steps) == ("replaced", 0, 3)
        assert _launches(client) == {"s/a/0/1": 1, "s/b/0/1": 1}


def _launches(client: SwarmClient) -> dict[str, int]:
    """How often each key was launched, by the events of the ledger."""
    return dict(Counter(event.detail["key"] for event in client.past_events() if event.kind == "job.started"))


def test_second_study_is_told_who_uses_the_server(start_server: Callable[..., Any]) -> None:
    with SwarmClient(start_server().url) as client:
        taken = client.take_lease(_lease("one", database="/data/one.db"))

        with pytest.raises(ServerLeased, match=r"used by study one of lab \(process 7, database /data/one\.db\) since"):
            client.take_lease(_lease("two"))

        renewed, shown = client.take_lease(_lease("one")), client.status().lease
        assert renewed.fence == taken.fence and shown is not None and shown.study_id == "one"
        client.release_lease()
        assert client.status().lease is None
        assert client.take_lease(_lease("two")).fence > taken.fence


def test_lease_that_ran_out_is_taken_over_and_its_holder_can_command_no_more(
    start_server: Callable[..., Any],
) -> None:
    url = start_server().url
    with SwarmClient(url) as client:
        old = client.take_lease(_lease("one", ttl_s=0.001)).fence
        with SwarmClient(url, lease=old) as holder:
            # Late, but nobody has come in between.
            holder.stop_engine()
            new = client.take_lease(_lease("two")).fence
            for command in (holder.stop_engine, holder.release_lease, lambda: holder.launch("k", JOB)):
                with pytest.raises(LeaseLost, match="used by study two"):
                    command()
        with SwarmClient(url, lease=new) as holder:
            holder.launch("k", JOB)


def test_holder_that_is_known_to_be_gone_is_replaced_at_once(start_server: Callable[..., Any]) -> None:
    with SwarmClient(start_server().url) as client:
        old = client.take_lease(_lease("one")).fence

        new = client.take_lease(_lease("one", holder="lab:8", replaces=old)).fence

        assert new > old
        with pytest.raises(ServerLeased):
            client.take_lease(_lease("two", replaces=old))


def test_lease_and_launch_outlive_the_process_of_the_server(
    server_process: Callable[..., ServerProcess], start_server: Callable[..., Any]
) -> None:
    server = server_process()
    with SwarmClient(server.url) as client:
        fence = client.take_lease(_lease("one")).fence
        client.launch("s/a/0/1", JOB)

    server.kill()
    start_server(home=server.home, port=server.port)

    with SwarmClient(server.url) as client:
        with pytest.raises(ServerLeased, match="study one"):
            client.take_lease(_lease("two"))
        assert client.take_lease(_lease("one")).fence == fence
        assert client.launch("s/a/0/1", JOB).outcome == "running"
        assert _launches(client) == {"s/a/0/1": 1}
    with closing(sqlite3.connect(server.home / "ledger.db")) as ledger:
        assert ledger.execute("SELECT study_id, ended_at FROM leases").fetchall() == [("one", None)]


def test_lease_of_no_number_is_bad_input(start_server: Callable[..., Any]) -> None:
    with SwarmClient(start_server().url, lease=-1) as client, pytest.raises(BadRequest, match="x-swarm-lease"):
        client.stop_engine()
