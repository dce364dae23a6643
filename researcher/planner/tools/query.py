"""The tools `query` and `tables`: read-only SQL on the study's database, without what a planner must not see."""

from __future__ import annotations

import re
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field

from researcher.planner.texts import PAGE_CHARS, as_data, clip, number
from researcher.planner.tools.base import ToolArguments, ToolRefused
from researcher.planner.tools.sources import ToolSources, study_tool

MAX_ROWS = 200
TIME_LIMIT_S = 5.0
STEPS_BETWEEN_CHECKS = 10_000
"""Instructions of SQLite's machine between two looks at the clock."""
MAX_VALUE_BYTES = 20 * 2**20
MAX_PATTERN_CHARS = 200
"""A longer pattern of LIKE or GLOB is refused, because some take very long within one instruction."""
CELL_CHARS = 400
FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})
TABLE_FUNCTIONS = ("json_each", "json_tree")


@dataclass(frozen=True, slots=True)
class VisibleTable:
    """A table as a planner sees it: what it is, its columns, and the condition on its rows.

    In `rows`, `{study}` is the id of the study, `{test}` the name of the test split, and `{db}` the database.
    """

    about: str
    columns: tuple[str, ...]
    rows: str


_OF_STUDY = "study_id = {study}"
_OF_RUNS = "run_id IN (SELECT id FROM {db}.runs WHERE study_id = {study})"

VISIBLE: Mapping[str, VisibleTable] = MappingProxyType(
    {
        "studies": VisibleTable(
            "this study",
            ("id", "topic", "planner", "status", "created_at"),
            "id = {study}",
        ),
        "hypotheses": VisibleTable(
            "claims to be tested, with their outcome",
            ("id", "key", "iteration", "parent_id", "statement", "rationale", "verdict", "verdict_reason"),
            _OF_STUDY,
        ),
        "experiments": VisibleTable(
            "arms; factors, job and manipulation are JSON",
            ("id", "name", "iteration", "is_baseline", "parent_id", "second_parent_id", "operator", "factors", "job",
             "program_code", "train_environment", "author", "status", "purpose", "manipulation", "note",
             "hypothesis_id", "created_at"),
            _OF_STUDY,
        ),
        "runs": VisibleTable(
            "an arm trained with one seed; rung > 0 is an exploring run that ends at that step",
            ("id", "experiment_id", "seed", "rung", "attempt", "status", "exit_reason", "diagnosis", "training_cost",
             "base_weight_version", "final_weight_version", "created_at", "started_at", "finished_at"),
            _OF_STUDY,
        ),
        "metric_points": VisibleTable(
            "training curves, one row per run, metric and step",
            ("run_id", "name", "step", "value", "recorded_at"),
            _OF_RUNS,
        ),
        "evaluations": VisibleTable(
            "held-out scores by phase (base, final, step-N); details is JSON with rewards, costs and manipulation",
            ("id", "run_id", "phase", "split", "metric", "weight_version", "episodes", "successes", "mean", "stderr",
             "details", "created_at"),
            f"{_OF_RUNS} AND split <> {{test}} AND phase <> 'test'",
        ),
        "episode_samples": VisibleTable(
            "single attempts of scores; messages is JSON",
            ("run_id", "episode_id", "kind", "split", "step", "task_id", "reward", "is_success", "advantage",
             "weight_version", "messages"),
            f"{_OF_RUNS} AND split <> {{test}}",
        ),
        "findings": VisibleTable(
            "what all studies found, of every kind; recipe is JSON",
            ("id", "study_id", "kind", "environment_name", "model", "scope", "iteration", "experiment_id",
             "baseline_id", "metric", "split", "effect", "ci_low", "ci_high", "confidence", "p_value", "p_adjusted",
             "verdict", "summary", "recipe", "created_at", "retracted_at", "retraction"),
            "split <> {test} AND split <> 'test'",
        ),
        "notebook": VisibleTable(
            "what planners, reviewers and the study have noted",
            ("id", "key", "iteration", "kind", "author", "text", "created_at"),
            _OF_STUDY,
        ),
        "program_trials": VisibleTable(
            "trials of programs with the base weights on train tasks; transcripts is JSON",
            ("id", "experiment_id", "code_digest", "attempts", "broken", "mean", "mean_reward", "calls", "tokens",
             "seconds", "passed", "error", "transcripts", "created_at"),
            _OF_STUDY,
        ),
        "reviews": VisibleTable(
            "reviewers' objections to leading arms",
            ("id", "iteration", "experiment_id", "reviewer", "objections", "response", "is_withdrawn", "created_at"),
            _OF_STUDY,
        ),
        "decisions": VisibleTable(
            "how each iteration ended",
            ("id", "iteration", "action", "reason", "created_at"),
            _OF_STUDY,
        ),
        "llm_calls": VisibleTable(
            "requests to the language model of the planner, without their texts",
            ("id", "node", "model", "attempt", "input_tokens", "output_tokens", "cost_usd", "latency_s", "created_at"),
            _OF_STUDY,
        ),
        "events": VisibleTable(
            "what happened, oldest first",
            ("id", "run_id", "severity", "kind", "message", "created_at"),
            f"{_OF_STUDY} AND kind NOT LIKE 'test.%'",
        ),
        "budget_entries": VisibleTable(
            "charges, one per thing charged for",
            ("id", "kind", "key", "amount", "run_id", "created_at"),
            _OF_STUDY,
        ),
    }
)  # fmt: skip


