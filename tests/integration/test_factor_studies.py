"""A study of two levels of each factor, from the command to the verdict: its arms differ in that factor alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated_study import reports_without_images
from typer.testing import CliRunner

from experiments_db import ExperimentStatus, RunStatus, open_store
from researcher.cli import app
from researcher.question.factors import SPECS
from researcher.question.flags import value_as_text
from researcher.question.needs import complete_flags
from swarm.job import build_job

SMALL = ["--engine", "fake", "--planner", "rules", "--seeds", "1", "--eval-episodes", "2", "--env", "copy", "--json"]
TINY = {"batch_size": "2", "num_repeat": "4", "total_steps": "1"}
"""A run of eight episodes, which is large enough for every usual level."""
VARIED_REWARD = """
from swarm.program import answer_in_turn as agent

def reward(task, transcript, grade):
    return len(str(transcript)) % 7
"""
"""The fake engine's replies earn nothing: without this no group would have a signal."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path / "runs"


def start(*words: str) -> Any:
    with reports_without_images():
        return CliRunner().invoke(app, ["start", "--topic", "A title", *SMALL, *words])


def check_study(server: str, home: Path, name: str, levels: tuple[Any, Any], fields: set[str]) -> None:
    """Two arms that differ in `fields` alone are trained, scored and judged."""
    words = ["--vary", f"{name}={','.join(map(value_as_text, levels))}", "--equal", "steps", "--servers", server]
    words += [word for fixed in complete_flags((), words[1:2])[0] for word in ("--fix", fixed)]
    words += [word for fixed, value in TINY.items() if fixed != name for word in ("--fix", f"{fixed}={value}")]
    if name == "stop_rule":
        Path("varied.py").write_text(VARIED_REWARD)
        words += ["--program", "varied.py"]
    done = start(*words)

    assert done.exit_code == 0, done.output
    study = json.loads(done.stdout)["study"]
    with open_store(home / "research.db") as store:
        arms = store.list_experiments(study)
        runs = store.list_runs(study_id=study)
        [analysis] = store.list_analyses(study)
    one, other = (build_job(arm.job).model_dump(mode="json") for arm in arms)
    assert {field for field in one if one[field] != other[field]} == fields
    assert {arm.status for arm in arms} == {ExperimentStatus.READY}
    assert {value_as_text(arm.factors[name]) for arm in arms} == set(map(value_as_text, levels))
    assert {run.status for run in runs} == {RunStatus.FINISHED}
    resolved = {arm.id: build_job(arm.job).resolve().model_dump(mode="json") for arm in arms}
    for run in runs:
        assert {field: run.job[field] for field in fields} == {
            field: resolved[run.experiment_id][field] for field in fields
        }
    assert {arm["arm"] for arm in analysis.document["arms"]} == {arm.name for arm in arms}
    assert [item["verdict"] for item in analysis.document["comparisons"]] == ["inconclusive"]


@pytest.mark.parametrize(
    ("name", "levels", "fields"),
    [
        ("lora_target_modules", SPECS["lora_target_modules"].usual, {"lora_target_modules"}),
        pytest.param("stop_rule", SPECS["stop_rule"].usual, {"stop_rule"}, marks=pytest.mark.slow),
        pytest.param("algorithm", ("rloo", "gpg"), {"algorithm", "policy_loss"}, marks=pytest.mark.slow),
    ],
)
def test_arms_of_a_factor_are_judged_and_differ_in_its_fields_alone(
    home: Path, start_shared_server: Callable[..., Any], name: str, levels: tuple[str, str], fields: set[str]
) -> None:
    check_study(start_shared_server().url, home, name, levels, fields)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--vary", "verl={trainer.a: 1},{trainer.a: 2}"],
            "verl has no effect while engine is fake: set --engine verl",
        ),
        (["--vary", "lr=1e-3,3e-3", "--fix", "verl={trainer.a: 1}"], "verl has no effect while engine is fake"),
        (["--vary", "mixture={copy: 1},{sort: 1}"], "mixture is no factor: all tasks of an environment are of one"),
        (["--vary", "gdpo_reward_keys=[a],[b]"], "gdpo_reward_keys is no factor: it is about rewards by name"),
        (["--vary", "gdpo_reward_weights=[1],[2]"], "gdpo_reward_weights is no factor: it is about rewards by name"),
        (["--vary", "algorithm=grpo,gdpo"], "algorithm gdpo learns from rewards by name"),
        (["--vary", "total_steps=1,2", "--equal", "episodes"], "total_steps is 1, not 2: say --equal steps"),
        (["--vary", "a: total_steps=1; b: total_steps=2", "--equal", "tokens"], "say --equal steps"),
        (["--vary", "model=nano,./none", "--engine", "local"], "arm model=./none: model './none': no directory"),
    ],
)
def test_factor_that_no_run_here_can_carry_out_is_refused_before_anything_is_stored(
    home: Path, words: list[str], reason: str
) -> None:
    done = start(*words)

    assert done.exit_code == 2 and reason in done.stderr, done.output
    assert len(done.stderr.splitlines()) == 1 and not home.exists()


def test_models_by_path_may_be_levels(home: Path, start_shared_server: Callable[..., Any]) -> None:
    for name in ("one", "other"):
        Path(name).mkdir()
    directories = (str(Path("one").resolve()), str(Path("other").resolve()))

    check_study(start_shared_server().url, home, "model", directories, {"model"})


def test_equal_arms_are_reported_equal_with_margin_and_interval(
    home: Path, start_shared_server: Callable[..., Any]
) -> None:
    words = ["--vary", "lr=0.001,0.003", "--ask", "equal", "--margin", "0.3", "--seeds", "3", "--eval-episodes", "20"]
    fixed = [word for name, value in TINY.items() for word in ("--fix", f"{name}={value}")]
    done = start(*words, *fixed, "--servers", start_shared_server().url)

    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["answer"].startswith(
        "lr=0.003 and lr=0.001 are equal within 0.3 in the mean: +0.000 (90 % interval -0."
    )
    report = Path(shown["report"]).read_text()
    assert "equal within 0.3" in report and "differ by less than 0.3" in report and "| equal |" in report
    status = CliRunner().invoke(app, ["status", shown["study"], "--json"])
    assert json.loads(status.stdout)["margin"] == 0.3
    findings = json.loads(CliRunner().invoke(app, ["findings", "--kind", "comparison", "--json"]).stdout)
    assert [(item["verdict"], item["confidence"]) for item in findings] == [("equal", 0.9)]


def test_margin_that_a_budget_cannot_show_is_refused_before_the_first_run_with_the_number_of_runs(
    home: Path, start_shared_server: Callable[..., Any]
) -> None:
    words = "start --topic T --vary lr=0.001,0.003 --ask equal --max-runs 6 --engine fake --planner rules --env copy"
    done = CliRunner().invoke(app, [*words.split(), "--servers", start_shared_server().url])

    assert done.exit_code == 9, done.output
    assert "up to 3 runs per arm" in done.stderr and "--seeds" in done.stderr and "--eval-episodes" in done.stderr
    with open_store(home / "research.db") as store:
        assert not store.list_runs()
