"""The budget is checked before spending, counts each charge once and survives a restart."""

from __future__ import annotations

import pytest
from waiting import SetClock

from experiments_db import BudgetKind, ExperimentStore, StudyStatus
from researcher.charter import Budget
from researcher.errors import BudgetExceeded, TopicInvalid
from researcher.loop.session import work_on
from researcher.loop.settings_check import check_study
from researcher.record.budget import BudgetLedger, budget_lines
from researcher.study.continuation import change_budget
from researcher.study.ending import REPORTED, WORKING, is_over
from researcher.study.settings import StudySettings
from swarm.prices import Prices


@pytest.fixture
def study_id(store: ExperimentStore) -> str:
    return store.create_study("topic", planner="rules").id


def test_without_limits_everything_is_allowed(store, study_id):
    ledger = BudgetLedger(store, study_id, Budget())
    ledger.charge(BudgetKind.RUNS, 1000, "runs")
    ledger.ensure_can_launch(1000)
    ledger.ensure_can_call_llm(10**9, 10**6)


def test_the_run_beyond_the_last_is_refused(store, study_id):
    ledger = BudgetLedger(store, study_id, Budget(max_runs=2))
    ledger.ensure_can_launch(2)
    ledger.charge(BudgetKind.RUNS, 1, "run-a")
    ledger.ensure_can_launch()
    ledger.charge(BudgetKind.RUNS, 1, "run-b")
    with pytest.raises(BudgetExceeded, match="budget of 2 runs"):
        ledger.ensure_can_launch()


def test_several_runs_at_once_count_together(store, study_id):
    with pytest.raises(BudgetExceeded, match=r"3 more run\(s\)"):
        BudgetLedger(store, study_id, Budget(max_runs=2)).ensure_can_launch(3)


def test_the_same_charge_again_counts_once(store, study_id):
    ledger = BudgetLedger(store, study_id, Budget(max_runs=2))
    for _ in range(5):
        ledger.charge(BudgetKind.RUNS, 1, "run-a")
    assert ledger.used()[BudgetKind.RUNS] == 1
    ledger.ensure_can_launch()


def test_wall_clock_adds_up_over_restarts_without_the_time_between(store, study_id):
    clock = SetClock()
    first = BudgetLedger(store, study_id, Budget(max_wall_s=60), clock=clock)
    clock.now += 40
    first.charge_time()
    clock.now += 10_000
    second = BudgetLedger(store, study_id, Budget(max_wall_s=60), clock=clock)
    clock.now += 10
    second.ensure_can_launch()
    assert second.used()[BudgetKind.WALL_CLOCK_S] == pytest.approx(50)
    clock.now += 10
    for refused in (second.ensure_can_launch, second.ensure_can_call_llm):
        with pytest.raises(BudgetExceeded, match="wall clock"):
            refused()


def test_a_call_that_might_exceed_the_tokens_is_refused_beforehand(store, study_id):
    ledger = BudgetLedger(store, study_id, Budget(max_llm_tokens=1000))
    ledger.charge(BudgetKind.LLM_TOKENS, 600, "call-1")
    ledger.ensure_can_call_llm(400)
    with pytest.raises(BudgetExceeded, match="600 of 1000"):
        ledger.ensure_can_call_llm(401)


def test_money_is_bounded(store, study_id):
    ledger = BudgetLedger(store, study_id, Budget(max_llm_usd=0.5))
    ledger.charge(BudgetKind.COST_USD, 0.45, "call-1")
    ledger.ensure_can_call_llm(usd=0.05)
    with pytest.raises(BudgetExceeded, match=r"0\.4500 of \$0\.50"):
        ledger.ensure_can_call_llm(usd=0.06)


