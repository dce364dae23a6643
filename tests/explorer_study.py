"""Fills a database with a study as the researcher stores one, for the explorer's tests."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments_db import (
    BudgetKind,
    EpisodeSample,
    EpisodeSummary,
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    Outcome,
    Run,
    RunStatus,
    Severity,
    StudyStatus,
    Verdict,
    open_store,
)

HOSTILE = "<script>alert(1)</script>"
TOPIC = f"Which learning rate trains word reversal best, 1e-4, 1e-3 or 1e-2? {HOSTILE} **bold** $x$"
ARMS = {"lr=0.001": (0.001, 0.86), "lr=0.0001": (0.0001, 0.58), f"lr=0.01 {HOSTILE}": (0.01, 0.41)}
METRIC = "mean reward of held-out episodes"
STEPS = 30
CODE = '''"""Trains the `reverse` tasks on one swarm server."""

from swarm import SwarmClient, Task


def attempt(client: SwarmClient, task: Task) -> float:
    """One episode."""
    with client.open_episode(task) as episode:
        return episode.run(task)
'''


@dataclass
class Clock:
    """Moves on by a second with every look, so that rows have an order and durations are plausible."""

    now: float = 1_795_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def create_database(home: Path, fill: Callable[[ExperimentStore, Path], object] | None = None) -> Path:
    """A database under `home`, filled by `fill`; returns its path."""
    path = home / "research.db"
    with open_store(path, clock=Clock()) as store:
        if fill is not None:
            fill(store, home)
    return path


def add_study(store: ExperimentStore, home: Path, *, seeds: int = 3, is_finished: bool = True) -> str:
    """Three arms by `seeds` seeds with curves, scores, findings and a decision; one run failed and was repeated."""
    study = store.create_study(TOPIC, planner="rules", settings={"seeds": seeds})
    store.freeze_charter(study.id, _charter(seeds))
    store.append_event(study.id, "charter.frozen", f"How does lr change what is learned? {HOSTILE}")
    hypothesis = store.create_hypothesis(
        study.id, "h0.0", f"The held-out reward on reverse depends on lr. {HOSTILE}", rationale="lr=0.0001 differs."
    )
    arms = _add_arms(store, study.id, hypothesis.id)
    _add_failed_run(store, arms[0])
    means = {arm.name: [_add_run(store, home, arm, seed) for seed in range(seeds)] for arm in arms}
    _add_analysis(store, study.id, arms, means)
    store.judge_hypothesis(hypothesis.id, Outcome.REFUTED, "lr=0.0001: worse")
    store.charge_budget(study.id, BudgetKind.RUNS, 3 * seeds, "runs")
    store.charge_budget(study.id, BudgetKind.WALL_CLOCK_S, 312.4, "session:1")
    store.record_decision(
        study.id,
        0,
        action="stop",
        reason=f"All arms are decided. {HOSTILE}",
        details={"interpretation": f"On reverse, lr=0.001 has the highest mean. {HOSTILE} :red[no] [x](javascript:1)"},
    )
    store.append_event(study.id, "budget.used_up", "No further run.", severity=Severity.WARNING)
    if is_finished:
        store.set_study_status(study.id, StudyStatus.FINISHED, "the report is written")
    return study.id


def add_many_runs(store: ExperimentStore, home: Path) -> str:
    """One study of 300 runs: 30 arms by 10 seeds."""
    study = store.create_study("Which batch size of thirty?", planner="rules")
    for number in range(30):
        arm = store.create_experiment(
            study.id,
            f"batch_size={8 * (number + 1)}",
            factors={"batch_size": 8 * (number + 1), "mode": "fast" if number % 2 else 1},
            job={"batch_size": 8 * (number + 1)},
            is_baseline=number == 0,
        )
        for seed in range(10):
            run = store.claim_run(arm.id, seed, f"{study.id}/{number}/{seed}")
            if number % 3 == 0:
                continue
            store.update_run(run.id, status=RunStatus.LAUNCHING)
            store.update_run(run.id, status=RunStatus.RUNNING)
            store.record_metrics(run.id, {step: {"critic/score/mean": 0.1 * step} for step in range(3)})
            _score(store, run, "final", 0.3 + 0.01 * number + 0.001 * seed)
            store.update_run(run.id, status=RunStatus.FINISHED)
    return study.id


def _charter(seeds: int) -> dict[str, object]:
    return {
        "topic": TOPIC,
        "question": f"How does lr change what is learned on reverse? {HOSTILE}",
        "environment_name": "reverse",
        "metric": METRIC,
        "direction": "maximize",
        "baseline": "lr=0.001",
        "search_split": "validation",
        "test_split": "test",
        "eval_episodes": 200,
        "rule": {"alpha": 0.05, "min_effect": 0.02, "min_seeds": seeds, "correction": "holm"},
        "budget": {"max_runs": 12, "max_wall_s": None, "max_llm_tokens": None, "max_llm_usd": None},
        "planner": "rules",
        "assumptions": [f"The task is reverse. {HOSTILE}"],
    }


def _add_arms(store: ExperimentStore, study_id: str, hypothesis_id: str) -> list[Experiment]:
    arms: list[Experiment] = []
    for name, (lr, _) in ARMS.items():
        arm = store.create_experiment(
            study_id,
            name,
            factors={"lr": lr},
            job={"algorithm": "grpo", "model": "nano", "batch_size": 16, "num_repeat": 8, "lr": lr, "note": HOSTILE},
            program_code=CODE if not arms else CODE.replace("One episode.", f"One episode at {lr}. {HOSTILE}"),
            hypothesis_id=hypothesis_id if arms else None,
            parent_id=arms[0].id if arms else None,
            is_baseline=not arms,
            note=f"named by the topic: {name}",
        )
        store.revise_experiment(arm.id, status=ExperimentStatus.READY)
        arms.append(arm)
    return arms


def _add_failed_run(store: ExperimentStore, arm: Experiment) -> None:
    run = store.claim_run(arm.id, 0, f"{arm.study_id}/{arm.name}/0/1", job=dict(arm.job))
    store.update_run(run.id, status=RunStatus.LAUNCHING, server_url="http://127.0.0.1:9")
    store.update_run(run.id, status=RunStatus.RUNNING)
    store.record_metrics(run.id, {1: {"critic/score/mean": math.nan, "actor/entropy": math.inf}})
    reason = f"the client ended with exit code 1 at step 1 of {STEPS}: {HOSTILE}"
    store.update_run(run.id, status=RunStatus.FAILED, exit_reason=reason, diagnosis={"kind": "failure"})
    store.append_event(arm.study_id, "run.failed", reason, severity=Severity.ERROR, run_id=run.id)


def _add_run(store: ExperimentStore, home: Path, arm: Experiment, seed: int) -> float:
    attempt = 2 if arm.is_baseline and seed == 0 else 1
    lr, goal = ARMS[arm.name]
    chance = random.Random(f"{arm.name}/{seed}")
    run = store.claim_run(
        arm.id, seed, f"{arm.study_id}/{arm.name}/{seed}/{attempt}", attempt=attempt, job=dict(arm.job)
    )
    folder = home / "studies" / arm.study_id / "runs" / run.id
    folder.mkdir(parents=True)
    log = folder / "client.log"
    log.write_text(f"\x1b[31mstep 1\x1b[0m reward 0.31\nstep 2 {HOSTILE}\n", encoding="utf-8")
    store.update_run(run.id, status=RunStatus.LAUNCHING, server_url="http://127.0.0.1:9")
    job = {**arm.job, "seed": seed, "gamma": 1.0, "betas": [0.9, 0.95]}
    store.update_run(run.id, status=RunStatus.RUNNING, job=job, log_path=str(log), base_weight_version=0)
    store.append_event(arm.study_id, "run.training", f"{arm.name} seed {seed} trains", run_id=run.id)
    store.record_metrics(run.id, {step: _curve(step, lr, goal, chance) for step in range(1, STEPS + 1)})
    _score(store, run, "base", 0.31 + 0.004 * seed)
    final = round(goal + chance.uniform(-0.02, 0.02), 3)
    _score(store, run, "final", final)
    if arm.is_baseline:
        _score(store, run, "test", final - 0.01, split="test")
    store.record_artifact(arm.study_id, "log", str(log), sha256="0" * 64, size_bytes=log.stat().st_size, run_id=run.id)
    store.record_episodes(run.id, [_episode(run, index) for index in range(2)])
    store.update_run(
        run.id, status=RunStatus.FINISHED, exit_reason=f"all {STEPS} steps done", final_weight_version=STEPS
    )
    return final


def _curve(step: int, lr: float, goal: float, chance: random.Random) -> dict[str, float]:
    reward = goal - (goal - 0.3) * math.exp(-step / 8) + chance.gauss(0, 0.02)
    return {
        "critic/score/mean": reward,
        "actor/entropy": 1.4 * math.exp(-step / 20) + chance.uniform(0, 0.05),
        "actor/grad_norm": math.nan if step == 7 else 0.4 + chance.uniform(0, 0.2),
        "actor/pg_loss": chance.gauss(0, 0.01),
        "actor/ppo_kl": lr * chance.uniform(0.1, 1),
        "batch/episodes": 128,
        "timing/step_s": 0.9 + chance.uniform(0, 0.1),
    }


def _score(store: ExperimentStore, run: Run, phase: str, mean: float, *, split: str = "validation") -> None:
    store.record_evaluation(
        run.id,
        phase=phase,
        split=split,
        metric=METRIC,
        weight_version=0 if phase == "base" else STEPS,
        episodes=200,
        successes=round(200 * mean),
        mean=mean,
        stderr=math.sqrt(mean * (1 - mean) / 200),
        evaluator_hash="d3fc5690ab8b8ef3",
    )


def _episode(run: Run, index: int) -> EpisodeSample:
    tokens = ["<|im_start|>", "user", "\n", "Reverse: ", HOSTILE, "<|im_end|>", "\n", "EX", "IQ", "<|im_end|>"]
    sampled = len(tokens) - 3
    summary = EpisodeSummary(
        run_id=run.id,
        episode_id=f"ep-{index}",
        kind="eval",
        split="validation",
        step=STEPS,
        task_id=f"reverse/validation/{index}",
        reward=1.0 if index else None,
        is_success=bool(index),
        advantage=None,
        weight_version=STEPS,
        created_at=run.created_at,
    )
    sample = {
        "token_ids": list(range(len(tokens))),
        "tokens": tokens,
        "loss_mask": [position >= sampled for position in range(len(tokens))],
        "logprobs": [0.0] * sampled + [-0.01, -1.3, -0.2],
        "weight_versions": [-1] * sampled + [STEPS] * 3,
        "turn_indices": [0] * len(tokens),
    }
    messages = ({"role": "user", "content": f"Reverse: {HOSTILE}"}, {"role": "assistant", "content": "EXIQ"})
    return EpisodeSample(summary, messages, (sample,))


def _add_analysis(store: ExperimentStore, study_id: str, arms: list[Experiment], means: dict[str, list[float]]) -> None:
    finished = store.list_runs(study_id=study_id, statuses=[RunStatus.FINISHED])
    run_ids = {arm.id: [run.id for run in finished if run.experiment_id == arm.id] for arm in arms}
    summaries: list[dict[str, object]] = []
    for arm in arms:
        scores = means[arm.name]
        mean = sum(scores) / len(scores)
        summaries.append(
            {"arm": arm.name, "mean": mean, "ci_low": mean - 0.04, "ci_high": mean + 0.04, "run_ids": run_ids[arm.id]}
        )
        if arm.is_baseline:
            continue
        effect = mean - sum(means[arms[0].name]) / len(scores)
        store.record_finding(
            study_id,
            iteration=0,
            experiment_id=arm.id,
            baseline_id=arms[0].id,
            metric=METRIC,
            split="validation",
            effect=effect,
            ci_low=effect - 0.05,
            ci_high=effect + 0.05,
            confidence=0.95,
            p_value=0.0004,
            p_adjusted=0.0008,
            verdict=Verdict.WORSE,
            method="Welch's t over seeds, Holm-corrected",
            run_ids=[*run_ids[arm.id], *run_ids[arms[0].id]],
            summary=f"{arm.name} against {arms[0].name}: {effect:+.3f}",
            details={"seeds": list(range(len(scores)))},
        )
    store.record_analysis(study_id, 0, {"arms": summaries, "comparisons": [], "ranking": [], "failed": {}})
    store.append_event(study_id, "analysis.made", "Ranking: lr=0.001 first.")
