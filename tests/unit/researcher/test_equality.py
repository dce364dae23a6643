"""A question for equality: its study is sized for the margin and says before its first run what that takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.random import Generator
from store_samples import finish_run

from experiments_db import ExperimentStatus, ExperimentStore, Outcome, Verdict
from researcher.analysis import Analysis
from researcher.charter import Asked, Charter, FrameRequest, JudgedBy, SampleSizeGoal
from researcher.errors import TopicInvalid, Underpowered
from researcher.judge import Family, evaluation_noise, judge
from researcher.judge.equality_size import describe_need, forecast
from researcher.judge.equivalence import p_different, p_equal
from researcher.judge.power import Spread, choose_size, measure_spread, power_of_equality
from researcher.judge.samples import Estimate, ScoredRun
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.loop.nodes.design import FORECAST, design
from researcher.loop.nodes.frame import frame
from researcher.loop.nodes.launch import open_trials
from researcher.loop.nodes.plan import plan
from researcher.memory.replication import read_replication
from researcher.plan import Contrast, Relation
from researcher.planner.replication import ReplicationPlanner
from researcher.planner.rules import RulesPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.servers.server_pool import ServerPool
from researcher.study.settings import read_settings
from researcher.study.topics import read_request

BASELINE, ARM = "lr=0.001", "lr=0.003"
TOPIC = "Two rates"
FLAGS: dict[str, Any] = {"vary": [f"{BASELINE},0.003"], "asked": "equal", "family": "reverse", "engine": "fake"}
STUDIES = 400


def begin(store: ExperimentStore, tmp_path: Path, **flags: object) -> Deps:
    """A study whose charter is frozen and whose first plan is made."""
    planner = RulesPlanner()
    settings = read_settings(FLAGS | flags)
    study = store.create_study(TOPIC, planner="rules").id
    deps = Deps(
        log=StudyLog(store, study),
        planner=planner,
        pool=cast(ServerPool, SimpleNamespace(slots=())),
        ledger=BudgetLedger(store, study, settings.budget()),
        home=tmp_path,
    )
    frame(deps, first_state(study), read_request(TOPIC, settings))
    deps.environments.close()
    plan(deps, first_state(study))
    for experiment in store.list_experiments(study):
        store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
    return deps


def charter_of(store: ExperimentStore, tmp_path: Path, **flags: object) -> Charter:
    return begin(store, tmp_path, **flags).log.charter()


def draw(
    charter: Charter, random: Generator, arm: str, mean: float, runs: int, deviation: float
) -> dict[int, ScoredRun]:
    """Draw the scored runs of an arm, each over the charter's episodes, which are won or lost."""
    episodes = charter.eval_episodes
    scores = random.binomial(episodes, random.normal(mean, deviation, runs)) / episodes
    errors = np.sqrt(scores * (1 - scores) / (episodes - 1))
    return {
        seed: ScoredRun(f"{arm}-{seed}", float(score), evaluation_noise(score, float(error), episodes, (0.0, 1.0)))
        for seed, (score, error) in enumerate(zip(scores, errors, strict=True))
    }


def play(charter: Charter, *, seeds: int, difference: float, deviation: float = 0.01) -> Counter[Verdict]:
    """Count the verdicts on one arm in many studies of this size."""
    random = np.random.default_rng(7)
    found: Counter[Verdict] = Counter()
    for _ in range(STUDIES):
        runs = {
            BASELINE: draw(charter, random, BASELINE, 0.5, seeds, deviation),
            ARM: draw(charter, random, ARM, 0.5 + difference, seeds, deviation),
        }
        found[judge(charter, runs, Family(0, runs, size=1)).comparisons[0].verdict] += 1
    return found


def sure(values: list[float], **changed: Any) -> dict[int, ScoredRun]:
    return {seed: replace(ScoredRun(f"r{seed}", score, 1e-6, 0.3), **changed) for seed, score in enumerate(values)}


