"""`swarm train --from`: weights of a checkpoint, a run or an export, with or without optimizer and step."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swarm.cli import app
from swarm.cli.train.origin import find_origin

JOB = "engine: {engine}\nbatch_size: 2\nnum_repeat: 2\nmax_response_length: 4\ntotal_steps: {steps}\n"
TRAIN = "train --env reverse --eval-episodes 2 --few-tasks --no-record --json"
FIRST = Path("runs/train/first")


def swarm(command: str) -> Any:
    return CliRunner().invoke(app, shlex.split(command), env={"SWARM_HOME": None, "SWARM_URL": None})


def train(words: str) -> dict[str, Any]:
    done = swarm(f"{TRAIN} {words}")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a training `first` of nano after its only step, an adapter `lora`, and an export of `first`."""
    directory = tmp_path_factory.mktemp("origin")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        Path("job.yaml").write_text(JOB.format(engine="local", steps=1))
        Path("lora.yaml").write_text(JOB.format(engine="local", steps=1) + "lora_rank: 2\n")
        Path("fake.yaml").write_text(JOB.format(engine="fake", steps=2))
        for name, job in (("first", "job"), ("lora", "lora"), ("fake", "fake")):
            train(f"--job {job}.yaml --name {name}")
        assert swarm(f"export --home {FIRST} exported").exit_code == 0
        assert swarm("export --home runs/train/lora adapter").exit_code == 0
    return directory


@pytest.fixture(autouse=True)
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


def begun(name: str) -> dict[str, Any]:
    return json.loads(Path(f"runs/train/{name}/training.json").read_text())["job"]


def test_a_run_and_an_export_give_their_weights_alone() -> None:
    for name, origin in (("by-run", "first"), ("by-export", "exported")):
        done = train(f"--job job.yaml --name {name} --from {origin}")
        assert done["steps"] == 1 and done["before"] is not None
        job = begun(name)
        assert (Path(job["model"]) / "config.json").is_file() and job["resume_from"] is None
        assert Path(job["model"]).is_relative_to(FIRST.absolute()) == (origin == "first")


def test_a_resumed_run_goes_on_with_its_step_and_its_settings_and_again_where_it_was() -> None:
    command = "--name on --from fake --resume"
    done = swarm(f"{TRAIN} --job fake.yaml {command}")
    assert done.exit_code == 2 and "total_steps 2" in done.stderr
    Path("longer.yaml").write_text(JOB.format(engine="fake", steps=4))
    first = swarm(f"{TRAIN} --job longer.yaml {command}")
    assert first.exit_code == 0, first.output
    assert [line.split()[1] for line in first.stderr.splitlines() if line.startswith("step ")] == ["3", "4"]
    assert json.loads(first.stdout)["evaluations"][0]["step"] == 2
    assert begun("on")["resume_from"].endswith("step-000002")
    again = train(f"--job longer.yaml {command}")
    assert (again["steps"], again["before"]) == (4, json.loads(first.stdout)["before"])


def test_without_a_job_a_resumed_run_takes_over_the_settings_of_its_checkpoint() -> None:
    origin = find_origin("fake", None, resume=True)
    assert (origin.step, origin.settings["batch_size"], origin.settings["max_response_length"]) == (2, 2, 4)
    assert not origin.settings.keys() & {"total_steps", "experiment_name", "resume_from"}
    assert find_origin("fake", Path("fake.yaml"), resume=True).settings.keys() == {"engine", "model"}


def test_the_adapter_of_a_run_is_merged_once_and_trained_as_a_whole_model() -> None:
    assert train("--job job.yaml --name merged --from lora")["steps"] == 1
    model = Path(begun("merged")["model"])
    assert model.is_relative_to(Path("runs").absolute()) and (model / "config.json").is_file()
    assert train("--job job.yaml --name merged --from lora")["steps"] == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--from nothing", 3, "first"),
        ("--from runs/train/none", 3, "lora"),
        ("--resume", 2, "--from"),
        ("--from exported --resume", 2, "--resume"),
        ("--from first --model nano", 2, "--model"),
        ("--from fake --resume --estimate", 2, "--estimate"),
        ("--from adapter", 2, "--merge-lora"),
        ("--from fake", 2, "config.json"),
        ("--from first --name first --fresh", 2, "--name"),
        ("--from first --job resuming.yaml", 2, "resume_from"),
    ],
)
def test_what_cannot_begin_is_refused_in_one_line_and_nothing_is_moved(words: str, code: int, said: str) -> None:
    Path("resuming.yaml").write_text(JOB.format(engine="local", steps=1) + "resume_from: step-000001\n")
    done = swarm(f"{TRAIN} {words}")
    assert done.exit_code == code, done.output
    assert said in done.stderr.splitlines()[-1] and done.stdout == "" and FIRST.is_dir()


def test_a_damaged_checkpoint_is_refused_by_name() -> None:
    [checkpoint] = FIRST.glob("*/*/run-*/checkpoints/step-000001")
    copy = shutil.copytree(checkpoint, "damaged", dirs_exist_ok=True)
    (Path(copy) / "config.json").write_text("{}")
    done = swarm(f"{TRAIN} --from damaged")
    assert done.exit_code == 1 and "config.json" in done.stderr
