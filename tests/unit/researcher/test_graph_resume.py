"""What tells a finished graph from one that was cut short between a node's result and the next checkpoint."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from researcher.loop.graph import is_finished

CONFIG: Any = {"configurable": {"thread_id": "study"}}


class Count(TypedDict):
    count: int


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