def test_run_costs_time_and_gpu_hours_from_its_launch_on(store, study_id):
    clock = SetClock()
    ledger = BudgetLedger(store, study_id, Budget(max_gpu_hours=2.0), clock=clock)
    ledger.begin_run("run-a", gpus=4)
    clock.now += 1799
    assert ledger.find_exhausted() is None
    assert ledger.used()[BudgetKind.GPU_HOURS] == pytest.approx(4 * 1799 / 3600)
    clock.now += 1
    assert ledger.find_exhausted() == "2 of 2 GPU-hours are used: raise --max-gpu-hours to go on"
    with pytest.raises(BudgetExceeded, match="GPU-hours"):
        ledger.ensure_can_launch(0)


def test_what_is_spent_is_known_without_being_charged_and_charged_only_once(store, study_id):
    clock = SetClock()
    ledger = BudgetLedger(store, study_id, Budget(), clock=clock)
    run = _claim_run(store, study_id)
    ledger.begin_run(run, gpus=1)
    clock.now += 3600
    assert ledger.used()[BudgetKind.GPU_HOURS] == pytest.approx(1.0)
    assert store.sum_budget(study_id)[BudgetKind.GPU_HOURS] == 0
    ledger.charge_time()
    ledger.charge_time()
    clock.now += 3600
    ledger.end_run(run)
    clock.now += 3600
    ledger.end_run(run)
    ledger.charge_time()
    assert ledger.used() == store.sum_budget(study_id)
    assert store.sum_budget(study_id)[BudgetKind.GPU_HOURS] == pytest.approx(2.0)
    assert store.sum_budget(study_id)[BudgetKind.WORKING_S] == pytest.approx(7200)
    assert store.sum_budget(study_id)[BudgetKind.WALL_CLOCK_S] == pytest.approx(10_800)


def test_run_that_another_process_takes_up_costs_the_sum(store, study_id):
    clock = SetClock()
    run = _claim_run(store, study_id)
    for _ in range(2):
        ledger = BudgetLedger(store, study_id, Budget(), clock=clock)
        ledger.begin_run(run, gpus=1)
        clock.now += 1800
        ledger.charge_time()
    assert store.sum_budget(study_id)[BudgetKind.GPU_HOURS] == pytest.approx(1.0)


def test_clock_that_runs_backwards_costs_nothing(store, study_id):
    clock = SetClock()
    ledger = BudgetLedger(store, study_id, Budget(max_wall_s=60), clock=clock)
    run = _claim_run(store, study_id)
    ledger.begin_run(run, gpus=1)
    clock.now -= 1000
    ledger.charge_time()
    ledger.end_run(run)
    assert all(amount == 0 for amount in store.sum_budget(study_id).values())


def test_another_budget_is_recorded_with_the_old_one_and_never_below_what_is_spent(store):
    settings = StudySettings(max_runs=2).model_dump(mode="json")
    study = store.create_study("topic", planner="rules", settings=settings)
    store.charge_budget(study.id, BudgetKind.WALL_CLOCK_S, 5400, "session")
    with pytest.raises(TopicInvalid, match=r"--max-hours 1: 1\.5 are used already"):
        change_budget(store, study, {"max_hours": 1.0})
    assert store.list_events(study.id) == []

    changed = change_budget(store, study, {"max_hours": 2.0, "max_runs": 2})

    assert (changed.max_hours, changed.max_runs) == (2.0, 2)
    assert store.get_study(study.id).settings["max_hours"] == 2.0
    [event] = store.list_events(study.id, kind="budget.changed")
    assert event.message == "The budget was changed: max_hours none -> 2."
    assert event.payload == {"limits": {"max_hours": {"old": None, "new": 2.0}}}


def test_finished_study_that_no_budget_ended_takes_no_other_budget(store):
    settings = StudySettings().model_dump(mode="json")
    study = store.create_study("topic", planner="rules", settings=settings)
    finished = store.set_study_status(study.id, StudyStatus.FINISHED)
    with pytest.raises(TopicInvalid, match="another reason than its budget"):
        change_budget(store, finished, {"max_runs": 5})


