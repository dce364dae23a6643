"""Train a model on grade-school mathematics from a data set on disk: see README.md."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from swarm import ConnectionStack, Credentials, SwarmClient, SwarmError, Task, TrainJob, WorkflowOutput, evaluate
from swarm import run_episodes_until_all_complete as run_episodes

INSTRUCTION = "\nThink step by step and end with the answer as a number after ####."
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def read_tasks(path: Path) -> list[Task]:
    """One task per line {"question": ..., "answer": "... #### 42"}."""
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines if line.strip()]
    return [
        Task(record["question"], f"{path.stem}-{number}", {"answer": record["answer"].rpartition("####")[2].strip()})
        for number, record in enumerate(records)
    ]


def is_right(reply: str, answer: str) -> bool:
    """Whether the last number behind the mark is the answer."""
    numbers = NUMBER.findall(reply.rpartition("####")[2]) if "####" in reply else []
    return bool(numbers) and float(numbers[-1].replace(",", "")) == float(answer.replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("SWARM_URL", "http://127.0.0.1:10086"))
    parser.add_argument("--job", default=str(Path(__file__).with_name("job.yaml")))
    parser.add_argument("--train", type=Path, required=True, help="train.jsonl of the data set")
    parser.add_argument("--test", type=Path, required=True, help="test.jsonl of the data set")
    parser.add_argument("--eval-episodes", type=int, default=500)
    parser.add_argument("--workers", type=int, default=512, help="episodes at a time")
    args = parser.parse_args()

    job = TrainJob.build_job_from_yaml(args.job)
    tasks, held_out = read_tasks(args.train), read_tasks(args.test)
    with (
        SwarmClient(args.url, os.environ.get("SWARM_TOKEN")) as client,
        httpx.Client(timeout=600, transport=ConnectionStack()) as http,
    ):

        def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
            messages = [{"role": "user", "content": task.main_query + INSTRUCTION}]
            reply = http.post(
                f"{credentials.base_url}/chat/completions",
                headers={"Authorization": f"Bearer {credentials.api_key}"},
                json={"model": credentials.model, "messages": messages},
            )
            reply.raise_for_status()
            text = reply.json()["choices"][0]["message"]["content"] or ""
            right = is_right(text, task.metadata["answer"])
            return WorkflowOutput(reward=float(right), is_success=right)

        def accuracy() -> str:
            result = evaluate(client, held_out[: args.eval_episodes], attempt, max_workers=args.workers)
            return f"{result.mean or 0.0:.3f} (n={result.n}, failed {len(result.failures)})"

        client.auto_sync_train_config_and_start_engine(job, boot_timeout=1800)
        print(f"test accuracy before: {accuracy()}", flush=True)
        total_steps = job.total_steps or 100
        drawn = itertools.islice(endlessly(tasks, job.seed), job.batch_size * total_steps * 3 // 2)
        run_episodes(list(drawn), attempt, args.workers, client=client, num_repeat=job.num_repeat)
        client.wait_until_step(total_steps, timeout=3600)
        print(f"test accuracy after {total_steps} steps: {accuracy()}")


def endlessly(tasks: list[Task], seed: int) -> Iterator[Task]:
    """All tasks in one random order after another."""
    order = random.Random(seed)
    while True:
        yield from order.sample(tasks, len(tasks))


if __name__ == "__main__":
    try:
        main()
    except SwarmError as error:
        sys.exit(f"gsm8k_verl: {error.message}")
