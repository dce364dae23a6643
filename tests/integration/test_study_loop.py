"""The whole loop on the fake engine, over real HTTP, with real clients in their own processes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from slow_samplers import Pace
from typer.testing import CliRunner
from waiting import wait_until

from experiments_db import (
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    Run,
    RunStatus,
    Study,
    StudyStatus,
    open_store,
)
from researcher.charter import Charter, FrameRequest
from researcher.cli import app
from researcher.execution.early_stopping import StoppingLimits
from researcher.execution.preflight import check_program
from researcher.loop import session as worker_module
from researcher.loop.session import work_on
from researcher.plan import Arm, ArmProgram
from researcher.planner.rules import RulesPlanner
from researcher.scope import Scope
from researcher.study.requests import ask_to_end, create_study
from researcher.study.settings import StudySettings
from swarm import SwarmClient

pytestmark = pytest.mark.begins_first

CRASHING = "def schedule(tasks, progress):\n    raise OSError('the disk is on fire')\n"

SLEEPING = "import time\ndef reward(task, transcript, grade):\n    time.sleep(600)\n"

FAILING = "def agent(task, model, session):\n    raise ValueError(task)\n"

JOB_CHANGING = """
from swarm import SwarmClient
def reward(task, transcript, grade):
    for url in SERVERS:
        with SwarmClient(url) as client:
            job = client.job().resolved
            if job is not None and job["num_repeat"] == 16 and job["lr"] != 0.5:
                client.auto_sync_train_config_and_start_engine({**job, "lr": 0.5}, force_restart=True)
    return 1.0
