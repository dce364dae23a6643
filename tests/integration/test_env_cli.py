"""`swarm env`: a person finds, begins and checks an environment, and hears in one line what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swarm import SwarmClient, TrainJob
from swarm.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
SPLITS = ("train", "validation", "test")
FEW_TASKS = 130
FEW = ["--samples", "20"]
"""Tasks of each split that are looked at, where no check needs more."""
ENOUGH = ["--samples", "60"]
"""So many that fifty different answers are among them."""
GRADE_ALL = "def grade(task, transcript): return 1.0\n"
GRADE_NONE = "def grade(task, transcript): return 0.0\n"
GRADE_ANYWHERE = "def grade(task, transcript): return task['answer'] in (transcript[-1]['content'] or '').split()\n"
GRADE_BY_CHANCE = "import random\ndef grade(task, transcript): return random.random()\n"


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A folder as `swarm env init` writes it."""
    made = CliRunner().invoke(app, ["env", "init", str(tmp_path / "own")])
    as_json = CliRunner().invoke(app, ["env", "init", str(tmp_path / "other"), "--json"])
    listed = [line.replace(str(tmp_path / "own"), str(tmp_path / "other")) for line in made.stdout.splitlines()]
    assert json.loads(as_json.stdout) == {"files": listed}
    assert made.exit_code == 0
    assert [Path(line).name for line in made.stdout.splitlines()] == ["environment.toml", "tasks.jsonl", "grade.py"]
    assert f"swarm env check {tmp_path / 'own'}" in made.stderr
    return tmp_path / "own"


@pytest.fixture
def own(begun: Path) -> Path:
    """The same with fewer tasks, which are checked in less time."""
    rows = (begun / "tasks.jsonl").read_text().splitlines(keepends=True)
    (begun / "tasks.jsonl").write_text("".join(rows[:FEW_TASKS]))
    return begun


EXITS = {
    "sys.exit in grade": ("import sys\ndef grade(task, transcript):\n    sys.exit(4)\n", "line 3, in grade"),
    "os._exit in a helper": (
        "import os\ndef end():\n    os._exit(0)\ndef grade(task, transcript):\n    end()\n", "line 3, in end",
    ),
    "os._exit at import": ("import os\nos._exit(0)\n", "line 2"),
    "SystemExit at import": ("raise SystemExit('no key')\n", "no key"),
}  # fmt: skip


@pytest.mark.parametrize(("grader", "where"), EXITS.values(), ids=EXITS.keys())
def test_a_grader_that_ends_the_process_is_named_with_file_and_function(own: Path, grader: str, where: str) -> None:
    (own / "grade.py").write_text(grader)
    done = CliRunner().invoke(app, ["env", "check", str(own), *FEW])
    assert done.exit_code in {1, 2} and done.stderr.count("\n") == 1, done.output
    assert f"{own / 'grade.py'}, line" in done.stderr and where in done.stderr and "ends the process" in done.stderr


def test_what_init_writes_passes_check(begun: Path) -> None:
    done = CliRunner().invoke(app, ["env", "check", str(begun), *ENOUGH])
    assert done.exit_code == 0, done.output
    assert all(line.startswith("ok") for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("grader", "check", "message"),
    [
        (GRADE_ALL, "empty answers", "an empty answer earns 1.00"),
        (GRADE_NONE, "solutions", "is graded 0: fix the grader"),
        (
            GRADE_ANYWHERE,
            "joined answers",
            "a reply that lists 50 answers earns 1.00 where the right one is among them",
        ),
        (GRADE_BY_CHANCE, "determinism", "one attempt got two grades"),
    ],
)
def test_graders_that_teach_the_wrong_thing_are_found(own: Path, grader: str, check: str, message: str) -> None:
    (own / "grade.py").write_text(grader)
    done = CliRunner().invoke(app, ["env", "check", str(own), *ENOUGH, "--json"])
    assert done.exit_code == 1
    found = {each["check"]: each for each in json.loads(done.stdout)["checks"]}
    assert found[check]["severity"] == "fail" and message in found[check]["message"]


