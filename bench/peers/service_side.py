"""One run of the service's side: `python -m bench.peers.service_side URL PLAN`, the client of a server at that address.

Place in the flow: a process of its own, as TRL's side is, so that its memory is that of a client. PLAN is JSON; the
report goes to the last line of stdout. Agents are written as examples/reverse_words has them: an ordinary function that
makes chat calls, on the threads of the library's runner. What the steps took is read from the server's record after the
run, so that nobody asks while it trains.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import httpx

from bench.peers.report import RunReport, StepFigures, peak_mb
from bench.peers.workload import BETAS, CLIP, EVERY_CASE, GRAD_CLIP, TASKS, TEMPERATURE, RunPlan, tasks_of
from swarm import (
    ConnectionStack,
    Credentials,
    EngineFailure,
    SwarmClient,
    SwarmError,
    Task,
    TrainJob,
    WorkflowOutput,
    run_episodes_until_all_complete,
)
from swarm.schemas import EngineState, EventView, MetricPointView
from swarm.tasks import run_agent

BOOT_LIMIT_S, STEP_LIMIT_S = 300.0, 300.0
POLL_S = 0.1
STATE_EVENT = "engine.state"


def job_of(plan: RunPlan) -> TrainJob:
    """Return the settings of the other side, under this side's names."""
    case = EVERY_CASE[plan.case]
    return TrainJob(
        engine="local",
        model=plan.model or "nano",
        sampler="vllm" if plan.sampler == "vllm" else "local",
        project_name="bench",
        experiment_name=f"peers-{plan.case}-{plan.seed}",
        seed=plan.seed,
        batch_size=TASKS,
        num_repeat=case.repeats,
        ppo_max_token_len=case.tokens_at_once,
        total_steps=plan.steps,
        lr=case.lr,
        betas=BETAS,
        weight_decay=0.0,
        grad_clip=GRAD_CLIP,
        clip_ratio=CLIP,
        # TRL's loss `grpo`: the mean over the tokens of an episode, then over episodes.
        loss_agg_mode="seq-mean-token-mean",
        temperature=TEMPERATURE,
    )


def train(url: str, plan: RunPlan) -> RunReport:
    """Train the plan on the server at `url`. Raises SwarmError if a call fails, or if an episode fails for good."""
    case, job = EVERY_CASE[plan.case], job_of(plan)
    with (
        SwarmClient(url, client_id="bench") as client,
        httpx.Client(timeout=STEP_LIMIT_S, transport=ConnectionStack()) as http,
    ):

        def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
            return run_agent(
                case.family,
                task,
                base_url=credentials.base_url,
                api_key=credentials.api_key,
                model=credentials.model,
                http=http,
            )

        client.auto_sync_train_config_and_start_engine(job, boot_timeout=BOOT_LIMIT_S)
        tasks, began = tasks_of(plan), time.time()
        runs = run_episodes_until_all_complete(
            tasks,
            attempt,
            client=client,
            num_repeat=case.repeats,
            # All episodes of a step at once, as on the other side.
            max_workers=case.episodes,
        )
        if runs.failures:
            raise runs.failures[0].error
        client.wait_until_step(plan.steps, timeout=STEP_LIMIT_S)
        steps = read_steps(began, events_until_complete(client), client.metrics())
        return RunReport(steps, {"client": peak_mb()})


def events_until_complete(client: SwarmClient) -> list[EventView]:
    """Return all events once the end of the job is among them.

    The last step ends, and is saved, before that event. Raises EngineFailure if it takes longer than STEP_LIMIT_S.
    """
    deadline = time.monotonic() + STEP_LIMIT_S
    while time.monotonic() < deadline:
        events = client.past_events()
        if any(event.kind == STATE_EVENT and event.detail["state"] == EngineState.COMPLETE for event in events):
            return events
        time.sleep(POLL_S)
    raise EngineFailure(f"the end of the job was not on record within {STEP_LIMIT_S:.0f} s of its last step")


def read_steps(began: float, events: Sequence[EventView], points: Sequence[MetricPointView]) -> list[StepFigures]:
    """Return the steps of a run that began at `began`, in seconds since the epoch, from the server's record.

    A step is over when the engine serves the next weights, or is complete. Its training began when the engine left
    rolling.
    """
    steps: list[StepFigures] = []
    previous, training = began, None
    finished = iter(sorted(points, key=lambda point: point.step))
    for event in events:
        state = event.detail.get("state") if event.kind == STATE_EVENT else None
        if event.at < began:
            continue
        if state == EngineState.DRAINING:
            training = event.at
        elif training is not None and state in (EngineState.ROLLING, EngineState.COMPLETE):
            metrics = next(finished).metrics
            steps.append(
                StepFigures(
                    ended_s=event.at - began,
                    rollout_s=training - previous,
                    train_s=event.at - training,
                    reward=metrics["critic/score/mean"],
                    tokens=round(metrics["rollout/trained_tokens"]),
                )
            )
            previous, training = event.at, None
    return steps


def main() -> None:
    url, plan = sys.argv[1:]
    try:
        print(train(url, RunPlan(**json.loads(plan))).to_json(), flush=True)
    except (SwarmError, httpx.HTTPError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
