"""Train the model behind a stock coding agent, which edits a file in a folder of its own: see README.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from agents import AGENTS, Agent

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

FAMILY = task_family("sort")
FILE = "answer.txt"
LIMIT_S = 600
# Each is a process of several hundred megabytes.
WORKERS = 16


def run_agent(agent: Agent, prompt: str, credentials: Credentials, folder: Path, home: Path) -> str:
    """Run an agent in a folder and return what it printed. Raises if it fails: the episode is then aborted."""
    invocation = agent(prompt, credentials, home)
    done = subprocess.run(
        invocation.command,
        env={"PATH": os.environ["PATH"], **invocation.env},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{invocation.command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def attempt(agent: Agent, task: Task, credentials: Credentials) -> WorkflowOutput:
    """Let the agent write the answer into a file. Only the file counts."""
    with TemporaryDirectory() as folder, TemporaryDirectory() as home:
        prompt = f"Write the answer to this question, and nothing else, into {FILE}. {task.main_query}"
        run_agent(agent, prompt, credentials, Path(folder), Path(home))
        path = Path(folder, FILE)
        answer = path.read_text(errors="replace").strip() if path.is_file() else ""
    return WorkflowOutput(reward=float(answer == task.metadata["answer"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", choices=sorted(AGENTS), default="codex")
    parser.add_argument("--url", default=os.environ.get("SWARM_URL", "http://127.0.0.1:10086"))
    parser.add_argument("--job", default=str(Path(__file__).with_name("job.yaml")))
    parser.add_argument("--eval-episodes", type=int, default=50)
    args = parser.parse_args()
    job = TrainJob.build_job_from_yaml(args.job)
    total_steps = job.total_steps or 1

    def attempt_one(task: Task, credentials: Credentials) -> WorkflowOutput:
        return attempt(AGENTS[args.agent], task, credentials)

    with SwarmClient(args.url, os.environ.get("SWARM_TOKEN")) as client:

        def accuracy() -> str:
            tasks = FAMILY.tasks("validation", args.eval_episodes)
            result = evaluate(client, tasks, attempt_one, max_workers=WORKERS)
            return f"{result.mean or 0.0:.3f} (n={result.n})"

        client.auto_sync_train_config_and_start_engine(job)
        print(f"validation accuracy before: {accuracy()}", flush=True)
        # Half as many tasks again as the job needs, for agents that fail; the run ends by itself after the last step.
        tasks = FAMILY.tasks("train", job.batch_size * total_steps * 3 // 2)
        run_episodes_until_all_complete(
            tasks, attempt_one, WORKERS, client=client, num_repeat=job.num_repeat, throttler=Throttler(client)
        )
        print(f"validation accuracy after: {accuracy()}")


if __name__ == "__main__":
    try:
        main()
    except SwarmError as error:
        sys.exit(f"coding_agents: {error.message}")
