"""Write client: the program of every new arm, as a change of its parent's."""

from __future__ import annotations

from experiments_db import Author, Experiment, ExperimentStatus
from researcher.evaluator import keep_file
from researcher.loop.deps import Deps
from researcher.loop.state import ResearchState
from researcher.study.log import StudyLog
from researcher.types import Arm, ClientScript, Plan

PROGRAM = "client"
"""Kind of the artifact that holds an arm's program."""


def write_client(deps: Deps, state: ResearchState) -> ResearchState:
    charter = deps.log.charter()
    for arm, experiment in draft_arms(deps, state):
        if experiment.client_code:
            continue
        parent = deps.store.find_experiment(deps.study_id, arm.parent) if arm.parent else None
        inherited = load_script(parent) if parent and parent.client_code else None
        save_script(deps, experiment, deps.planner.write_client(charter, arm, inherited))
    return state


def draft_arms(deps: Deps, state: ResearchState) -> list[tuple[Arm, Experiment]]:
    """The arms of the present plan that `check` has not decided on yet, parents first."""
    planned = planned_iteration(deps.log, state)
    pairs = [(arm, deps.store.find_experiment(deps.study_id, arm.name)) for arm in planned.arms]
    drafts = [(arm, found) for arm, found in pairs if found and found.status is ExperimentStatus.DRAFT]
    return sorted(drafts, key=lambda pair: not pair[0].is_baseline)


def planned_iteration(log: StudyLog, state: ResearchState) -> Plan:
    planned = log.find_plan(state["iteration"])
    assert planned is not None, "the plan node has written it"
    return planned


def save_script(deps: Deps, experiment: Experiment, script: ClientScript) -> None:
    folder = deps.arm_folder(experiment)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "client.py"
    path.write_text(script.code, encoding="utf-8")
    keep_file(deps.store, deps.study_id, path, PROGRAM)
    author = Author.PACKAGE if script.trusted else Author.LANGUAGE_MODEL
    deps.store.revise_experiment(experiment.id, client_code=script.code, author=author)


def load_script(experiment: Experiment) -> ClientScript:
    return ClientScript(experiment.name, experiment.client_code, trusted=is_trusted(experiment))


def is_trusted(experiment: Experiment) -> bool:
    """Only code that is recorded as ours runs without a sandbox."""
    return experiment.author is Author.PACKAGE
