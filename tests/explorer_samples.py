"""Sample databases of the explorer's tests: a study as the researcher stores one, trainings, calls, and odd ones."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store_samples import record_finding, record_score, record_state

from experiments_db import (
    BudgetKind,
    EpisodeSample,
    EpisodeSummary,
    Experiment,
    ExperimentStatus,
    NoteKind,
    Outcome,
    RecordedTraining,
    Run,
    RunStatus,
    ServerEvent,
    Severity,
    StudyStatus,
    SystemPoint,
    TrainedEpisode,
    TrainedEpisodeSummary,
    TrainingNews,
    TrainingPoint,
    TrainingScore,
    Verdict,
    open_store,
)

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest

    from experiments_db import ExperimentStore

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
    record_score(
        store, run, phase, mean, split=split, metric=METRIC, weight_version=0 if phase == "base" else STEPS,
        episodes=200, successes=round(200 * mean), stderr=math.sqrt(mean * (1 - mean) / 200),
        evaluator_hash="d3fc5690ab8b8ef3",
    )  # fmt: skip


def _episode(run: Run, index: int) -> EpisodeSample:
    tokens = ["<|im_start|>", "user", "\n", "Reverse: ", HOSTILE, "<|im_end|>", "\n", "EX", "IQ", "<|im_end|>"]
    sampled = len(tokens) - 3
    summary = EpisodeSummary(
        run.id, f"ep-{index}", "eval", "validation", STEPS, f"reverse/validation/{index}", 1.0 if index else None,
        bool(index), None, STEPS, run.created_at,
    )  # fmt: skip
    sample = sample_of(tokens, [0.0] * sampled + [-0.01, -1.3, -0.2], STEPS)
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
        record_finding(
            store, store.get_study(study_id), arm, iteration=0, baseline_id=arms[0].id, metric=METRIC, effect=effect,
            ci_low=effect - 0.05, ci_high=effect + 0.05, p_value=0.0004, p_adjusted=0.0008, verdict=Verdict.WORSE,
            run_ids=[*run_ids[arm.id], *run_ids[arms[0].id]], details={"seeds": list(range(len(scores)))},
        )  # fmt: skip
    store.record_analysis(study_id, 0, {"arms": summaries, "comparisons": [], "ranking": [], "failed": {}})
    store.append_event(study_id, "analysis.made", "Ranking: lr=0.001 first.")


def sample_of(tokens: list[str], logprobs: list[float], version: int) -> dict[str, Any]:
    """The columns of a sample; the model wrote the tokens whose logprob is not 0."""
    mask = [value != 0.0 for value in logprobs]
    return {
        "token_ids": list(range(len(tokens))),
        "tokens": tokens,
        "loss_mask": mask,
        "logprobs": logprobs,
        "weight_versions": [version if is_own else -1 for is_own in mask],
        "turn_indices": [0] * len(tokens),
    }


LONG = ("A long text. " * 8000).strip()
STRANGE = f"{HOSTILE} **bold** :red[no] [x](javascript:1) a\x00b \u202eright to left\u202c שלום {LONG}"
"""Text that a page must show as text."""


def record_calls(store: ExperimentStore, study_id: str, *, price: float = 0.0) -> None:
    """Three calls: one that asks for a tool, one that answers, and one that failed. `price` is in $ per token."""
    asked = [{"role": "system", "content": "You plan experiments."}, {"role": "user", "content": STRANGE}]
    tool = {"id": "1", "type": "function", "function": {"name": "curve", "arguments": '{"arm": "lr=0.001"}'}}
    looked = [{"role": "tool", "tool_call_id": "1", "content": "0.31 0.44 0.58"}]
    calls = (
        ("plan", asked, json.dumps({"reasoning": "First I look.", "tool_calls": [tool]}), None, 4000, 50, "a" * 64),
        ("plan", looked, f"I plan two arms. {STRANGE}", None, 4100, 900, "a" * 64),
        (HOSTILE, asked, None, f"HTTP 503: {HOSTILE}", 0, 0, None),
    )
    for attempt, (node, prompt, response, error, inputs, outputs, prompt_hash) in enumerate(calls, 1):
        store.record_llm_call(
            study_id, node=node, model="planner-8b", prompt=json.dumps(prompt), response=response, input_tokens=inputs,
            output_tokens=outputs, cost_usd=price * (inputs + outputs), latency_s=1.5, attempt=attempt, error=error,
            prompt_hash=prompt_hash,
        )  # fmt: skip


def record_training(
    store: ExperimentStore, *, home: str = "/srv/swarm", steps: int = 12, launch_key: str | None = None
) -> str:
    """A training with eight kept episodes of each step, in two groups of four; returns its id."""
    training_id = record_state(
        store, f"ledger {home}", project="swarm", experiment="words", home=home, launch_key=launch_key, step=steps,
        begun_at=1_795_000_000.0,
    ).id  # fmt: skip
    episodes = [_trained(training_id, step, number) for step in range(1, steps + 1) for number in range(8)]
    store.add_to_training(training_id, TrainingNews(episodes=tuple(episodes)))
    return training_id


def _trained(training_id: str, step: int, number: int) -> TrainedEpisode:
    group, reward = number // 4, (number % 4) / 4
    word = HOSTILE if number == 7 else f"word{step}"
    tokens = ["Reverse: ", word, "\n", "\x00", "\u202e", "d", "row"]
    sample = sample_of(tokens, [0.0] * 5 + [-0.01, -1.3], step - 1)
    summary = TrainedEpisodeSummary(
        training_id, f"ep-{step}-{number}", step, "best" if number == 3 else "random", f"task {step}.{group}", "words",
        group, reward, reward > 0.5, 2 * reward - 0.75, step - 1, 1_795_000_000.0 + 10 * step,
    )  # fmt: skip
    said = STRANGE if number == 7 else f"drow{step}"
    messages = ({"role": "user", "content": f"Reverse: {word}"}, {"role": "assistant", "content": said})
    return TrainedEpisode(summary, messages, (sample,))


NAMES = (
    HOSTILE,
    "<img src=x onerror=alert(2)>",
    "[link](javascript:alert(3)) ![picture](http://192.0.2.1/a.png) ![more](https://example.org/b.png)",
    "$x^2$ `code` ~~gone~~ :red-badge[no] :material/home: {{ 7 * 7 }} # title",
    "\u202etxt.exe \x1b[31mred\x1b[0m \x00 \ud7ff line\nbreak",
    '=HYPERLINK("http://192.0.2.1") \'quote\' "double" \\ ; DROP TABLE runs; --',
    "long " * 200,
    " ",
)
"""Texts of users, models and servers, each of which some program would take for something else."""


def add_training(store: ExperimentStore, number: int, name: str, *, status: str = "COMPLETE") -> RecordedTraining:
    """A training with curves (one of them without any finite value), scores, an episode, events and readings."""
    training = record_state(
        store, f"ledger-{number}", project=name, experiment=name, model=name, home=name, reason=name, status=status,
        settings={"total_steps": 4, name: name}, changes={"3": {name: 1e-4}}, step=3, begun_at=1_795_000_000.0 + number,
    )  # fmt: skip
    sample = sample_of(["A", name], [0.0, -0.5], 0)
    summary = TrainedEpisodeSummary(training.id, "e1", 2, "best", name, name, 3, 1.0, True, 0.75, 1, 5.0)
    points = (
        TrainingPoint(training.id, metric, step, value, 1_795_000_010.0 + step)
        for metric, values in {
            "critic/score/mean": (0.1, None, 0.3),
            name: (None, None, None),
            "eval/mean": (1e308,),
        }.items()
        for step, value in enumerate(values, 1)
    )
    news = TrainingNews(
        points=tuple(points),
        scores=(TrainingScore(training.id, 2, 0.92, 0.04, 50, 46, 3.0),),
        episodes=(TrainedEpisode(summary, ({"role": name, "content": name},), (sample,)),),
        events=(ServerEvent(training.id, 1, name, {"why": name}, 4.0),),
        system=(SystemPoint(training.id, name, 1_795_000_011.0, 0.5),),
    )
    store.add_to_training(training.id, news)
    return training


def add_hostile_study(store: ExperimentStore) -> str:
    """A study whose every text is hostile, with an arm for each of them."""
    study = store.create_study(NAMES[1], planner=NAMES[2])
    document = {"question": NAMES[3], "metric": NAMES[1], "search_split": NAMES[0], "assumptions": list(NAMES)}
    store.freeze_charter(study.id, document)
    for number, name in enumerate(NAMES):
        hypothesis = store.create_hypothesis(study.id, f"h{number}", f"{name}.", rationale=name)
        arm = store.create_experiment(
            study.id, f"{name}.", factors={f"{name}.": name}, job={f"{name}.": name}, program_code=name,
            hypothesis_id=hypothesis.id, is_baseline=not number, purpose=name, note=name,
        )  # fmt: skip
        run = store.claim_run(arm.id, 0, f"{study.id}/{number}", job={name: name})
        for status in (RunStatus.LAUNCHING, RunStatus.RUNNING):
            store.update_run(run.id, status=status, server_url=name, environment={name: name})
        store.record_metrics(run.id, {1: {f"{name}.": 0.5, "critic/score/mean": 0.5}})
        record_score(store, run, split=NAMES[0], metric=name + ".", evaluator_hash=name + ".")
        store.update_run(run.id, status=RunStatus.FINISHED, exit_reason=name)
        store.append_event(study.id, f"{name}.", name, run_id=run.id)
        store.write_note(study.id, f"n{number}", NoteKind.LESSON, f"{name}.", iteration=0, author=f"{name}.")
    store.record_decision(study.id, 0, action=f"{NAMES[0]}.", reason=NAMES[1])
    return study.id


def add_strange_numbers(store: ExperimentStore) -> None:
    """A study with runs whose curves have gaps, no finite value, huge ones, one point, or do not exist."""
    study = store.create_study("What do strange numbers look like?", planner="rules")
    arm = store.create_experiment(study.id, "arm", factors={"lr": 1e-300}, job={}, is_baseline=True)
    curves: tuple[dict[int, dict[str, float]], ...] = (
        {step: {"critic/score/mean": math.nan, "actor/entropy": math.inf} for step in range(1, 4)},
        {step: {"critic/score/mean": math.nan if step % 2 else 0.5, "eval/mean": -math.inf} for step in range(1, 9)},
        {1: {"critic/score/mean": 1e308, "actor/entropy": -1e308}, 2: {"critic/score/mean": -1e308}},
        {2**40: {"critic/score/mean": 0.0}},
        {},
    )
    for seed, curve in enumerate(curves):
        run = store.claim_run(arm.id, seed, f"{study.id}/{seed}")
        store.update_run(run.id, status=RunStatus.LAUNCHING)
        store.update_run(run.id, status=RunStatus.RUNNING)
        if curve:
            store.record_metrics(run.id, curve)
        store.update_run(run.id, status=RunStatus.FAILED, exit_reason="the loss is not finite")


def add_hostile_records(store: ExperimentStore, _: Path) -> None:
    add_hostile_study(store)
    for number, name in enumerate(NAMES):
        training = add_training(store, number, f"{name}.")
        store.label_training(training.id, tags=[name[:40] + "."], note=name)


FILLED: dict[str, Callable[[ExperimentStore, Path], object] | None] = {
    "empty": None,
    "one study": add_study,
    "a training without a study": lambda store, _: add_training(store, 0, "alone"),
    "hostile names and tokens": add_hostile_records,
    "strange numbers": lambda store, _: add_strange_numbers(store),
}
"""Readable databases, by what is in them."""


def make_database(home: Path, kind: str) -> Path:
    """A database of this kind under `home`: one of `FILLED`, or one that cannot be read."""
    home.mkdir(parents=True, exist_ok=True)
    if kind in FILLED:
        return create_database(home, FILLED[kind])
    path = home / "research.db"
    match kind:
        case "of another version":
            with open_store(path):
                pass
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("UPDATE experiments_db_version SET digest = '0123abcd'")
        case "of another program":
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("CREATE TABLE notes (text)")
        case "no database":
            path.write_text(HOSTILE * 100)
        case "cut off":
            create_database(home, add_study)
            path.write_bytes(path.read_bytes()[:20_000])
        case _:
            raise ValueError(f"there is no database of the kind {kind!r}")
    return path


def words(page: AppTest) -> str:
    """Return all that a page shows, as text."""
    parts = [*page.markdown, *page.caption, *page.warning, *page.error, *page.title, *page.info, *page.text, *page.code]
    tables = [part.value.to_string() for part in [*page.dataframe, *page.table]]
    widgets = [*page.slider, *page.selectbox, *page.multiselect, *page.button_group]
    headings = [part.value for part in page.subheader]
    labels = [f"{widget.label} {widget.value}" for widget in widgets]
    return "\n".join([*(str(part.value) for part in parts), *tables, *labels, *headings]).replace("\\", "")
