"""A run on the local engine whose settings change on the way, by a client that does the same thing whoever dies."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from server_processes import ServerProcess
from tests_support import wait_for_state

from swarm import SwarmClient, SwarmError, Task, WorkflowOutput
from swarm.job import TrainJob

PATIENCE_S = 1800.0
"""A call that is held while the server boots may see it killed many times."""
LR, TEMPERATURE, BATCH_SIZE = 4e-4, 0.6, 3
JOB = TrainJob(
    engine="local",
    total_steps=1,
    batch_size=2,
    num_repeat=2,
    lr=2e-3,
    lr_warmup_steps=2,
    lr_scheduler_type="cosine",
    min_lr_ratio=0.1,
    weight_decay=0.01,
    mini_batch_num=2,
    # A prompt that a killed server had cached is computed anew, and its replies may have other last bits of logprobs.
    # This loss does not read the recorded ones.
    policy_loss="gpg",
    max_response_length=12,
    drain_timeout_s=5,
)


@dataclass(frozen=True)
class Plan:
    """How many steps, and from which of them on lr and temperature, and the batch size, are others."""

    steps: int
    changed_at: int
    size_changed_at: int


@dataclass
class ChangedRun:
    """The client asks for one reply after the other, each with a seed of its own, so that two runs of the same plan
    sample the same tokens from the same weights.

    `save_freq` keeps a checkpoint of every so many steps; before each episode the client waits for `pause_s`."""

    server: ServerProcess
    plan: Plan
    save_freq: int = 0
    pause_s: float = 0.0
    kills: int = 0
    troubles: list[str] = field(default_factory=list[str])
    _is_done: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return self.server.url

    def play(self, moments: Sequence[float] = ()) -> None:
        """All steps. The server is killed and started again, each time so many seconds after it has come back."""
        killer = threading.Thread(target=self._kill_at, args=(moments,))
        with SwarmClient(self.url, timeout=PATIENCE_S) as client:
            client.auto_sync_train_config_and_start_engine(self._job())
            client.change_job({"lr": LR, "temperature": TEMPERATURE}, at_step=self.plan.changed_at)
            change_by_curl(self.url, {"settings": {"batch_size": BATCH_SIZE}, "at_step": self.plan.size_changed_at})
            killer.start()
            try:
                for step in range(1, self.plan.steps + 1):
                    self._fill_batch(client, step)
            finally:
                self._is_done.set()
                killer.join(timeout=PATIENCE_S)
                assert not self.troubles, self.troubles
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as http:
            wait_for_state(http, "COMPLETE")

    def batches(self) -> list[dict[str, Any]]:
        """The trained ones, oldest first."""
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as http:
            shown = http.get("/v1/swarm/batches", params={"limit": 1000}).json()["batches"]
        return [batch for batch in reversed(shown) if batch["state"] == "trained"]

    def kept_weights(self) -> dict[int, bytes]:
        """The weights by step, read from what was written while the run went on."""
        kept = self.server.home.glob("swarm/default/run-*/checkpoints/step-*/model.safetensors")
        return {int(path.parent.name.removeprefix("step-")): path.read_bytes() for path in kept}

    def replayed_weights(self) -> dict[int, bytes]:
        """The weights by step, each made of the batches on record once more."""
        weights: dict[int, bytes] = {}
        for path in self.server.home.glob("swarm/default/run-*/recovery"):
            shutil.rmtree(path)
        with SwarmClient(self.url, timeout=PATIENCE_S) as client:
            for step in range(self.plan.steps, 0, -1):
                client.load_checkpoint(step)
                path = Path(client.save_checkpoint().path)
                weights[step] = (path / "model.safetensors").read_bytes()
                shutil.rmtree(path)
        return weights

    def _job(self) -> TrainJob:
        return JOB.model_copy(update={"save_freq": self.save_freq, "total_steps": self.plan.steps})

    def _fill_batch(self, client: SwarmClient, step: int) -> None:
        for task in range(BATCH_SIZE if step >= self.plan.size_changed_at else JOB.batch_size):
            for repeat in range(JOB.num_repeat):
                self._finish_episode(client, step, task, repeat)

    def _finish_episode(self, client: SwarmClient, step: int, task: int, repeat: int) -> None:
        name = f"{step}-{task}"
        seed = zlib.crc32(f"{name}-{repeat}".encode())
        time.sleep(self.pause_s)
        while True:
            episode_id, credentials = client.begin_episode(task_id=name, wait_timeout=PATIENCE_S)
            text = self._ask(credentials.base_url, credentials.api_key, f"Reverse: {name}", seed)
            if text is not None:
                reward = (zlib.crc32(text.encode()) % 5 + repeat) / 5
                output = WorkflowOutput(reward=reward)
                client.end_episode(Task(main_query=name, task_id=name), episode_id, output, wait_timeout=PATIENCE_S)
                return
            # Nobody knows what became of the call: the episode is given up, and another one asks the same.
            with suppress(SwarmError):
                client.abort_episode(episode_id, "call_lost")

    def _ask(self, base_url: str, key: str, text: str, seed: int) -> str | None:
        body = {"model": "default", "messages": [{"role": "user", "content": text}], "seed": seed}
        try:
            with httpx.Client(timeout=PATIENCE_S) as http:
                reply = http.post(f"{base_url}/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
                return str(reply.raise_for_status().json()["choices"][0]["message"]["content"])
        except httpx.HTTPError:
            return None

    def _kill_at(self, moments: Sequence[float]) -> None:
        for moment in moments:
            if self._is_done.wait(moment):
                return
            self.server.kill()
            self.kills += 1
            try:
                self.server.start()
            except AssertionError as error:
                self.troubles.append(str(error))
                return


def change_by_curl(url: str, body: dict[str, Any]) -> None:
    words = ["curl", "--fail-with-body", "--silent", "-X", "PATCH", f"{url}/v1/swarm/job", "-d", json.dumps(body)]
    answer = subprocess.run(
        [*words, "-H", "content-type: application/json"], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stdout


def moments(seed: int, number: int, longest_s: float) -> list[float]:
    """Seconds between one kill and the next."""
    generator = random.Random(seed)
    return [generator.uniform(0.0, longest_s) for _ in range(number)]
