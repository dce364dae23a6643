"""What a topic asks, from the command line to the first line of the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llm_replies.server import ReplyServer
from typer.testing import CliRunner

from experiments_db import ExperimentStatus, RunStatus, StudyStatus, open_store
from researcher.charter import Charter
from researcher.cli import app
from researcher.history import History
from researcher.plan import Arm, ArmProgram, Plan
from researcher.planner.rules import RulesPlanner
from researcher.servers.server_pool import ServerPool
from researcher.study.requests import create_study
from researcher.study.settings import ProgramSetting, StudySettings

pytestmark = pytest.mark.timeout(400)

SMALL = ["--engine", "fake", "--planner", "rules", "--seeds", "1", "--eval-episodes", "6"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path / "runs"


def test_report_and_summary_say_first_what_was_not_studied(home: Path, start_server: Callable[..., Any]) -> None:
    topic = "Does dropout matter? Batch size 2 or 4 on copying"

    done = CliRunner().invoke(
        app, ["start", "--topic", topic, "--assume", "--steps", "2", "--servers", start_server().url, *SMALL]
    )

    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0] == "not_studied: Not studied, though the topic asks for it: dropout."
    [report] = home.glob("studies/*/report/report.md")
    lines = [line for line in report.read_text().splitlines() if line and not line.startswith("<!--")]
    assert lines[0] == "**Not studied, though the topic asks for it: dropout.**"
    assert "Not studied, though the topic asks for it: dropout." in report.with_name("report.html").read_text()
    with open_store(home / "research.db") as store:
        [study] = store.list_studies()
        charter = store.find_charter(study.id)
        jobs = {item.name: item.job for item in store.list_experiments(study.id)}
    assert charter is not None and charter.document["not_studied"] == ["dropout"]
    # The arms are compared at equal episodes, which the report shows with tokens and seconds.
    steps = {name: job["total_steps"] * job["batch_size"] for name, job in jobs.items()}
    assert charter.document["compared_at"] == "episodes" and len(set(steps.values())) == 1
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| batch")]
    shown = {row[0].strip().replace("\\", ""): [cell.strip() for cell in row[1:]] for row in rows if len(row) == 5}
    for name, job in jobs.items():
        told, episodes, tokens, seconds = shown[name]
        assert told == str(job["total_steps"])
        assert float(episodes.replace(",", "")) == job["total_steps"] * job["batch_size"] * job["num_repeat"]
        assert float(tokens.replace(",", "")) > 0 and float(seconds) > 0


@pytest.mark.slow
def test_runs_at_equal_tokens_end_with_the_step_that_reaches_them(home: Path) -> None:
    topic = "batch size 2 or 4 on copying"

    done = CliRunner().invoke(app, ["start", "--topic", topic, "--equal", "tokens=300", *SMALL, "--json"])

    assert done.exit_code == 0, done.stderr
    with open_store(home / "research.db") as store:
        study = json.loads(done.stdout)["study"]
        charter = store.find_charter(study)
        runs = store.list_runs(study_id=study)
        points = store.list_metrics([run.id for run in runs], names=["actor/trained_tokens"])
    assert charter is not None
    assert (charter.document["compared_at"], charter.document["amount"]) == ("tokens", 300)
    assert {run.status for run in runs} == {RunStatus.FINISHED} and len(runs) == 2
    for run in runs:
        counts = [point.value or 0.0 for point in points if point.run_id == run.id]
        assert sum(counts) >= 300 > sum(counts[:-1])
        assert run.final_weight_version == len(counts) < run.job["total_steps"]
        assert (run.exit_reason or "").startswith("ended at its training quota")


PLAIN = "from swarm.program import answer_in_turn as agent\n"


class Unchanged(RulesPlanner):
    """A planner that announces another program and writes the same one."""

    def plan(self, charter: Charter, history: History) -> Plan:
        planned = super().plan(charter, history)
        changed = [arm for arm in planned.arms if arm.name in ("plain lr=0.001", "two-agents lr=0.003")]
        return replace(planned, arms=tuple(changed), hypotheses=())

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        return ArmProgram(arm.name, PLAIN, trusted=True)


@pytest.mark.slow
def test_arm_whose_program_is_to_differ_and_does_not_is_never_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from researcher.loop.session import work_on

    programs = {"plain": PLAIN, "two-agents": f"{PLAIN}# another\n"}
    planner = Unchanged(programs=programs)
    monkeypatch.setattr("researcher.loop.session._build_planner", lambda *_: planner)
    with open_store(tmp_path / "research.db") as store:
        settings = StudySettings(
            engine="fake", steps=2, seeds=1, eval_episodes=6, parallel=1, family="copy", vary=("lr=1e-3,3e-3",),
            programs=tuple(ProgramSetting(name=name, code=code) for name, code in programs.items()),
        )  # fmt: skip
        study = create_study(store, "Do two agents help, at one lr or the other?", settings)

        work_on(store, study.id, home)

        arms = {arm.name: arm for arm in store.list_experiments(study.id)}
        ran = {run.experiment_id for run in store.list_runs(study_id=study.id)}
    assert arms["two-agents lr=0.003"].status is ExperimentStatus.INVALID
    assert "its program is to differ from that of plain lr=0.001" in (arms["two-agents lr=0.003"].note or "")
    assert ran == {arms["plain lr=0.001"].id}


def test_topic_that_a_language_model_cannot_study_ends_before_a_server(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ServerPool] = []
    monkeypatch.setattr(ServerPool, "start", started.append)
    reply = {"infeasible": [{"what": "GSM8K", "why": "it is none of the families"}], "nearest": "lr on addition"}
    (tmp_path / "frame.1.md").write_text(json.dumps(reply))
    with ReplyServer(tmp_path) as replies:
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", replies.url)
        words = ["--topic", "Does the lr matter on GSM8K?", "--planner", "llm", "--model", "recorded"]
        done = CliRunner().invoke(app, ["start", *words, "--engine", "fake", "--unsafe-no-sandbox"])

    assert done.exit_code == 2 and "\n  GSM8K: it is none of the families" in done.stderr
    assert "nearest study: researcher start --topic 'lr on addition'" in done.stderr
    assert not started
    with open_store(home / "research.db") as store:
        [study] = store.list_studies()
        # The call was paid for, so it is on record.
        assert study.status is StudyStatus.FAILED and store.sum_llm_usage(study.id).calls == 1
        assert store.find_charter(study.id) is None and not store.list_runs(study_id=study.id)