def judged(charter: Charter, arm: dict[int, ScoredRun], baseline: dict[int, ScoredRun], **of_family: Any) -> Analysis:
    runs = {BASELINE: baseline, ARM: arm}
    contrast = Contrast(Relation.EQUIVALENT, (ARM,), (BASELINE,), charter.margin or nan)
    return judge(charter, runs, Family(0, runs, size=1, contrasts={"h0.0": contrast}, **of_family))


ALIKE = [0.500, 0.504, 0.497, 0.502, 0.499, 0.503]


@pytest.mark.parametrize(
    ("value", "stderr", "equal"), [(0.0, 0.01, 0.0377), (0.01, 0.01, 0.1717), (0.03, 0.01, 0.8283)]
)
def test_equality_is_two_one_sided_t_tests(value: float, stderr: float, equal: float) -> None:
    # Student's t with 10 degrees of freedom: P(t > 2) = 0.0367, P(t > 1) = 0.1704.
    estimate = Estimate(value, stderr, 10.0)
    assert p_equal(estimate, 0.02) == pytest.approx(equal, abs=0.002)
    assert p_equal(Estimate(-value, stderr, 10.0), 0.02) == pytest.approx(p_equal(estimate, 0.02))
    assert p_different(estimate, 0.02) == pytest.approx(min(1.0, 2 * (1 - equal)), abs=0.004)
    assert p_equal(Estimate(0.0, 0.0, inf), 0.02) == 0.0 and p_equal(Estimate(0.02, 0.0, inf), 0.02) == 1.0


def test_sized_study_calls_equal_arms_equal_and_arms_at_the_margin_different_or_open(
    store: ExperimentStore, tmp_path: Path
) -> None:
    charter = charter_of(store, tmp_path)
    assert charter.sample_size is not None
    size = choose_size(charter, charter.sample_size, Spread(0.01**2, 1e6, 0.25 / charter.eval_episodes, "known"), 2)

    assert size.power >= 0.8 and size.seeds <= 12 and size.margin == 0.02
    assert play(charter, seeds=size.seeds, difference=0.0)[Verdict.EQUAL] / STUDIES >= 0.8
    # The level is 5 %, and 400 studies have a standard error of 1.1 %.
    for difference in (0.02, -0.02):
        assert play(charter, seeds=size.seeds, difference=difference)[Verdict.EQUAL] / STUDIES <= 0.05 + 0.022
    assert play(charter, seeds=size.seeds, difference=0.06)[Verdict.DIFFERENT] / STUDIES > 0.9


def test_nine_seeds_are_enough_with_the_episodes_that_the_study_chooses_and_never_with_400(
    store: ExperimentStore, tmp_path: Path
) -> None:
    few = charter_of(store, tmp_path, seeds=9, eval_episodes=400)
    many = charter_of(store, tmp_path, seeds=9)

    assert play(few, seeds=9, difference=0.0)[Verdict.EQUAL] == 0
    assert play(many, seeds=9, difference=0.0)[Verdict.EQUAL] / STUDIES >= 0.8
    assert many.eval_episodes > few.eval_episodes == 400
    assert any(f"{many.eval_episodes} episodes in place of 400" in sentence for sentence in many.assumptions)
    goal = few.sample_size or SampleSizeGoal()
    said = forecast(few, goal, 2, 9)
    assert said.power < 0.1 and "Evaluation noise alone takes" in said.sentence
    assert f"--eval-episodes {many.eval_episodes}" in said.sentence


def test_several_arms_share_the_level(store: ExperimentStore, tmp_path: Path) -> None:
    charter = charter_of(store, tmp_path)
    known = Spread(0.01**2, 1e6, 1e-4, "known")
    assert power_of_equality(charter, known, 4, 10, 0.02) < power_of_equality(charter, known, 1, 10, 0.02)
    assert power_of_equality(charter, known, 1, 2, 0.02) == 0.0


def test_pilot_is_measured_without_the_usual_assumption(store: ExperimentStore, tmp_path: Path) -> None:
    charter = charter_of(store, tmp_path)
    pilot = draw(charter, np.random.default_rng(0), BASELINE, 0.5, 6, 0.01)
    found = measure_spread(charter, [list(pilot.values())], "a pilot")
    total = np.var([run.score for run in pilot.values()], ddof=1)
    assert found.seed_variance + found.noise_variance == pytest.approx(max(total, found.noise_variance))