def test_a_grader_of_the_last_of_two_answers_may_be_taught(own: Path) -> None:
    rows = [{"question": f"Is {number} even?", "answer": "no" if number % 2 else "yes"} for number in range(FEW_TASKS)]
    (own / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (own / "grade.py").write_text(
        "def grade(task, transcript):\n"
        "    words = (transcript[-1]['content'] or '').split()\n"
        "    return words[-1:] == [task['answer']]\n"
    )
    done = CliRunner().invoke(app, ["env", "check", str(own), *FEW, "--json"])
    found = {each["check"]: each for each in json.loads(done.stdout)["checks"]}
    assert found["joined answers"]["severity"] == "ok"
    assert "a reply that lists 2 answers" in found["joined answers"]["message"]


def test_without_a_model_the_check_says_how_the_base_score_is_measured(own: Path) -> None:
    done = CliRunner().invoke(app, ["env", "check", str(own), *FEW, "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["base_score"] is None
    assert done.stderr.count("\n") == 1
    assert all(words in done.stderr for words in ("base score was not measured", "--url", "--train-model"))


@pytest.mark.parametrize(
    ("agent", "code", "severity", "message"),
    [
        pytest.param(
            "return '?'",
            1,
            "fail",
            "no attempt earned anything, so there is nothing to learn from: take easier tasks",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "return best",
            0,
            "warn",
            "nearly all earn everything, so there is little left to learn",
            marks=pytest.mark.slow,
        ),
        ("return best if len(task.main_query) % 2 else '?'", 0, "ok", "95 % from"),
        (
            "return {}[best]",
            1,
            "fail",
            "the program broke all 6 attempts; the first: ProgramFailure: the program raised KeyError",
        ),
    ],
)
def test_the_base_score_says_whether_a_model_can_learn(
    own: Path, start_shared_server: Any, agent: str, code: int, severity: str, message: str
) -> None:
    (own / "agent.py").write_text(
        "def agent(task, model, session):\n"
        "    best = max(task.main_query.split()[1:], key=len)\n"
        "    model.chat(session.messages)\n"
        f"    {agent}\n"
    )
    url = start_shared_server(TrainJob(engine="fake")).url
    played = 6 if "{}" in agent else 100
    words = ["--url", url, "--program", str(own / "agent.py"), "--episodes", str(played), "--json"]
    done = CliRunner().invoke(app, ["env", "check", str(own), *FEW, *words])
    assert done.exit_code == code, done.output
    figures = json.loads(done.stdout)
    assert figures["checks"][-1]["check"] == "base score" and figures["checks"][-1]["severity"] == severity
    assert message in figures["checks"][-1]["message"]
    base = figures["base_score"]
    assert base["n"] + base["failures"] == played
    assert base["low"] <= base["mean"] <= base["high"] if base["n"] else base["low"] is base["high"] is None
    with SwarmClient(url) as client:
        assert {view.episode_type for view in client.episodes()} == {"eval"}


@pytest.mark.timeout(400)
def test_the_base_score_of_a_model_is_measured_without_a_running_server(tmp_path: Path) -> None:
    words = ["env", "check", "reverse", "--model", "nano", *FEW, "--episodes", "8", "--k", "1,4", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.stdout, done.output
    base = json.loads(done.stdout)["base_score"]
    assert base["n"] == 32
    assert [(each["k"], each["tasks"]) for each in base["pass_at_k"]] == [(1, 8), (4, 8)]
    assert base["pass_at_k"][0]["mean"] == pytest.approx(base["mean"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "http://127.0.0.1:1", "--train-model", "nano"], "use one of them"),
        (["--program", "agent.py"], "a program plays only with a model"),
    ],
)
def test_contradictions_are_refused_before_anything_is_checked(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["env", "check", "reverse", *words])
    assert done.exit_code == 2 and done.stdout == "" and message in done.stderr


def test_a_broken_environment_is_one_line_and_exit_code_2(own: Path) -> None:
    (own / "tasks.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question":\n')
    done = CliRunner().invoke(app, ["env", "check", str(own)])
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "tasks.jsonl, line 2: not valid JSON" in done.stderr


def test_the_bundled_ones_are_listed() -> None:
    listed = CliRunner().invoke(app, ["env", "list", "--json"])
    assert {"reverse", "calc", "guess"} <= json.loads(listed.stdout).keys()
    assert "reverse" in CliRunner().invoke(app, ["env", "list"]).stdout


def test_environments_load_no_tensors() -> None:
    code = (
        "import sys; from swarm.environments import load_environment; load_environment('reverse');"
        "print(*[name for name in ('torch', 'numpy', 'transformers', 'fastapi', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == []
