"""What both sides of bench peers share, and how their reports become figures: all that needs no TRL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench import peers
from bench.control_plane import start_server
from bench.peers.comparison import UNITS, check_steps, results_of, sides_of
from bench.peers.report import RunReport, StepFigures, steps_to, summarize
from bench.peers.service_side import events_until_complete, job_of, read_steps
from bench.peers.workload import CASES, EVERY_CASE, GAME_TURNS, LARGE, REPEATS, TASKS, RunPlan, reward_of, tasks_of
from bench.real_step import results_of as compare_steps
from swarm import Credentials, SwarmClient, TrainJob, WorkflowOutput
from swarm.errors import EngineFailure
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.schemas import EventView, MetricPointView
from swarm.tracker.codec import Codec
from swarm.types import Task

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=CASES)
def plan(request: pytest.FixtureRequest) -> RunPlan:
    return RunPlan(request.param, seed=1, threads=1, steps=3)


@pytest.fixture
def game() -> Task:
    return tasks_of(RunPlan("game", seed=0, threads=1, steps=1))[0]


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def ask(credentials: Credentials, task: Task) -> None:
    httpx.post(
        f"{credentials.base_url}/chat/completions",
        headers={"authorization": f"Bearer {credentials.api_key}"},
        json={"model": "default", "messages": [{"role": "user", "content": task.main_query}], "max_tokens": 8},
        timeout=60,
    ).raise_for_status()


def report_of(*rewards: float) -> RunReport:
    """A run whose steps take 1 s, 2 s, 3 s and so on."""
    steps = [
        StepFigures(sum(range(number + 2)), 0.25 * (number + 1), 0.75 * (number + 1), reward, 10 * (number + 1))
        for number, reward in enumerate(rewards)
    ]
    return RunReport(steps, {"client": 1.0, "server": 2.0})


def event(at: float, state: str) -> EventView:
    return EventView(event_id=1, kind="engine.state", detail={"state": state, "reason": None}, at=at)


def point(step: int, reward: float) -> MetricPointView:
    metrics = {"critic/score/mean": reward, "rollout/trained_tokens": 640.0}
    return MetricPointView(step=step, at=0.0, metrics=metrics)


def test_both_sides_take_the_same_tasks_in_the_same_order(plan: RunPlan) -> None:
    order = [task.task_id for task in tasks_of(plan)]
    program = (
        "import sys, json; from bench.peers.workload import RunPlan, tasks_of\n"
        "print(json.dumps([task.task_id for task in tasks_of(RunPlan(**json.loads(sys.argv[1])))]))"
    )
    told = json.dumps({"case": plan.case, "seed": plan.seed, "threads": 1, "steps": plan.steps})
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, told],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
    )
    assert json.loads(done.stdout) == order
    assert len(order) == TASKS * plan.steps


@pytest.mark.parametrize("answer", ["right", "wrong"])
def test_replies_known_at_the_end_earn_what_an_attempt_earns_turn_by_turn(answer: str) -> None:
    family = CASES["calc"].family
    task = tasks_of(RunPlan("calc", 0, 1, 1))[0]
    call = {"function": {"name": "calculator", "arguments": {"expression": task.metadata["expression"]}}}
    last = said(str(task.metadata["answer"]) if answer == "right" else "1")
    replies = [{"role": "assistant", "content": "", "tool_calls": [call]}, last]
    exchange = family.open(task)
    following = exchange.reply(replies[0])
    assert following is not None and following[0]["content"] == task.metadata["answer"]
    exchange.reply(last)
    assert reward_of(family, task, replies) == exchange.reward == float(answer == "right")


def test_an_attempt_that_breaks_off_before_its_answer_earns_nothing() -> None:
    task = tasks_of(RunPlan("calc", 0, 1, 1))[0]
    call = {"function": {"name": "calculator", "arguments": {"expression": task.metadata["expression"]}}}
    assert reward_of(CASES["calc"].family, task, [{"role": "assistant", "tool_calls": [call]}]) == 0.0


@pytest.mark.parametrize("text", ["", "higher", "7", "99", "0", "²", "-3"])
def test_the_game_lasts_sixteen_turns_whatever_is_said(text: str, game: Task) -> None:
    exchange = CASES["game"].family.open(game)
    answers = [exchange.reply(said(text)) for _ in range(GAME_TURNS)]
    assert all(answers[:-1]) and answers[-1] is None
    assert 0.0 <= exchange.reward <= 1.0


def test_the_game_pays_for_guesses_that_come_close(game: Task) -> None:
    family, secret = CASES["game"].family, int(game.metadata["secret"])
    near = secret + 1 if secret < 12 else secret - 1
    exact, close, none = (
        reward_of(family, game, [said(text)] * GAME_TURNS) for text in (str(secret), str(near), "a word")
    )
    assert exact == 1.0
    assert close == pytest.approx(10 / 11)
    assert none == 0.0


def test_the_service_trains_with_the_numbers_of_the_case(plan: RunPlan) -> None:
    job = job_of(plan).resolve()
    assert (job.batch_size, job.num_repeat, job.total_steps) == (TASKS, REPEATS, plan.steps)
    assert (job.lr, job.clip_ratio, job.temperature, job.seed) == (CASES[plan.case].lr, 0.2, 1.0, plan.seed)
    assert (job.ppo_epochs, job.mini_batch_num, job.use_kl_loss, job.max_staleness) == (1, 1, False, 0)


def test_medians_leave_out_the_first_three_steps() -> None:
    figures = summarize(report_of(0.0, 0.0, 0.0, 0.1, 0.2, 0.3), goal=None)
    assert (figures["step_s"], figures["rollout_s"], figures["train_s"]) == (5.0, 1.25, 3.75)
    assert figures["tokens_per_second"] == pytest.approx((40 + 50 + 60) / (4 + 5 + 6))
    assert figures["last_reward"] == pytest.approx(0.12)
    assert figures["peak_rss"] == figures["peak_rss_client"] + figures["peak_rss_server"] == 3.0
    assert "goal_s" not in figures


def test_the_goal_is_reached_with_the_third_of_three_steps_whose_mean_is_as_high() -> None:
    assert steps_to(0.9, [0.5, 0.95, 0.85, 0.9, 1.0]) == 4
    assert steps_to(0.9, [1.0, 1.0]) is None
    figures = summarize(report_of(0.5, 0.95, 0.85, 0.9, 1.0), goal=0.9)
    assert (figures["steps_to_goal"], figures["goal_s"]) == (4, 10)


def test_steps_of_the_service_are_read_from_the_moves_of_its_engine() -> None:
    events = [
        event(90.0, "ROLLING"),
        event(102.0, "DRAINING"),
        event(102.5, "TRAINING"),
        event(103.0, "ROLLING"),
        event(104.0, "DRAINING"),
        event(104.5, "TRAINING"),
        event(105.0, "EXPORTING"),
        event(106.0, "COMPLETE"),
    ]
    assert read_steps(100.0, events, [point(2, 0.75), point(1, 0.5)]) == [
        StepFigures(3.0, 2.0, 1.0, 0.5, 640),
        StepFigures(6.0, 1.0, 2.0, 0.75, 640),
    ]


def test_a_run_reports_its_last_step_although_a_checkpoint_follows_it(tmp_path: Path) -> None:
    # A step is done before its checkpoint is written; the first step of a run always has one.
    with start_server(tmp_path) as (url, _), SwarmClient(url, client_id="bench") as client:
        job = TrainJob(engine="local", project_name="bench", batch_size=1, num_repeat=2, total_steps=1)
        client.auto_sync_train_config_and_start_engine(job)
        began = time.time()
        for reward in (0.0, 1.0):
            task = Task("Reverse: ABC", "task-0")
            with client.open_episode(task) as episode:
                ask(episode.credentials, task)
                episode.output = WorkflowOutput(reward=reward)
        while client.status().step < 1:
            pass
        steps = read_steps(began, events_until_complete(client), client.metrics())
    assert [step.reward for step in steps] == [0.5]


def test_a_run_of_another_number_of_steps_is_not_compared() -> None:
    side, plan = sides_of(1)[0], RunPlan("game", seed=1, threads=1, steps=3)
    check_steps(report_of(0.1, 0.2, 0.3), 3, side, plan)
    with pytest.raises(EngineFailure, match="game, seed 1, trl, 1 thread: reported 2 steps in place of 3"):
        check_steps(report_of(0.1, 0.2), 3, side, plan)


def test_ratios_are_those_of_the_medians_over_the_seeds() -> None:
    ours = [{"step_s": value, "goal_s": 2.0, "last_reward": 0.5} for value in (1.0, 2.0, 9.0)]
    theirs = [{"step_s": 4.0, "last_reward": 0.5}, *({"step_s": 4.0, "goal_s": 1.0, "last_reward": 0.5},) * 2]
    results = results_of("reverse", 25, {"trl, 1 thread": theirs, "service, 1 thread": ours})
    figures = {(result.case, result.metric): (result.value, result.unit) for result in results}
    assert figures["reverse, service, 1 thread", "step_s"] == (2.0, "s")
    assert figures["reverse, trl, 1 thread", "steps"] == (25.0, "steps")
    ratio = "reverse, service, 1 thread / trl, 1 thread"
    assert figures[ratio, "step_s"] == (0.5, "x")
    assert figures[ratio, "last_reward"] == (1.0, "x")
    # One run of the other side did not reach the goal.
    assert ("reverse, trl, 1 thread", "goal_s") not in figures and (ratio, "goal_s") not in figures
    assert {*UNITS} <= {*summarize(report_of(*[1.0] * 5), 0.9), "steps"}


def test_a_step_of_real_size_has_settings_and_a_model_of_its_own() -> None:
    plan = RunPlan(LARGE, seed=0, threads=2, steps=3, model="/models/random", sampler="vllm")
    job = job_of(plan)
    assert (job.model, job.sampler, job.batch_size, job.num_repeat) == ("/models/random", "vllm", TASKS, 4)
    assert job.ppo_max_token_len < 16_384 and LARGE not in CASES
    task = tasks_of(plan)[0]
    letters = task.main_query.rpartition(" ")[2]
    family = EVERY_CASE[LARGE].family
    for text, reward in [(letters.lower(), 1.0), (letters, 0.0), ("aB", 0.5), ("", 0.0)]:
        assert reward_of(family, task, [{"role": "assistant", "content": text}]) == reward


def test_sides_of_a_step_of_real_size_are_compared_with_trl_if_it_ran() -> None:
    ours, theirs = report_of(0.5), report_of(*[0.5] * 7)
    alone = compare_steps({"service, local sampler": ours})
    assert {result.case for result in alone} == {"service, local sampler"}
    results = compare_steps({"service, local sampler": ours, "trl": theirs})
    figures = {(result.case, result.metric): (result.value, result.unit) for result in results}
    # Steps of 4, 5, 6 and 7 s are counted.
    assert figures["trl", "step_s"] == (5.5, "s")
    assert figures["service, local sampler / trl", "step_s"] == (1 / 5.5, "x")


def test_without_trl_the_benchmark_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(peers.TRL_PYTHON, raising=False)
    with pytest.raises(EngineFailure, match=r"SWARM_TRL_PYTHON is not set: run scripts/install_trl\.sh"):
        peers.run(1.0)


needs_trl = pytest.mark.skipif(
    not os.environ.get(peers.TRL_PYTHON),
    reason="SWARM_TRL_PYTHON names no interpreter with TRL: run scripts/install_trl.sh",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_trl
@pytest.mark.parametrize("case", CASES)
def test_both_sides_make_two_steps_of_each_case(case: str) -> None:
    for side in sides_of(1):
        report = side.train(RunPlan(case, seed=0, threads=1, steps=2))
        assert len(report.steps) == 2
        assert all(step.tokens > TASKS * REPEATS and step.rollout_s > 0 and step.train_s > 0 for step in report.steps)
        assert all(0.0 <= step.reward <= 1.0 for step in report.steps)
        assert set(report.memory_mb) == ({"trl"} if side.name == "trl" else {"client", "server", "worker"})


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_trl
@pytest.mark.parametrize("case", CASES)
def test_the_first_prompt_has_the_same_tokens_on_both_sides(case: str) -> None:
    plan, family = RunPlan(case, seed=0, threads=1, steps=1), CASES[case].family
    done = subprocess.run(
        [os.environ[peers.TRL_PYTHON], "-m", "bench.peers.trl_side", json.dumps(asdict(plan))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    messages = [{"role": "user", "content": tasks_of(plan)[0].main_query}]
    assert json.loads(done.stdout.splitlines()[-2]) == list(
        Codec.load(BUNDLED_DIRECTORY).render(messages, family.tools)
    )