@pytest.mark.parametrize(
    ("arm", "baseline", "of_family", "verdict", "why"),
    [
        (sure(ALIKE), sure(ALIKE[::-1]), {}, Verdict.EQUAL, "this is about a typical run"),
        (sure([0.6, *ALIKE[1:]]), sure(ALIKE), {}, Verdict.INCONCLUSIVE, ""),
        (sure([0.54, *ALIKE[1:]]), sure(ALIKE), {}, Verdict.INCONCLUSIVE, "lies far from its others"),
        (sure(ALIKE), sure([0.465, *ALIKE[1:]]), {}, Verdict.INCONCLUSIVE, "lies far from its others"),
        (sure(ALIKE, retries=("broken",)), sure(ALIKE), {}, Verdict.INCONCLUSIVE, f"runs of {ARM} were trained again"),
        (sure(ALIKE), sure(ALIKE, retries=("broken",)), {}, Verdict.INCONCLUSIVE, f"runs of {BASELINE} were trained"),
        (sure(ALIKE), sure(ALIKE), {"missing": {ARM: {6: "lost"}}}, Verdict.INCONCLUSIVE, f"seeds of {ARM} have no"),
        (sure(ALIKE), sure(ALIKE), {"missing": {BASELINE: {6: "lost"}}}, Verdict.INCONCLUSIVE, "have no score"),
        (sure(ALIKE, failure="diverged"), sure(ALIKE), {}, Verdict.INCONCLUSIVE, "fail at different rates"),
        (sure(ALIKE), sure(ALIKE, failure="diverged"), {}, Verdict.INCONCLUSIVE, "fail at different rates"),
        (sure(ALIKE[:2]), sure(ALIKE[:2]), {}, Verdict.INCONCLUSIVE, ""),
        (sure([score + 0.1 for score in ALIKE]), sure(ALIKE), {}, Verdict.DIFFERENT, ""),
        (sure([score - 0.1 for score in ALIKE]), sure(ALIKE), {}, Verdict.DIFFERENT, ""),
        (
            sure([score + 0.1 for score in ALIKE], retries=("x",)),
            sure(ALIKE),
            {},
            Verdict.INCONCLUSIVE,
            "trained again",
        ),
    ],
)
def test_arms_are_called_equal_only_if_nothing_is_hidden(
    store: ExperimentStore,
    tmp_path: Path,
    arm: dict[int, ScoredRun],
    baseline: dict[int, ScoredRun],
    of_family: dict[str, Any],
    verdict: Verdict,
    why: str,
) -> None:
    analysis = judged(charter_of(store, tmp_path), arm, baseline, **of_family)
    (found,), (hypothesis,) = analysis.comparisons, analysis.contrasts

    assert (found.verdict, why in found.note) == (verdict, True), found.note
    outcomes = {Verdict.EQUAL: Outcome.SUPPORTED, Verdict.DIFFERENT: Outcome.REFUTED}
    assert hypothesis.outcome is outcomes.get(verdict, Outcome.UNDECIDED)
    if verdict is Verdict.EQUAL:
        assert -0.02 < found.ci_low < found.ci_high < 0.02 and found.p_adjusted < 0.05


def test_disqualified_arm_is_not_equal(store: ExperimentStore, tmp_path: Path) -> None:
    charter = charter_of(store, tmp_path)
    runs = {BASELINE: sure(ALIKE), ARM: sure(ALIKE)}
    contrast = Contrast(Relation.EQUIVALENT, (ARM,), (BASELINE,))
    analysis = judge(charter, runs, Family(0, runs, size=1, contrasts={"h": contrast}), disqualified={ARM: "it cheats"})
    assert analysis.comparisons[0].verdict is Verdict.INCONCLUSIVE
    assert (analysis.contrasts[0].outcome, "disqualified" in analysis.contrasts[0].reason) == (Outcome.UNDECIDED, True)


