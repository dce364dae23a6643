"""The explorer on an exploring study: its tree, its notebook, and runs that claim nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from explorer_samples import words
from exploring_study import BASELINE, MENDED, PRETENDER, WINNER, WITHOUT_AGENT, ExploringStudy, complete_study

from experiments_db import ArmFailure, lay_out_experiments, open_store, read_search_arms
from ui.contents import best_arm, read_contents


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a finished exploring study; only to be read."""
    home = tmp_path_factory.mktemp("searched")
    with open_store(home / "research.db") as store:
        complete_study(store, home)
    return home / "research.db"


def test_the_search_section_shows_the_tree_and_the_confirmed_arm(open_page, searched: Path) -> None:
    page = open_page("study", searched, section="Search")
    assert not page.error
    shown = words(page)
    assert "10 arms explored with 16 short runs, 4.75 full runs" in shown
    assert page.selectbox(key="search_arm").value == WINNER
    assert "145 of 160 attempts pass" in shown and "+def reward(task, transcript, grade):" in shown


def test_an_arm_that_is_chosen_shows_its_change_its_failure_and_its_trials(open_page, searched: Path) -> None:
    page = open_page("study", searched, section="Search")
    page.selectbox(key="search_arm").set_value(PRETENDER).run()
    assert not page.exception
    shown = words(page)
    assert "not what it claims to be" in shown and "6 of 64 attempts pass" in shown
    assert "+# check" in shown and "8 attempts with the base weights" in shown
    assert "EXIQ <b>" in shown


def test_the_notebook_section_has_notes_reviews_and_questions(open_page, searched: Path) -> None:
    page = open_page("study", searched, section="Notebook")
    assert not page.error
    shown = words(page)
    for text in ("Thinking first matters", "The program holds a table", "Go on, or stop?"):
        assert text in shown
    assert "Question 2 (decide) waits for an answer." in shown


def test_scores_and_ranking_come_from_full_runs_alone(searched: Path) -> None:
    with open_store(searched, read_only=True) as store:
        contents = read_contents(store, store.list_studies()[0].id)
    ranked = [item for item in contents.ranking if item.mean is not None]
    assert all(len(item.seeds) == 3 for item in ranked) and len(ranked) == 4
    assert (len(contents.claiming), len(contents.short)) == (12, 16)
    best = best_arm(contents)
    assert best is not None and best.arm.name == WINNER


def test_the_runs_page_counts_short_runs_apart_and_shows_their_step(open_page, searched: Path) -> None:
    page = open_page("runs", searched)
    assert "12 runs and 16 short runs of exploration" in words(page)
    assert sorted(set(page.dataframe[0].value["To step"].dropna())) == [2, 4, 8]


def test_a_study_that_still_explores_says_that_nothing_is_confirmed(open_page, tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        ExploringStudy(store, tmp_path).explore(1)
    page = open_page("study", tmp_path / "research.db", section="Search")
    assert not page.error
    assert "Nothing is confirmed on fresh seeds yet" in words(page)


def test_places_of_arms_do_not_depend_on_later_arms_having_parents_that_are_gone(searched: Path) -> None:
    with open_store(searched, read_only=True) as store:
        study_id = store.list_studies()[0].id
        arms = {arm.name: arm for arm in read_search_arms(store, study_id)}
        some = [arm.experiment for arm in arms.values() if arm.name != BASELINE]
    assert len(set(lay_out_experiments(some).values())) == len(some)
    assert arms[MENDED].failure is None and arms[PRETENDER].failure is ArmFailure.NOT_AS_CLAIMED
    assert arms[WITHOUT_AGENT].depth == arms[WINNER].depth + 1
