"""Train an unchanged OpenAI-SDK agent to use its calculator: see README.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import httpx
from agent import ask
from openai import DefaultHttpxClient, OpenAI

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
from swarm.tasks import task_family

FAMILY = task_family("calc")
WORKERS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("SWARM_URL", "http://127.0.0.1:10086"))
    parser.add_argument("--job", default=str(Path(__file__).with_name("job.yaml")))
    parser.add_argument("--eval-episodes", type=int, default=200)
    args = parser.parse_args()
    job = TrainJob.build_job_from_yaml(args.job)
    total_steps = job.total_steps or 30

    with SwarmClient(args.url, os.environ.get("SWARM_TOKEN")) as client, DefaultHttpxClient() as shared:
        agent = OpenAI(base_url="http://unset", api_key="unset", http_client=shared)

        def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
            """Let the agent answer with base_url and api_key, and nothing else."""
            answer = ask(
                agent.with_options(base_url=credentials.base_url, api_key=credentials.api_key), task.main_query
            )
            return WorkflowOutput(reward=float(answer.strip() == task.metadata["answer"]))

        def train_on(task: Task) -> None:
            with client.open_episode(task) as episode:
                episode.output = attempt(task, episode.credentials)

        def accuracy() -> str:
            result = evaluate(client, FAMILY.tasks("validation", args.eval_episodes), attempt, max_workers=WORKERS)
            return f"{result.mean or 0.0:.3f} (n={result.n})"

        client.auto_sync_train_config_and_start_engine(job, force_restart=True)
        print(f"validation accuracy before: {accuracy()}", flush=True)
        began = time.monotonic()
        for step in range(total_steps):
            tasks = FAMILY.tasks("train", job.batch_size, offset=step * job.batch_size)
            repeated = [task for task in tasks for _ in range(job.num_repeat)]
            run_episodes_until_all_complete(repeated, train_on, max_workers=WORKERS)
            reward = client.wait_until_step(step + 1, timeout=120).last_metrics["critic/score/mean"]
            print(f"step {step + 1:3d}  reward {reward:.3f}  {time.monotonic() - began:.0f} s", flush=True)
        print(f"validation accuracy after: {accuracy()}")


if __name__ == "__main__":
    try:
        main()
    except (SwarmError, httpx.HTTPError) as error:
        sys.exit(f"openai_tools: {error}")