class QueryArguments(ToolArguments):
    sql: str = Field(min_length=1, max_length=20_000, description="One SELECT or WITH statement of SQLite.")


@study_tool(
    "query",
    f"Run one read-only SQL statement on the database of the study, for at most {TIME_LIMIT_S:g} s and {MAX_ROWS} "
    "rows. `tables` lists what there is. What was measured on the test split is not there.",
)
def query_tool(sources: ToolSources, arguments: QueryArguments) -> str:
    if "://" in sources.store.location:
        raise ToolRefused("query needs a study in a SQLite file: use metrics, episodes, code and findings instead")
    if not re.match(r"(select|with)\b", arguments.sql.strip(), re.IGNORECASE):
        raise ToolRefused("query takes one SELECT or WITH statement")
    charter = sources.store.find_charter(sources.study_id)
    test = "test" if charter is None else str(charter.document.get("test_split", "test"))
    return _as_table(*_read(Path(sources.store.location), arguments.sql, sources.study_id, test))


@study_tool("tables", "List the tables that `query` can read, with their columns.")
def tables_tool(sources: ToolSources, arguments: ToolArguments) -> str:
    return "\n".join(f"{name}({', '.join(table.columns)}): {table.about}" for name, table in VISIBLE.items())


def _read(path: Path, sql: str, study_id: str, test_split: str) -> tuple[list[str], list[Sequence[Any]]]:
    """Return the names of the columns, and at most MAX_ROWS + 1 rows. Raises ToolRefused.

    A statement sees views, never tables. A view has the rows of the study and the columns that a planner may see, and
    nothing measured on the test split. SQLite's authorizer allows nothing but reading.
    """
    # The name of the attached database must not be known to the statement: it would lead around the views.
    hidden = f"db_{secrets.token_hex(16)}"
    deadline = time.monotonic() + TIME_LIMIT_S
    with closing(sqlite3.connect(":memory:", uri=True, isolation_level=None)) as connection:
        try:
            connection.execute(f"ATTACH ? AS {hidden}", (f"{path.absolute().as_uri()}?mode=ro",))
            _make_views(connection, hidden, study_id, test_split)
            names = connection.execute(f"SELECT name FROM {hidden}.sqlite_master").fetchall()
            tables = frozenset(str(name).lower() for (name,) in names)
            for function in TABLE_FUNCTIONS:
                # SQLite makes it at its first use, which the authorizer would refuse.
                connection.execute(f"SELECT 1 FROM {function}('[]')")
            connection.execute("PRAGMA query_only = ON")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_CHARS)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)
            connection.set_authorizer(_authorizer(hidden, tables))
            connection.set_progress_handler(lambda: int(time.monotonic() > deadline), STEPS_BETWEEN_CHECKS)
            cursor = connection.execute(sql)
            rows = cursor.fetchmany(MAX_ROWS + 1)
            return [name for name, *_ in cursor.description or ()], rows
        except (sqlite3.Error, sqlite3.Warning, OverflowError, MemoryError) as error:
            if time.monotonic() > deadline:
                raise ToolRefused(f"the statement took longer than {TIME_LIMIT_S:g} s: narrow it") from None
            raise ToolRefused(f"the statement was refused: {str(error).replace(f'{hidden}.', '')}") from None


def _make_views(connection: sqlite3.Connection, hidden: str, study_id: str, test_split: str) -> None:
    quoted = {"study": _quoted(study_id), "test": _quoted(test_split), "db": hidden}
    for name, table in VISIBLE.items():
        rows = table.rows.format(**quoted)
        connection.execute(
            f"CREATE TEMP VIEW {name} AS SELECT {', '.join(table.columns)} FROM {hidden}.{name} WHERE {rows}"
        )


def _authorizer(hidden: str, tables: frozenset[str]) -> Any:
    """Return the function that SQLite asks before it prepares a statement: it allows reading what VISIBLE names.

    `tables` are the names of all tables behind the views.
    """

    def allow(action: int, first: str | None, second: str | None, database: str | None, _inside: str | None) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            return sqlite3.SQLITE_DENY if (second or "").lower() in FORBIDDEN_FUNCTIONS else sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            is_view = database in ("temp", hidden) and first in VISIBLE
            # `count(*)` of a table that the statement makes for itself with WITH has neither a column nor a database.
            is_own = database is None and second == "" and not _is_of_database((first or "").lower(), tables)
            return sqlite3.SQLITE_OK if is_view or is_own or first in TABLE_FUNCTIONS else sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_DENY

    return allow


def _is_of_database(name: str, tables: frozenset[str]) -> bool:
    return name in tables or name.startswith(("sqlite_", "pragma_", "dbstat"))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _as_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [" | ".join(names)]
    left = PAGE_CHARS - len(lines[0])
    for row in rows[:MAX_ROWS]:
        line = " | ".join(map(_cell, row))
        if len(line) > left:
            break
        left -= len(line) + 1
        lines.append(line)
    shown = len(lines) - 1
    found = f"more than {MAX_ROWS}" if len(rows) > MAX_ROWS else str(len(rows))
    note = f"{found} rows" if shown == len(rows) else f"{shown} of {found} rows are shown: narrow the statement"
    return f"{as_data(chr(10).join(lines))}\n{note}"


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return clip(" ".join(str(value).split()), CELL_CHARS)
