"""What a report answers and recommends, and what it says that the study does not show."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_contradictions import Page
from simulated_study import BASELINE, Simulation

from experiments_db import Outcome
from researcher.analysis import GainPart, JudgedContrast
from researcher.charter import JudgedBy
from researcher.judge import summarize_arm
from researcher.judge.samples import ScoredRun
from researcher.plan import Contrast, Relation
from researcher.record.costs import ArmCost, AttemptCost, cost_flags
from researcher.report.advice import limitations
from researcher.report.answer import answer
from researcher.report.numbers.facts import StudyFacts
from researcher.report.numbers.gather import gather
from researcher.report.recommendation import recommendation
from researcher.report.render import render_html, render_markdown
from swarm import TrainJob

BEST = "lr=0.003"


def facts_of(home: Path, simulation: Simulation) -> StudyFacts:
    study = simulation.carry_out(home)
    with closing(study.store):
        return gather(study.store, study.study_id)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> StudyFacts:
    """A study in which one arm is better, as it is judged at the end."""
    return facts_of(tmp_path_factory.mktemp("kept"), Simulation(seeds=6))


def test_a_kept_arm_is_recommended(kept: StudyFacts) -> None:
    assert answer(kept).startswith(f"{BEST} has the best mean of 3 arms") and f"better than {BASELINE}" in answer(kept)
    assert recommendation(kept)[0].startswith(f"Use {BEST}: ")


def test_an_arm_that_the_test_found_best_of_some_is_not_called_the_best_of_all(kept: StudyFacts) -> None:
    contrast = Contrast(Relation.BEST, (BASELINE, "lr=0.0003"))
    of_two = JudgedContrast("h0.0", contrast, Outcome.SUPPORTED, "means: 0.5, 0.4.", BASELINE)

    said = answer(replace(kept, contrasts=(of_two,)))

    assert said.startswith(f"{BEST} has the best mean of 3 arms")
    assert f"; of {BASELINE} and lr=0.0003, {BASELINE} is found the best (means: 0.5, 0.4)." in said
    assert f" It is better than {BASELINE}" in said


def test_an_arm_that_the_test_split_contradicts_is_not_recommended(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, Simulation(seeds=6, test_means={BEST: 0.2}))
    assert "No improvement is shown" in answer(facts)
    assert recommendation(facts)[0].startswith(f"Stay with {BASELINE} unless {BEST} is confirmed")


def test_scores_at_the_end_contradict_nothing_about_who_learns_sooner(tmp_path: Path, kept: StudyFacts) -> None:
    exact = {BASELINE: (0.5, 0.525, 0.475) * 2, BEST: (0.95, 0.975, 0.925) * 2}
    sooner = Simulation(seeds=6, exact=exact, test_means={BEST: 0.2}, judged_by=JudgedBy.AREA)
    facts = facts_of(tmp_path, sooner)
    assert f"It is better than {BASELINE}" in answer(facts)
    assert recommendation(facts)[0].startswith(f"Use {BEST}: ")
    assert any("confirms no difference in" in sentence for sentence in limitations(facts))
    assert not any("confirms no difference in" in each for each in limitations(kept))


def with_arm(facts: StudyFacts, name: str, **changes: Any) -> StudyFacts:
    """The facts with an arm that is otherwise."""
    return replace(facts, arms=tuple(replace(arm, **changes) if arm.name == name else arm for arm in facts.arms))


def cost(calls: float, model_share: float) -> ArmCost:
    return ArmCost(evaluation=AttemptCost(40, calls, 10 * calls, calls, 0.1, (1.0,), model_share=model_share))


def test_an_arm_that_spends_more_is_said_to(kept: StudyFacts) -> None:
    spent = cost(8.0, 1.0)
    facts = with_arm(kept, BEST, cost=spent, flags=cost_flags(spent, cost(1.0, 1.0)))
    assert "at 8.0 times the calls" in answer(facts) and "at 8.0 times the calls" in recommendation(facts)[0]
    assert "times the calls" not in answer(kept)


def test_whatever_is_to_be_known_of_a_recommended_arm_is_said(kept: StudyFacts) -> None:
    flags = ("its sampling is greedy in evaluation alone", "at 8.0 times the calls")
    said = recommendation(with_arm(kept, BEST, flags=flags))[0]
    assert f" To be known of it: {flags[0]}; {flags[1]}." in said


def test_a_curve_that_ends_before_its_last_step_is_not_told_as_a_run_that_ended_early(kept: StudyFacts) -> None:
    """One that failed without a score has a curve, too, and is counted as failed."""
    from researcher.report.drawing.figures import draw_all

    best = next(arm for arm in kept.arms if arm.name == BEST)
    first, *others = best.runs
    failed = replace(first, run=replace(first.run, diagnosis={"kind": "not_finite"}))
    captions = [picture.caption for picture in draw_all(with_arm(kept, BEST, runs=(failed, *others)), has_images=False)]
    stopped = "a run stopped before its last step; its curve is drawn on at its last value"
    assert any(stopped in caption for caption in captions) and not any("early" in caption for caption in captions)


def test_an_arm_whose_replies_are_not_the_models_is_not_recommended_as_better_trained(kept: StudyFacts) -> None:
    spent = cost(1.0, 0.12)
    facts = with_arm(kept, BEST, cost=spent, flags=cost_flags(spent, cost(1.0, 1.0)))
    said = " ".join(recommendation(facts))
    assert f"Use {BEST}" not in said and f"{BEST} is not recommended as better trained" in said
    assert "do not come from the model: 12 %" in answer(facts) and "the model (12 %" in said


def test_the_arm_with_the_best_mean_is_passed_over_with_the_reason_in_the_same_sentence(kept: StudyFacts) -> None:
    said = recommendation(with_arm(kept, BEST, suspect="it may know the answers"))[0]
    assert said.startswith("Stay with ") and f"{BEST} has the best mean" in said and "suspect" in said


def test_a_gain_that_is_the_agents_is_not_called_better_training(kept: StudyFacts) -> None:
    best = next(arm for arm in kept.arms if arm.name == BEST)
    assert best.comparison is not None
    gain = best.comparison.difference
    by_agent = replace(
        best.comparison, agent_gain=GainPart(gain, gain, gain, 0.0), training_gain=GainPart(0.0, -0.01, 0.01, 1.0)
    )
    facts = with_arm(kept, BEST, comparison=by_agent)
    parts = f"of which {gain:+.3f} by its agent on the base weights and +0.000 by training"
    assert parts in answer(facts) and "is not shown to be better trained" in answer(facts)
    assert "is not shown to be better trained" in recommendation(facts)[0]
    assert "better trained" not in answer(kept) and f"and {gain:+.3f} by training" in answer(kept)


GAIN, NO_GAIN = GainPart(0.2, 0.1, 0.3, 0.001), GainPart(0.0, -0.01, 0.01, 1.0)
UNCERTAIN = GainPart(0.2, -0.1, 0.5, 0.2)


@pytest.mark.parametrize(
    ("agent", "weights", "words", "not_said"),
    [
        (GAIN, GAIN, "has a better agent and is better trained", "not"),
        (GAIN, UNCERTAIN, "has a better agent and is not shown to be better trained", "told apart"),
        (NO_GAIN, GAIN, "is better trained, and its agent is not shown to be better", "has a better agent"),
        (UNCERTAIN, UNCERTAIN, "better trained is not told apart", "and is better trained"),
    ],
)
def test_a_kept_arm_with_an_agent_of_its_own_is_a_better_agent_or_better_trained_by_the_intervals(
    kept: StudyFacts, agent: GainPart, weights: GainPart, words: str, not_said: str
) -> None:
    best = next(arm for arm in kept.arms if arm.name == BEST)
    assert best.comparison is not None
    facts = with_arm(kept, BEST, comparison=replace(best.comparison, agent_gain=agent, weights_gain=weights))
    for text in (answer(facts), recommendation(facts)[0]):
        assert f"{words}: " in text and "on the base weights" in text
        said = re.search(r"\S* has a better agent[^:]*|\S* is better trained[^:]*|Whether [^:]* told apart", text)
        assert said is not None and not_said not in said[0]


def test_the_scores_of_weights_with_the_plain_agent_are_a_column(kept: StudyFacts) -> None:
    best = next(arm for arm in kept.arms if arm.name == BEST)
    runs = tuple(replace(item, with_plain=0.25, test_with_plain=0.125) for item in best.runs)
    facts = with_arm(kept, BEST, runs=runs)
    said = render_markdown(facts, ())
    assert "with the plain agent" not in render_markdown(kept, ())
    page = Page(render_html(said, "", ()))
    (arms, *_), (tested, *_) = (page.sections[name].tables for name in ("Arms", "Test split"))
    means = {row["arm"]: row["with the plain agent"] for row in arms}
    assert means[BEST] == "0.250" and means[BASELINE] == next(row["after"] for row in arms if row["arm"] == BASELINE)
    assert {row["arm"]: row["with the plain agent"] for row in tested}[BEST] == "0.125"


def test_a_setting_that_one_arm_names_and_the_other_has_by_default_is_no_change(kept: StudyFacts) -> None:
    best = next(arm for arm in kept.arms if arm.name == BEST)
    usual = TrainJob().batch_size
    experiment = replace(
        best.experiment,
        factors={**best.experiment.factors, "batch_size": usual},
        job={**best.experiment.job, "batch_size": usual},
    )
    said = recommendation(with_arm(kept, BEST, experiment=experiment))[0]
    assert "lr 0.003 in place of 0.001" in said and "batch_size" not in said


def test_half_a_width_is_that_of_the_whole_interval(kept: StudyFacts) -> None:
    """Two runs at the end of the range: the interval is cut to it, what is known of the mean is not."""
    best = next(arm for arm in kept.arms if arm.name == BEST)
    charter = replace(kept.charter, metric_range=(0.0, 1.0))
    runs = {seed: ScoredRun(f"run-{seed}", score, 0.0) for seed, score in enumerate((0.95, 1.0))}
    summary = summarize_arm(BEST, runs, charter)
    assert summary.ci_high == 1.0 and summary.half_width > summary.ci_high - summary.mean
    facts = replace(with_arm(kept, BEST, search=summary), charter=charter)
    assert best.search.half_width < summary.half_width
    assert any(f"known to within {summary.half_width:.3f}" in sentence for sentence in limitations(facts))
