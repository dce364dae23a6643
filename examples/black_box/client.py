"""Train the model behind a program that cannot be changed, by its environment alone: see README.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

from swarm import (
    Credentials,
    SwarmClient,
    SwarmError,
    Task,
    Throttler,
    TrainJob,
    WorkflowOutput,
    evaluate,
    run_episodes_until_all_complete,
)
from swarm.tasks import task_family

FAMILY = task_family("reverse")
AGENT = [sys.executable, str(Path(__file__).with_name("agent.py"))]
# Each is a process; more than this only wait for a core.
WORKERS = 8


def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
    """Run the program for one episode. Raises if the program fails: the episode is then aborted."""
    done = subprocess.run(
        [*AGENT, task.main_query],
        env={**os.environ, **credentials.env()},
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    return WorkflowOutput(reward=float(done.stdout.strip() == task.metadata["answer"]))


def print_progress(client: SwarmClient, total_steps: int) -> None:
    """One line per finished step, as the server announces it."""
    done = 0
    for event in client.events(client.past_events()[-1].event_id):
        if event.kind == "batch.trained":
            for point in client.metrics(after_step=done):
                done = point.step
                print(f"step {point.step:3d}  reward {point.metrics['critic/score/mean']:.3f}", flush=True)
        if done >= total_steps:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("SWARM_URL", "http://127.0.0.1:10086"))
    parser.add_argument("--job", default=str(Path(__file__).with_name("job.yaml")))
    parser.add_argument("--eval-episodes", type=int, default=100)
    args = parser.parse_args()
    job = TrainJob.build_job_from_yaml(args.job)
    total_steps = job.total_steps or 1
    with SwarmClient(args.url, os.environ.get("SWARM_TOKEN")) as client:

        def accuracy() -> str:
            result = evaluate(client, FAMILY.tasks("validation", args.eval_episodes), attempt, max_workers=WORKERS)
            return f"{result.mean or 0.0:.3f} (n={result.n})"

        client.auto_sync_train_config_and_start_engine(job, force_restart=True)
        print(f"validation accuracy before: {accuracy()}", flush=True)
        progress = threading.Thread(target=print_progress, args=(client, total_steps), daemon=True)
        progress.start()
        # Half as many tasks again as the job needs, for programs that fail; the run ends by itself after the last step.
        tasks = FAMILY.tasks("train", job.batch_size * total_steps * 3 // 2)
        runs = run_episodes_until_all_complete(
            tasks, attempt, WORKERS, client=client, num_repeat=job.num_repeat, throttler=Throttler(client)
        )
        client.wait_until_step(total_steps, timeout=120)
        progress.join(timeout=10)
        print(f"{len(runs.failures)} episodes failed")
        print(f"validation accuracy after: {accuracy()}")


if __name__ == "__main__":
    try:
        main()
    except SwarmError as error:
        sys.exit(f"black_box: {error.message}")
