"""The shape of the loop, what it retries, and how little its checkpoints keep."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict, cast

import httpx
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from experiments_db import StoreLeaseLost, StoreUnavailable
from researcher.charter import FrameRequest
from researcher.errors import PlannerError, RunBroken, RunDiverged
from researcher.loop.deps import ActiveRun
from researcher.loop.graph import KEPT_CHECKPOINTS, build_graph, is_finished, is_transient, prune
from researcher.loop.nodes.monitor import RESTART_S, is_engine_gone
from researcher.servers.jobs import end_job
from swarm import SwarmClient


class Count(TypedDict):
    count: int


def test_loop_has_the_nodes_and_edges_of_its_picture() -> None:
    nothing: Any = None
    drawn = build_graph(nothing, FrameRequest("t"), None).get_graph()

    assert set(drawn.nodes) == {
        *("__start__", "frame", "base", "plan", "write_program", "check", "design", "launch", "monitor"),
        *("evaluate", "score_steps", "analyze", "decide", "final_test", "report", "__end__"),
    }


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreUnavailable("busy"), True),
        (httpx.ConnectTimeout("slow"), True),
        (ConnectionResetError(), True),
        (sqlite3.OperationalError("database is locked"), True),
        (StoreLeaseLost("gone"), False),
        (PlannerError("no answer"), False),
        (ValueError("a bug"), False),
    ],
)
def test_only_what_may_pass_by_itself_is_retried(error: Exception, expected: bool) -> None:
    assert is_transient(error) is expected


def test_pruned_thread_goes_on_where_it_was(tmp_path: Path) -> None:
    graph = StateGraph(Count)
    graph.add_node("step", lambda state: {"count": state["count"] + 1})
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["count"] % 100 == 0 else "step")
    config: RunnableConfig = {"configurable": {"thread_id": "s"}, "recursion_limit": 1000}
    with closing(sqlite3.connect(tmp_path / "graph.db", check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        loop = graph.compile(checkpointer=saver, interrupt_before=["step"])
        loop.invoke({"count": 0}, config)
        for _ in range(60):
            loop.invoke(None, config)

        prune(connection, saver)

        (kept,) = connection.execute("SELECT count(*) FROM checkpoints").fetchone()
        assert kept == KEPT_CHECKPOINTS
        assert loop.invoke(None, config) == {"count": 61}


CONFIG: Any = {"configurable": {"thread_id": "study"}}


def compile_graph(connection: sqlite3.Connection) -> Any:
    graph = StateGraph(Count)
    for name in ("first", "second"):
        graph.add_node(name, lambda state: {"count": state["count"] + 1})
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph.compile(checkpointer=SqliteSaver(connection))


def test_a_graph_killed_before_its_last_checkpoint_is_not_finished_and_goes_on(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "graph.db", check_same_thread=False)) as connection:
        graph = compile_graph(connection)
        assert not is_finished(graph.get_state(CONFIG))
        graph.invoke({"count": 0}, CONFIG, durability="sync")
        assert is_finished(graph.get_state(CONFIG))

        connection.execute("DELETE FROM checkpoints WHERE checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints)")
        connection.commit()
        cut_short = graph.get_state(CONFIG)
        assert cut_short.next == (), "the result of the last node is stored"
        assert not is_finished(cut_short)

        graph.invoke(None, CONFIG, durability="sync")
        assert is_finished(graph.get_state(CONFIG))
        assert graph.get_state(CONFIG).values == {"count": 2}


def test_every_restart_of_an_engine_has_its_time_and_a_stop_for_longer_is_the_end() -> None:
    nothing: Any = None
    active = ActiveRun("run-1", "lr=0.1 seed 0", nothing, 10, nothing, nothing)
    looks = [
        ("ROLLING", 0.0), ("OFFLINE", 1.0), ("BOOTING", 2.0), ("ROLLING", 3.0),
        ("OFFLINE", 900.0), ("OFFLINE", 899.9 + RESTART_S), ("OFFLINE", 900.0 + RESTART_S), ("FAILED", 1000.0),
    ]  # fmt: skip

    assert [is_engine_gone(active, state, at) for state, at in looks] == [False] * 6 + [True, True]


class Server:
    """Says at each look at its engine the next of `states`; the batch that fills is known once it has booted."""

    def __init__(self, *states: str, reason: str = "the worker died") -> None:
        self._states = list(states)
        self.reason = reason
        self._state = ""
        self.asked: list[dict[str, Any]] = []

    def status(self) -> SimpleNamespace:
        self._state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        has_diverged = "diverged" in self.reason
        return SimpleNamespace(state=self._state, step=4, reason=self.reason, has_diverged=has_diverged)

    def job(self) -> SimpleNamespace:
        return SimpleNamespace(filling=None if self._state in ("BOOTING", "FAILED") else 5)

    def change_job(self, settings: dict[str, Any]) -> None:
        self.asked.append(settings)

    def episodes(self, **_: Any) -> list[Any]:
        return []

    def metrics(self, after: int) -> list[Any]:
        return []


def end(server: Server) -> int:
    return end_job(cast(SwarmClient, server), None, 0, wait_s=60, check_stop=lambda: None).step


def test_server_that_boots_again_is_asked_once_it_serves() -> None:
    server = Server("BOOTING", "BOOTING", "ROLLING", "COMPLETE")
    assert (end(server), server.asked) == (4, [{"total_steps": 4}])


def test_engine_that_failed_says_why_itself() -> None:
    with pytest.raises(RunBroken, match="the engine is FAILED: the worker died"):
        end(Server("FAILED"))
    with pytest.raises(RunDiverged, match="the engine is FAILED: the training has diverged"):
        end(Server("FAILED", reason="the training has diverged"))
