"""Train the bundled model to reverse words, with nothing but the client: see README.md."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import httpx

from swarm import (
    ConnectionStack,
    Credentials,
    SwarmClient,
    SwarmError,
    Task,
    TrainJob,
    WorkflowOutput,
    evaluate,
    run_episodes_until_all_complete,
)
from swarm.tasks import run_agent, task_family

FAMILY = task_family("reverse")
WORKERS = 32
REWARD = "critic/score/mean"


def print_progress(client: SwarmClient, total_steps: int) -> None:
    """One line per finished step, until the last."""
    done = client.status().step
    while done < total_steps:
        for point in client.metrics(after_step=done):
            done = point.step
            print(f"step {point.step:3d}  reward {point.metrics[REWARD]:.3f}", flush=True)
        time.sleep(0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("SWARM_URL", "http://127.0.0.1:10086"))
    parser.add_argument("--job", default=str(Path(__file__).with_name("job.yaml")))
    parser.add_argument("--eval-episodes", type=int, default=200)
    args = parser.parse_args()

    job = TrainJob.build_job_from_yaml(args.job)
    total_steps = job.total_steps or 30
    with (
        SwarmClient(args.url, os.environ.get("SWARM_TOKEN")) as client,
        httpx.Client(timeout=180, transport=ConnectionStack()) as http,
    ):

        def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
            """Any agent can stand here: it needs a base_url and an api_key, and it returns a reward."""
            return run_agent(
                FAMILY,
                task,
                base_url=credentials.base_url,
                api_key=credentials.api_key,
                model=credentials.model,
                http=http,
            )

        def train_on(task: Task) -> None:
            with client.open_episode(task) as episode:
                episode.output = attempt(task, episode.credentials)

        def accuracy() -> str:
            result = evaluate(client, FAMILY.tasks("validation", args.eval_episodes), attempt, max_workers=WORKERS)
            return (
                f"{result.mean or 0.0:.3f} (n={result.n}, weight version {', '.join(map(str, result.weight_versions))})"
            )

        client.auto_sync_train_config_and_start_engine(job, force_restart=True)
        print(f"validation accuracy before: {accuracy()}", flush=True)
        began = time.monotonic()
        progress = threading.Thread(target=print_progress, args=(client, total_steps), daemon=True)
        progress.start()
        # Every task is attempted num_repeat times in a row, so that its group is complete at about the same time;
        # half as many again as the job needs, since the run ends by itself after the last step.
        tasks = FAMILY.tasks("train", job.batch_size * total_steps * 3 // 2)
        runs = run_episodes_until_all_complete(
            [task for task in tasks for _ in range(job.num_repeat)], train_on, max_workers=WORKERS
        )
        client.wait_until_step(total_steps, timeout=120)
        progress.join(timeout=5)
        print(f"trained {total_steps} steps in {time.monotonic() - began:.0f} s, {len(runs.failures)} episodes failed")
        print(f"validation accuracy after: {accuracy()}")


if __name__ == "__main__":
    try:
        main()
    except SwarmError as error:
        sys.exit(f"reverse_words: {error.message}")
