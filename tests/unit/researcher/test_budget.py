"""The budget is checked before spending, counts each charge once and survives a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments_db import BudgetKind, ExperimentStore, open_store
from researcher.errors import BudgetExceeded
from researcher.study.budget import BudgetLedger
from researcher.types import Budget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "research.db") as opened:
        yield opened


@pytest.fixture
def study_id(store: ExperimentStore) -> str:
    return store.create_study("topic", brain="rules").id


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
    assert ledger.spent()[BudgetKind.RUNS] == 1
    ledger.ensure_can_launch()


def test_wall_clock_adds_up_over_restarts_without_the_time_between(store, study_id):
    clock = Clock()
    first = BudgetLedger(store, study_id, Budget(max_wall_s=60), clock=clock)
    clock.now += 40
    first.charge_time()
    clock.now += 10_000
    second = BudgetLedger(store, study_id, Budget(max_wall_s=60), clock=clock)
    clock.now += 10
    second.ensure_can_launch()
    assert second.spent()[BudgetKind.WALL_CLOCK_S] == pytest.approx(50)
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
