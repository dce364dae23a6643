"""`swarm env`: a person finds, begins and checks an environment, and hears in one line what is wrong."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarm.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
GRADE_ALL = "def grade(task, transcript): return 1.0\n"
GRADE_NONE = "def grade(task, transcript): return 0.0\n"
GRADE_BY_CHANCE = "import random\ndef grade(task, transcript): return random.random()\n"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    made = CliRunner().invoke(app, ["env", "init", str(tmp_path / "own")])
    assert made.exit_code == 0
    assert [Path(line).name for line in made.stdout.splitlines()] == ["environment.toml", "tasks.jsonl", "grade.py"]
    assert f"swarm env check {tmp_path / 'own'}" in made.stderr
    return tmp_path / "own"


def test_what_init_writes_passes_check(own: Path) -> None:
    done = CliRunner().invoke(app, ["env", "check", str(own)])
    assert done.exit_code == 0, done.output
    assert all(line.startswith("ok") for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("grader", "check", "message"),
    [
        (GRADE_ALL, "empty answers", "an empty answer earns 1.00"),
        (GRADE_NONE, "solutions", "is graded 0: mend the grader"),
        (GRADE_BY_CHANCE, "determinism", "the same attempt was graded in two ways"),
    ],
)
def test_graders_that_teach_the_wrong_thing_are_found(own: Path, grader: str, check: str, message: str) -> None:
    (own / "grade.py").write_text(grader)
    done = CliRunner().invoke(app, ["env", "check", str(own), "--json"])
    assert done.exit_code == 1
    found = {each["check"]: each for each in json.loads(done.stdout)["checks"]}
    assert found[check]["severity"] == "fail" and message in found[check]["message"]


def test_a_broken_environment_is_one_line_and_exit_code_2(own: Path) -> None:
    (own / "tasks.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question":\n')
    done = CliRunner().invoke(app, ["env", "check", str(own)])
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "tasks.jsonl, line 2: not valid JSON" in done.stderr


def test_the_bundled_ones_are_listed() -> None:
    listed = CliRunner().invoke(app, ["env", "list", "--json"])
    assert {"reverse", "calc", "guess"} <= json.loads(listed.stdout).keys()
    assert "reverse" in CliRunner().invoke(app, ["env", "list"]).stdout


def test_every_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {number} + 1?", "answer": number + 1} for number in range(100)]
    Path("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = PAGE.read_text()
    # tests/verifiers runs those that need another interpreter.
    commands = re.findall(r"^    (swarm env .*)$", text, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output)
    [program] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert len(done.stdout.splitlines()) == 3


def test_environments_load_no_tensors() -> None:
    code = (
        "import sys; from swarm.environments import load_environment; load_environment('reverse');"
        "print(*[name for name in ('torch', 'numpy', 'transformers', 'fastapi', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == []
