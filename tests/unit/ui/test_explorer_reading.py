"""What is read of a study, and when it is read again: which runs count, which arm is best, and its interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from explorer_samples import add_study, create_database

from experiments_db import RecordNotFound, RunStatus, StoredCharter, open_store
from ui.contents import StudyContents, best_arm, rank_arms
from ui.reading.study_reader import StudyReader


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> StudyContents:
    path = create_database(tmp_path_factory.mktemp("contents"), add_study)
    with open_store(path, read_only=True) as store:
        return StudyReader(store, store.list_studies()[0].id).read()


def test_arms_are_ranked_best_first_with_their_intervals(contents: StudyContents) -> None:
    ranked = rank_arms(contents)
    means = [item.mean for item in ranked]
    assert means == sorted(means, key=lambda mean: -(mean or 0))
    assert [len(item.seeds) for item in ranked] == [3, 3, 3]
    assert all(item.ci_low is not None and item.ci_high is not None for item in ranked)
    assert ranked[0].base_mean == pytest.approx(0.314) and ranked[0].test_mean is not None


def test_the_least_is_best_where_the_charter_minimizes(contents: StudyContents) -> None:
    assert contents.charter is not None
    charter: StoredCharter = replace(contents.charter, document={**contents.document, "direction": "minimize"})
    ranked = rank_arms(replace(contents, charter=charter))
    assert ranked == tuple(reversed(rank_arms(contents)))


def test_an_interval_over_other_runs_is_not_shown(contents: StudyContents) -> None:
    fewer = replace(contents, runs=contents.runs[:-1])
    by_arm = {item.arm.name: item for item in rank_arms(fewer)}
    changed = contents.arms_by_id[contents.runs[-1].experiment_id].name
    assert by_arm[changed].ci_low is None
    assert all(item.ci_low is not None for name, item in by_arm.items() if name != changed)


def test_without_scores_no_arm_is_best(contents: StudyContents) -> None:
    assert best_arm(replace(contents, evaluations=())) is None
    assert [item.arm for item in rank_arms(replace(contents, evaluations=()))] == list(contents.experiments)


def test_arm_that_was_disqualified_is_ranked_last_and_never_the_best(contents: StudyContents) -> None:
    first, second, third = (item.arm for item in rank_arms(contents))
    (decision,) = contents.decisions
    ruled_out = {"disqualified": {first.name: "Python", second.name: "Python"}}
    out = replace(contents, decisions=(replace(decision, details=ruled_out),))

    best = best_arm(out)

    assert best is not None and best.arm == third
    assert [item.arm for item in rank_arms(out)] == [third, first, second]
    verdicts = {finding.experiment_id: out.verdict_of(finding) for finding in out.last_findings}
    assert verdicts == {second.id: "disqualified", third.id: "worse"}


def test_location_is_the_address_then_the_variables_then_the_default() -> None:
    from ui import queries

    both = {"SWARM_RESEARCH_DB": "given.db", "SWARM_HOME": "/home"}
    assert queries.database_location("asked.db", both) == "asked.db"
    assert queries.database_location(None, both) == "given.db"
    assert queries.database_location("", {"SWARM_HOME": "/home"}) == "/home/research.db"
    assert Path(queries.database_location(None, {})) == Path("runs/research.db")


def test_contents_are_the_same_object_until_the_study_is_written(writer) -> None:
    study_id = writer.list_studies()[0].id
    reader = StudyReader(writer, study_id)
    before = reader.read()
    writer.create_study("Another topic", planner="rules")
    assert reader.read() is before and rank_arms(before) is rank_arms(before)
    run = writer.claim_run(before.experiments[0].id, 77, "one-more")
    writer.update_run(run.id, status=RunStatus.LAUNCHING)
    writer.create_experiment(study_id, "one more arm", factors={}, job={})
    after = reader.read()
    assert len(after.runs) == len(before.runs) + 1 and after == StudyReader(writer, study_id).read()


def test_arms_judged_by_another_number_are_ranked_by_the_numbers_of_the_analysis(contents: StudyContents) -> None:
    assert contents.charter is not None
    charter: StoredCharter = replace(contents.charter, document={**contents.document, "judged_by": "spread"})
    by_spread = replace(contents, charter=charter)
    numbers = {arm.name: 0.1 * place for place, arm in enumerate(contents.experiments, 1)}
    run_of = {
        arm.name: next(run.id for run in contents.runs if run.experiment_id == arm.id) for arm in contents.experiments
    }
    arms = [
        {"arm": name, "scores": {"0": number}, "base_scores": {}, "run_ids": [run_of[name]]}
        for name, number in reversed(numbers.items())
    ]
    ranked = rank_arms(replace(by_spread, analysis={"arms": arms}))

    assert [(item.arm.name, item.mean) for item in ranked] == list(numbers.items())
    assert by_spread.metric == by_spread.findings[-1].metric


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return create_database(tmp_path, add_study)


@pytest.fixture
def answers(database: Path) -> Iterator[Any]:
    from ui.reading.answers import KeptAnswers

    kept = KeptAnswers(open_store(database, read_only=True))
    yield kept
    kept.close()


@pytest.fixture
def writer(database: Path) -> Iterator[Any]:
    with open_store(database) as store:
        yield store


def test_a_question_is_read_again_only_after_a_write(answers, writer) -> None:
    asked: list[int] = []

    def read() -> int:
        asked.append(1)
        return len(asked)

    assert [answers.ask("question", read) for _ in range(3)] == [1, 1, 1]
    writer.create_study("Another topic", planner="rules")
    assert [answers.ask("question", read) for _ in range(3)] == [2, 2, 2]


def test_an_answer_that_a_page_changes_stays_as_it_was_read(answers) -> None:
    import pandas as pd

    frame, rows = pd.DataFrame({"a": [1]}), [1]
    given = answers.ask("frame", lambda: frame)
    given["b"] = 2
    given.loc[0, "a"] = 3
    answers.ask("rows", lambda: rows).append(2)
    assert answers.ask("frame", lambda: frame).to_dict("list") == {"a": [1]}
    assert answers.ask("rows", lambda: rows) == [1]


def test_only_the_newest_answers_are_kept(answers) -> None:
    from ui.reading.answers import MOST_ANSWERS

    for number in range(MOST_ANSWERS + 1):
        answers.ask(number, lambda: "old")
    assert answers.ask(0, lambda: "new") == "new" and answers.ask(MOST_ANSWERS, lambda: "new") == "old"


def test_an_error_is_no_answer(answers) -> None:
    with pytest.raises(RecordNotFound):
        answers.ask("run", lambda: answers.store.get_run("run-unknown"))
    assert answers.ask("run", lambda: "found") == "found"


def test_of_many_seeds_a_ranking_draws_a_part_with_the_extremes() -> None:
    from ui import elements

    many = tuple((seed, seed * 37 % 501 / 500) for seed in range(501))
    drawn = elements._thinned(many)
    scores = [score for _, score in drawn]
    assert len(drawn) == elements.MOST_DOTS and (min(scores), max(scores)) == (0.0, 1.0)
    assert elements._thinned(many[:7]) == many[:7]