def test_margin_of_a_person_is_stated_everywhere_and_belongs_to_equality_alone(
    store: ExperimentStore, tmp_path: Path
) -> None:
    deps = begin(store, tmp_path, margin=0.05)
    charter = deps.log.charter()
    assert charter.margin == charter.asks.margin == 0.05
    (frozen,) = store.list_events(deps.study_id, kind="charter.frozen")
    assert "less than 0.05" in frozen.message and "equally good" in frozen.message
    (planned,) = deps.log.history().plans
    assert planned.hypotheses[0].contrast is not None and planned.hypotheses[0].contrast.margin == 0.05
    with pytest.raises(TopicInvalid, match=r"--margin is that of --ask equal, and --ask is best"):
        read_request(TOPIC, read_settings(FLAGS | {"asked": "best", "margin": 0.05}))
    for impossible in (0, -0.1, inf):
        with pytest.raises(TopicInvalid, match="--margin"):
            read_settings(FLAGS | {"margin": impossible})


@pytest.mark.parametrize(
    ("flags", "margin"),
    [({}, 0.02), ({"metric": "spread"}, 0.01), ({"metric": "area", "eval_every": 5, "margin": 0.03}, 0.03)],
)
def test_margin_is_in_units_of_the_metric(
    store: ExperimentStore, tmp_path: Path, flags: dict[str, Any], margin: float
) -> None:
    charter = charter_of(store, tmp_path, **flags)
    assert charter.margin == pytest.approx(margin)
    # Nothing says beforehand how noisy another number than a final score is.
    assert (charter.eval_episodes > 400) is (charter.judged_by is JudgedBy.FINAL)


def test_other_questions_keep_their_episodes_pilot_and_verdicts(store: ExperimentStore, tmp_path: Path) -> None:
    charter = charter_of(store, tmp_path, asked="better")
    assert (charter.margin, charter.eval_episodes, charter.confidence) == (None, 400, 0.95)
    assert charter.sample_size == SampleSizeGoal()
    assert judged(replace(charter), sure(ALIKE), sure(ALIKE)).comparisons[0].verdict is Verdict.NO_BETTER


def test_study_says_before_its_first_run_what_the_margin_takes(store: ExperimentStore, tmp_path: Path) -> None:
    deps = begin(store, tmp_path)
    for _ in range(2):
        design(deps, first_state(deps.study_id))

    (said,) = [event.message for event in store.list_events(deps.study_id, kind=FORECAST)]
    assert "equal within 0.02 with probability 0.8" in said and "runs per arm (" in said and "at 0.01" in said
    assert f"{deps.log.charter().eval_episodes} episodes per score" in said and "pilot of 6 runs" in said
    assert len(open_trials(deps, first_state(deps.study_id))) == 6


def test_too_small_a_budget_is_refused_before_the_first_run_with_what_to_ask_for(
    store: ExperimentStore, tmp_path: Path
) -> None:
    deps = begin(store, tmp_path, max_runs=6)
    asked = r"up to 3 runs per arm, which reach 0\.\d\d at 0.01.*--seeds \d+ --eval-episodes \d+ --max-runs \d+"
    with pytest.raises(Underpowered, match=asked) as refused:
        design(deps, first_state(deps.study_id))
    assert not store.list_runs(study_id=deps.study_id)

    words = str(refused.value).split()
    flags = {
        name: int(words[words.index(f"--{name}") + 1].rstrip(";")) for name in ("seeds", "eval-episodes", "max-runs")
    }
    enough = begin(store, tmp_path, **{name.replace("-", "_"): value for name, value in flags.items()})
    charter = enough.log.charter()
    alike = Spread(0.01**2, 1e6, 0.25 / charter.eval_episodes, "known")
    assert power_of_equality(charter, alike, 1, flags["seeds"], 0.02) >= 0.8
    assert flags["max-runs"] >= 2 * flags["seeds"]

    accepted = begin(store, tmp_path, max_runs=6, underpowered=True)
    design(accepted, first_state(accepted.study_id))
    assert store.list_events(accepted.study_id, kind=FORECAST)


