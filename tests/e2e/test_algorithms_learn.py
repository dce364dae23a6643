"""Estimators and losses beyond the usual ones learn to reverse words: a real server and the bundled model."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import httpx
import pytest

from swarm import ConnectionStack, SwarmClient, Task, TrainJob, WorkflowOutput, run_episodes_until_all_complete
from swarm.tasks import run_agent, task_family

FAMILY = task_family("reverse")
STEPS = 12
WINDOW = 3
BASE = 0.4
"""What the bundled model earns at most before it learns, on average over a batch."""

JOBS: dict[str, dict[str, Any]] = {
    "stale": {"max_staleness": 1},
    "dro": {"policy_loss": "dro", "dro_beta": 0.1, "mini_batch_num": 2},
    "bypass_mode": {
        "policy_loss": "bypass_mode",
        "loss_type": "reinforce",
        "rollout_is": "token",
        "rollout_rs": "token_k1",
        "rollout_rs_threshold": "0.5_2",
        "mini_batch_num": 2,
    },
    "optimal_token_baseline": {"algorithm": "optimal_token_baseline"},
    "gdpo": {"algorithm": "gdpo", "gdpo_reward_keys": ["right", "close"], "gdpo_reward_weights": [1.0, 0.5]},
    "remax": {"algorithm": "remax"},
    "gae": {"algorithm": "gae", "lam": 0.95, "ppo_epochs": 2},
}


def curve(url: str, settings: dict[str, Any]) -> list[float]:
    """The mean reward of every step."""
    job = TrainJob.model_validate(
        {"lr": 3e-3, "batch_size": 16, "num_repeat": 8, "total_steps": STEPS, "project_name": "algorithms", **settings}
    )
    with SwarmClient(url) as client, httpx.Client(timeout=180, transport=ConnectionStack()) as http:

        def train_on(task: Task) -> None:
            with client.open_episode(task) as episode:
                given = episode.credentials
                done = run_agent(
                    FAMILY, task, base_url=given.base_url, api_key=given.api_key, model=given.model, http=http
                )
                named = {"right": float(bool(done.is_success)), "close": done.reward}
                episode.output = WorkflowOutput(done.reward, done.is_success, rewards=named)

        client.auto_sync_train_config_and_start_engine(job, force_restart=True)
        # Half as many tasks again as are needed: the run ends by itself after its last step.
        tasks = [task for task in FAMILY.tasks("train", job.batch_size * STEPS * 3 // 2) for _ in range(job.num_repeat)]
        run_episodes_until_all_complete(tasks, train_on, max_workers=32)
        client.wait_until_step(STEPS, timeout=120)
        return [point.metrics["critic/score/mean"] for point in client.metrics()]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", JOBS)
def test_rewards_rise_within_twelve_steps(swarm_process: str, name: str) -> None:
    rewards = curve(swarm_process, JOBS[name])
    assert len(rewards) == STEPS
    assert rewards[0] <= BASE, rewards
    assert fmean(rewards[-WINDOW:]) >= 0.7, rewards
