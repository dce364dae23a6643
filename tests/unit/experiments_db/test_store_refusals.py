"""What no store takes: values that cannot be, text that is no text, and records that name nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from store_samples import record_finding, record_score

from experiments_db import BudgetKind, Experiment, InvalidRecord, RecordNotFound, Run, Study

LLM_CALL = {
    "node": "plan", "model": "m", "prompt": "p", "response": "r", "input_tokens": 1, "output_tokens": 1,
    "cost_usd": math.nan, "latency_s": 1.0,
}  # fmt: skip
INVALID: dict[str, tuple[Callable[..., object], str]] = {
    "a blank topic": (lambda store, *_: store.create_study(" \n", planner="rules"), "topic must not be empty"),
    "an object in settings": (
        lambda store, *_: store.create_study("t", planner="rules", settings={"x": object()}), "cannot be stored",
    ),
    "NaN in settings": (
        lambda store, *_: store.create_study("t", planner="rules", settings={"x": math.nan}), "cannot be stored",
    ),
    "half a surrogate pair": (lambda store, *_: store.create_study("\ud83d", planner="rules"), "cannot be stored"),
    "a charter that is no JSON": (lambda store, study, *_: store.freeze_charter(study.id, {"x": math.inf}), "not JSON"),
    "a seed of 65 bits": (lambda store, study, arm, run: store.claim_run(arm.id, 2**63, "key"), "cannot be stored"),
    "an effect of NaN": (lambda store, study, arm, run: record_finding(store, study, arm, effect=math.nan), "effect"),
    "an endless interval": (lambda store, study, arm, run: record_finding(store, study, arm, ci_high=math.inf), "ci_"),
    "confidence in percent": (lambda store, study, arm, run: record_finding(store, study, arm, confidence=95), "95"),
    "a blank metric": (lambda store, study, arm, run: record_finding(store, study, arm, metric=" "), "metric"),
    "a cost of NaN": (lambda store, study, *_: store.record_llm_call(study.id, **LLM_CALL), "cost_usd"),
    "a negative charge": (lambda store, study, *_: store.charge_budget(study.id, BudgetKind.RUNS, -1.0, "k"), "negat"),
    "a charge of inf": (lambda store, study, *_: store.charge_budget(study.id, BudgetKind.RUNS, math.inf, "k"), "inf"),
    "a lease of nobody": (lambda store, study, *_: store.acquire_lease(study.id, "", 30), "owner"),
    "a lease of no time": (lambda store, study, *_: store.acquire_lease(study.id, "a", 0), "positive"),
    "a lease of NaN": (lambda store, study, *_: store.acquire_lease(study.id, "a", math.nan), "ttl_s"),
    "a mean of NaN": (lambda store, study, arm, run: record_score(store, run, mean=math.nan), "mean"),
    "a negative error": (lambda store, study, arm, run: record_score(store, run, stderr=-0.1), "stderr"),
    "a score of no episode": (lambda store, study, arm, run: record_score(store, run, episodes=0, successes=0), " 0 "),
    "more successes than episodes": (lambda store, study, arm, run: record_score(store, run, successes=65), "65"),
    "a score of no split": (lambda store, study, arm, run: record_score(store, run, split=""), "split"),
}  # fmt: skip
NOWHERE: dict[str, Callable[..., object]] = {
    "a study": lambda store, *_: store.get_study("st-nowhere"),
    "settings": lambda store, *_: store.revise_settings("st-nowhere", {}),
    "a charter": lambda store, *_: store.freeze_charter("st-nowhere", {}),
    "an event": lambda store, *_: store.append_event("st-nowhere", "x", "y"),
    "a run": lambda store, *_: store.claim_run("ex-nowhere", 1, "key"),
    "points": lambda store, *_: store.record_metrics("run-nowhere", {1: {"x": 1.0}}),
    "an arm": lambda store, study, arm: record_finding(store, study, arm, experiment_id="ex-nowhere"),
    "a baseline": lambda store, study, arm: record_finding(store, study, arm, baseline_id="ex-nowhere"),
    "a parent": lambda store, study, arm: store.create_hypothesis(study.id, "h", "s", parent_id="hy-nowhere"),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_cannot_be_is_refused_and_nothing_is_stored(
    store, study: Study, experiment: Experiment, run: Run, name: str
) -> None:
    write, said = INVALID[name]
    before = store.compute_digest(study.id)
    with pytest.raises(InvalidRecord, match=said):
        write(store, study, experiment, run)
    assert store.compute_digest(study.id) == before and store.list_studies() == [study]


@pytest.mark.parametrize("name", NOWHERE)
def test_what_names_no_record_is_not_found(store, study: Study, experiment: Experiment, name: str) -> None:
    with pytest.raises(RecordNotFound, match="nowhere"):
        NOWHERE[name](store, study, experiment)
