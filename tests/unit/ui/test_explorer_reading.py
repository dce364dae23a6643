"""What is read once, and read again only when the database has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from explorer_study import add_study, create_database

from experiments_db import ExperimentStore, RecordNotFound, open_store
from ui import elements
from ui.contents import rank_arms
from ui.reading.answers import MOST_ANSWERS, KeptAnswers
from ui.reading.study_reader import StudyReader


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return create_database(tmp_path, add_study)


@pytest.fixture
def answers(database: Path) -> Iterator[KeptAnswers]:
    kept = KeptAnswers(open_store(database, read_only=True))
    yield kept
    kept.close()


@pytest.fixture
def writer(database: Path) -> Iterator[ExperimentStore]:
    with open_store(database) as store:
        yield store


def test_a_question_is_read_again_only_after_a_write(answers: KeptAnswers, writer) -> None:
    asked: list[int] = []

    def read() -> int:
        asked.append(1)
        return len(asked)

    assert [answers.ask("question", read) for _ in range(3)] == [1, 1, 1]
    writer.create_study("Another topic", planner="rules")
    assert [answers.ask("question", read) for _ in range(3)] == [2, 2, 2]


def test_an_answer_that_a_page_changes_stays_as_it_was_read(answers: KeptAnswers) -> None:
    frame, rows = pd.DataFrame({"a": [1]}), [1]
    given = answers.ask("frame", lambda: frame)
    given["b"] = 2
    given.loc[0, "a"] = 3
    answers.ask("rows", lambda: rows).append(2)
    assert answers.ask("frame", lambda: frame).to_dict("list") == {"a": [1]}
    assert answers.ask("rows", lambda: rows) == [1]


def test_only_the_newest_answers_are_kept(answers: KeptAnswers) -> None:
    for number in range(MOST_ANSWERS + 1):
        answers.ask(number, lambda: "old")
    assert answers.ask(0, lambda: "new") == "new" and answers.ask(MOST_ANSWERS, lambda: "new") == "old"


def test_an_error_is_no_answer(answers: KeptAnswers) -> None:
    with pytest.raises(RecordNotFound):
        answers.ask("run", lambda: answers.store.get_run("run-unknown"))
    assert answers.ask("run", lambda: "found") == "found"


def test_contents_of_a_study_are_the_same_object_until_it_is_written(writer) -> None:
    study = writer.list_studies()[0]
    reader = StudyReader(writer, study.id)
    first = reader.read()
    writer.create_study("Another topic", planner="rules")
    assert reader.read() is first and rank_arms(first) is rank_arms(first)
    writer.append_event(study.id, "kind", "message")
    assert reader.read() is not first and reader.read() == StudyReader(writer, study.id).read()


def test_of_many_seeds_a_ranking_draws_a_part_with_the_extremes() -> None:
    many = tuple((seed, seed * 37 % 501 / 500) for seed in range(501))
    drawn = elements._thinned(many)
    scores = [score for _, score in drawn]
    assert len(drawn) == elements.MOST_DOTS and (min(scores), max(scores)) == (0.0, 1.0)
    assert elements._thinned(many[:7]) == many[:7]
