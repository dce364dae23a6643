"""What the attempts of an arm cost: by arm, over the runs that count, and what of it a reader is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from store_samples import record_score

from experiments_db import ExperimentStatus, ExperimentStore, RunStatus
from researcher.phases import COST
from researcher.record.costs import (
    ArmCost,
    AttemptCost,
    compare_attempts,
    cost_flags,
    cost_from_json,
    cost_of_attempts,
    cost_to_json,
    gather_costs,
    read_training_cost,
    why_not_as_trained,
)
from swarm import SwarmClient, Task, TrainJob, WorkflowOutput
from swarm.schemas import EndEpisodeResponse, EpisodeState, EpisodeUsage

ONE = AttemptCost(200, 1.0, 30.0, 10.0, 0.5, (1.0,), model_share=1.0)


def receipt(model_share: float | None = None, **usage: Any) -> EndEpisodeResponse:
    return EndEpisodeResponse(
        episode_id="e", state=EpisodeState.COMPLETED, outcome=None, batch_id=None, replayed=False,
        usage=EpisodeUsage(**usage), model_share=model_share,
    )  # fmt: skip


def test_the_cost_of_a_score_is_the_mean_of_its_attempts() -> None:
    receipts = [
        receipt(1.0, calls=1, prompt_tokens=10, sampled_tokens=4, seconds=1.0, temperatures=[1.0]),
        receipt(0.0, calls=3, prompt_tokens=30, sampled_tokens=8, temperatures=[0.0, 1.0], top_k=[1], limited=True),
        receipt(None, other_sampling=["min_p=0.5"]),
    ]
    cost = cost_of_attempts(receipts, broken=1, repeated=2)
    assert cost == AttemptCost(
        3, 4 / 3, 40 / 3, 4.0, 1 / 3, (0.0, 1.0), ("min_p=0.5", "top_k=1"), 0.5, broken=1, repeated=2, bounded=1
    )
    assert cost is not None and cost_from_json(cost_to_json(cost)) == cost
    assert cost_of_attempts([]) is None


def test_costs_are_those_of_the_runs_that_count_weighted_by_their_attempts(store: ExperimentStore) -> None:
    study = store.create_study("t", planner="rules").id

    def add(arm: str, seed: int, attempt: int, status: RunStatus, cost: AttemptCost, training: AttemptCost) -> None:
        experiment = store.find_experiment(study, arm)
        assert experiment is not None
        run = store.claim_run(experiment.id, seed, f"{arm}/{seed}/{attempt}", attempt=attempt)
        for step in (RunStatus.LAUNCHING, RunStatus.RUNNING):
            store.update_run(run.id, status=step, training_cost=cost_to_json(training))
        for phase in ("base", "final"):
            record_score(store, run, phase, details={COST: cost_to_json(cost if phase == "final" else ONE)})
        store.update_run(run.id, status=status, exit_reason="over")

    for arm in ("one", "two", "none"):
        experiment = store.create_experiment(study, arm, factors={}, job={"total_steps": 1})
        store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
    many = replace(ONE, attempts=100, calls=7.0, model_share=None, temperatures=(0.0,), broken=3)
    add("one", 0, 1, RunStatus.FAILED, replace(ONE, calls=100.0), replace(ONE, calls=100.0))
    add("one", 0, 2, RunStatus.FINISHED, ONE, many)
    add("one", 1, 1, RunStatus.FINISHED, many, many)
    add("two", 0, 1, RunStatus.FAILED, many, many)
    costs = gather_costs(store, study)
    assert list(costs) == ["one", "two", "none"]
    evaluation = costs["one"].evaluation
    assert evaluation is not None
    assert (evaluation.attempts, evaluation.calls, evaluation.broken) == (300, 3.0, 3)
    assert (evaluation.temperatures, evaluation.model_share) == ((0.0, 1.0), 1.0)
    assert costs["one"].training == replace(many, attempts=200, broken=6)
    assert costs["two"] == ArmCost(many, many)
    assert costs["none"] == ArmCost()


@pytest.mark.parametrize(
    ("training", "evaluation", "named"),
    [
        (ONE, ONE, []),
        (ONE, replace(ONE, calls=1.1, sampled_tokens=14.0), []),
        (replace(ONE, calls=8.0), replace(ONE, calls=8.0), ["at 8.0 times the calls of the baseline"]),
        (replace(ONE, calls=3.0), replace(ONE, calls=3.0, sampled_tokens=15.0), ["3.0 times the calls", "1.5 times"]),
        (ONE, replace(ONE, calls=8.0), ["8.0 times", "8.0 calls an attempt in evaluation and 1.0 in training"]),
        (ONE, replace(ONE, temperatures=(0.0,)), ["samples at temperature 0 in evaluation and at temperature 1 in"]),
        (ONE, replace(ONE, temperatures=(0.0, 1.0)), ["temperatures 0 and 1 in evaluation"]),
        (ONE, replace(ONE, other_sampling=("top_k=1",)), ["samples with top_k=1 in evaluation alone"]),
        (ONE, replace(ONE, model_share=0.03), ["its replies do not come from the model: 3 % of their characters"]),
        (ONE, replace(ONE, model_share=0.4999), ["49 %"]),
        (ONE, replace(ONE, model_share=0.5), []),
        (None, replace(ONE, calls=0.0, sampled_tokens=0.0, model_share=0.0), ["0 % of their characters"]),
        (ONE, None, []),
    ],
)
def test_a_reader_is_told_where_an_arm_spends_more_or_changes_between_training_and_evaluation(
    training: AttemptCost | None, evaluation: AttemptCost | None, named: list[str]
) -> None:
    flags = cost_flags(ArmCost(training, evaluation), ArmCost(ONE, ONE))
    assert len(flags) == len(named), flags
    assert all(part in flag for part, flag in zip(named, flags, strict=True)), flags


THRICE = replace(ONE, calls=3.0, prompt_tokens=90.0, sampled_tokens=30.0)
WARM, GREEDY = replace(ONE, temperatures=(0.7, 1.0)), replace(ONE, overruled=200, asked_sampling=("temperature=0",))


@pytest.mark.parametrize(
    ("own", "baseline", "named"),
    [
        (ArmCost(ONE, THRICE), ArmCost(ONE, ONE), "3.0 calls"),
        (ArmCost(ONE, replace(ONE, prompt_tokens=60.0)), ArmCost(ONE, ONE), "60.0 prompt tokens"),
        (ArmCost(ONE, GREEDY), ArmCost(ONE, ONE), "temperature=0"),
        (ArmCost(ONE, replace(ONE, other_sampling=("top_p=0.5",))), ArmCost(ONE, ONE), "top_p=0.5"),
        (ArmCost(THRICE, THRICE), ArmCost(ONE, ONE), ""),
        (ArmCost(THRICE, ONE), ArmCost(ONE, ONE), ""),
        (ArmCost(ONE, THRICE), ArmCost(ONE, THRICE), ""),
        (ArmCost(WARM, replace(ONE, overruled=9, asked_sampling=("seed", "temperature=0.7"))), ArmCost(ONE, ONE), ""),
        (ArmCost(ONE, None), ArmCost(ONE, ONE), ""),
    ],
    ids=["votes", "shots", "greedy", "top-p", "votes in both", "fewer", "as the tasks of the baseline", "warm", "none"],
)
def test_what_an_agent_does_more_in_evaluation_than_in_training_is_named(
    own: ArmCost, baseline: ArmCost, named: str
) -> None:
    reason = why_not_as_trained(own, baseline, has_same_tasks=True)
    assert bool(reason) == bool(named) and named in reason


def test_tokens_say_nothing_of_an_arm_that_trains_on_other_tasks() -> None:
    longer = ArmCost(ONE, replace(ONE, prompt_tokens=60.0))
    assert why_not_as_trained(longer, ArmCost(ONE, ONE), has_same_tasks=False) == ""
    assert why_not_as_trained(ArmCost(ONE, THRICE), ArmCost(ONE, ONE), has_same_tasks=False)


def test_replies_that_training_made_longer_are_no_other_workflow() -> None:
    longer = ArmCost(ONE, replace(ONE, sampled_tokens=20.0, prompt_tokens=50.0))
    assert "prompt tokens" in why_not_as_trained(longer, ArmCost(ONE, ONE), has_same_tasks=True)
    assert why_not_as_trained(longer, ArmCost(ONE, ONE), has_same_tasks=True, longer_replies=1.9) == ""
    votes = why_not_as_trained(ArmCost(ONE, THRICE), ArmCost(ONE, ONE), has_same_tasks=True, longer_replies=5.0)
    assert "3.0 calls" in votes


def test_training_and_evaluation_of_an_arm_stand_side_by_side() -> None:
    (line,) = compare_attempts({"arm": ArmCost(ONE, GREEDY), "unscored": ArmCost(ONE, None)})
    assert line.startswith("arm: training 1.0 calls, 30.0 prompt tokens") and "; evaluation 1.0 calls" in line
    assert line.endswith("asked in vain for temperature=0 in 200 calls")


def test_an_arm_that_calls_where_the_baseline_does_not_is_told() -> None:
    silent = ArmCost(None, replace(ONE, calls=0.0, prompt_tokens=0.0, sampled_tokens=0.0))
    assert len(cost_flags(ArmCost(None, ONE), silent)) == 3
    assert cost_flags(silent, ArmCost(None, ONE)) == ()
    assert cost_flags(ArmCost(), ArmCost()) == ()


def test_the_cost_of_a_training_is_what_its_server_says(start_server: Any, store: ExperimentStore) -> None:
    import httpx

    name = "study/arm/seed-0/attempt-1"
    server = start_server(TrainJob(engine="fake", batch_size=8, num_repeat=2, experiment_name=name, temperature=0.5))
    study = store.create_study("t", planner="rules").id
    experiment = store.create_experiment(study, "arm", factors={}, job={"total_steps": 1})
    run = store.claim_run(experiment.id, 0, "key", job={"experiment_name": name})
    with SwarmClient(server.url) as client, httpx.Client(timeout=60) as http:
        client.wait_until_step(0, timeout=60)
        assert read_training_cost(client, run) is None

        def play(number: int, *, calls: int, kind: str = "train", fault: Exception | None = None) -> None:
            with client.open_episode(Task("q", f"t{number}"), kind, max_calls=2) as episode:
                for _ in range(calls):
                    body = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
                    key = {"authorization": f"Bearer {episode.credentials.api_key}"}
                    http.post(f"{episode.credentials.base_url}/chat/completions", headers=key, json=body)
                if fault is not None:
                    raise fault
                episode.output = WorkflowOutput(1.0, replies=("nobody wrote this",))

        play(0, calls=1)
        play(1, calls=3)
        play(2, calls=2, kind="eval")
        with pytest.raises(KeyError):
            play(3, calls=1, fault=KeyError("the agent's own"))
        with pytest.raises(ConnectionError):
            play(4, calls=0, fault=ConnectionError("before any call"))
        cost = read_training_cost(client, run)
        assert cost is not None
        assert (cost.attempts, cost.calls, cost.temperatures, cost.model_share) == (3, 4 / 3, (0.5,), 0.0)
        assert (cost.broken, cost.repeated, cost.bounded) == (1, 0, 1)
        assert cost.sampled_tokens > 0 and cost.seconds > 0
        assert client.usage("eval").calls == 2
        other = store.claim_run(experiment.id, 1, "other", job={"experiment_name": "another"})
        assert read_training_cost(client, other) is None
