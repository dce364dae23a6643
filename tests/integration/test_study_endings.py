"""How studies end that find nothing: what they are called, what they cost, and whom they blame."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llm_replies.server import LEARNING_RATE, ReplyServer
from simulated_study import reports_without_images
from typer.testing import CliRunner, Result

from experiments_db import ExperimentStatus, ExperimentStore, RunStatus, StudyStatus, open_store
from researcher.cli import app
from researcher.loop.session import work_on
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings
from swarm.environments.scaffold import write_scaffold
from swarm.errors import SandboxUnavailable

pytestmark = pytest.mark.timeout(400)

PLAIN = "from swarm.program import answer_in_turn as agent\n"
RAISING = "def agent(task, model, session):\n    raise ValueError('it cannot play')\n"
SILENT = "def agent(task, model, session):\n    model.chat(session.messages)\n    return '?'\n"
LATE = """
import pathlib
seen = pathlib.Path({seen!r})
def grade(task, transcript):
    seen.open('a').write('x')
    if seen.stat().st_size > {limit}:
        raise ValueError('the table is gone')
    return 0.0
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_shared_server: Callable[..., Any]) -> Iterator[Path]:
    """A directory with an environment, programs and the address of a server; studies in it are small."""
    (tmp_path / "server").write_text(start_shared_server().url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("SWARM_HOME", raising=False)
    write_scaffold(tmp_path / "longer")
    other = RAISING.replace("cannot", "will not")
    for name, code in (("plain", PLAIN), ("raising", RAISING), ("other", other), ("silent", SILENT)):
        (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / "job.yaml").write_text("batch_size: 4\nnum_repeat: 2\n")
    with reports_without_images():
        yield tmp_path


def start(own: Path, *programs: str, env: str = "longer") -> Result:
    words = [word for name in programs for word in ("--program", f"{name}.py")]
    small = ["--engine", "fake", "--seeds", "1", "--steps", "1", "--eval-episodes", "4"]
    small += ["--servers", (own / "server").read_text()]
    topic = ["start", "--topic", "Which program is better?", "--planner", "rules", "--underpowered"]
    return CliRunner().invoke(app, [*topic, "--env", env, "--job", "job.yaml", *words, *small])


def status() -> dict[str, Any]:
    return json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)


def headline() -> str:
    """What the report says first below its title, without its marks."""
    report = Path(json.loads(CliRunner().invoke(app, ["report", "--json"]).stdout)["report"])
    first = next(line for line in report.read_text().splitlines() if line.startswith("**"))
    return first.replace("*", "").replace("\\", "")


def open_own(own: Path) -> ExperimentStore:
    return open_store(own / "runs" / "research.db", read_only=True)


@pytest.mark.parametrize(
    ("grader", "reason"),
    [
        ("return float('nan')", "the score nan: it must be a finite number"),
        ("return float(transcript[-1]['content'][0] == 'x')", "an empty reply: .*IndexError"),
    ],
)
def test_a_grader_that_fails_ends_the_study_before_a_server_starts_and_no_arm_is_blamed(
    own: Path, monkeypatch: pytest.MonkeyPatch, grader: str, reason: str
) -> None:
    started: list[object] = []
    monkeypatch.setattr("researcher.servers.server_pool.ServerPool.start", started.append)
    (own / "longer" / "grade.py").write_text(f"def grade(task, transcript):\n    {grader}\n")

    done = start(own, "plain", "silent")

    assert done.exit_code == 13, done.output
    assert re.search(f"researcher: the environment longer cannot grade .*{reason}", done.stderr)
    assert not started
    shown = status()["study"]
    assert shown["status"] == "failed" and re.search(reason, shown["status_reason"])
    assert headline().startswith("The study failed: the environment longer cannot grade")
    with open_own(own) as store:
        assert store.list_runs(study_id=shown["id"]) == [] and store.list_experiments(shown["id"]) == []


def test_an_environment_that_dies_on_the_way_ends_the_study_with_its_runs_unblamed(own: Path) -> None:
    # The looks before the study, the trial runs of check and some of the first score are graded.
    late = LATE.format(seen=str(own / "seen"), limit=40)
    (own / "longer" / "grade.py").write_text(late)

    done = start(own, "plain", "silent")

    assert done.exit_code == 13, done.output
    assert "researcher: the environment longer cannot grade" in done.stderr
    assert status()["study"]["status"] == "failed"
    with open_own(own) as store:
        [study] = store.list_studies()
        assert {arm.status for arm in store.list_experiments(study.id)} == {ExperimentStatus.READY}
        assert RunStatus.FAILED not in {run.status for run in store.list_runs(study_id=study.id)}


