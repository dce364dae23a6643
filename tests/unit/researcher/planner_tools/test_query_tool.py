"""What a planner can and cannot read with SQL: no write, no file, no table behind a view, nothing of the test split."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_study import SimulatedStudy, Simulation

from experiments_db import EpisodeSample, EpisodeSummary, NoteKind, Verdict
from researcher.planner.tools import query as query_module
from researcher.planner.tools.base import Toolbox, ToolRefused
from researcher.planner.tools.build import build_toolbox
from researcher.planner.tools.query import VISIBLE, query_tool
from researcher.planner.tools.sources import ToolSources
from swarm.environments import load_environment

SECRET = "answer-of-the-test-split"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedStudy]:
    """A finished study with scores, episodes, a finding and an event of its test split, and a second study."""
    simulated = Simulation(seeds=2, failed=()).carry_out(tmp_path_factory.mktemp("simulated"))
    store, run = simulated.store, simulated.runs("lr=0.003")[0]
    for split, text in (("validation", "seen"), ("test", SECRET)):
        summary = EpisodeSummary(run.id, f"ep-{split}", "eval", split, 5, "t", 1.0, True, None, 5, time.time())
        store.record_episodes(run.id, [EpisodeSample(summary, ({"role": "user", "content": text},), ())])
    arm = simulated.arm("lr=0.003")
    store.record_finding(
        simulated.study_id, iteration=9, experiment_id=arm.id, baseline_id=None, metric="m", split="test", effect=0.7,
        ci_low=None, ci_high=None, confidence=0.95, p_value=None, p_adjusted=None, verdict=Verdict.KEEP, method="m",
        run_ids=[run.id], summary=SECRET,
    )  # fmt: skip
    store.append_event(simulated.study_id, "test.scored", SECRET)
    other = store.create_study(SECRET, planner="rules", settings={"webhook": SECRET})
    store.write_note(other.id, "key", NoteKind.LESSON, SECRET, iteration=0, author="rules")
    yield simulated
    store.close()


@pytest.fixture(scope="module")
def toolbox(study: SimulatedStudy) -> Toolbox:
    return build_toolbox(ToolSources(study.store, study.study_id, load_environment))


def ask(toolbox: Toolbox, sql: str) -> str:
    return toolbox.call("query", {"sql": sql})


def test_scores_of_the_search_split_are_read_with_their_arms(toolbox: Toolbox) -> None:
    found = ask(
        toolbox,
        "SELECT e.name, r.seed, v.mean FROM evaluations v JOIN runs r ON r.id = v.run_id "
        "JOIN experiments e ON e.id = r.experiment_id WHERE v.phase = 'final' ORDER BY e.name, r.seed",
    )
    assert "name | seed | mean" in found and "6 rows" in found
    assert "lr=0.003 | 1 | 0." in found


def test_every_column_of_every_table_that_is_listed_can_be_read(toolbox: Toolbox) -> None:
    listed = toolbox.call("tables", {})
    for name, table in VISIBLE.items():
        assert f"{name}({', '.join(table.columns)})" in listed
        assert "BEGIN DATA" in ask(toolbox, f"SELECT {', '.join(table.columns)} FROM {name} LIMIT 1")


def test_json_in_a_column_can_be_taken_apart(toolbox: Toolbox) -> None:
    found = ask(toolbox, "SELECT count(*) AS n FROM evaluations v, json_each(v.details, '$.rewards') WHERE v.id = 1")
    assert "\n40\n" in found


@pytest.mark.parametrize("table", sorted(VISIBLE))
def test_nothing_of_the_test_split_and_of_other_studies_is_in_any_table(toolbox: Toolbox, table: str) -> None:
    found = ask(toolbox, f"SELECT * FROM {table}")
    assert SECRET not in found
    columns = VISIBLE[table].columns
    if "split" in columns:
        assert "\n0\n" in ask(toolbox, f"SELECT count(*) AS n FROM {table} WHERE split = 'test'")


AROUND = [
    "SELECT * FROM main.evaluations",
    "WITH evaluations AS (SELECT * FROM main.evaluations) SELECT * FROM evaluations",
    "SELECT * FROM leases",
    "SELECT count(*) FROM leases",
    "SELECT 1 FROM charters",
    "SELECT count(*) FROM sqlite_master",
    "SELECT * FROM charters",
    "SELECT * FROM artifacts",
    "SELECT settings FROM studies",
    "SELECT samples FROM episode_samples",
    "SELECT server_url FROM runs",
    "SELECT sql FROM sqlite_master",
    "SELECT sql FROM sqlite_schema",
    "SELECT sql FROM sqlite_temp_master",
    "SELECT * FROM sqlite_temp_schema",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_table_list",
    "SELECT * FROM dbstat",
]


@pytest.mark.parametrize("sql", AROUND)
def test_no_statement_gets_around_the_views(toolbox: Toolbox, sql: str) -> None:
    with pytest.raises(ToolRefused) as refused:
        ask(toolbox, sql)
    assert "db_" not in str(refused.value), "the name of the attached database must not be told"


CHANGES = [
    "INSERT INTO notebook (text) VALUES ('x')",
    "WITH x AS (SELECT 1) INSERT INTO notebook (text) SELECT * FROM x",
    "UPDATE evaluations SET mean = 1",
    "DELETE FROM runs",
    "DROP TABLE runs",
    "CREATE TABLE t (a)",
    "CREATE TEMP VIEW v AS SELECT 1",
    "ATTACH 'file:/etc/passwd' AS p",
    "PRAGMA query_only = OFF",
    "PRAGMA database_list",
    "VACUUM INTO '/tmp/copy.db'",
    "SELECT 1; DELETE FROM runs",
    "EXPLAIN SELECT 1",
    "SELECT load_extension('/tmp/evil.so')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('/tmp/x', 'y')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT length(zeroblob(900000000))",
    "",
]


@pytest.mark.parametrize("sql", CHANGES)
def test_no_statement_writes_attaches_or_reads_files(toolbox: Toolbox, study: SimulatedStudy, sql: str) -> None:
    before = study.store.compute_digest(study.study_id)
    with pytest.raises(ToolRefused):
        ask(toolbox, sql)
    assert study.store.compute_digest(study.study_id) == before


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x",
        "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT n FROM x ORDER BY -n",
        "SELECT count(*) FROM metric_points a, metric_points b, metric_points c, metric_points d, metric_points e, "
        "metric_points f, metric_points g, metric_points h",
    ],
)
def test_a_statement_that_runs_long_is_ended(toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    monkeypatch.setattr(query_module, "TIME_LIMIT_S", 0.3)
    with pytest.raises(ToolRefused, match="took longer"):
        ask(toolbox, sql)


def test_many_rows_are_cut_and_counted(toolbox: Toolbox) -> None:
    counting = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x LIMIT 1000) SELECT n{} FROM x"
    assert "200 of more than 200 rows are shown" in ask(toolbox, counting.format(""))
    wide = ask(toolbox, counting.format(", replace(hex(zeroblob(150)), '00', 'word ') AS filling"))
    assert "rows are shown" in wide and "END DATA" in wide and "left out ..." in wide


def test_sql_is_refused_on_a_server_database(study: SimulatedStudy) -> None:
    class Elsewhere:
        """A store of a server database, as far as the tool asks it."""

        location = "postgresql://host/studies"

    sources = replace(ToolSources(study.store, study.study_id, load_environment), store=Elsewhere())  # pyright: ignore
    query = query_tool(sources)
    with pytest.raises(ToolRefused, match="SQLite file"):
        query.call(query.arguments.model_validate({"sql": "SELECT 1"}))


def test_a_database_that_is_being_written_to_is_read_as_it_stands(study: SimulatedStudy, toolbox: Toolbox) -> None:
    with closing(sqlite3.connect(Path(study.database), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert "rows" in ask(toolbox, "SELECT id FROM runs")
        connection.execute("ROLLBACK")
