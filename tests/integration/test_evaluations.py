"""Held-out scores of a job that trains: when they are due, who measures them, what becomes of those who die."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests_support import begin, end, run_batch, wait_for_state, wait_for_step

from swarm import SwarmClient, TrainJob, evaluate, follow_evaluations
from swarm.client import Evaluation
from swarm.errors import BadRequest, Conflict, EngineNotReady, NotFound
from swarm.schemas import EvaluationView
from swarm.types import Task, WorkflowOutput

pytestmark = pytest.mark.timeout(400)

JOB = TrainJob(engine="fake", batch_size=1, num_repeat=2, drain_timeout_s=1, eval_every=2, eval_episodes=3)
TASKS = [Task(main_query=f"held out {number}", task_id=f"held-{number}") for number in range(3)]

DYING_EVALUATOR = """
import sys, time
from swarm import SwarmClient
from swarm.processes.child import own_name
name, lease_s = {"named": (f"dying/{own_name()}", 600), "unnamed": ("dying", 1)}[sys.argv[2]]
client = SwarmClient(sys.argv[1], client_id=name)
print(client.claim_evaluation(lease_s=lease_s, wait_s=20).evaluation.step, flush=True)
client.begin_episode("eval", lease_s=1)
time.sleep(600)
"""


@contextmanager
def rolling(start_server: Any, **settings: Any) -> Iterator[tuple[httpx.Client, SwarmClient]]:
    # Without scores their number of episodes would be refused.
    usual = {"eval_episodes": 200} if settings.get("eval_every") == 0 else {}
    with connected(start_server(JOB.model_copy(update={**usual, **settings})).url) as (http, client):
        wait_for_state(http, "ROLLING")
        yield http, client


@contextmanager
def connected(url: str, name: str = "one") -> Iterator[tuple[httpx.Client, SwarmClient]]:
    with httpx.Client(base_url=url, timeout=60) as http, SwarmClient(url, client_id=name) as client:
        yield http, client


def scored(http: httpx.Client, reward: float = 1.0, name: str = "held-out") -> str:
    """An ended eval episode of one model call."""
    episode = begin(http, episode_type="eval")
    end(http, episode, task_id=name, reward=reward, call=True, is_success=reward == 1)
    return episode["episode_id"]


def score(http: httpx.Client, client: SwarmClient, reward: float = 1.0) -> EvaluationView:
    """What is due, scored by one episode."""
    claimed = client.claim_evaluation(wait_s=20).evaluation
    assert claimed is not None
    return client.end_evaluation(claimed.step, [scored(http, reward)])


def train_step(http: httpx.Client, step: int) -> None:
    run_batch(http, tasks=1, repeats=2, name=f"step-{step}")
    wait_for_step(http, step)


def states(client: SwarmClient) -> list[tuple[int, str]]:
    return [(each.step, each.state) for each in client.evaluations()]


def measured(client: SwarmClient, reward: float = 1.0) -> Evaluation:
    return evaluate(client, TASKS, lambda task, credentials: WorkflowOutput(reward))


def test_the_next_batch_is_collected_and_not_trained_until_the_weights_are_scored(start_server: Any) -> None:
    with rolling(start_server) as (http, client):
        due = client.status().evaluation
        assert due is not None
        assert (due.step, due.weight_version, due.state, due.episodes) == (0, 0, "due", 3)
        run_batch(http, tasks=1, repeats=2, name="first")
        assert client.claim_evaluation().evaluation is not None
        ids = [scored(http, reward, f"held-{reward}") for reward in (0.0, 1.0)]
        status = client.status()
        assert (status.step, status.state) == (0, "ROLLING")
        done = client.end_evaluation(0, ids, failures=1)
        assert (done.state, done.scored, done.mean, done.failures, done.evaluator) == ("done", 2, 0.5, 1, "one")
        wait_for_step(http, 1)
        # Step 1 is not due: it is trained on at once.
        train_step(http, 2)
        assert states(client) == [(0, "done"), (2, "due")]
        assert client.status().last_evaluation == done
        assert client.status().pool is not None


def test_a_score_is_among_the_metrics_of_its_step_and_told_as_an_event(start_server: Any) -> None:
    with rolling(start_server) as (http, client):
        score(http, client)
        train_step(http, 1)
        train_step(http, 2)
        score(http, client, 0.25)
        metrics = {point.step: point.metrics for point in client.metrics()}
        assert "eval/mean" not in metrics[1]
        assert (metrics[2]["eval/mean"], metrics[2]["eval/episodes"]) == (0.25, 1.0)
        assert client.status().last_metrics == metrics[2]
        kinds = [event.kind for event in client.past_events() if event.kind.startswith("evaluation.")]
        assert kinds == ["evaluation.due", "evaluation.claimed", "evaluation.done"] * 2
        scrape = http.get("/metrics").text
        for line in ("swarm_evaluation_open 0.0", "swarm_evaluation_mean 0.25", "swarm_evaluation_step 2.0"):
            assert line in scrape


def test_a_silent_attempt_is_one_of_the_score_that_the_server_takes(start_server: Any) -> None:
    def hang(task: Task, credentials: Any) -> WorkflowOutput:
        if task is TASKS[0]:
            # Until long after the server has given the episode up.
            time.sleep(2.5)
        return WorkflowOutput(1.0)

    with rolling(start_server, total_steps=1) as (_, client):
        claimed = client.claim_evaluation(wait_s=20).evaluation
        assert claimed is not None
        result = evaluate(client, TASKS, hang, worst=0.0, discard_episode_timeout=1.0)
        assert (result.n, len(result.broken), result.failures, result.repeats) == (3, 1, (), ())
        done = client.end_evaluation(claimed.step, result.episode_ids, failures=len(result.failures))
        assert (done.state, done.scored, done.mean) == ("done", 3, pytest.approx(2 / 3))


def test_where_no_evaluator_comes_training_waits_once_and_again_when_one_has_asked(start_server: Any) -> None:
    with rolling(start_server, eval_every=1, eval_timeout_s=0.3) as (http, client):
        train_step(http, 1)
        # From here on a step that waits does not come.
        client.change_job({"eval_timeout_s": 3600})
        train_step(http, 2)
        train_step(http, 3)
        assert states(client) == [(step, "abandoned") for step in range(4)]
        found = client.evaluations()
        assert {each.reason for each in found} == {"no_evaluator"}
        assert (found[0].ended_at or 0) - found[0].due_at >= 0.3
        assert client.claim_evaluation().evaluation is None
        train_step(http, 4)
        assert states(client)[4] == (4, "due")
        score(http, client)
        train_step(http, 5)


def test_an_evaluation_that_takes_too_long_is_given_up_and_its_score_refused(start_server: Any) -> None:
    with rolling(start_server) as (http, client):
        assert client.claim_evaluation().evaluation is not None
        episode = scored(http)
        run_batch(http, tasks=1, repeats=2, name="first")
        client.change_job({"eval_timeout_s": 0.1})
        wait_for_step(http, 1)
        [given_up] = client.evaluations()
        assert (given_up.state, given_up.reason, given_up.evaluator) == ("abandoned", "timeout", "one")
        with pytest.raises(Conflict, match="it is abandoned by one"):
            client.end_evaluation(0, [episode])
        with pytest.raises(Conflict, match="has no claim on the evaluation of step 0"):
            client.renew_evaluation(0)


def test_two_evaluators_share_the_steps_and_score_each_once(start_server: Any) -> None:
    url = start_server(JOB.model_copy(update={"eval_every": 1, "total_steps": 4})).url

    def follow(name: str) -> list[int]:
        steps: list[int] = []
        with SwarmClient(url, client_id=name) as client:
            follow_evaluations(client, lambda due: measured(client), on_score=lambda score: steps.append(score.step))
        return steps

    with connected(url) as (http, client), ThreadPoolExecutor() as pool:
        wait_for_state(http, "ROLLING")
        found = [pool.submit(follow, name) for name in ("one", "two")]
        for step in (1, 2, 3, 4):
            train_step(http, step)
        assert sorted(found[0].result(60) + found[1].result(60)) == [0, 1, 2, 3, 4]
        assert states(client) == [(step, "done") for step in range(5)]
        assert all(each.mean == 1.0 and each.scored == 3 for each in client.evaluations())


@pytest.mark.parametrize(("name", "reason"), [("named", "evaluator_died"), ("unnamed", "lease_expired")])
def test_an_evaluator_that_is_killed_loses_its_evaluation_to_the_next_one(
    start_server: Any, name: str, reason: str
) -> None:
    with rolling(start_server) as (http, client):
        command = [sys.executable, "-c", DYING_EVALUATOR, client.url, name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
            assert dying.stdout is not None and dying.stdout.readline() == "0\n"
            if name == "named":
                # The lease of the other one is so short that it may be over by now.
                assert client.claim_evaluation().evaluation is None
                with pytest.raises(Conflict, match="running by dying"):
                    client.end_evaluation(0, [scored(http)])
            os.kill(dying.pid, signal.SIGKILL)
        assert score(http, client).evaluator == "one"
        due = [event.detail.get("reason") for event in client.past_events() if event.kind == "evaluation.due"]
        assert due == [None, reason]
        train_step(http, 1)


def test_an_evaluator_that_lives_keeps_its_evaluation_beyond_its_lease(start_server: Any) -> None:
    with rolling(start_server, total_steps=1) as (http, client), ThreadPoolExecutor(1) as pool:

        def measure(due: EvaluationView) -> Evaluation:
            time.sleep(4 if due.step == 0 else 0)
            return measured(client)

        following = pool.submit(follow_evaluations, client, measure, lease_s=3)
        train_step(http, 1)
        following.result(60)
        assert states(client) == [(0, "done"), (1, "done")]
        kinds = [event.kind for event in client.past_events() if event.kind.startswith("evaluation.")]
        assert kinds == ["evaluation.due", "evaluation.claimed", "evaluation.done"] * 2


@pytest.mark.slow
def test_a_server_that_is_killed_keeps_its_scores_and_the_evaluation_goes_on(server_process: Any) -> None:
    server = server_process()
    with connected(server.url) as (http, client):
        client.auto_sync_train_config_and_start_engine(JOB)
        first = score(http, client)
        train_step(http, 1)
        train_step(http, 2)
        held = client.claim_evaluation(wait_s=20).evaluation
        assert held is not None and held.step == 2
        episode = scored(http, 0.5)
        server.kill()
        server.start()
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=1, repeats=2, name="third")
        # What was scored is on record and is not due again; what ran goes on with the same evaluator.
        assert states(client) == [(0, "done"), (2, "running")]
        assert client.evaluations()[0] == first
        assert client.status().step == 2
        assert client.claim_evaluation().evaluation == held
        assert client.end_evaluation(2, [episode]).mean == 0.5
        wait_for_step(http, 3)
        server.kill()
        server.start()
        wait_for_state(http, "ROLLING")
        status = client.status()
        assert (status.evaluation, status.last_evaluation) == (None, client.evaluations()[1])
        train_step(http, 4)
        assert states(client) == [(0, "done"), (2, "done"), (4, "due")]


def test_an_evaluation_that_was_not_yet_on_record_is_due_after_a_crash(server_process: Any, start_server: Any) -> None:
    server = server_process()
    with connected(server.url) as (http, client):
        client.auto_sync_train_config_and_start_engine(JOB)
        server.kill()
        # As if it had been killed between a step and the evaluation of its weights.
        with closing(sqlite3.connect(server.home / "ledger.db")) as database, database:
            database.execute("DELETE FROM evaluations")
        start_server(home=server.home, port=server.port)
        wait_for_state(http, "ROLLING")
        assert states(client) == [(0, "due")]
        assert score(http, client).state == "done"


def test_scores_of_steps_that_were_left_are_rewound_and_measured_anew(start_server: Any) -> None:
    with rolling(start_server, eval_every=1) as (http, client):
        score(http, client)
        for step in (1, 2):
            train_step(http, step)
            if step == 1:
                score(http, client)
        held = client.claim_evaluation().evaluation
        assert held is not None and held.step == 2
        old = scored(http)
        client.load_checkpoint(0)
        assert states(client) == [(0, "done"), (1, "rewound"), (2, "rewound")]
        with pytest.raises(NotFound, match="no evaluation of step 2"):
            client.end_evaluation(2, [old])
        train_step(http, 1)
        assert client.claim_evaluation(wait_s=20).evaluation is not None
        with pytest.raises(BadRequest, match="is no score of the weights of step 1"):
            client.end_evaluation(1, [old])
        assert client.end_evaluation(1, [scored(http)]).state == "done"
        assert states(client) == [(0, "done"), (1, "rewound"), (1, "done"), (2, "rewound")]


def test_scores_are_asked_for_and_given_up_while_the_job_runs(start_server: Any) -> None:
    with rolling(start_server, eval_every=0) as (http, client):
        train_step(http, 1)
        assert states(client) == []
        client.change_job({"eval_every": 1, "eval_episodes": 7})
        train_step(http, 2)
        assert [(each.step, each.episodes) for each in client.evaluations()] == [(2, 7)]
        run_batch(http, tasks=1, repeats=2, name="third")
        assert client.status().step == 2
        # Who waits no longer need not wait for five minutes.
        client.change_job({"eval_timeout_s": 0.1, "eval_every": 0})
        wait_for_step(http, 3)
        assert states(client) == [(2, "abandoned")]


def test_the_best_checkpoints_by_held_out_score_stay(start_server: Any) -> None:
    keep = {"save_freq": 1, "keep_last": 1, "keep_best": 1, "keep_best_metric": "eval/mean", "eval_every": 1}
    with rolling(start_server, total_steps=4, **keep) as (http, client):
        rewards = [0.0, 0.3, 0.9, 0.2, 0.1]
        score(http, client, rewards[0])
        for step in (1, 2, 3, 4):
            run_batch(http, tasks=1, repeats=2, name=f"step-{step}")
            wait_for_step(http, step)
            score(http, client, rewards[step])
        saved = [event.detail["path"] for event in client.past_events() if event.kind == "checkpoint.saved"]
        kept = sorted(path.name for path in Path(saved[-1]).parent.iterdir() if path.is_dir())
        assert kept == ["step-000002", "step-000004"]


def test_a_claim_is_held_until_something_is_due_and_refused_while_no_engine_runs(start_server: Any) -> None:
    with rolling(start_server) as (http, client):
        score(http, client)
        train_step(http, 1)
        with ThreadPoolExecutor(1) as pool, SwarmClient(client.url, client_id="two") as other:
            held = pool.submit(other.claim_evaluation, wait_s=60)
            train_step(http, 2)
            claimed = held.result(60).evaluation
            assert claimed is not None and (claimed.step, claimed.evaluator) == (2, "two")
            assert client.claim_evaluation().evaluation is None
        client.stop_engine()
        with SwarmClient(client.url, timeout=0.5) as impatient, pytest.raises(EngineNotReady):
            impatient.claim_evaluation()
        refusal = http.post("/v1/swarm/evaluations/claim", json={"client_id": "one"})
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "engine_not_ready")


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("claim", {}, "client_id"),
        ("claim", {"client_id": "one", "wait_s": 61}, "wait_s"),
        ("claim", {"client_id": "one", "lease_s": 0}, "lease_s"),
        ("heartbeat", {"client_id": "one", "step": -1}, "step"),
        ("heartbeat", {"client_id": "one"}, "step"),
        ("end", {"client_id": "one", "step": 0}, "episode_ids"),
        ("end", {"client_id": "one", "step": 0, "episode_ids": ["no such"]}, "episode_ids.0"),
        ("end", {"client_id": "one", "step": 0, "episode_ids": [], "mean": 1.0}, "mean"),
    ],
)
def test_what_is_malformed_is_refused_by_name(
    start_shared_server: Any, route: str, body: dict[str, Any], param: str
) -> None:
    with rolling(start_shared_server) as (http, _):
        reply = http.post(f"/v1/swarm/evaluations/{route}", json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, "bad_request", param)


def follower(url: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "swarm.cli", "eval", "--env", "reverse", "--follow", "--url", url, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_scores_a_job_to_its_end(start_server: Any) -> None:
    with rolling(start_server, total_steps=2) as (http, client), follower(client.url) as evaluator:
        train_step(http, 1)
        train_step(http, 2)
        out, errors = evaluator.communicate(timeout=60)
        assert evaluator.returncode == 0, errors
        lines = out.splitlines()
        assert [line.partition(":")[0] for line in lines] == [
            "reverse/validation at step 0", "reverse/validation at step 2"
        ]  # fmt: skip
        assert all(line.endswith(", n=3)") and "95 %" in line for line in lines), lines
        # Evaluators are told apart by their processes.
        assert {each.evaluator for each in client.evaluations()} != {"swarm-eval"}


def test_the_command_says_where_a_job_asks_for_no_scores(start_server: Any) -> None:
    with rolling(start_server, eval_every=0) as (_, client), follower(client.url) as evaluator:
        _, errors = evaluator.communicate(timeout=60)
        assert evaluator.returncode == 2
        assert errors.startswith("swarm: the job asks for no scores: give it eval_every")
        assert errors.count("\n") == 1


def test_a_score_that_was_not_due_is_recorded_once_and_computed_by_the_server(start_server: Any) -> None:
    with rolling(start_server, eval_every=0) as (http, client):
        train_step(http, 1)
        ids = [scored(http, reward, f"held-{reward}") for reward in (0.0, 1.0)]
        done = client.record_evaluation(1, ids, failures=1)
        assert (done.step, done.state, done.mean, done.scored, done.evaluator) == (1, "done", 0.5, 2, "one")
        assert client.record_evaluation(1, ids, failures=1) == done
        assert client.evaluations() == [done] and client.status().last_evaluation == done
        assert client.metrics()[0].metrics["eval/mean"] == 0.5
        with pytest.raises(Conflict, match="have an evaluation already"):
            client.record_evaluation(1, ids[:1])


def test_a_score_of_other_weights_or_of_a_train_episode_is_refused(start_server: Any) -> None:
    with rolling(start_server, eval_every=0) as (http, client):
        of_base = scored(http)
        train_step(http, 1)
        with pytest.raises(Conflict, match="not served any more"):
            client.record_evaluation(0, [of_base])
        with pytest.raises(BadRequest, match="is no score of the weights of step 1"):
            client.record_evaluation(1, [of_base])
        episode = begin(http)
        end(http, episode, task_id="t", reward=1.0, call=True)
        with pytest.raises(BadRequest, match="is no score"):
            client.record_evaluation(1, [episode["episode_id"]])
        assert client.evaluations() == []
        client.change_job({"eval_every": 1})
        train_step(http, 2)
        with pytest.raises(Conflict, match="have an evaluation already: it is due"):
            client.record_evaluation(2, [scored(http)])


def test_a_score_of_several_attempts_carries_pass_at_k_and_counts_an_episode_once(start_server: Any) -> None:
    with rolling(start_server, eval_every=0) as (http, client):
        rewards = {"a": (0, 0, 0, 1), "b": (0, 0, 0, 0)}
        ids = [scored(http, float(reward), task) for task, each in rewards.items() for reward in each]
        done = client.record_evaluation(0, [*ids, ids[3]])
        assert [(each.k, each.mean) for each in done.pass_at_k] == [(1, 0.125), (2, 0.25), (4, 0.5)]
        assert (done.scored, done.successes, done.attempts) == (8, 1, 4)
        assert client.evaluations() == [done] and client.status().last_evaluation == done
