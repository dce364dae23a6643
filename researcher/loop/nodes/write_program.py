"""Write program: the program of every new arm, as a change of its parent's program."""

from __future__ import annotations

from collections.abc import Mapping

from experiments_db import Author, Experiment, ExperimentStatus
from researcher.charter import Charter
from researcher.loop.deps import Deps, ResearchState
from researcher.plan import Arm, ArmProgram, Plan
from researcher.record.log import StudyLog, keep_file
from researcher.search.confirmation import ablated_programs

PROGRAM = "program"
"""Kind of the artifact that holds an arm's program."""


def write_program(deps: Deps, state: ResearchState) -> ResearchState:
    charter = deps.charter()
    ablated = _ablated_programs(deps, state, charter)
    for arm, experiment in draft_arms(deps, state):
        if experiment.program_code:
            continue
        if arm.name in ablated:
            save_arm_program(deps, experiment, ablated[arm.name])
            continue
        parent = deps.store.find_experiment(deps.study_id, arm.parent) if arm.parent else None
        inherited = load_arm_program(parent) if parent and parent.program_code else None
        save_arm_program(deps, experiment, deps.planner.write_program(charter, arm, inherited))
    return state


def _ablated_programs(deps: Deps, state: ResearchState, charter: Charter) -> Mapping[str, ArmProgram]:
    planned = planned_iteration(deps.log, state)
    if not planned.primary:
        return {}
    return ablated_programs(charter, deps.log.history(), planned, deps.store.list_experiments(deps.study_id))


def draft_arms(deps: Deps, state: ResearchState) -> list[tuple[Arm, Experiment]]:
    """Return the arms of the present plan that `check` has not decided on yet, parents first."""
    planned = planned_iteration(deps.log, state)
    pairs = [(arm, deps.store.find_experiment(deps.study_id, arm.name)) for arm in planned.arms]
    drafts = [(arm, found) for arm, found in pairs if found and found.status is ExperimentStatus.DRAFT]
    return sorted(drafts, key=lambda pair: not pair[0].is_baseline)


def planned_iteration(log: StudyLog, state: ResearchState) -> Plan:
    planned = log.find_plan(state["iteration"])
    assert planned is not None, "the plan node has written it"
    return planned


def save_arm_program(deps: Deps, experiment: Experiment, program: ArmProgram) -> None:
    folder = deps.arm_folder(experiment)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "program.py"
    path.write_text(program.code, encoding="utf-8")
    keep_file(deps.store, deps.study_id, path, PROGRAM)
    author = Author.PACKAGE if program.trusted else Author.LANGUAGE_MODEL
    deps.store.revise_experiment(experiment.id, program_code=program.code, author=author)


def load_arm_program(experiment: Experiment) -> ArmProgram:
    return ArmProgram(experiment.name, experiment.program_code, trusted=is_trusted(experiment))


def is_trusted(experiment: Experiment) -> bool:
    """Return whether the code is recorded as the package's own, so that it may run without a sandbox."""
    return experiment.author is Author.PACKAGE