"""


@dataclass(frozen=True)
class Done:
    """A study that has come to its end, and where its files are."""

    store: ExperimentStore
    study: Study
    home: Path

    @property
    def arms(self) -> dict[str, Experiment]:
        return {item.name: item for item in self.store.list_experiments(self.study.id)}

    def runs(self, arm: str) -> list[Run]:
        return self.store.list_runs(experiment_id=self.arms[arm].id)


def _carry_out(store: ExperimentStore, home: Path, topic: str, settings: StudySettings, **options: Any) -> Done:
    study = create_study(store, topic, settings)
    outcome = work_on(store, study.id, home, **options)
    assert outcome.signal is None
    return Done(store, outcome.study, home)


@pytest.fixture
def settings(start_server: Callable[..., Any]) -> StudySettings:
    """Two servers that somebody else started."""
    urls = tuple(start_server().url for _ in range(2))
    return StudySettings(engine="fake", steps=2, seeds=1, eval_episodes=6, servers=urls)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """A study on own local servers: two arms with one seed, which decides nothing, then with one more."""
    home = tmp_path_factory.mktemp("study")
    with open_store(home / "research.db") as store:
        settings = StudySettings(engine="fake", steps=2, seeds=1, eval_episodes=6, parallel=2, max_runs=4)
        yield _carry_out(store, home, "batch size 2 or 3 for tool use at equal steps", settings)


ARMS = ("batch_size=2", "batch_size=3")


def _all_files(home: Path) -> dict[str, tuple[int, int]]:
    found = (path for path in home.rglob("*") if path.is_file() and not path.name.startswith("research.db"))
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def test_resume_of_a_finished_study_changes_nothing_starts_no_server_and_ends_with_the_answer(done: Done) -> None:
    before = (done.store.get_study(done.study.id), done.store.list_events(done.study.id), _all_files(done.home))

    assert work_on(done.store, done.study.id, done.home).study == done.study
    resumed = CliRunner().invoke(app, ["resume", done.study.id, "--home", str(done.home)])

    assert resumed.exit_code == 0, resumed.stderr
    assert "is finished already" in resumed.stderr
    after = (done.store.get_study(done.study.id), done.store.list_events(done.study.id), _all_files(done.home))
    assert after == before
    lines = resumed.stdout.splitlines()
    assert lines[0].startswith("answer: ")
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] == [
        "answer", "recommendation", "verdicts", "runs", "study", "status", "database", "report", "html", "explorer",
    ]  # fmt: skip
    verdicts = lines[lines.index("verdicts:") + 1 :][: len(ARMS)]
    assert [line.partition(":")[0] for line in verdicts] == [f"  {name}" for name in ARMS]
    assert lines[-1] == f"explorer: researcher ui --home {done.home}"


def test_report_and_export_take_the_newest_study(done: Done, tmp_path: Path) -> None:
    copied = tmp_path / "home"
    copied.mkdir()
    with closing(sqlite3.connect(done.home / "research.db")) as database:
        database.execute("VACUUM INTO ?", (str(copied / "research.db"),))
    common = ["--home", str(copied)]

    report = CliRunner().invoke(app, ["report", *common])
    export = CliRunner().invoke(app, ["export", str(tmp_path / "tables"), *common])
    forgotten = CliRunner().invoke(app, ["export", done.study.id, *common])

    assert report.exit_code == 0, report.stderr
    assert f"studies/{done.study.id}/report" in report.stdout
    assert export.exit_code == 0 and (tmp_path / "tables" / "runs.csv").is_file()
    assert forgotten.exit_code == 2 and "where do the tables go" in forgotten.stderr


def test_every_run_of_both_plans_is_trained_and_scored_by_the_evaluator(done: Done) -> None:
    runs = done.store.list_runs(study_id=done.study.id)

    assert done.study.status is StudyStatus.FINISHED
    assert [item.action for item in done.store.list_decisions(done.study.id)] == ["refine", "stop"]
    assert {arm: sorted(run.seed for run in done.runs(arm)) for arm in done.arms} == {arm: [0, 1] for arm in ARMS}
    assert {run.status for run in runs} == {RunStatus.FINISHED}
    for run in runs:
        scores = {item.phase: item for item in done.store.list_evaluations(run_ids=[run.id], split="validation")}
        assert (scores["base"].weight_version, scores["final"].weight_version) == (0, 2)
        assert {item.episodes for item in scores.values()} == {6}
        assert (run.base_weight_version, run.final_weight_version) == (0, 2)
        assert run.job["seed"] == run.seed


def test_all_scores_are_of_the_same_tasks_measured_in_the_same_way(done: Done) -> None:
    evaluations = done.store.list_evaluations(study_id=done.study.id, split="validation")

    assert len(evaluations) == 8
    assert len({item.evaluator_hash for item in evaluations}) == 1


def test_curves_episodes_and_files_of_each_run_are_in_the_database(done: Done) -> None:
    for run in done.store.list_runs(study_id=done.study.id):
        assert {point.step for point in done.store.list_metrics([run.id])} == {1, 2}
        episodes = done.store.list_episodes(run.id, kind="eval", step=2)
        kept = [done.store.get_episode(run.id, item.episode_id) for item in episodes]
        assert len(kept) == 6 and all(episode.messages for episode in kept)
        assert sum(bool(episode.samples) for episode in kept) == 4
        files = {item.kind: Path(item.path) for item in done.store.list_artifacts(done.study.id, run_id=run.id)}
        assert files.keys() == {"program", "job", "log"} and all(path.is_file() for path in files.values())


def test_last_finding_equals_what_the_evaluations_give(done: Done) -> None:
    means = {
        arm: fmean(
            item.mean for run in done.runs(arm) for item in done.store.list_evaluations(run_ids=[run.id], phase="final")
        )
        for arm in ARMS
    }

    (finding,) = done.store.list_findings(study_id=done.study.id, iteration=1)

    assert finding.effect == pytest.approx(means["batch_size=3"] - means["batch_size=2"])
    assert set(finding.run_ids) == {run.id for run in done.store.list_runs(study_id=done.study.id)}


def test_the_test_split_is_opened_once_for_winner_and_runner_up(done: Done) -> None:
    scores = done.store.list_evaluations(study_id=done.study.id, split="test")

    assert {item.phase for item in scores} == {"test"}
    # Every answer of the fake engine is wrong: the baseline, listed first, is the winner as well.
    both = [*done.runs("batch_size=2"), *done.runs("batch_size=3")]
    assert sorted(item.run_id for item in scores) == sorted(run.id for run in both)
    charter = done.store.find_charter(done.study.id)
    assert charter is not None and charter.test_opened_for == "score batch_size=2 and batch_size=3"


def test_report_is_written_and_every_step_has_an_event(done: Done) -> None:
    kinds = [event.kind for event in done.store.list_events(done.study.id, limit=None)]

    for earlier, later in (
        ("charter.frozen", "plan.made"),
        ("plan.made", "arm.ready"),
        ("arm.ready", "run.launched"),
        ("run.launched", "run.training"),
        ("run.finished", "analysis.made"),
        ("analysis.made", "decision.made"),
        ("test.scored", "report.written"),
    ):
        assert kinds.index(earlier) < kinds.index(later)
    reports = done.store.list_artifacts(done.study.id, kind="report.markdown")
    assert reports and Path(reports[0].path).is_file()


@dataclass(frozen=True, kw_only=True)
class BadArms(RulesPlanner):
    """The rules planner, but arms get the programs that are `written` for them."""

    written: Mapping[str, str]

    def frame(self, request: FrameRequest) -> Charter:
        charter = RulesPlanner.frame(self, request)
        return replace(charter, asks=replace(charter.asks, scope=Scope()))

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        honest = super().write_program(charter, arm, parent)
        return ArmProgram(arm.name, self.written.get(arm.name, honest.code), trusted=True)


@pytest.mark.timeout(400)
def test_bad_programs_cost_their_arm_and_not_the_study(
    store: ExperimentStore, settings: StudySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"seeds": 1, "steps": 2, "job": {"batch_size": 2}}
    unchecked = {
        "num_repeat=2": CRASHING,
        "num_repeat=4": SLEEPING,
        "num_repeat=16": f"SERVERS = {settings.servers!r}{JOB_CHANGING}",
    }
    programs = {**unchecked, "num_repeat=3": FAILING}
    planner = BadArms(written=programs)
    monkeypatch.setattr(worker_module, "_build_planner", lambda *_: planner)

    def check_the_others(script: ArmProgram, *given: Any, **named: Any) -> Any:
        return () if script.arm in unchecked else check_program(script, *given, **named)

    monkeypatch.setattr("researcher.loop.nodes.check.check_program", check_the_others)

    done = _carry_out(
        store,
        tmp_path,
        "group size 2, 3, 4, 8 or 16",
        settings.model_copy(update=small),
        limits=StoppingLimits(stall_s=8),
    )

    assert done.study.status is StudyStatus.FINISHED
    # The last attempt: on a busy machine a run of the honest program may stall as well, and is then repeated.
    assert done.runs("num_repeat=8")[-1].status is RunStatus.FINISHED
    assert done.arms["num_repeat=3"].status is ExperimentStatus.INVALID and done.runs("num_repeat=3") == []
    for arm in unchecked:
        runs = done.runs(arm)
        # On a busy machine a run may stall before its program does wrong.
        assert {run.status for run in runs} == {RunStatus.FAILED}, arm
        assert store.list_evaluations(run_ids=[run.id for run in runs], phase="final") == []
    assert "the disk is on fire" in (done.runs("num_repeat=2")[0].exit_reason or "")
    stalled = done.runs("num_repeat=4")[0]
    assert stalled.diagnosis is not None and stalled.diagnosis["kind"] == "program"
    assert "waits for episodes" in stalled.diagnosis["sentence"]
    assert "its program restarted the job" in (done.runs("num_repeat=16")[-1].exit_reason or "")


def test_budget_of_runs_ends_the_launches_and_the_study_still_reports(
    store: ExperimentStore, settings: StudySettings, tmp_path: Path
) -> None:
    limited = settings.model_copy(update={"seeds": 2, "max_runs": 2})

    done = _carry_out(store, tmp_path, "batch size 2 or 3 for tool use at equal steps", limited)

    assert done.study.status is StudyStatus.FINISHED
    # Whole blocks first: both arms have seed 0.
    assert [[run.seed for run in done.runs(arm)] for arm in ARMS] == [[0], [0]]
    (decision,) = store.list_decisions(done.study.id)
    assert decision.reason == "The budget is spent."


@pytest.mark.slow
def test_early_end_of_the_arms_own_doing_is_scored_with_what_was_learned(
    store: ExperimentStore, settings: StudySettings, tmp_path: Path
) -> None:
    endless = settings.model_copy(update={"steps": 100_000})

    # With a limit below zero, the first step of any run counts as a divergence. The fake engine never succeeds, which
    # would be the diagnosis of a run that is seen a dozen steps late.
    limits = StoppingLimits(kl_limit=-1.0, dead_steps=1_000_000)
    done = _carry_out(store, tmp_path, "batch size 2 or 3 on reversal at equal steps", endless, limits=limits)

    runs = store.list_runs(study_id=done.study.id)
    assert len(runs) == 2
    for run in runs:
        assert run.status is RunStatus.FINISHED and (run.exit_reason or "").startswith("stopped early")
        assert run.diagnosis is not None and run.diagnosis["kind"] == "kl_divergence"
        (final,) = store.list_evaluations(run_ids=[run.id], phase="final")
        assert 1 <= final.weight_version == run.final_weight_version < 100_000


@pytest.mark.timeout(400)
def test_paused_study_takes_up_its_runs_where_the_servers_have_them(
    store: ExperimentStore, tmp_path: Path, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace(last_step=2)
    monkeypatch.setattr("swarm.server.http.Backends", pace.backends())
    urls = tuple(start_server().url for _ in range(2))
    settings = StudySettings(engine="fake", steps=4, seeds=1, eval_episodes=6, servers=urls)
    study = create_study(store, "batch size 2 or 3 on reversal at equal steps", settings)
    worker = threading.Thread(target=work_on, args=(store, study.id, tmp_path))
    worker.start()
    wait_until(lambda: [_step_of(url) for url in urls] == [2, 2])

    ask_to_end(store, study.id, StudyStatus.PAUSED)
    worker.join(120)

    assert not worker.is_alive()
    assert store.get_study(study.id).status is StudyStatus.PAUSED
    assert len(store.list_runs(study_id=study.id, statuses=[RunStatus.RUNNING])) == 2

    pace.last_step = None
    assert work_on(store, study.id, tmp_path).study.status is StudyStatus.FINISHED
    runs = store.list_runs(study_id=study.id)
    assert {(run.attempt, run.status) for run in runs} == {(1, RunStatus.FINISHED)} and len(runs) == 2
    assert {run.final_weight_version for run in runs} == {4}


def _step_of(url: str) -> int:
    with SwarmClient(url) as client:
        return client.status().step