def test_number_that_a_person_gives_stands_with_its_power_and_the_number_that_is_needed(
    store: ExperimentStore, tmp_path: Path
) -> None:
    deps = begin(store, tmp_path, seeds=4)
    design(deps, first_state(deps.study_id))

    (planned,) = deps.log.history().plans
    assert planned.sample_size is not None and planned.sample_size.power < 0.5 and len(planned.seeds) == 4
    (said,) = [event.message for event in store.list_events(deps.study_id, kind="plan.sized")]
    assert "called equal within 0.02 with probability 0." in said and "A probability of 0.8 takes" in said


def run_all(deps: Deps, random: Generator, means: dict[str, float]) -> None:
    charter = deps.log.charter()
    for trial in open_trials(deps, first_state(deps.study_id)):
        (run,) = draw(charter, random, trial.experiment.name, means[trial.experiment.name], 1, 0.01).values()
        scores = {"base": 0.2, "final": run.score}
        episodes = charter.eval_episodes
        finish_run(deps.store, trial.experiment.id, trial.seed, scores, episodes=episodes, stderr=run.noise**0.5)


@pytest.mark.parametrize(("mean", "verdict"), [(0.5, Verdict.EQUAL), (0.6, Verdict.DIFFERENT)])
def test_pilot_sizes_the_study_whose_finding_is_repeated_as_a_question_for_equality(
    store: ExperimentStore, tmp_path: Path, mean: float, verdict: Verdict
) -> None:
    deps, random = begin(store, tmp_path), np.random.default_rng(6)
    state, means = first_state(deps.study_id), {BASELINE: 0.5, ARM: mean}
    for _ in range(2):
        design(deps, state)
        run_all(deps, random, means)
    analyze(deps, state)

    (planned,) = deps.log.history().plans
    assert planned.sample_size is not None and planned.sample_size.basis == f"a pilot of 6 runs of {BASELINE}"
    assert 6 <= len(planned.seeds) <= 24
    (finding,) = store.list_findings(study_id=deps.study_id)
    assert (finding.verdict, finding.confidence, finding.details["margin"]) == (verdict, 0.9, 0.02)
    assert "margin of 0.02" in finding.summary and "one-sided" in finding.method

    planner = ReplicationPlanner(replication=read_replication(store, finding.id))
    again = planner.frame(FrameRequest(TOPIC))
    assert (again.asks.asked, again.margin) == (Asked.EQUAL, 0.02)
    contrast = planner.plan(again, deps.log.history()).hypotheses[0].contrast
    assert contrast == Contrast(Relation.EQUIVALENT, (ARM,), (BASELINE,), 0.02)


def test_pilot_of_runs_that_differ_much_is_refused_with_what_is_within_reach(
    store: ExperimentStore, tmp_path: Path
) -> None:
    deps = begin(store, tmp_path)
    state, charter = first_state(deps.study_id), deps.log.charter()
    design(deps, state)
    for trial, score in zip(open_trials(deps, state), (0.3, 0.4, 0.5, 0.6, 0.7, 0.5), strict=True):
        scores = {"base": 0.2, "final": score}
        finish_run(store, trial.experiment.id, trial.seed, scores, episodes=charter.eval_episodes, stderr=0.01)
    within_reach = r"more than 100 runs per arm at this margin; --seeds 24 .*--margin (0\.\d+)"
    with pytest.raises(Underpowered, match=within_reach) as refused:
        design(deps, state)
    margin = float(str(refused.value).split("--margin ")[1].split()[0].rstrip("."))
    pilot = Spread(0.02, 5.0, 0.01**2, "a pilot")
    assert 0.1 < margin < 0.5 and power_of_equality(charter, pilot, 1, 24, margin) >= 0.75


def test_need_names_episodes_where_evaluation_noise_is_most_of_the_variance(
    store: ExperimentStore, tmp_path: Path
) -> None:
    charter = charter_of(store, tmp_path, eval_episodes=100)
    goal = charter.sample_size or SampleSizeGoal()
    said = describe_need(charter, goal, Spread(0.01**2, 20.0, 0.25 / 100, "a pilot"), 2)
    episodes = int(said.split("--eval-episodes ")[1].split()[0])
    assert episodes > 100 and "--seeds" in said
