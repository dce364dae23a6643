"""What a planner claims is checked against the record: arm, direction, size and significance, not its numbers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_study import BASELINE, SimulatedStudy, Simulation

from researcher.claims import Claim, ClaimKind, Measured
from researcher.judge.judgement import summarize_arm
from researcher.judge.samples import ScoredRun
from researcher.record.log import StudyLog
from researcher.report.claims import check_claim
from researcher.report.numbers.facts import StudyFacts
from researcher.report.numbers.gather import gather

HIGH, LOW, EQUAL = "lr=0.003", "lr=0.0003", "lr=0.002"
EXACT = {
    BASELINE: (0.55, 0.6, 0.5),
    HIGH: (0.9, 0.95, 0.925),
    LOW: (0.4, 0.55, 0.475),
    EQUAL: (0.55, 0.6, 0.525),
}
"""HIGH is better by 0.375, which is significant; LOW is worse by 0.075, which is not; the interval of EQUAL lies within
0.2 of 0."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedStudy]:
    means = {name: sum(scores) / 3 for name, scores in EXACT.items()}
    study = Simulation(means=means, exact=EXACT).carry_out(tmp_path_factory.mktemp("claims"))
    yield study
    study.store.close()


@pytest.fixture(scope="module")
def facts(study: SimulatedStudy) -> StudyFacts:
    return gather(study.store, study.study_id)


def _claim(kind: str, **fields: Any) -> Claim:
    return Claim(ClaimKind(kind), **fields)


# Planted claims of both kinds.

TRUE_CLAIMS = {
    "mean": _claim("mean", arm=HIGH, number=0.925),
    "mean, rounded": _claim("mean", arm=LOW, number=0.48),
    "mean before training": _claim("mean", arm=HIGH, number=0.308, measured=Measured.BEFORE),
    "better": _claim("better", arm=HIGH, other=BASELINE, number=0.375, significant=True),
    "the same, told of the other arm": _claim("worse", arm=BASELINE, other=HIGH, number=0.375, significant=True),
    "worse, not significantly": _claim("worse", arm=LOW, other=BASELINE, number=0.075, significant=False),
    "better, of two that no test compared": _claim("better", arm=HIGH, other=LOW, number=0.45),
    "equal": _claim("equal", arm=EQUAL, other=BASELINE, number=0.2),
    "ranking": _claim("ranking", arms=(HIGH, EQUAL, BASELINE, LOW)),
    "failed": _claim("failed", arm=LOW, number=0, of=3),
}
FALSE_CLAIMS = {
    "wrong sign": _claim("worse", arm=HIGH, other=BASELINE, number=0.375),
    "wrong arm": _claim("better", arm=LOW, other=BASELINE, number=0.375, significant=True),
    "significant where it is not": _claim("worse", arm=LOW, other=BASELINE, number=0.075, significant=True),
    "not significant where it is": _claim("better", arm=HIGH, other=BASELINE, number=0.375, significant=False),
    "right number of the wrong arm": _claim("mean", arm=LOW, number=0.925),
    "score after training told of before": _claim("mean", arm=HIGH, number=0.925, measured=Measured.BEFORE),
    "significant where nothing was tested": _claim("better", arm=HIGH, other=LOW, number=0.45, significant=True),
    "equal within too little": _claim("equal", arm=EQUAL, other=BASELINE, number=0.05),
}


@pytest.mark.parametrize("claim", TRUE_CLAIMS.values(), ids=TRUE_CLAIMS)
def test_true_claim_is_printed_in_words_of_our_own(facts: StudyFacts, claim: Claim) -> None:
    checked = check_claim(claim, facts)

    assert checked.sentence, checked.problem
    assert all(name in checked.sentence for name in (claim.arm, claim.other, *claim.arms) if name)


@pytest.mark.parametrize("claim", FALSE_CLAIMS.values(), ids=FALSE_CLAIMS)
def test_false_claim_is_told_from_what_is_on_record(facts: StudyFacts, claim: Claim) -> None:
    checked = check_claim(claim, facts)

    assert checked.sentence == "" and checked.claimed and checked.record
    assert all(name in checked.claimed for name in (claim.arm, claim.other, *claim.arms) if name)
    assert claim.number is None or f"{claim.number:g}" in checked.claimed


def test_numbers_printed_are_those_of_the_record(facts: StudyFacts) -> None:
    assert "0.475" in check_claim(_claim("mean", arm=LOW, number=0.48), facts).sentence
    said = check_claim(_claim("better", arm=HIGH, other=BASELINE), facts).sentence
    assert "0.375" in said and "significant" in said and "not significant" not in said
    untested = check_claim(_claim("better", arm=HIGH, other=LOW), facts).sentence
    assert "0.450" in untested and "not tested" in untested


