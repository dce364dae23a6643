"""Train a planner and an executor, each on a server of its own, in one team of agents: see README.md."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from swarm import ConnectionStack, Credentials, EpisodeType, SwarmClient, SwarmError, SwarmTeam, Task, TrainJob
from swarm import WorkflowOutput as Output
from swarm import run_episodes_until_all_complete as run_episodes
from swarm.tasks import task_family

HERE = Path(__file__).parent
FAMILY = task_family("sort")
WORKERS = 32
ROLES = ("planner", "executor")


def ask(http: httpx.Client, key: Credentials, question: str) -> str:
    """Any agent can stand here, on any framework: one call is enough for this task."""
    reply = http.post(
        f"{key.base_url}/chat/completions",
        headers={"authorization": f"Bearer {key.api_key}"},
        json={"model": key.model, "max_tokens": 12, "messages": [{"role": "user", "content": question}]},
    )
    reply.raise_for_status()
    return (reply.json()["choices"][0]["message"]["content"] or "").strip()


def work_together(http: httpx.Client, keys: dict[str, Credentials], task: Task) -> tuple[float, float]:
    """Order the letters of a word from Z to A: the planner says their order, the executor reverses it.

    Each model is paid for its own part, so that neither has to learn from the mistakes of the other.
    """
    plan = ask(http, keys["planner"], task.main_query)
    answer = ask(http, keys["executor"], f"Reverse: {plan[:8]}")
    return float(plan == task.metadata["answer"]), float(bool(plan) and answer == plan[:8][::-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planner-url", default="http://127.0.0.1:10086")
    parser.add_argument("--executor-url", default="http://127.0.0.1:10087")
    parser.add_argument("--jobs", type=Path, default=HERE, help="where planner.yaml and executor.yaml are")
    parser.add_argument("--eval-episodes", type=int, default=200)
    args = parser.parse_args()
    jobs = {role: TrainJob.build_job_from_yaml(args.jobs / f"{role}.yaml") for role in ROLES}
    token = os.environ.get("SWARM_TOKEN")
    with (
        SwarmClient(args.planner_url, token) as planner,
        SwarmClient(args.executor_url, token) as executor,
        httpx.Client(timeout=180, transport=ConnectionStack()) as http,
    ):
        team = SwarmTeam({"planner": planner, "executor": executor})

        def attempt(task: Task, episode_type: EpisodeType = EpisodeType.TRAIN) -> tuple[float, float]:
            # Both results count, or none does, whatever happens to this program or to a server.
            with team.open_episodes(task, episode_type) as episodes:
                rewards = work_together(http, dict(episodes.credentials), task)
                for role, reward in zip(ROLES, rewards, strict=True):
                    episodes.outputs[role] = Output(reward=reward, is_success=reward > 0)
            return rewards

        def report(when: str) -> None:
            tasks = FAMILY.tasks("validation", args.eval_episodes)
            with ThreadPoolExecutor(WORKERS) as pool:
                rewards = list(pool.map(lambda task: attempt(task, EpisodeType.EVAL), tasks))
            means = [statistics.fmean(each) for each in zip(*rewards, strict=True)]
            both = statistics.fmean(min(each) for each in rewards)
            parts = ", ".join(f"{role} {mean:.3f}" for role, mean in zip(ROLES, means, strict=True))
            print(f"held-out reward {when}: {parts}; both right {both:.3f} (n={len(rewards)})", flush=True)

        for role, client in team.clients.items():
            client.auto_sync_train_config_and_start_engine(jobs[role], force_restart=True)
        report("before")
        began, job = time.monotonic(), jobs["planner"]
        steps = job.total_steps or 20
        runs = run_episodes(
            FAMILY.tasks("train", job.batch_size * steps * 2), attempt, WORKERS, num_repeat=job.num_repeat
        )
        done = ", ".join(f"{role} {client.status().step}" for role, client in team.clients.items())
        print(f"steps: {done} in {time.monotonic() - began:.0f} s, {len(runs.failures)} episodes failed", flush=True)
        report("after")


if __name__ == "__main__":
    try:
        main()
    except SwarmError as error:
        sys.exit(f"two_models: {error.message}")
