"""A rollout client to be killed (URL NAME JOURNAL): it writes one JSON line per acknowledged end before it goes on."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import httpx

from swarm import Credentials, EpisodeEnded, SwarmClient, Task, WorkflowOutput

THREADS = 4
GROUP = 4
PATIENCE_S = 900.0
LEASE_S = 3.0


def main(url: str, name: str, journal: TextIO) -> None:
    # A new process of the same name must not continue the groups of the one that was killed.
    prefix = f"{name}-{os.getpid()}"
    task_ids = (f"{prefix}-{number}" for number in itertools.count() for _ in range(GROUP))
    lock = threading.Lock()
    with SwarmClient(url, client_id=name) as client, httpx.Client(timeout=30) as http:
        threads = [
            threading.Thread(target=roll_out, args=(client, http, task_ids, journal, lock), daemon=True)
            for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def roll_out(
    client: SwarmClient, http: httpx.Client, task_ids: Iterator[str], journal: TextIO, lock: threading.Lock
) -> None:
    while True:
        with lock:
            task = Task("Reverse: abc", next(task_ids))
        episode_id, credentials = client.begin_episode(task_id=task.task_id, lease_s=LEASE_S)
        try:
            for _ in range(random.choice((1, 1, 2))):
                call_model(http, credentials)
            output = WorkflowOutput(reward=random.random())
            receipt = client.end_episode(task, episode_id, output)
        except EpisodeEnded:
            continue
        line = {"episode_id": episode_id, "reward": output.reward, "task_id": task.task_id, "at": time.time()}
        with lock:
            journal.write(json.dumps({**line, "state": receipt.state}) + "\n")
            journal.flush()


def call_model(http: httpx.Client, credentials: Credentials) -> None:
    """One completion, however often the server dies meanwhile. Raises EpisodeEnded, TimeoutError."""
    body = {
        "model": credentials.model,
        "messages": [{"role": "user", "content": "Reverse the word: abc"}],
        "max_tokens": 12,
    }
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        try:
            answer = http.post(
                f"{credentials.base_url}/chat/completions",
                json=body,
                headers={"authorization": f"Bearer {credentials.api_key}"},
            )
        except httpx.TransportError:
            time.sleep(0.1)
            continue
        if answer.status_code == 200:
            return
        code = answer.json()["error"]["code"]
        if answer.status_code == 409:
            raise EpisodeEnded(code)
        assert answer.status_code == 503, answer.text
        time.sleep(0.1)
    raise TimeoutError(f"no completion for {PATIENCE_S:.0f} s")


if __name__ == "__main__":
    with Path(sys.argv[3]).open("a", encoding="utf-8") as file:
        main(sys.argv[1], sys.argv[2], file)
