"""kill -9 of a search in the middle of its rungs: it goes on from there, and comes out as if nothing had happened."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.researcher_commands import ResearcherCommands
from process_support import command_of, descendants, kill_all
from typer.testing import CliRunner

from experiments_db import BudgetKind, ExperimentStore, Operator, Run, RunStatus, StudyStatus, open_store
from researcher.cli import app
from researcher.phases import FROM_RUNG
from researcher.record.log import StudyLog
from researcher.report.numbers.curves import EPISODES
from researcher.search.record import read_tree

SEED = 11
STEPS = 8
AGENT = """
import time

def agent(task, model, session):
    time.sleep(0.25)
    asked = [[*session.transcript, {"role": "user", "content": f"Try {n}"}] for n in range(TRIES)]
    return max((model.chat(messages, temperature=0)["content"] for messages in asked), key=len)
"""
"""The longest of some replies. At temperature 0 the fake engine replies by the prompt alone, so scores repeat."""


@dataclass(frozen=True, slots=True)
class Arm:
    """An explored arm as its tree has it; `scores` are those of its rungs."""

    name: str
    parents: tuple[str, ...]
    operator: Operator | None
    levels: tuple[str, ...]
    scores: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The part of an ended search that kills must not change. `used` counts full runs."""

    tree: tuple[Arm, ...]
    plans: tuple[tuple[str, ...], ...]
    used: float


@pytest.fixture
def researcher(tmp_path: Path) -> Iterator[ResearcherCommands]:
    commands = ResearcherCommands(tmp_path / "killed")
    yield commands
    commands.close()


@pytest.fixture
def undisturbed(tmp_path: Path) -> Iterator[ResearcherCommands]:
    commands = ResearcherCommands(tmp_path / "undisturbed")
    yield commands
    commands.close()


def search(folder: Path, *, programs: int, rungs: str, full_runs: float) -> list[str]:
    """The arguments that begin a search on tasks which a reply of 14 characters solves."""
    folder.mkdir()
    rows = [
        {"question": f"Say {part} {number}", "answer": "[a-zA-Z]{14,}", "split": part}
        for part, count in {"train": 20, "validation": 40, "test": 20}.items()
        for number in range(count)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given: list[str] = []
    for tries in range(1, programs + 1):
        path = folder / f"tries-{tries}.py"
        path.write_text(AGENT.replace("TRIES", str(tries)))
        given += ["--program", str(path)]
    return [
        *("start", "--topic", "Find the best recipe", "--kind", "optimize", "--planner", "rules"),
        *("--engine", "fake", "--env", f"{folder / 'tasks.jsonl'}?split=split&grader=regex", *given),
        *("--policy", "halving", "--proposer", "grid", "--vary", "lr=1e-3,3e-3", "--rungs", rungs),
        *("--fix", "batch_size=2", "--fix", "num_repeat=2", "--steps", str(STEPS), "--eval-episodes", "20"),
        *("--explore-runs", str(full_runs), "--seeds", "1", "--parallel", "1", "--json"),
    ]


def study_of(researcher: ResearcherCommands) -> str:
    with open_store(researcher.database, read_only=True) as store:
        return store.list_studies()[0].id


def await_mid_rung(
    researcher: ResearcherCommands,
    process: subprocess.Popen[str],
    least: int,
    but: Sequence[str] = (),
    *,
    is_any_step: bool = False,
) -> str:
    """Wait until a run other than `but` is within a rung of at least `least` steps. Return its id.

    The run has a step, or with `is_any_step` may be before its first one: steps of a short rung pass between two looks.
    """
    found: list[Run] = []

    def is_within(store: ExperimentStore, study_id: str) -> bool:
        for run in store.list_runs(study_id=study_id, statuses=[RunStatus.RUNNING]):
            done = [point.step for point in store.list_metrics([run.id], names=[EPISODES])]
            is_begun = bool(done) or is_any_step
            if run.rung >= least and run.id not in but and is_begun and max(done, default=0) < run.rung:
                found.append(run)
        return bool(found)

    researcher.await_state(process, "run within a rung", is_within)
    return found[0].id


def kill_server(process: subprocess.Popen[str]) -> None:
    """kill -9 of the server that the researcher has started."""
    servers = [each for each in descendants(process.pid) if {"swarm.cli", "start"} <= {*command_of(each)}]
    assert servers
    kill_all(servers)


def look(researcher: ResearcherCommands) -> Ended:
    """Check that a search has ended, that each of its rungs was trained and charged once, and that its record holds."""
    study_id = study_of(researcher)
    verified = CliRunner().invoke(app, ["verify", study_id, "--home", str(researcher.home)])
    assert verified.exit_code == 0, verified.stdout
    assert researcher.children() == []
    with open_store(researcher.database, read_only=True) as store:
        study = store.get_study(study_id)
        assert study.status is StudyStatus.FINISHED, study.status_reason
        runs = store.list_runs(study_id=study_id)
        trained = sum(count_steps(store, run) for run in runs)
        used = store.sum_budget(study_id)[BudgetKind.RUNS]
        log = StudyLog(store, study_id)
        tree = read_tree(store, study_id, log.charter())
        plans = log.history().plans
    assert set(Counter((run.experiment_id, run.seed, run.rung) for run in runs).values()) == {1}
    assert used == pytest.approx(trained / STEPS)
    arms = tuple(
        Arm(
            node.name,
            node.parents,
            node.operator,
            tuple(node.levels.values()),
            tuple((score.share, score.score) for score in node.scores),
        )
        for node in tree.nodes
    )
    return Ended(
        arms, tuple(tuple(f"{arm.name} to {plan.rungs.get(arm.name)}" for arm in plan.arms) for plan in plans), used
    )


def count_steps(store: ExperimentStore, run: Run) -> int:
    """Return the steps of a run, which must be its first attempt and have each step of its rung once."""
    steps = [point.step for point in store.list_metrics([run.id], names=[EPISODES])]
    assert (run.attempt, run.status) == (1, RunStatus.FINISHED), run.exit_reason
    assert steps == list(range(int(run.external_ids.get(FROM_RUNG, 0)) + 1, (run.rung or STEPS) + 1))
    return len(steps)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_search_under_kills_of_researcher_and_server_has_the_tree_of_one_without(
    researcher: ResearcherCommands, undisturbed: ResearcherCommands, tmp_path: Path
) -> None:
    words = search(tmp_path / "given", programs=2, rungs="0.25,0.5,1", full_runs=3)
    chance = random.Random(SEED)
    control = undisturbed.start(*words)

    process, seen = researcher.start(*words), list[str]()
    for victim in ("researcher", "server", "researcher", "researcher"):
        seen.append(await_mid_rung(researcher, process, 1, seen, is_any_step=True))
        time.sleep(chance.uniform(0, 0.5))
        if victim == "server":
            kill_server(process)
        else:
            researcher.end(process)
            process = researcher.start("resume", study_of(researcher))
    researcher.await_end(process)
    undisturbed.await_end(control)

    assert look(researcher) == look(undisturbed)