def test_study_that_failed_at_its_end_and_not_for_want_of_budget_is_left_as_it_is(store, tmp_path):
    study = store.create_study("topic", planner="rules", settings=StudySettings().model_dump(mode="json")).id
    for kind in (WORKING, REPORTED):
        store.append_event(study, kind, kind)
    failed = store.set_study_status(study, StudyStatus.FAILED, "no arm has a score")
    with pytest.raises(TopicInvalid, match="is failed, for another reason than its budget"):
        work_on(store, study, tmp_path, budget={"max_runs": 500})
    assert (store.get_study(study), len(store.list_events(study)), is_over(store, failed)) == (failed, 2, True)


def _claim_run(store: ExperimentStore, study_id: str) -> str:
    experiment = store.create_experiment(study_id, "arm", factors={}, job={"engine": "fake"})
    return store.claim_run(experiment.id, 0, "key", attempt=1, job={"engine": "fake"}).id


def test_money_counts_machines_gpus_and_language_model_over_restarts_and_binds_all_work(store, study_id):
    run = _claim_run(store, study_id)
    clock, prices = SetClock(), Prices(cpu_hour=3.6, gpu_hour=36)
    first = BudgetLedger(store, study_id, Budget(max_money=20.0), prices=prices, machines=2, clock=clock)
    first.begin_run(run, gpus=4)
    clock.now += 100
    first.charge(BudgetKind.COST_USD, 0.8, "call-1")
    first.charge(BudgetKind.COST_USD, 0.8, "call-1")
    first.end_run(run)
    first.charge_time()
    assert store.sum_budget(study_id)[BudgetKind.MONEY] == pytest.approx(2 * 0.1 + 4 * 1.0 + 0.8)
    second = BudgetLedger(store, study_id, Budget(max_money=20.0), prices=prices, machines=2, clock=clock)
    second.ensure_can_call_llm(usd=15)
    with pytest.raises(BudgetExceeded, match="--max-money"):
        second.ensure_can_call_llm(usd=15.1)
    second.begin_run(run, gpus=4)
    clock.now += 374
    assert "--max-money" in (second.find_exhausted() or "")
    with pytest.raises(BudgetExceeded, match="--max-money"):
        second.ensure_can_launch()
    assert {line.name: line.limit for line in budget_lines({"max_money": 20.0}, second.used())}["money"] == 20.0


def test_without_prices_no_money_is_counted_and_gpus_without_a_price_are_not_used(store, study_id):
    clock = SetClock()
    ledger = BudgetLedger(store, study_id, Budget(), clock=clock)
    ledger.begin_run("run-a", gpus=4)
    clock.now += 100
    ledger.charge(BudgetKind.COST_USD, 0.8, "call-1")
    assert ledger.used()[BudgetKind.MONEY] == 0.0
    priced = BudgetLedger(store, study_id, Budget(), prices=Prices(cpu_hour=1), clock=clock)
    priced.begin_run("run-b", gpus=0)
    with pytest.raises(BudgetExceeded, match="gpu_hour"):
        priced.begin_run("run-c", gpus=1)


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("--max-money needs prices", {"max_money": 1.0}),
        ("cpu_hour", {"prices": {"gpu_hour": 1}}),
        ("gpu_hour", {"prices": {"cpu_hour": 1}, "n_gpu": 2}),
        ("input_tokens", {"prices": {"cpu_hour": 1}, "planner": "llm", "model": "m"}),
        (
            "leave one of them out",
            {"prices": {"cpu_hour": 1, "input_tokens": 1, "output_tokens": 2}, "llm_price": (1, 2)},
        ),
    ],
)
def test_prices_that_lack_what_the_study_uses_are_refused_before_it_begins(said, settings):
    study = StudySettings(vary=("lr=0.001,0.003",), family="sort", **settings)
    with pytest.raises(TopicInvalid, match=said):
        check_study("Does the learning rate matter?", study)


def test_a_limit_on_money_cannot_be_added_to_a_study_without_prices(store, study_id):
    with pytest.raises(TopicInvalid, match="--prices"):
        change_budget(store, store.get_study(study_id), {"max_money": 3.0})
