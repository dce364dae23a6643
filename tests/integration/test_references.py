"""Every public name is documented, and every metric that a training reports has a unit and a formula."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import swarm
from swarm import Credentials, SwarmClient, Task, TrainJob, WorkflowOutput, run_episodes_until_all_complete
from swarm.batch.step_metrics import STEP_METRICS, describe_metric
from swarm.tasks import run_agent, task_family

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_on_the_page_of_the_python_api() -> None:
    named = set(re.findall(r"\w+", (ROOT / "docs" / "python-api.md").read_text()))
    missing = {name for name in swarm.__all__ if name[0] != "_"} - named
    assert missing == set()


@pytest.mark.slow
def test_every_metric_that_a_training_reports_has_a_unit_and_a_formula(start_server: Any) -> None:
    """A training with a critic, a KL term, an entropy bonus, turn rewards and reported successes."""
    job = TrainJob(
        algorithm="gae", use_kl_loss=True, entropy_coeff=0.01, max_staleness=1, rollout_is="token", batch_size=2,
        num_repeat=2, total_steps=1,
    )  # fmt: skip
    family = task_family("reverse")
    with SwarmClient(start_server().url) as client:

        def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
            output = run_agent(family, task, base_url=credentials.base_url, api_key=credentials.api_key)
            number = float(sum(map(ord, credentials.episode_id)) % 2)
            return WorkflowOutput(reward=number, is_success=bool(number), turn_rewards=[output.reward])

        client.auto_sync_train_config_and_start_engine(job)
        runs = run_episodes_until_all_complete(family.tasks("train", 2), attempt, client=client, num_repeat=2)
        assert not runs.failures
        client.wait_until_step(1, timeout=120)
        [point] = client.metrics()
    described = {name: describe_metric(name) for name in point.metrics}
    assert {name for name, metric in described.items() if metric is None or metric.unit == "by verl"} == set()
    assert {"critic/vf_loss", "critic/return/mean", "actor/kl_loss", "actor/entropy_loss"} <= described.keys()


def test_every_metric_that_the_code_names_has_a_unit_and_a_formula() -> None:
    folders = ("trainer", "backends", "batch", "run", "guard")
    sources = [path.read_text() for folder in folders for path in (ROOT / "swarm" / folder).rglob("*.py")]
    families = {name.partition("/")[0] for metric in STEP_METRICS for name in metric.names}
    named = {name for source in sources for name in re.findall(r'"(\w+/[a-z_]+(?:/[a-z_]+)?)"', source)}
    measured = {name for name in named if name.partition("/")[0] in families}
    assert len(measured) > 40
    # Some are given to a function that adds /mean, /max and /min.
    assert {name for name in measured if not (describe_metric(name) or describe_metric(f"{name}/mean"))} == set()
