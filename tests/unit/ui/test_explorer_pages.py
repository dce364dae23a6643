"""Every page on real databases: full, empty, crowded, hostile, missing and broken ones."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from explorer_samples import ARMS, HOSTILE, create_database, make_database, words

from experiments_db import StudyStatus, lease_name, open_store

PAGES = ("home", "studies", "study", "runs", "run", "compare")
TRAINING_PAGES = ("trainings", "episodes", "servers")
# Each section with something that only it shows.
STUDY_SECTIONS = {
    "Results": "Scored by the evaluator",
    "Plan": "SHA-256",
    "Decisions": "All arms are decided",
    "Notebook": "Nothing is written down yet",
    "Budget": "no limit",
    "Events": "At least",
}
RUN_SECTIONS = {
    "Curves": "Smoothing",
    "Change": "parent",
    "Config": "As the server resolved it",
    "Code": "def attempt(client",
    "Log": "step 1 reward 0.31",
    "Events": "seed 0 trains",
    "Evaluations": "d3fc5690ab8b",
    "Episodes": "Of each score some are kept",
}
COMPARE_SECTIONS = {
    "Scores": "Diamond: mean",
    "Curves": "actor/entropy",
    "Config": "Only what differs",
    "Code": "From",
    "Factor effects": "The line joins the means",
}


def query(database: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return connection.execute(sql, values).fetchall()
    finally:
        connection.close()


def best_by_sql(database: Path, study_id: str) -> tuple[str, str]:
    """Name and mean of the best arm, to three decimals."""
    return query(
        database,
        """SELECT experiments.name, printf('%.3f', avg(evaluations.mean)) FROM evaluations
           JOIN runs ON runs.id = evaluations.run_id JOIN experiments ON experiments.id = runs.experiment_id
           WHERE runs.study_id = ? AND runs.status = 'finished' AND phase = 'final' AND split = 'validation'
           GROUP BY experiments.id ORDER BY avg(evaluations.mean) DESC LIMIT 1""",
        study_id,
    )[0]


def study_ids(database: Path) -> list[str]:
    return [row[0] for row in query(database, "SELECT id FROM studies ORDER BY created_at")]


def run_ids(database: Path, status: str) -> list[str]:
    return [row[0] for row in query(database, "SELECT id FROM runs WHERE status = ? ORDER BY created_at", status)]


@pytest.mark.parametrize("section", STUDY_SECTIONS)
def test_study_page_shows_each_section(open_page, filled: Path, section: str) -> None:
    page = open_page("study", filled, study=study_ids(filled)[0], section=section)
    assert not page.error
    assert page.title[0].value.startswith("Which learning rate trains word reversal best")
    assert STUDY_SECTIONS[section] in words(page)


@pytest.mark.parametrize("section", RUN_SECTIONS)
def test_run_page_shows_each_section_also_of_a_run_that_failed_at_once(open_page, filled: Path, section: str) -> None:
    page = open_page("run", filled, run=run_ids(filled, "finished")[0], part=section)
    failed = open_page("run", filled, run=run_ids(filled, "failed")[0], part=section)
    assert not page.error and not page.warning and not failed.error and not failed.warning
    assert RUN_SECTIONS[section] in words(page)


@pytest.mark.parametrize("section", COMPARE_SECTIONS)
def test_compare_page_shows_each_section_for_arms_and_for_runs(open_page, filled: Path, section: str) -> None:
    arms = open_page("compare", filled, study=study_ids(filled)[0], aspect=section)
    runs = open_page("compare", filled, runs=",".join(run_ids(filled, "finished")[:3]), aspect=section)
    assert not arms.exception and not runs.exception
    assert not runs.error and len(runs.multiselect(key="run_choices").value) == 3
    assert COMPARE_SECTIONS[section] in words(arms)


def test_studies_without_a_process_and_failed_ones_say_so(open_page, tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        killed = store.create_study("killed", planner="rules")
        store.acquire_lease(lease_name(killed.id), "elsewhere:1:1", 1e-9)
        failed = store.create_study("failed", planner="rules")
        store.set_study_status(failed.id, StudyStatus.FAILED, "no arm has a score")

    for page in ("studies", "study"):
        shown = open_page(page, tmp_path / "research.db", study=killed.id)
        assert any("No process works on this study" in item.value for item in shown.warning)
        assert [item.value for item in shown.code] == [f"researcher resume {killed.id} --home {tmp_path}"]
    shown = open_page("study", tmp_path / "research.db", study=failed.id)
    assert [item.value for item in shown.error] == ["The study failed: no arm has a score"]
    assert not shown.warning


def test_only_the_words_of_a_planner_are_said_to_be_a_planners(open_page, tmp_path: Path) -> None:
    def decide(store, home: Path) -> None:
        for author in ("llm", "study"):
            study = store.create_study(author, planner="llm")
            doubted = {"suspect": {"dense": "It won by code."}} if author == "llm" else {}
            details = {"author": author, **doubted}
            store.record_decision(study.id, 0, action="stop", reason="Enough.", details=details)

    database = create_database(tmp_path, decide)
    said = [words(open_page("study", database, study=study, section="Decisions")) for study in study_ids(database)]
    assert ["Enough." in text for text in said] == [True, True]
    assert ["The planner's words, unchecked." in text for text in said] == [True, False]
    assert ["suspect: It won by code." in text for text in said] == [True, False]


@pytest.mark.parametrize("page", ["studies", "study", "compare"])
def test_the_best_arm_is_the_one_that_sql_gives(open_page, filled: Path, page: str) -> None:
    study_id = study_ids(filled)[0]
    name, mean = best_by_sql(filled, study_id)
    shown = open_page(page, filled, study=study_id)
    metrics = [metric for metric in shown.metric if metric.label.startswith("Best arm")]
    assert metrics and all(metric.value == mean and name in metric.label for metric in metrics)


def test_studies_page_lists_and_filters(open_page, filled: Path) -> None:
    page = open_page("studies", filled)
    assert "2 studies" in words(page)
    page.text_input(key="topic").set_value("no such topic").run()
    assert "No study matches." in words(page)


def test_runs_page_filters_by_an_expression(open_page, filled: Path) -> None:
    page = open_page("runs", filled, study=study_ids(filled)[0])
    assert len(page.dataframe[0].value) == 10
    page.text_input(key="filter").set_value("status=failed").run()
    assert not page.exception
    assert len(page.dataframe[0].value) == 1 and "1 of 10 runs" in words(page)
    page.text_input(key="filter").set_value("lr>=0.001 final>0").run()
    assert not page.exception and set(page.dataframe[0].value["lr"]) <= {0.001, 0.01}
    page.text_input(key="filter").set_value("speed>1").run()
    assert not page.exception and "no column" in page.warning[0].value


def test_runs_are_grouped_with_the_mean_of_their_scores(open_page, filled: Path) -> None:
    page = open_page("runs", filled, study=study_ids(filled)[0], group="lr")
    table = page.dataframe[0].value
    assert not page.exception and len(table) == len(ARMS) and sum(table["Runs"]) == 10
    assert {"Final (validation)", "Final (validation) ±"} <= set(table.columns)


def test_the_last_value_of_a_metric_becomes_a_column_of_the_runs(open_page, filled: Path) -> None:
    page = open_page("runs", filled, study=study_ids(filled)[0])
    page.multiselect(key="columns").set_value(["actor/entropy"]).run()
    assert not page.exception and page.dataframe[0].value["actor/entropy"].notna().any()


@pytest.mark.parametrize("page", [*PAGES, *TRAINING_PAGES])
def test_an_empty_database_says_how_it_is_filled(open_page, tmp_path: Path, page: str) -> None:
    shown = open_page(page, create_database(tmp_path))
    assert not shown.error and ("swarm train" if page in TRAINING_PAGES else "researcher start") in words(shown)


@pytest.mark.parametrize("page", PAGES)
def test_a_missing_database_says_how_to_start_a_study(open_page, tmp_path: Path, page: str) -> None:
    shown = open_page(page, tmp_path / "none.db")
    assert "No studies yet" in words(shown) and "researcher start" in words(shown)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no database", "not a SQLite database"),
        ("of another version", "another version"),
        ("cut off", "not usable"),
        ("of another program", "holds other tables"),
    ],
)
def test_a_database_that_cannot_be_read_is_told_in_one_line(open_page, tmp_path: Path, kind: str, said: str) -> None:
    shown = open_page("studies", make_database(tmp_path, kind))
    assert len(shown.error) == 1 and said in shown.error[0].value.replace("\\", "")


@pytest.mark.parametrize(
    ("page", "key"),
    [
        ("run", "run"), ("study", "study"), ("compare", "runs"), ("training", "training"), ("episodes", "training"),
        ("episodes", "run"), ("episodes", "study"),
    ],
)  # fmt: skip
def test_an_unknown_id_is_told_in_one_line(open_page, filled: Path, page: str, key: str) -> None:
    shown = open_page(page, filled, **{key: HOSTILE})
    assert len(shown.warning) == 1
    assert "there is no" in shown.warning[0].value


def test_the_address_may_name_a_file_but_no_server(open_page, filled: Path, tmp_path: Path) -> None:
    here = open_page("studies", tmp_path / "none.db", db=str(filled))
    assert "2 studies" in words(here)
    there = open_page("studies", filled, db="postgresql://elsewhere/x")
    assert len(there.error) == 1


def test_foreign_text_is_never_markup(open_page, filled: Path) -> None:
    for section in STUDY_SECTIONS:
        page = open_page("study", filled, study=study_ids(filled)[0], section=section)
        for part in [*page.markdown, *page.caption, *page.title]:
            assert HOSTILE not in part.value.replace(f"`lr=0.01 {HOSTILE}`", "")
            assert ":red[no]" not in part.value and "[x](javascript" not in part.value


def test_runs_page_shows_numeric_factors_with_all_their_digits(open_page, filled: Path) -> None:
    columns = json.loads(open_page("runs", filled).dataframe[0].proto.columns)
    assert columns["lr"]["type_config"]["format"] == "plain"
