"""Train one model on three tasks at fixed shares, from three clients of different speed: see README.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx

from swarm import ConnectionStack, Credentials, SwarmClient, SwarmError, Task, Throttler, TrainJob, WorkflowOutput
from swarm import run_episodes_until_all_complete as run_episodes
from swarm.tasks import run_agent, task_family

# What an agent's own work takes, in seconds per episode: a compiler, a browser, a judge.
RUNTIMES = {"reverse": 0.02, "sort": 0.1, "count": 0.1}
LATER_MIXTURE = {"reverse": 0.2, "sort": 0.3, "count": 0.5}
TOKEN = os.environ.get("SWARM_TOKEN")


def roll_out(url: str, job: TrainJob, source: str) -> None:
    """One client program: episodes of one data source, until the job is done."""
    family = task_family(source)
    with (
        SwarmClient(url, TOKEN, client_id=f"cocktail-{source}") as client,
        httpx.Client(timeout=180, transport=ConnectionStack()) as http,
    ):

        def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
            time.sleep(RUNTIMES[source])
            return run_agent(family, task, base_url=credentials.base_url, api_key=credentials.api_key, http=http)

        drawn = enumerate(family.tasks("train", job.batch_size * (job.total_steps or 1)))
        tasks = [replace(task, task_id=f"{task.task_id}/{number}", data_source=source) for number, task in drawn]
        throttler = Throttler(client, data_source=source)
        run_episodes(tasks, attempt, 24, client=client, num_repeat=job.num_repeat, throttler=throttler)


def command(client: SwarmClient, after_id: int, total_steps: int) -> None:
    """Print what each step was trained on, as the server announces it, and change the mixture half way."""
    trained: dict[str, Counter[str]] = {"first": Counter(), "later": Counter()}
    for event in client.events(after_id):
        if event.kind != "batch.trained":
            continue
        step = event.detail["step"]
        batch = Counter(episode.data_source for episode in client.episodes(batch_id=event.detail["batch_id"]))
        # The change is made while batch n + 1 is being filled: batch n + 2 is the first of the new mixture.
        trained["first" if step <= total_steps // 2 + 1 else "later"] += batch
        counts = "  ".join(f"{source} {batch[source]:3d}" for source in RUNTIMES)
        print(f"step {step:3d}  {counts}  reward {event.detail['score']:.3f}", flush=True)
        if step == total_steps // 2:
            client.set_mixture(LATER_MIXTURE)
        if step >= total_steps:
            break
    for name, counts in trained.items():
        shares = ", ".join(f"{source} {counts[source] / max(1, counts.total()):.3f}" for source in RUNTIMES)
        print(f"trained shares, {name} mixture: {shares}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("SWARM_URL", "http://127.0.0.1:10086"))
    parser.add_argument("--job", default=str(Path(__file__).with_name("job.yaml")))
    parser.add_argument("--source", choices=list(RUNTIMES), help="be one of the three clients")
    args = parser.parse_args()
    job = TrainJob.build_job_from_yaml(args.job)
    if args.source:
        roll_out(args.url, job, args.source)
        return
    with SwarmClient(args.url, TOKEN) as client:
        client.auto_sync_train_config_and_start_engine(job, force_restart=True)
        newest = client.past_events()[-1].event_id
        me = [sys.executable, __file__, "--url", args.url, "--job", args.job, "--source"]
        clients = [subprocess.Popen([*me, source]) for source in RUNTIMES]
        try:
            command(client, newest, job.total_steps or 1)
        finally:
            for process in clients:
                process.terminate()
                process.wait(timeout=30)


if __name__ == "__main__":
    try:
        main()
    except SwarmError as error:
        sys.exit(f"cocktail: {error.message}")
