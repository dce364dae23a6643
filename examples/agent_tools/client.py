"""Train an unchanged agent of LangChain or Pydantic AI to use a tool: see README.md."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys
from functools import partial
from pathlib import Path

import httpx
from lookups import USES, Use, reward

from swarm import (
    Credentials,
    SwarmClient,
    SwarmError,
    Task,
    TrainJob,
    WorkflowOutput,
    evaluate,
    run_episodes_until_all_complete,
)

WORKERS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("SWARM_URL", "http://127.0.0.1:10086"))
    parser.add_argument("--job", default=str(Path(__file__).with_name("job.yaml")))
    parser.add_argument("--library", choices=["langchain", "pydantic_ai"], default="langchain")
    parser.add_argument("--tool", nargs="+", choices=list(USES), default=["find"])
    parser.add_argument("--eval-episodes", type=int, default=32)
    args = parser.parse_args()
    job = TrainJob.build_job_from_yaml(args.job)
    with SwarmClient(args.url, os.environ.get("SWARM_TOKEN")) as client:
        for tool in args.tool:
            train(client, job, args.library, USES[tool], args.eval_episodes)


def train(client: SwarmClient, job: TrainJob, library: str, use: Use, eval_episodes: int) -> None:
    """Train one agent from the job's model on, and print its scores and the reward of each step."""
    my_agent = partial(importlib.import_module(f"{library}_agent").my_agent, tool=use.tool)

    def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
        return WorkflowOutput(reward=reward(task, my_agent(task.main_query, credentials)))

    def score() -> str:
        tasks = list(itertools.islice(use.tasks("validation"), eval_episodes))
        result = evaluate(client, tasks, attempt, WORKERS, worst=0.0)
        return f"{result.mean or 0.0:.3f} (n={result.n}, {len(result.broken)} broken)"

    client.auto_sync_train_config_and_start_engine(job, force_restart=True)
    print(f"{library} {use.tool.__name__}: validation accuracy before: {score()}", flush=True)
    steps = job.total_steps or 20
    tasks = list(itertools.islice(itertools.cycle(use.tasks("train")), steps * job.batch_size))
    run_episodes_until_all_complete(tasks, attempt, WORKERS, client=client, num_repeat=job.num_repeat)
    client.wait_until_step(steps, timeout=300)
    rewards = (f"{point.metrics['critic/score/mean']:.2f}" for point in client.metrics())
    print("reward by step:", *rewards)
    print(f"{library} {use.tool.__name__}: validation accuracy after: {score()}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (SwarmError, httpx.HTTPError) as error:
        sys.exit(f"agent_tools: {error}")