def test_a_study_in_which_no_program_plays_has_failed_and_resume_says_so_again(own: Path) -> None:
    done = start(own, "raising", "other")

    assert done.exit_code == 12, done.output
    shown = status()
    assert shown["study"]["status"] == "failed"
    assert shown["study"]["status_reason"].startswith("no arm has a score: 2 of 2 arms were rejected by check")
    assert headline().startswith("The study failed: no arm has a score") and "it cannot play" in headline()
    again = CliRunner().invoke(app, ["resume", shown["study"]["id"]])
    assert again.exit_code == 12 and "nothing is left to do" in again.stderr
    assert "researcher: " in again.stderr.splitlines()[-1]
    assert "go on with" not in CliRunner().invoke(app, ["status"]).stdout


def test_a_study_in_which_the_baseline_alone_plays_compared_nothing(own: Path) -> None:
    done = start(own, "plain", "raising")

    assert done.exit_code == 12, done.output
    reason = status()["study"]["status_reason"]
    assert reason.startswith("nothing could be compared: only plain has scores; 1 of 2 arms were rejected")
    assert headline().startswith("The study failed: nothing could be compared")


@pytest.mark.parametrize(("steps", "where"), [("3", "while it trains"), ("1", "while it is scored")])
def test_a_training_whose_weights_diverge_is_a_run_that_failed_by_its_own_doing(
    own: Path, steps: str, where: str
) -> None:
    words = ["start", "--topic", "Two rates", "--vary", "lr=1e-3,3e38", "--planner", "rules", "--engine", "local"]
    words += ["--seeds", "1", "--underpowered", "--steps", steps, "--eval-episodes", "8", "--env", "count", "--go-on"]
    done = CliRunner().invoke(app, [*words, "--job", "job.yaml", "--servers", (own / "server").read_text()])

    assert done.exit_code == 0, done.output
    with open_own(own) as store:
        [study] = store.list_studies()
        wild = next(arm.id for arm in store.list_experiments(study.id) if arm.name == "lr=3e+38")
        [run] = [run for run in store.list_runs(study_id=study.id) if run.experiment_id == wild]
    assert run.diagnosis is not None, where
    assert (run.status, run.diagnosis["kind"], run.diagnosis["is_retried"]) == (RunStatus.FAILED, "not_finite", False)
    assert "training has diverged" in run.diagnosis["sentence"]
    assert "1 of the 2 that count failed by their own doing" in done.output
    assert "by the system" not in done.output


def test_an_environment_that_was_changed_is_not_gone_on_with(own: Path) -> None:
    (own / "longer" / "grade.py").write_text("def grade(task, transcript):\n    return 1 / 0\n")
    assert start(own, "plain", "silent").exit_code == 13
    (own / "longer" / "grade.py").write_text("def grade(task, transcript):\n    return 0.5\n")

    resumed = CliRunner().invoke(app, ["resume", status()["study"]["id"]])

    assert resumed.exit_code == 13 and "was changed since the study began" in resumed.stderr


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_sandbox_that_vanishes_ends_the_study_with_that_reason_and_no_arm_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: Callable[..., Any]
) -> None:
    own_tools = tmp_path / "tools"
    own_tools.mkdir()
    (own_tools / "bwrap").symlink_to(str(shutil.which("bwrap")))
    monkeypatch.setenv("PATH", str(own_tools), prepend=":")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    settings = {
        "planner": "llm", "model": "recorded-model", "engine": "fake", "steps": 1, "seeds": 1, "eval_episodes": 4,
        "job": {"batch_size": 2, "num_repeat": 2}, "servers": [start_server().url],
    }  # fmt: skip
    replies = shutil.copytree(LEARNING_RATE, tmp_path / "replies")
    frame = {"question": "Does it help?", "family": "reverse", "kind": "compare", "programs": ["plain", "changed"]}
    plan = {"rationale": "Both.", "seeds": 1, "arms": [{"name": "changed", "program": "changed", "purpose": "New."}]}
    (replies / "frame.1.md").write_text(json.dumps(frame))
    (replies / "plan.1.md").write_text(json.dumps(plan))
    with ReplyServer(replies) as model, open_store(tmp_path / "research.db") as store:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        study = create_study(store, "does another program help?", StudySettings.model_validate(settings))
        # It was there when the study began.
        monkeypatch.setattr(
            "researcher.loop.nodes.write_program.draft_arms", _removing(own_tools / "bwrap"), raising=True
        )
        with pytest.raises(SandboxUnavailable, match="the sandbox no longer starts"):
            work_on(store, study.id, tmp_path)
        failed = store.get_study(study.id)
        arms = store.list_experiments(study.id)
    assert failed.status is StudyStatus.FAILED
    assert (failed.status_reason or "").startswith("the sandbox no longer starts")
    assert arms and ExperimentStatus.INVALID not in {arm.status for arm in arms}


def _removing(path: Path) -> Callable[..., Any]:
    from researcher.loop.nodes.write_program import draft_arms

    def draft(*arguments: Any) -> Any:
        path.unlink(missing_ok=True)
        return draft_arms(*arguments)

    return draft
