"""A search on the fake engine, over real HTTP: rounds of exploration, and the confirmation of what they find."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from simulated_study import reports_without_images
from typer.testing import CliRunner

from experiments_db import BudgetKind, ExperimentStore, NoteKind, Run, RunStatus, StudyStatus, open_store
from prompts import load
from researcher.cli import app
from researcher.loop.session import work_on
from researcher.phases import FROM_RUNG, RESUME_FROM
from researcher.plan import Plan, Stage
from researcher.record.log import StudyLog
from researcher.record.runs import cost_of
from researcher.search.record import read_tree
from researcher.study.requests import ask_to_end, create_study
from researcher.study.settings import StudySettings, read_settings
from swarm.guard import REWARD

pytestmark = pytest.mark.begins_first

LONGEST = """
def agent(task, model, session):
    asked = [[*session.transcript, {"role": "user", "content": f"Try {number}"}] for number in range(3)]
    return max((model.chat(messages)["content"] for messages in asked), key=len)
"""
"""A good arm where long replies are right: the fake engine answers with random letters."""

SMALL = {
    "kind": "optimize",
    "programs": [{"name": "plain", "code": load("program")}, {"name": "longest", "code": LONGEST}],
    "vary": ["lr=1e-3,3e-3"],
    "fix": ["batch_size=2", "num_repeat=2"],
    "engine": "fake",
    "steps": 4,
    "seeds": 1,
    "eval_episodes": 20,
    "proposer": "grid",
    "rungs": [0.5, 1.0],
    "explore_runs": 2.5,
}


@dataclass(frozen=True)
class Searched:
    """A search that has come to its end."""

    store: ExperimentStore
    study_id: str
    home: Path

    @property
    def plans(self) -> tuple[Plan, ...]:
        return StudyLog(self.store, self.study_id).history().plans

    @property
    def runs(self) -> list[Run]:
        return self.store.list_runs(study_id=self.study_id)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    """A search that was paused once an exploring run had ended, and went on in another process' place."""
    home = tmp_path_factory.mktemp("search")
    with reports_without_images(), open_store(home / "research.db") as store:
        study = create_study(store, "Find the best settings", settings(home))
        worker = threading.Thread(target=work_on, args=(store, study.id, home))
        worker.start()
        await_first_rung(store, study.id)
        ask_to_end(store, study.id, StudyStatus.PAUSED)
        worker.join(120)
        assert not worker.is_alive()
        assert store.get_study(study.id).status is StudyStatus.PAUSED
        work_on(store, study.id, home)
        yield Searched(store, study.id, home)


def settings(home: Path) -> StudySettings:
    """Settings of a small search on tasks that a reply of 20 characters solves."""
    splits = {"train": 20, "validation": 40, "test": 20}
    rows = [
        {"question": f"Say {part} {number}", "answer": "[a-zA-Z]{20,}", "split": part}
        for part, count in splits.items()
        for number in range(count)
    ]
    path = home / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_settings({**SMALL, "env": f"{path}?split=split&grader=regex"})


def await_first_rung(store: ExperimentStore, study_id: str) -> None:
    deadline = time.monotonic() + 60
    while not any(run.rung for run in store.list_runs(study_id=study_id, statuses=[RunStatus.FINISHED])):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_search_explores_in_rounds_and_confirms_its_leader_on_fresh_seeds(searched: Searched) -> None:
    study = searched.store.get_study(searched.study_id)
    *rounds, last = searched.plans

    assert study.status is StudyStatus.FINISHED, study.status_reason
    assert {plan.stage for plan in rounds} == {Stage.EXPLORE} and last.stage is Stage.CLAIM
    assert {seed for plan in rounds for seed in plan.seeds} == {0} and min(last.seeds) > 0
    assert "longest" in last.primary[0] and last.arms[0].name == "baseline"
    explored = {run.experiment_id for run in searched.runs if run.rung}
    claimed = {(run.seed, run.rung) for run in searched.runs if not run.rung}
    assert len(explored) > 2 and claimed == {(seed, 0) for seed in last.seeds}
    assert {run.status for run in searched.runs} <= {RunStatus.FINISHED, RunStatus.STOPPED}


def test_run_at_a_higher_rung_goes_on_from_the_lower_one_and_costs_the_difference(searched: Searched) -> None:
    second = [run for run in searched.runs if run.rung == 4 and run.status is RunStatus.FINISHED]
    arms = {item.id: item for item in searched.store.list_experiments(searched.study_id)}

    assert second
    for run in second:
        assert run.external_ids[FROM_RUNG] == 2 and Path(run.job[RESUME_FROM]).is_absolute()
        assert (run.base_weight_version, run.final_weight_version) == (2, 4)
        assert [point.step for point in searched.store.list_metrics([run.id], names=[REWARD])] == [3, 4]
        assert cost_of(run, arms[run.experiment_id]) == 0.5


def test_exploring_scores_and_scores_of_claims_share_no_task(searched: Searched) -> None:
    tasks: dict[bool, set[str]] = {True: set(), False: set()}
    for run in searched.runs:
        for score in searched.store.list_evaluations(run_ids=[run.id], split="validation"):
            tasks[bool(run.rung)].update(score.details["tasks"])

    assert len(tasks[True]) == len(tasks[False]) == 20
    assert tasks[True].isdisjoint(tasks[False])


def test_notebook_has_every_round_what_it_tried_and_what_was_decided(searched: Searched) -> None:
    notes = searched.store.list_notes(searched.study_id)
    tree = read_tree(searched.store, searched.study_id, StudyLog(searched.store, searched.study_id).charter())

    assert {NoteKind.REASON, NoteKind.TRIED, NoteKind.HYPOTHESIS, NoteKind.OUTCOME} <= {note.kind for note in notes}
    tried = [note.text for note in notes if note.kind is NoteKind.TRIED]
    assert all(any(text.startswith(node.name) for text in tried) for node in tree.nodes if node.scores)
    decided = {note.iteration for note in notes if note.key.startswith("decision/")}
    assert decided == set(range(len(searched.plans)))


def test_record_of_a_search_can_be_recomputed(searched: Searched) -> None:
    verified = CliRunner().invoke(app, ["verify", searched.study_id, "--home", str(searched.home)])

    assert verified.exit_code == 0, verified.stdout
    charged = searched.store.sum_budget(searched.study_id)[BudgetKind.RUNS]
    claims = [run for run in searched.runs if not run.rung and run.status is RunStatus.FINISHED]
    assert charged == pytest.approx(len(claims) + sum(0.5 for run in searched.runs if run.rung and run.attempt == 1))
