"""The shape of the loop, what it retries, and how little its checkpoints keep."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import httpx
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from experiments_db import StoreLeaseLost, StoreUnavailable
from researcher.charter import FrameRequest
from researcher.errors import PlannerError
from researcher.loop.graph import KEPT_CHECKPOINTS, build_graph, is_transient, prune


class Count(TypedDict):
    count: int


def test_loop_has_the_nodes_and_edges_of_its_picture() -> None:
    nothing: Any = None
    drawn = build_graph(nothing, FrameRequest("t"), None).get_graph()

    assert set(drawn.nodes) == {
        *("__start__", "frame", "plan", "write_program", "check", "design", "launch", "monitor"),
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
