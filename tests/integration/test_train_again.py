"""`swarm train` a second time: the same job, environment and program go on, anything else is refused by name."""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from tests_support import run_batch, wait_for_state
from typer.testing import CliRunner

from swarm import SwarmClient, TrainJob
from swarm.cli import app
from swarm.environments.scaffold import write_scaffold

JOB = "engine: fake\nbatch_size: 2\nnum_repeat: 2\ntotal_steps: 2\n"
LUCKY = """
import random

def agent(task, model, session):
    model.chat(session.messages)
    return random.choice(task.main_query.split()[1:])
"""
FLIPPED = LUCKY + "\ndef reward(task, transcript, grade):\n    return 1 - grade.score\n"
TRAIN = "train --env longer --job job.yaml --program lucky.py --eval-episodes 30 --workers 8 --json"
FOLDER = Path("runs/train/longer")


def swarm(command: str, **env: str) -> Result:
    return CliRunner().invoke(app, shlex.split(command), env={"SWARM_HOME": None, "SWARM_URL": None, **env})


def figures(command: str, **env: str) -> dict[str, Any]:
    done = swarm(command, **env)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment, a job and a program, after a training with a server of its own."""
    directory = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        write_scaffold(Path("longer"))
        Path("job.yaml").write_text(JOB)
        Path("lucky.py").write_text(LUCKY)
        assert figures(TRAIN)["steps"] == 2
    return directory


@pytest.fixture
def again(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the present folder."""
    directory = shutil.copytree(trained, tmp_path / "again")
    monkeypatch.chdir(directory)
    return directory


def proportion(score: dict[str, Any]) -> Any:
    from scipy.stats import binomtest

    return binomtest(round(score["mean"] * score["n"]), score["n"]).proportion_ci(method="wilson")