@pytest.mark.parametrize(
    "claim",
    [
        _claim("better", arm=HIGH, other=BASELINE),
        _claim("ranking", arms=(HIGH, BASELINE)),
    ],
    ids=lambda claim: claim.kind,
)
def test_claim_of_before_training_is_never_worded_as_one_of_after_it(facts: StudyFacts, claim: Claim) -> None:
    bases = {HIGH: {0: 0.5, 1: 0.6}, BASELINE: {0: 0.3, 1: 0.4}}
    runs = {name: {seed: ScoredRun("run", value, 0.0) for seed, value in each.items()} for name, each in bases.items()}
    arms = tuple(
        replace(arm, base=summarize_arm(arm.name, runs.get(arm.name, {}), facts.charter)) for arm in facts.arms
    )

    before = check_claim(replace(claim, measured=Measured.BEFORE), replace(facts, arms=arms))

    assert "before training" in before.sentence
    assert "training" not in check_claim(claim, facts).sentence


@pytest.mark.parametrize(
    "claim",
    [
        _claim("mean", arm="lr=0.9", number=0.5),
        _claim("mean", arm=HIGH),
        _claim("better", arm=HIGH, other=HIGH, number=0.0),
        _claim("better", arm=HIGH, other=BASELINE, number=-0.375),
        _claim("ranking", arms=(HIGH,)),
        _claim("ranking", arms=(HIGH, LOW, BASELINE)),
        _claim("best", arm=LOW),
        _claim("failed", arm=LOW, number=1, of=4),
        _claim("failed", number=1, of=9),
        _claim("p_value", arm=HIGH, other=BASELINE, number=0.2),
        _claim("mean", arm=HIGH, number=float("nan")),
        _claim("mean", arm=EQUAL, number=0.57, measured=Measured.TEST),
    ],
)
def test_claim_that_the_record_does_not_bear_out_is_not_printed_as_true(facts: StudyFacts, claim: Claim) -> None:
    assert not check_claim(claim, facts).sentence


@pytest.mark.parametrize("text", ["It never helps more than at first.", f"{LOW} wins by 0.9,  p = 0."])
def test_an_opinion_is_left_as_it_was_written(facts: StudyFacts, text: str) -> None:
    checked = check_claim(_claim("opinion", text=text), facts)

    assert checked.is_opinion and checked.sentence == text


def test_a_difference_that_print_does_not_show_makes_nothing_better(study: SimulatedStudy, facts: StudyFacts) -> None:
    arms = []
    for arm in facts.arms:
        found = arm.comparison
        arms.append(arm if found is None else replace(arm, comparison=replace(found, difference=0.0004)))
    alike = replace(facts, arms=tuple(arms))
    for kind in ("better", "worse"):
        checked = check_claim(_claim(kind, arm=HIGH, other=BASELINE), alike)
        assert not checked.sentence and "+0.0004" in checked.record


def test_claims_of_a_planner_stand_in_its_decision_and_those_that_hold_in_the_report(tmp_path: Path) -> None:
    claims = (
        _claim("better", arm=HIGH, other=BASELINE, significant=True),
        _claim("worse", arm=HIGH, other=BASELINE),
        _claim("opinion", text="The size of each update may matter."),
    )
    means = {name: sum(scores) / 3 for name, scores in EXACT.items()}
    study = Simulation(means=means, exact=EXACT, interpretations=(claims,)).carry_out(tmp_path)
    [decision] = study.store.list_decisions(study.study_id)
    report = (study.folder / "report" / "report.md").read_text()

    assert [claim["kind"] for claim in decision.details["claims"]] == ["better", "worse", "opinion"]
    assert decision.details["interpretation"].startswith(f"{HIGH} is better than {BASELINE} by 0.375 (significant")
    assert "is worse than" not in decision.details["interpretation"]
    assert "is better than lr=0.001 by 0.375 (significant" in report
    assert f"**False:** {HIGH} is worse than {BASELINE} after training. **On record:**" in report
    assert "unchecked:* The size of each update may matter." in report
    study.store.close()


def test_claim_is_judged_by_the_record_of_its_time_and_not_by_later_runs(tmp_path: Path) -> None:
    claims = (_claim("best", arm=HIGH),)
    study = Simulation(seeds=2, rounds=2, interpretations=(claims, claims), chance=3).carry_out(tmp_path)
    log = StudyLog(study.store, study.study_id)
    report = (study.folder / "report" / "report.md").read_text()
    said: list[str] = []
    for iteration in range(2):
        analysis = log.find_analysis(iteration)
        assert analysis is not None and analysis.ranking[0] == HIGH
        mean = next(arm.mean for arm in analysis.arms if arm.arm == HIGH)
        said.append(f"After plan {iteration + 1}: {HIGH} has the best mean score, {mean:.3f}")
    study.store.close()

    assert len({text[-5:] for text in said}) == 2
    assert [text in report for text in said] == [True, True], report
