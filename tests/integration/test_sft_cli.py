"""`swarm sft`: a model is trained on demonstrations from one command, which goes on where it was."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swarm.cli import app
from swarm.demonstrations import write_demonstrations
from swarm.environments.scaffold import write_scaffold

FAST = "engine: fake\nsft_batch_size: 4\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with 40 demonstrations in `reversed.jsonl` and a job for the fake engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "runs"))
    rng = random.Random(0)
    words = ["".join(rng.choices("ABCDEFGH", k=4)) for _ in range(40)]
    write(tmp_path / "reversed.jsonl", [(f"Reverse: {word}", word[::-1]) for word in words])
    (tmp_path / "fake.yaml").write_text(FAST)
    return tmp_path


def write(path: Path, pairs: list[tuple[str, str]]) -> None:
    chats = [([{"role": "user", "content": ask}, {"role": "assistant", "content": say}], []) for ask, say in pairs]
    path.write_bytes(write_demonstrations(chats))


def swarm(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_a_model_is_trained_on_demonstrations_alone_and_the_lines_say_how_to_go_on(folder: Path) -> None:
    done = swarm("sft", "reversed.jsonl", "--model", "nano", "--steps", "3", "--batch-size", "4", "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["steps"], figures["demonstrations"]) == (3, 40)
    assert figures["held_out_loss"]["last"] < figures["held_out_loss"]["first"]
    assert "step    1  loss" in done.stderr and "held-out loss" in done.stderr
    home = figures["home"]
    assert home == str(folder / "runs" / "train" / "sft-reversed")
    assert f"swarm export --home {home}" in done.stderr and "swarm train --env" in done.stderr
    exported = swarm("export", "--home", home, str(folder / "model"))
    assert exported.exit_code == 0, exported.output
    # The same command again trains nothing, and another one is named.
    again = swarm("sft", "reversed.jsonl", "--model", "nano", "--steps", "3", "--batch-size", "4", "--json")
    assert json.loads(again.stdout) == figures
    other = swarm("sft", "reversed.jsonl", "--model", "nano", "--steps", "4", "--batch-size", "4")
    assert other.exit_code != 0 and "--fresh" in other.stderr and "another training" in other.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--model"),
        (["--model", "nano", "--steps", "2", "--epochs", "1"], "--epochs"),
        (["--model", "nano", "--steps", "2", "--job", "long.yaml"], "total_steps 9"),
        (["--model", "nano", "--program", "agent.py"], "--env"),
        (["--model", "nano", "--lr", "-1"], "sft_lr"),
    ],
)
def test_a_contradiction_is_refused_by_name(folder: Path, words: list[str], says: str) -> None:
    (folder / "long.yaml").write_text("total_steps: 9\n")
    (folder / "agent.py").write_text("")
    done = swarm("sft", "reversed.jsonl", *words)
    assert done.exit_code == 2 and says in done.stderr, done.output
    assert not (folder / "runs").exists()


def test_epochs_count_the_demonstrations_that_are_trained(folder: Path) -> None:
    done = swarm("sft", "reversed.jsonl", "--model", "nano", "--job", "fake.yaml", "--epochs", "1", "--json")
    assert json.loads(done.stdout)["steps"] == 9, done.output


def test_a_command_killed_while_it_trains_goes_on_and_loses_no_step(folder: Path) -> None:
    words = ["sft", "reversed.jsonl", "--model", "nano", "--steps", "40", "--batch-size", "4", "--no-record"]
    for number in (signal.SIGKILL, signal.SIGINT):
        child = subprocess.Popen(
            [sys.executable, "-m", "swarm.cli", *words], stderr=subprocess.PIPE, text=True, cwd=folder
        )
        assert child.stderr is not None
        for line in child.stderr:
            if line.startswith("step"):
                break
        time.sleep(0.2)
        child.send_signal(number)
        child.wait(timeout=60)
        child.stderr.close()
    done = swarm(*words, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 40
    assert "going on with" in done.stderr


def own_environment(folder: Path) -> list[dict[str, Any]]:
    write_scaffold(folder / "own")
    return [json.loads(line) for line in (folder / "own" / "tasks.jsonl").read_text().splitlines()]


def held_out_questions(folder: Path) -> list[str]:
    from swarm.environments.registry import load_environment
    from swarm.tasks import Split

    own_environment(folder)
    return [each.task.main_query for each in load_environment(str(folder / "own")).tasks(Split.VALIDATION)]


def test_with_an_environment_the_model_is_scored_before_and_after(folder: Path) -> None:
    own_environment(folder)
    words = ["--model", "nano", "--steps", "2", "--job", "fake.yaml", "--env", "own", "--few-tasks", "--json"]
    done = swarm("sft", "reversed.jsonl", *words, "--eval-episodes", "4")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["steps"] == 2 and None not in (figures["before"]["mean"], figures["after"]["mean"])


@pytest.mark.parametrize("command", ["sft", "train"])
@pytest.mark.parametrize("form", ["{}", "THINK:  {}\n", "You are good at this.\n{}", "{}\nAnswer in one word."])
def test_demonstrations_that_repeat_held_out_tasks_are_refused_unless_the_overlap_is_allowed(
    folder: Path, command: str, form: str
) -> None:
    question = held_out_questions(folder)[0].upper()
    write(folder / "leak.jsonl", [("Hello", "Hi"), (form.format(question), "?")])
    words = {
        "sft": ["sft", "leak.jsonl", "--steps", "1", "--model", "nano", "--job", "fake.yaml"],
        "train": ["train", "--set", "demonstrations=leak.jsonl", "--set", "sft_steps=1", "--set", "engine=fake"],
    }[command]
    done = swarm(*words, "--env", "own", "--few-tasks", "--eval-episodes", "4", "--home", "here")
    assert done.exit_code == 2 and "--allow-overlap" in done.stderr and "number 2" in done.stderr, done.output
    assert not (folder / "here").exists()


def test_an_allowed_overlap_is_told_and_trained(folder: Path) -> None:
    write(folder / "leak.jsonl", [(held_out_questions(folder)[0], "?"), ("Hello", "Hi")])
    words = ["--set", "demonstrations=leak.jsonl", "--set", "sft_steps=1", "--set", "total_steps=1"]
    words += ["--set", "engine=fake", "--env", "own", "--few-tasks", "--eval-episodes", "4", "--allow-overlap"]
    done = swarm("train", *words, "--json")
    assert done.exit_code == 0, done.output
    assert "1 of 2 demonstrations" in done.stderr
    assert json.loads(done.stdout)["steps"] == 1


def test_a_setting_given_in_two_ways_or_unknown_is_refused(folder: Path) -> None:
    own_environment(folder)
    for words, says in ((["--set", "seed=1", "--seed", "2"], "seed"), (["--set", "sft_stebs=1"], "sft_steps")):
        done = swarm("train", "--env", "own", "--few-tasks", *words)
        assert done.exit_code == 2 and says in done.stderr, done.output
