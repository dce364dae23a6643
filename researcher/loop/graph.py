"""The loop on one screen: its nodes, its edges, and how it goes on where it was left."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import RunControl
from langgraph.types import RetryPolicy, StateSnapshot

from experiments_db import StoreUnavailable
from researcher.charter import FrameRequest
from researcher.loop.deps import Deps, ResearchState, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.loop.nodes.base import measure_base
from researcher.loop.nodes.check import check
from researcher.loop.nodes.decide import decide
from researcher.loop.nodes.design import design
from researcher.loop.nodes.evaluate import evaluate, score_steps
from researcher.loop.nodes.final_test import final_test
from researcher.loop.nodes.frame import frame
from researcher.loop.nodes.launch import has_work, is_piloted, launch
from researcher.loop.nodes.monitor import monitor
from researcher.loop.nodes.plan import plan
from researcher.loop.nodes.report import report
from researcher.loop.nodes.write_program import write_program

RECURSION_LIMIT = 1_000_000_000
"""LangGraph counts steps per invocation, and a study of weeks takes one every second. Only the budget ends a study."""

KEPT_CHECKPOINTS = 20
PRUNE_EVERY = 500
"""Steps between two prunings. A checkpoint is about a kilobyte, and only the newest is ever read."""

Graph = CompiledStateGraph[ResearchState, None, ResearchState, ResearchState]


#   frame -> base
#             v
#            plan -> write_program -> check -> design -> launch -> monitor -> evaluate -+-> launch (runs are open)
#             ^                                  ^--------------------------------------+ (the pilot is over)
#             |                                                                         +-> analyze -> decide -+-> plan
#             +------------------------------------------------------------------------------------------------+
#                                                                            final_test -> report <------------+ (stop)
#
# Between evaluate and analyze comes `score_steps`, which acts only if the charter asks for scores of earlier steps.
# LangGraph stores a checkpoint after every node, in a file of the study. An interrupted node begins again from its
# first line, so every node must be safe to repeat.
def build_graph(deps: Deps, request: FrameRequest, checkpointer: BaseCheckpointSaver[Any] | None) -> Graph:
    graph = StateGraph(ResearchState)
    nodes: dict[str, Callable[[ResearchState], ResearchState]] = {
        "frame": partial(frame, deps, request=request),
        "base": partial(measure_base, deps),
        "plan": partial(plan, deps),
        "write_program": partial(write_program, deps),
        "check": partial(check, deps),
        "design": partial(design, deps),
        "launch": partial(launch, deps),
        "monitor": partial(monitor, deps),
        "evaluate": partial(evaluate, deps),
        "score_steps": partial(score_steps, deps),
        "analyze": partial(analyze, deps),
        "decide": partial(decide, deps),
        "final_test": partial(final_test, deps),
        "report": partial(report, deps),
    }
    retry = RetryPolicy(max_attempts=4, initial_interval=0.5, max_interval=10.0, retry_on=is_transient)
    for name, node in nodes.items():
        graph.add_node(name, cast(Any, partial(_guarded, deps, node)), retry_policy=retry)
    graph.add_edge(START, "frame")
    graph.add_edge("frame", "base")
    graph.add_edge("base", "plan")
    graph.add_conditional_edges("plan", lambda state: "final_test" if state["is_halted"] else "write_program")
    graph.add_edge("write_program", "check")
    graph.add_edge("check", "design")
    graph.add_edge("design", "launch")
    graph.add_edge("launch", "monitor")
    graph.add_edge("monitor", "evaluate")
    graph.add_conditional_edges("evaluate", partial(_after_evaluate, deps))
    graph.add_edge("score_steps", "analyze")
    graph.add_edge("analyze", "decide")
    graph.add_conditional_edges("decide", lambda state: "final_test" if state["is_halted"] else "plan")
    graph.add_edge("final_test", "report")
    graph.add_edge("report", END)
    return graph.compile(checkpointer=checkpointer)


def _guarded(deps: Deps, node: Callable[[ResearchState], ResearchState], state: ResearchState) -> ResearchState:
    """Run a node if the environment still works. Raises EnvironmentBroken, SandboxUnavailable."""
    deps.environments.check()
    return node(state)


def _after_evaluate(deps: Deps, state: ResearchState) -> str:
    if has_work(deps, state):
        return "launch"
    return "design" if is_piloted(deps, state) else "score_steps"


def is_transient(error: BaseException) -> bool:
    """Return whether an error may be gone a second later.

    LangGraph's default retries programming errors, and does not retry a busy database.
    """
    return isinstance(error, StoreUnavailable | httpx.TransportError | ConnectionError | sqlite3.OperationalError)


def is_finished(snapshot: StateSnapshot) -> bool:
    """Return whether the graph has come to its end.

    `snapshot.next` does not tell: it is also empty if the process was killed after a node's result was stored and
    before the checkpoint that follows it.
    """
    return bool(snapshot.values) and not snapshot.tasks


def carry_out(deps: Deps, request: FrameRequest, control: RunControl) -> None:
    """Run the study's graph to its end, from its beginning or from where it was left.

    Raises GraphDrained at the next node boundary once `control` asks for it, and what a node raises.
    """
    config: RunnableConfig = {"configurable": {"thread_id": deps.study_id}, "recursion_limit": RECURSION_LIMIT}
    with _open_checkpoints(deps.home / "graph.db") as (connection, saver):
        graph = build_graph(deps, request, saver)
        snapshot = graph.get_state(config)
        if _is_cut_short(deps, snapshot):
            _reopen(graph, config, deps, snapshot)
        elif is_finished(snapshot):
            return
        start = None if snapshot.values else first_state(deps.study_id)
        stream = graph.stream(
            cast(ResearchState | None, start), config, stream_mode="updates", durability="sync", control=control
        )
        for count, _ in enumerate(stream, start=1):
            if count % PRUNE_EVERY == 0:
                prune(connection, saver)


def _is_cut_short(deps: Deps, snapshot: StateSnapshot) -> bool:
    """Return whether the budget ended the work on the present plan, so that a new process may go on with it."""
    if not snapshot.values or not snapshot.values["is_budget_used_up"]:
        return False
    charter = deps.store.find_charter(deps.study_id)
    return charter is not None and charter.test_opened_at is None


def _reopen(graph: Graph, config: RunnableConfig, deps: Deps, snapshot: StateSnapshot) -> None:
    """Go back to the launches of the present plan, or to planning if there is no plan yet."""
    is_planned = deps.log.find_plan(snapshot.values["iteration"]) is not None
    values = {**snapshot.values, "is_budget_used_up": False, "is_halted": False}
    graph.update_state(config, values, as_node="design" if is_planned else "decide")


@contextmanager
def _open_checkpoints(path: Path) -> Generator[tuple[sqlite3.Connection, SqliteSaver]]:
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        # The state has only types of msgpack itself. Anything else in the file is foreign and is not built.
        yield connection, SqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))


def prune(connection: sqlite3.Connection, saver: SqliteSaver) -> None:
    """Delete all but the newest checkpoints, for which the saver has no call."""
    newest = f"SELECT checkpoint_id FROM checkpoints ORDER BY checkpoint_id DESC LIMIT {KEPT_CHECKPOINTS}"
    with saver.lock:
        for table in ("writes", "checkpoints"):
            connection.execute(f"DELETE FROM {table} WHERE checkpoint_id NOT IN ({newest})")
        connection.commit()
