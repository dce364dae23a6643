"""A client as the field's tutorial has it, with its imports changed: raw HTTP, a pool of threads, no last step."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import pytest

from swarm import ConnectionStack, SwarmClient, Task, TrainJob, WorkflowOutput, run_episodes_until_all_complete
from swarm.client import Credentials
from swarm.tasks import task_family

BATCH_SIZE, NUM_REPEAT, STEPS = 16, 8, 30
WORKERS = 32
EVAL_TASKS = 200
DATASET = task_family("reverse")


class Tutorial:
    """What the tutorial has as functions of one module."""

    def __init__(self, client: SwarmClient, http: httpx.Client) -> None:
        self.client = client
        self._http = http

    def execute_agent(self, task: Task, api: Credentials) -> WorkflowOutput:
        response = self._http.post(
            f"{api.base_url}/chat/completions",
            json={"model": "any", "messages": [{"role": "user", "content": task.main_query}]},
            headers={"Authorization": f"Bearer {api.api_key}"},
        )
        response.raise_for_status()
        answer = response.json()["choices"][0]["message"]["content"]
        is_success = answer.strip() == task.metadata["answer"]
        return WorkflowOutput(reward=1.0 if is_success else 0.0, is_success=is_success)

    def rollout(self, task: Task, episode_type: str = "train") -> float:
        episode_uuid, api = self.client.begin_episode(episode_type=episode_type, discard_episode_timeout=60)
        workflow_output = self.execute_agent(task, api)
        self.client.end_episode(task, episode_uuid, workflow_output)
        return workflow_output.reward

    def accuracy(self) -> float:
        tasks = DATASET.tasks("validation", EVAL_TASKS)
        rewards = run_episodes_until_all_complete(tasks, lambda task: self.rollout(task, "eval"), max_workers=WORKERS)
        return sum(reward or 0.0 for reward in rewards) / len(rewards)

    def train(self, tasks: Sequence[Task]) -> list[float]:
        curve: list[float] = []
        for begin in range(0, len(tasks), BATCH_SIZE):
            if self.client.status().step >= STEPS:
                break
            batch = [task for task in tasks[begin : begin + BATCH_SIZE] for _ in range(NUM_REPEAT)]
            rewards = run_episodes_until_all_complete(batch, func=self.rollout, max_workers=WORKERS, auto_retry=True)
            curve.append(sum(reward or 0.0 for reward in rewards) / len(rewards))
        return curve


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_of_the_field_learns_to_reverse_words_in_thirty_steps(swarm_process: str) -> None:
    job = TrainJob(
        algorithm="grpo",
        project_name="tutorial",
        experiment_name="reverse",
        n_gpu=0,
        model="nano",
        batch_size=BATCH_SIZE,
        num_repeat=NUM_REPEAT,
    )
    with SwarmClient(swarm_process) as client, httpx.Client(timeout=180, transport=ConnectionStack()) as http:
        tutorial = Tutorial(client, http)
        client.auto_sync_train_config_and_start_engine(job)
        before = tutorial.accuracy()
        curve = tutorial.train(DATASET.tasks("train", BATCH_SIZE * STEPS * 3 // 2))
        after = tutorial.accuracy()
        last = client.status()
        client.stop_engine()

    assert before <= 0.45
    assert after >= 0.8, curve
    # The step after the last one needed may have begun before the client saw the end of that.
    assert STEPS <= last.step <= STEPS + 1
    assert last.ignored_fields["model"] >= BATCH_SIZE * NUM_REPEAT * STEPS