def rewrite(name: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        text = Path(name).read_text()
        assert old in text
        Path(name).write_text(text.replace(old, new))

    return change


def same_name_elsewhere() -> None:
    shutil.copytree("longer", "other/longer")
    rewrite("other/longer/tasks.jsonl", '"answer": "', '"answer": "x')()


OTHERS: dict[str, tuple[Callable[[], object], str, str]] = {
    "task file": (rewrite("longer/tasks.jsonl", '"answer": "', '"answer": "x'), "", "task file tasks.jsonl was"),
    "task file of the same name": (same_name_elsewhere, "--env other/longer", "environment longer -> other/longer"),
    "grader": (rewrite("longer/grade.py", "return", "return 0 *"), "", "the grader grade.py was changed"),
    "environment": (lambda: None, "--env reverse --name longer", "environment longer -> reverse"),
    "reward": (lambda: Path("lucky.py").write_text(FLIPPED), "", "the program lucky.py was changed"),
    "program": (lambda: Path("flipped.py").write_text(FLIPPED), "--program flipped.py", "lucky.py -> flipped.py"),
    "job": (rewrite("job.yaml", "batch_size: 2", "batch_size: 4"), "", "batch_size 2 -> 4"),
    "model": (lambda: None, "--model nano", "model micro -> nano"),
}


@pytest.mark.parametrize(("change", "words", "said"), OTHERS.values(), ids=OTHERS.keys())
def test_another_training_is_refused_in_one_line_and_shows_no_result(
    again: Path, change: Callable[[], object], words: str, said: str
) -> None:
    record = (FOLDER / "training.json").read_bytes()
    change()
    for command in (f"{TRAIN} {words}", f"{TRAIN.replace(' --json', '')} {words}"):
        done = swarm(command)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.output
        assert said in done.stderr and "held-out" not in done.stderr
    assert (FOLDER / "training.json").read_bytes() == record


@pytest.mark.timeout(400)
def test_the_ways_on_that_a_refusal_names_work_when_they_are_copied(again: Path) -> None:
    refused = swarm(f"{TRAIN} --seed 1").stderr
    [name] = re.findall(r"with (--name \S+),", refused)
    [fresh, kept] = re.findall(r"with (--fresh), which keeps what is there as (\S+)$", refused.strip())[0]
    base = json.loads((FOLDER / "training.json").read_text())["base_score"]
    assert figures(f"{TRAIN} --seed 1 {name}")["steps"] == 2
    anew = swarm(f"{TRAIN} --seed 1 {fresh}")
    assert anew.exit_code == 0 and "step    1" in anew.stderr and kept in anew.stderr
    # What was set aside goes on under its new name.
    gone_on = figures(f"{TRAIN} --home {kept}")
    assert gone_on["before"] == base and gone_on["steps"] == 2


@pytest.mark.timeout(400)
def test_a_killed_training_goes_on_with_the_base_score_that_it_had(again: Path) -> None:
    job = JOB.replace("total_steps: 2", "total_steps: 100000")
    Path("job.yaml").write_text(job)
    shutil.rmtree("runs/train/base-scores")
    command = f"{TRAIN} --name killed"
    with subprocess.Popen(
        [sys.executable, "-m", "swarm.cli", *shlex.split(command)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        text=True,
    ) as run:  # fmt: skip
        assert run.stderr is not None
        base = next(line for line in run.stderr if line.startswith("held-out score before"))
        done = next(line for line in run.stderr if line.startswith("step"))
        second = swarm(command)
        assert (second.exit_code, second.stdout, second.stderr.count("\n")) == (75, "", 1)
        assert f"process {run.pid} trains in runs/train/killed" in second.stderr
        assert swarm(f"{command} --fresh").exit_code == 75
        run.kill()
    assert done.split()[1] == "1"
    with subprocess.Popen(
        [sys.executable, "-m", "swarm.cli", *shlex.split(command)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        text=True,
    ) as run:  # fmt: skip
        assert run.stderr is not None
        said = (line for line in run.stderr if not line.startswith("expected"))
        lines = [next(said) for _ in range(3)]
        run.kill()
    assert lines[0].startswith("going on with runs/train/killed at step ")
    assert lines[1].strip() == f"{base.strip()}, on record"
    assert int(lines[2].split()[1]) > 1


@pytest.mark.timeout(400)
def test_the_base_score_of_another_training_is_remembered_and_said_to_be_so(again: Path) -> None:
    [stored] = Path("runs/train/base-scores").glob("*.json")
    first = json.loads((FOLDER / "training.json").read_text())["base_score"]
    Path("other.yaml").write_text(f"{JOB}lr: 0.01\n")
    command = f"{TRAIN} --name other --job other.yaml"
    done = swarm(command)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["before"] == first and shown["evaluations"][0] == {"step": 0, **first}
    assert shown["before_remembered_from"] == json.loads(stored.read_text())["measured_at"].replace("Z", "+00:00")
    assert re.search(r"before: .*, remembered, measured .* UTC by an earlier training\n", done.stderr)
    gone_on = swarm(command)
    assert re.search(r"before: .*, on record, measured .* UTC by an earlier training\n", gone_on.stderr)
    assert json.loads(gone_on.stdout)["before_remembered_from"] == shown["before_remembered_from"]
    stored.write_text("{")
    anew = swarm(f"{TRAIN} --name third --job other.yaml")
    assert anew.exit_code == 0 and "the score is measured anew" in anew.stderr
    assert json.loads(anew.stdout)["before_remembered_from"] is None
    assert json.loads(stored.read_text())["score"] == json.loads(anew.stdout)["before"]


def test_a_base_score_that_is_lost_is_taken_from_the_servers_record(again: Path) -> None:
    record = json.loads((FOLDER / "training.json").read_text())
    (FOLDER / "training.json").write_text(json.dumps({**record, "base_score": None}))
    done = swarm(TRAIN)
    assert done.exit_code == 0 and "on the server's record" in done.stderr
    before = json.loads(done.stdout)["before"]
    assert (before["n"], before["mean"]) == (record["base_score"]["n"], record["base_score"]["mean"])
    assert json.loads((FOLDER / "training.json").read_text())["base_score"] is not None


def test_a_base_score_that_was_never_measured_on_these_tasks_is_said_to_be_unknown(again: Path) -> None:
    record = json.loads((FOLDER / "training.json").read_text())
    (FOLDER / "training.json").write_text(json.dumps({**record, "base_score": None}))
    done = swarm(TRAIN.replace("--eval-episodes 30", "--eval-episodes 29"))
    assert done.exit_code == 0, done.stderr
    assert "not known: 2 steps were trained before it was measured" in done.stderr
    shown = json.loads(done.stdout)
    assert shown["before"] is None and [each["n"] for each in shown["evaluations"]] == [30, 29]
    # What was trained is not thrown away for another training either.
    refused = swarm(f"{TRAIN} --seed 1")
    assert refused.exit_code == 1 and refused.stdout == "" and "2 steps" in refused.stderr


def test_a_refusal_by_the_server_leaves_the_record_and_is_repeated(again: Path, start_server: Any) -> None:
    url = start_server().url
    command = f"{TRAIN} --name there --url {url}"
    figures(command)
    path = Path("runs/train/there/training.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_score": None}))
    before = path.read_bytes()
    for _ in range(2):
        refused = swarm(f"{command} --seed 1")
        assert (refused.exit_code, refused.stdout) == (1, "") and "have trained 2 steps" in refused.stderr
    assert path.read_bytes() == before


def test_a_damaged_record_is_refused_by_name(again: Path) -> None:
    (FOLDER / "training.json").write_text("{")
    refused = swarm(TRAIN)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert "training.json cannot be read" in refused.stderr and "--fresh" in refused.stderr


def test_a_training_that_came_to_nothing_is_no_other_training(again: Path) -> None:
    Path("local.yaml").write_text(JOB.replace("fake", "local"))
    failed = swarm(f"{TRAIN} --name typo --job local.yaml --model ./no-model")
    assert failed.exit_code == 1 and "./no-model" in failed.stderr
    assert figures(f"{TRAIN} --name typo --model nano")["steps"] == 2


def test_a_training_on_a_running_server_is_known_there(again: Path, start_server: Any) -> None:
    first, second = start_server().url, start_server().url
    command = f"{TRAIN} --name there"
    begun = figures(f"{command} --url {first}")
    assert begun["before_remembered_from"] is None, "another server may have other files of the model"
    assert begun["after"]["low"] == pytest.approx(proportion(begun["after"]).low, abs=1e-4)
    assert figures(f"{command} --url {first}")["before"] == begun["before"]
    # Another server has no such training, and one that has begun another run since has it no more.
    unknown = swarm(f"{command} --url {second}")
    assert (unknown.exit_code, unknown.stdout) == (1, "") and "knows nothing of the training" in unknown.stderr
    busy = swarm(f"{command}-too --url {first}")
    assert (busy.exit_code, busy.stdout) == (1, "")
    [hint] = re.findall(r"`swarm (stop [^`]*)`", busy.stderr)
    assert swarm(hint).exit_code == 0
    figures(f"{command}-too --url {first}")
    replaced = swarm(f"{command} --url {first}")
    assert (replaced.exit_code, replaced.stdout) == (1, "") and "has begun another run since" in replaced.stderr
    # Anew, the run of the training that is set aside makes room.
    anew = figures(f"{command}-too --url {first} --seed 1 --fresh")
    with SwarmClient(first) as client:
        assert client.job().job["seed"] == 1 and anew["steps"] == 2


def test_a_server_that_was_started_with_the_job_trains_it_unless_others_did(again: Path, start_server: Any) -> None:
    url = start_server(TrainJob.build_job_from_yaml("job.yaml")).url
    command = f"{TRAIN} --model nano --name default --url {url}"
    assert figures(command)["steps"] == 2
    url = start_server(TrainJob.build_job_from_yaml("job.yaml")).url
    with httpx.Client(base_url=url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=1, repeats=2)
    refused = swarm(f"{TRAIN} --model nano --name default --fresh --url {url}")
    assert (refused.exit_code, refused.stdout) == (1, "") and "swarm stop --engine-only" in refused.stderr


def test_a_change_of_the_running_job_is_told_with_the_figures(again: Path, start_server: Any) -> None:
    url = start_server().url
    figures(f"{TRAIN} --name live --url {url}")
    assert swarm(f"job --url {url} --set total_steps=3 --set lr=0.5").exit_code == 0
    done = swarm(f"{TRAIN} --name live --url {url}")
    assert json.loads(done.stdout)["changes"][0]["settings"]["lr"] == 0.5 and "lr 0.5" in done.stderr


def test_a_training_lies_under_swarm_home_by_its_name(again: Path, tmp_path: Path) -> None:
    (tmp_path / "state" / "train" / "b").mkdir(parents=True)
    with (tmp_path / "state" / "train" / "b" / "training.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = swarm(f"{TRAIN} --name b", SWARM_HOME=str(tmp_path / "state"))
    assert refused.exit_code == 75 and str(tmp_path / "state" / "train" / "b") in refused.stderr
    assert swarm(f"{TRAIN} --name ..").exit_code == 2


def test_a_task_of_ones_own_starts_from_micro_and_a_bundled_one_from_nano(again: Path, start_server: Any) -> None:
    Path("plain.yaml").write_text(JOB.replace("total_steps: 2", "total_steps: 1"))
    few = "--job plain.yaml --eval-episodes 10"
    for words, model in (("--env longer --name a", "micro"), ("--env reverse", "nano"), ("--env longer", "nano")):
        url = start_server().url
        named = "--model nano --name c" if words == "--env longer" else ""
        done = swarm(f"train {words} {few} {named} --url {url}")
        assert done.exit_code == 0, done.output
        assert "only 10 held-out tasks" in done.stderr
        with SwarmClient(url) as client:
            assert client.job().resolved["model"] == model


def test_a_score_of_fewer_than_ten_tasks_is_refused_unless_it_is_asked_for(again: Path) -> None:
    refused = swarm(f"{TRAIN} --name few --eval-episodes 9")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "--few-tasks" in refused.stderr and not Path("runs/train/few").exists()


def test_a_training_from_within_the_folder_of_its_environment_goes_on(
    again: Path, monkeypatch: pytest.MonkeyPatch, start_server: Any
) -> None:
    monkeypatch.chdir(again / "longer")
    command = f"{TRAIN} --env . --job ../job.yaml --program ../lucky.py --url {start_server().url}"
    first = figures(command)
    assert Path("runs/train/longer/training.json").exists()
    assert figures(command)["before"] == first["before"]
