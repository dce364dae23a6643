"""A program of several roles, each on a server of its own: what is rewarded on one counts on all of them or on none."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swarm import SwarmClient, TrainJob
from swarm.cli import app

pytestmark = pytest.mark.timeout(400)

JOB = TrainJob(engine="fake", batch_size=3, num_repeat=2, total_steps=3)
FOOT = """
if __name__ == "__main__":
    from swarm.program import main

    main(__file__)
"""
PAIR = """
def agent(task, model, session):
    draft = model.role("solver").chat([{"role": "user", "content": "Solve: " + task.main_query}], max_tokens=4)
    question = [{"role": "user", "content": "Check: " + task.main_query + (draft["content"] or "")}]
    return model.role("checker").chat(question, max_tokens=4)

def reward(task, transcript, grade):
    return {"checker": 0.25 + len(task.main_query), "solver": -1.0}
"""


@pytest.fixture
def urls(start_server: Any) -> dict[str, str]:
    return {role: start_server().url for role in ("solver", "checker")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    JOB.dump_job_as_yaml(tmp_path / "job.yaml")
    return tmp_path


def run(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(code + FOOT)
    command = [sys.executable, "program.py", "--env", "reverse", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def servers(urls: dict[str, str]) -> list[str]:
    return [word for role, url in urls.items() for word in ("--server", f"{role}={url}")]


def trained(url: str) -> Counter[tuple[str, float]]:
    with SwarmClient(url) as client:
        assert [point.metrics["batch/groups"] for point in client.metrics()] == [3.0] * 3
        assert [point.metrics["batch/episodes"] for point in client.metrics()] == [6.0] * 3
        views = client.episodes(state="trained")
    return Counter((view.task_id or "", view.reward or 0.0) for view in views)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_each_role_has_its_reward_for_the_same_attempts(folder: Path, urls: dict[str, str]) -> None:
    JOB.model_copy(update={"lr": 0.5}).dump_job_as_yaml(folder / "checker.yaml")
    done = run(folder, PAIR, *servers(urls), "--job", "job.yaml", "--job", "checker=checker.yaml", "--sandbox")
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^(solver|checker) step (\d): reward (-?\d+\.\d{3})$", done.stdout, re.MULTILINE)
    assert sorted((role, step) for role, step, _ in told) == [
        (role, str(n)) for role in ("checker", "solver") for n in (1, 2, 3)
    ]
    assert {reward for role, _, reward in told if role == "solver"} == {"-1.000"}
    assert done.stdout.endswith("done: 3 steps, 0 episodes failed\n")
    solver, checker = (trained(urls[role]) for role in ("solver", "checker"))
    assert {reward for _, reward in solver} == {-1.0}
    assert {reward % 1 for _, reward in checker} == {0.25}
    assert Counter({task: n for (task, _), n in solver.items()}) == Counter(
        {task: n for (task, _), n in checker.items()}
    )
    assert set(solver.values()) == {2} and len(solver) == 9
    with SwarmClient(urls["solver"]) as client, SwarmClient(urls["checker"]) as other:
        assert (client.job().resolved["lr"], other.job().resolved["lr"]) == (JOB.resolve().lr, 0.5)
        [turn] = other.episode(other.episodes(state="trained", limit=1)[0].episode_id).turns
        assert turn.messages[0]["content"].startswith("Check: ")


def test_a_failure_in_one_role_aborts_the_episodes_of_all_and_batches_stay_exact(
    folder: Path, urls: dict[str, str]
) -> None:
    refused = "    if len(task.main_query) % 3 == 0:\n        return model.role('checker').chat('no messages')\n"
    fails = PAIR.replace("    question =", f"{refused}    question =")
    # Where no attempt at a task succeeds, its group is given up and another task takes its place.
    done = run(folder, fails, *servers(urls), "--job", "job.yaml")
    assert done.returncode == 0, done.stderr
    assert re.search(r"done: 3 steps, [1-9]\d* episodes failed\n$", done.stdout)
    assert {task for task, _ in trained(urls["solver"])} == {task for task, _ in trained(urls["checker"])}
    ended: list[Counter[tuple[str, str]]] = []
    for url in urls.values():
        with SwarmClient(url) as client:
            assert all(view.state in {"trained", "aborted"} for view in client.episodes())
            ended.append(Counter((view.task_id or "", view.state) for view in client.episodes()))
    assert ended[0] == ended[1]


def test_roles_that_are_not_served_are_named_with_those_that_are(folder: Path, urls: dict[str, str]) -> None:
    asks = PAIR.replace('model.role("checker")', 'model.role("judge")')
    done = run(folder, asks, *servers(urls), "--job", "job.yaml")
    assert done.returncode == 3 and done.stderr.splitlines()[-1].endswith(
        "there is no role 'judge': the roles are solver, checker; a role is served with --server judge=URL"
    )


def test_the_score_of_several_roles_is_the_grade_of_the_environment(folder: Path, urls: dict[str, str]) -> None:
    (folder / "program.py").write_text(PAIR)
    for url in urls.values():
        with SwarmClient(url) as client:
            client.auto_sync_train_config_and_start_engine(JOB)
    command = ["eval", "--env", "reverse", "--program", str(folder / "program.py"), "-n", "5", "--json"]
    done = CliRunner().invoke(app, [*command, *(word.replace("--server", "--url") for word in servers(urls))])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["episodes"], figures["failures"], figures["mean_reward"]) == (5, 0, 0.0)
    for url in urls.values():
        with SwarmClient(url) as client:
            views = client.episodes()
        assert [(view.episode_type, view.state) for view in views] == [("eval", "completed")] * 5
    refused = CliRunner().invoke(app, [*command, "--url", "solver=x", "--url", "http://b:1"])
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1 and "has no role" in refused.stderr


def test_one_command_for_everything_takes_one_server_and_names_the_other_command(folder: Path) -> None:
    words = ["train", "--env", "reverse", "--program", str(folder / "p.py"), "--url", "solver=http://127.0.0.1:9"]
    (folder / "p.py").write_text(PAIR)
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    assert "python -m swarm.program" in refused.stderr and "--server ROLE=URL" in refused.stderr
