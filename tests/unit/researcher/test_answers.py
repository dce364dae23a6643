"""The answer of a study begins with what was asked, in the words of the question, and with what the judge found."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numpy.random import default_rng

from bench.judge.simulation import Truth, play_study
from experiments_db import IN_MEAN, IN_MEDIAN_PAIR, open_store
from researcher.charter import Asked, Charter, Design
from researcher.planner.rules import RulesPlanner
from researcher.question.wording import describe_question
from researcher.report.answer import answer, answer_relation
from researcher.report.numbers.facts import StudyFacts
from researcher.report.numbers.gather import gather
from researcher.report.recommendation import recommendation
from researcher.report.summary import summarize
from researcher.study.settings import StudySettings

LR = "lr=0.001,0.003"
GROUPS = "num_repeat=4,8"
KL = "use_kl_loss=false,true"


def play(folder: Path, truth: Truth, **flags: Any) -> StudyFacts:
    """A study that the real nodes carried out with the scores of the truth."""
    settings = StudySettings.model_validate({"family": "reverse", "seeds": 9, **flags})
    framed = RulesPlanner().frame(settings.request("A title"))
    charter = replace(framed, metric_range=(0.0, 1.0), judged_by=settings.judged_by)
    path = folder / "research.db"
    with open_store(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as database:
        play_study(store, database, charter, RulesPlanner(), truth, default_rng(1))
        (study,) = store.list_studies()
        return gather(store, study.id)


TWO_FACTORS = {"vary": (LR, GROUPS), "design": Design.FACTORIAL}
LOW, HIGH = "lr=0.001 num_repeat=8", "lr=0.003 num_repeat=8"
LOW_FEW, HIGH_FEW = "lr=0.001 num_repeat=4", "lr=0.003 num_repeat=4"


@pytest.mark.parametrize(
    ("flags", "scores", "begins"),
    [
        ({"vary": (LR,)}, {"lr=0.003": 0.8}, f"Learning rate matters for word reversal {IN_MEDIAN_PAIR}."),
        ({"vary": (LR,)}, {"lr=0.003": 0.2}, f"Learning rate matters for word reversal {IN_MEDIAN_PAIR}."),
        ({"vary": (LR,)}, {}, f"No other learning rate is better for word reversal {IN_MEDIAN_PAIR}."),
        (
            {"vary": (LR,), "asked": Asked.EQUAL},
            {"lr=0.003": 0.8},
            f"lr=0.003 and lr=0.001 differ by more than 0.02 {IN_MEAN}, and lr=0.003 is the better one: +0.2",
        ),
        (
            {"vary": (KL,), "asked": Asked.NEEDED},
            {"use_kl_loss=true": 0.8},
            f"KL term is needed for word reversal {IN_MEDIAN_PAIR} (",
        ),
        (
            {"vary": (KL,), "asked": Asked.NEEDED},
            {"use_kl_loss=true": 0.2},
            f"KL term is not needed for word reversal {IN_MEDIAN_PAIR} (",
        ),
        (
            {"vary": ("num_repeat=4,8",), "asked": Asked.NEEDED},
            {"num_repeat=8": 0.8},
            f"num_repeat=4 is not enough for word reversal {IN_MEDIAN_PAIR} (",
        ),
        (
            {**TWO_FACTORS, "asked": Asked.MATTERS_MORE},
            {HIGH: 0.8, HIGH_FEW: 0.8, LOW_FEW: 0.52},
            "Learning rate matters more for word reversal than group size by the means (",
        ),
        (
            {**TWO_FACTORS, "asked": Asked.MATTERS_MORE},
            {HIGH: 0.52, HIGH_FEW: 0.8, LOW_FEW: 0.8},
            "Group size matters more for word reversal than learning rate by the means (",
        ),
        (
            {**TWO_FACTORS, "asked": Asked.INTERACTION},
            {HIGH_FEW: 0.9},
            "Learning rate and group size interact in word reversal by the means (",
        ),
        (
            {"vary": ("lr=0.0003,0.001,0.003",), "asked": Asked.BEST},
            {"lr=0.003": 0.8},
            f"lr=0.003 is best {IN_MEDIAN_PAIR}: ",
        ),
        (
            {"vary": ("lr=0.0003,0.001,0.003",), "asked": Asked.BEST},
            {"lr=0.001": 0.8},
            f"lr=0.001 is best {IN_MEDIAN_PAIR}: ",
        ),
    ],
)
def test_answer_begins_with_the_relation_that_is_asked(
    tmp_path: Path, flags: Mapping[str, Any], scores: Mapping[str, float], begins: str
) -> None:
    facts = play(tmp_path, Truth(means=scores, deviation=0.02), **flags)
    assert answer(facts).startswith(begins)


def test_a_factor_of_which_too_little_is_known_is_not_decided(tmp_path: Path) -> None:
    facts = play(tmp_path, Truth(deviation=0.2), vary=(LR,), seeds=3)
    assert answer(facts).startswith("Whether the learning rate matters for word reversal is not decided.")


def test_where_training_diverges_is_answered_by_how_many_runs_failed(tmp_path: Path) -> None:
    truth = Truth(failures={"lr=0.1": 1.0}, deviation=0.02)
    facts = play(tmp_path / "failed", truth, vary=("lr=0.001,0.01,0.1",), asked=Asked.DIVERGES)
    assert answer(facts).startswith("Training diverged or collapsed at lr=0.1 in 9 of 9 runs.")


def test_runs_that_lie_closer_together_are_better_where_spread_is_asked(tmp_path: Path) -> None:
    truth = Truth(deviations={"lr=0.003": 0.001}, deviation=0.3, mean=0.5)
    facts = play(tmp_path, truth, vary=(LR,), asked=Asked.MORE_STABLE, seeds=12, eval_episodes=4000)
    charter: Charter = facts.charter
    assert charter.judged_range == (0.0, 1.0) and charter.sign == -1.0
    assert [arm.name for arm in facts.ranked] == ["lr=0.003", "lr=0.001"]
    assert facts.compared[0].comparison is not None and facts.compared[0].comparison.verdict == "keep"
    assert answer(facts).startswith(f"lr=0.003 is better than lr=0.001 {IN_MEAN}: -0.")
    assert any("distance of a run from the median" in line for line in describe_question(charter))


def test_an_arm_that_learns_nothing_is_not_recommended_as_stable_without_its_scores(tmp_path: Path) -> None:
    truth = Truth(means={"lr=0.003": 0.2, "lr=0.001": 0.7}, deviations={"lr=0.003": 0.001}, deviation=0.3)
    facts = play(tmp_path, truth, vary=(LR,), asked=Asked.MORE_STABLE, seeds=12, eval_episodes=4000)
    useless = next(arm for arm in facts.arms if arm.name == "lr=0.003")
    assert useless.is_kept and useless.final_mean == pytest.approx(0.2, abs=0.01)
    assert f"Mean final scores: lr=0.003 {useless.final_mean:.3f}, lr=0.001 0." in answer(facts)
    assert f"Its mean final score is {useless.final_mean:.3f} and that of the baseline 0." in recommendation(facts)[0]


def test_a_gain_that_the_test_split_contradicts_does_not_say_that_a_factor_matters(tmp_path: Path) -> None:
    facts = play(tmp_path, Truth(means={"lr=0.003": 0.8}, deviation=0.02), vary=(LR,))
    contradicted = replace(facts, contradicted="lr=0.003")
    assert [*answer_relation(contradicted)] == ["Whether the learning rate matters for word reversal is not decided."]


def test_what_a_test_split_contradicts_is_not_called_needed(tmp_path: Path) -> None:
    truth = Truth(means={"use_kl_loss=true": 0.8}, deviation=0.02)
    facts = replace(play(tmp_path, truth, vary=(KL,), asked=Asked.NEEDED), contradicted="use_kl_loss=true")
    (sentence,) = answer_relation(facts)
    assert sentence.startswith("Whether KL term is needed for word reversal is not decided (")


def test_every_headline_says_what_a_verdict_is_about(tmp_path: Path) -> None:
    facts = play(tmp_path, Truth(means={"lr=0.003": 0.8}, deviation=0.02), vary=(LR,))
    with open_store(tmp_path / "research.db") as store:
        (finding,) = store.list_findings(study_id=facts.study.id)
        summary = summarize(store, facts.study.id)
    headlines = [summary.answer, *summary.recommendation[:1], summary.verdicts[0], finding.summary]
    assert all(IN_MEDIAN_PAIR in line for line in headlines) and finding.about == IN_MEDIAN_PAIR
