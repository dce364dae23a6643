"""Train with a reward that is edited in mid-run, by stopping this client and starting it again: see README.md."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx

from swarm import ConnectionStack, SwarmClient, SwarmError, Task, Throttler, TrainJob, WorkflowOutput
from swarm import run_episodes_until_all_complete as run_episodes
from swarm.tasks import task_family

FAMILY = task_family("reverse")
WORKERS = 16
LEASE_S = 5.0


def reward_of(answer: str, expected: str) -> float:
    """Edit me while the job runs."""
    return float(answer == expected)


def print_progress(client: SwarmClient, stop: threading.Event) -> None:
    """One line per finished step, those before this start included."""
    done, is_last = 0, False
    while not is_last:
        is_last = stop.wait(0.25)
        for point in client.metrics(after_step=done):
            done = point.step
            print(f"step {point.step:3d}  reward {point.metrics['critic/score/mean']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("SWARM_URL", "http://127.0.0.1:10086"))
    parser.add_argument("--job", default=str(Path(__file__).with_name("job.yaml")))
    args = parser.parse_args()
    job = TrainJob.build_job_from_yaml(args.job)
    total_steps = job.total_steps or 1
    with (
        SwarmClient(args.url, os.environ.get("SWARM_TOKEN")) as client,
        httpx.Client(timeout=180, transport=ConnectionStack()) as http,
    ):

        def ask(question: str, base_url: str, api_key: str) -> str:
            reply = http.post(
                f"{base_url}/chat/completions",
                headers={"authorization": f"Bearer {api_key}"},
                json={"model": "default", "max_tokens": 12, "messages": [{"role": "user", "content": question}]},
            )
            reply.raise_for_status()
            return (reply.json()["choices"][0]["message"]["content"] or "").strip()

        def attempt(task: Task) -> None:
            with client.open_episode(task, lease_s=LEASE_S) as episode:
                answer = ask(task.main_query, episode.credentials.base_url, episode.credentials.api_key)
                episode.output = WorkflowOutput(reward=reward_of(answer, task.metadata["answer"]))

        status = client.auto_sync_train_config_and_start_engine(job)
        print(f"joined at step {status.step}", flush=True)
        stop = threading.Event()
        progress = threading.Thread(target=print_progress, args=(client, stop), daemon=True)
        progress.start()
        start = f"{time.time():.0f}"
        drawn = enumerate(FAMILY.tasks("train", job.batch_size * total_steps * 3 // 2, seed=status.step))
        tasks = [replace(task, task_id=f"{start}/{number}/{task.task_id}") for number, task in drawn]
        # A batch takes all that was begun for it: the throttler keeps it to its size.
        try:
            run_episodes(tasks, attempt, WORKERS, num_repeat=job.num_repeat, throttler=Throttler(client))
            client.wait_until_step(total_steps, timeout=300)
        finally:
            stop.set()
            progress.join(timeout=10)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("live_edit: stopped; what was open is aborted. Edit and start me again")
    except SwarmError as error:
        sys.exit(f"live_edit: {error.message}")
