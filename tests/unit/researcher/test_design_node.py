"""The number of runs is chosen before arms are compared, said with its power, and refused where it finds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from store_samples import finish_run

from experiments_db import ExperimentStatus, ExperimentStore
from researcher.charter import Charter, JudgedBy, SampleSizeGoal
from researcher.errors import Underpowered
from researcher.judge.power import Spread, assume_spread, choose_size, power_of
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.design import design
from researcher.loop.nodes.launch import is_piloted, open_trials
from researcher.loop.nodes.plan import plan
from researcher.planner.rules import RulesPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog, to_json
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.study.settings import StudySettings, read_settings
from researcher.study.topics import read_request

TOPIC = "learning rate 1e-4, 1e-3 or 1e-2 for word reversal"
CALM, WILD = (0.50, 0.51, 0.52), (0.1, 0.5, 0.9)


def begin(
    store: ExperimentStore, tmp_path: Path, measured: Mapping[str, Any] = MappingProxyType({}), **flags: object
) -> Deps:
    """A study whose first plan is made and whose arms passed the check; `measured` is how its charter differs."""
    planner = RulesPlanner()
    charter = planner.frame(read_request(TOPIC, read_settings(flags)))
    charter = replace(charter, metric_range=(0.0, 1.0), environment_digest="d", **measured)
    study = store.create_study(TOPIC, planner="rules").id
    store.freeze_charter(study, to_json(charter))
    deps = Deps(
        log=StudyLog(store, study),
        planner=planner,
        pool=ServerPool(urls=("http://one", "http://two"), local=0, home=tmp_path, holder=LeaseHolder("study")),
        ledger=BudgetLedger(store, study, charter.budget),
        home=tmp_path,
    )
    plan(deps, first_state(study))
    for experiment in store.list_experiments(study):
        store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
    return deps


def run_pilot(deps: Deps, scores: tuple[float, ...]) -> None:
    """Finish the runs that are open with these scores."""
    charter = deps.log.charter()
    for trial, mean in zip(open_trials(deps, first_state(deps.study_id)), scores, strict=True):
        scores = {"base": 0.2, "final": mean}
        finish_run(deps.store, trial.experiment.id, trial.seed, scores, episodes=charter.eval_episodes, stderr=0.02)


def open_runs(deps: Deps) -> list[tuple[str, int]]:
    return [(trial.experiment.name, trial.seed) for trial in open_trials(deps, first_state(deps.study_id))]


def test_pilot_of_the_baseline_comes_first_and_chooses_the_number_of_runs(
    store: ExperimentStore, tmp_path: Path
) -> None:
    deps = begin(store, tmp_path)
    state = first_state(deps.study_id)
    design(deps, state)
    assert open_runs(deps) == [("lr=0.001", 0), ("lr=0.001", 1), ("lr=0.001", 2)]
    assert not is_piloted(deps, state)

    run_pilot(deps, CALM)
    assert is_piloted(deps, state)
    design(deps, state)

    (planned,) = deps.log.history().plans
    size = planned.sample_size
    assert size is not None and size.basis == "a pilot of 3 runs of lr=0.001"
    assert planned.seeds == tuple(range(size.seeds)) and size.power >= 0.8
    assert len(open_runs(deps)) == size.runs - 3 == 3 * size.seeds - 3
    (said,) = [event.message for event in store.list_events(deps.study_id) if event.kind == "plan.sized"]
    assert f"{size.seeds} runs per arm, {size.runs} in all" in said and "among 2 comparisons" in said
    assert not is_piloted(deps, state)


def test_study_that_would_find_little_stops_and_says_what_it_needs(store: ExperimentStore, tmp_path: Path) -> None:
    deps = begin(store, tmp_path)
    run_pilot(deps, WILD)

    with pytest.raises(
        Underpowered, match=r"probability 0\.\d\d only .* start it anew with --seeds \d+ .*--underpowered"
    ):
        design(deps, first_state(deps.study_id))


def test_study_with_little_power_goes_on_where_a_person_accepts_it(store: ExperimentStore, tmp_path: Path) -> None:
    deps = begin(store, tmp_path, underpowered=True)
    run_pilot(deps, WILD)
    design(deps, first_state(deps.study_id))

    (planned,) = deps.log.history().plans
    assert Underpowered.exit_code == 9
    assert planned.sample_size is not None and planned.sample_size.power < 0.5
    assert len(planned.seeds) == SampleSizeGoal().max_seeds < planned.sample_size.wanted


def test_budget_of_runs_bounds_their_number_and_its_power_is_refused(store: ExperimentStore, tmp_path: Path) -> None:
    deps = begin(store, tmp_path, max_runs=8)
    run_pilot(deps, CALM)

    with pytest.raises(Underpowered, match="2 runs per arm"):
        design(deps, first_state(deps.study_id))


@pytest.mark.parametrize(("seeds", "power"), [(2, "0.00"), (6, "0.6")])
def test_number_that_a_person_gives_stands_and_its_power_is_said(
    store: ExperimentStore, tmp_path: Path, seeds: int, power: str
) -> None:
    deps = begin(store, tmp_path, seeds=seeds)
    design(deps, first_state(deps.study_id))

    assert len(open_runs(deps)) == 3 * seeds
    (said,) = [event.message for event in store.list_events(deps.study_id) if event.kind == "plan.sized"]
    assert f"probability {power}" in said and "an assumption: nothing has been measured" in said


def test_earlier_studies_of_the_environment_make_the_pilot_needless(store: ExperimentStore, tmp_path: Path) -> None:
    for _ in range(4):
        run_pilot(begin(store, tmp_path), CALM)
    deps = begin(store, tmp_path)
    design(deps, first_state(deps.study_id))

    (planned,) = deps.log.history().plans
    assert planned.sample_size is not None
    assert planned.sample_size.basis == "4 earlier studies of this environment and model"
    assert planned.sample_size.seed_variance < assume_spread(deps.log.charter()).seed_variance


@pytest.mark.parametrize(
    "measured",
    [
        {"judged_by": JudgedBy.AREA},
        {"judged_by": JudgedBy.STEPS_TO, "judged_level": 0.5},
        {"eval_every": 5},
        {"eval_episodes": 7},
    ],
)
def test_earlier_studies_that_measured_otherwise_do_not_replace_the_pilot(
    store: ExperimentStore, tmp_path: Path, measured: dict[str, Any]
) -> None:
    for _ in range(4):
        run_pilot(begin(store, tmp_path), CALM)
    deps = begin(store, tmp_path, measured=measured)
    design(deps, first_state(deps.study_id))

    (planned,) = deps.log.history().plans
    assert planned.sample_size is None and len(open_runs(deps)) > 0


def test_pilot_without_scores_leaves_the_assumption(store: ExperimentStore, tmp_path: Path) -> None:
    deps = begin(store, tmp_path)
    store.revise_experiment(
        next(item.id for item in store.list_experiments(deps.study_id) if item.is_baseline),
        status=ExperimentStatus.INVALID,
    )
    design(deps, first_state(deps.study_id))

    (planned,) = deps.log.history().plans
    assert planned.sample_size is not None and "gave no two scores" in planned.sample_size.basis


def test_power_is_that_of_welchs_test_where_the_variance_is_known() -> None:
    # Two-sided level 0.05, two arms of 17, an effect of one standard deviation: 0.8070 by the tables of Cohen (1988).
    charter = RulesPlanner().frame(read_request("KL or no KL for sorting?", StudySettings()))
    known = Spread(0.0, 1.0, 1.0, "known")
    assert power_of(charter, known, 1, 17, 1.0) == pytest.approx(0.807, abs=0.005)
    assert power_of(charter, known, 4, 17, 1.0) < power_of(charter, known, 1, 17, 1.0)
    assert power_of(charter, known, 1, 2, 100.0) == 0.0


def test_size_is_the_smallest_that_reaches_the_goal_and_its_time_is_that_of_the_slots() -> None:
    charter = framed()
    goal = SampleSizeGoal()
    spread = Spread(0.03**2, 4.0, 0.02**2, "x")
    size = choose_size(charter, goal, spread, 3, run_seconds=20.0, parallel=2)

    assert size.seeds == size.wanted
    assert power_of(charter, spread, 2, size.seeds - 1, 0.1) < 0.8 <= size.power
    assert (size.runs, size.seconds) == (3 * size.seeds, 20.0 * -(-size.runs // 2))


def framed() -> Charter:
    return replace(RulesPlanner().frame(read_request(TOPIC, StudySettings())), metric_range=(0.0, 1.0))
