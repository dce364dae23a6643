"""Check: no arm is launched whose program or job has problems; a planner may repair it a few times."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from experiments_db import Experiment, ExperimentStatus
from researcher.charter import Charter
from researcher.errors import EnvironmentBroken, PlannerError, ServerProblem
from researcher.execution.arm_scope import find_parts_outside, find_settings_outside
from researcher.execution.environments import find_held_out, trained_on
from researcher.execution.preflight import check_parse, check_program, contradict_name, find_style_warnings
from researcher.loop.deps import Deps, ResearchState
from researcher.loop.nodes.write_program import draft_arms, is_trusted, load_arm_program, save_arm_program
from researcher.loop.outages import MAX_OUTAGES, await_slot, refuse_to_blame
from researcher.plan import Arm, ArmProgram, ProgramProblem
from researcher.planner.rules import PROGRAM
from researcher.record.log import Notebook
from swarm.job import build_job

MAX_REPAIRS = 3


def check(deps: Deps, state: ResearchState) -> ResearchState:
    for arm, experiment in draft_arms(deps, state):
        program = load_arm_program(experiment)
        # A program that passed needs no second preflight run, because only the job is new.
        needs_preflight = not _passed_before(deps, program)
        problems = _check_and_repair(deps, arm, experiment, program, needs_preflight=needs_preflight)
        problems = problems or _find_setting_outside(deps, experiment) or _find_twin(deps, arm)
        problems = problems or _find_broken_promise(deps, arm) or _find_leak(deps, experiment)
        if problems:
            note = f"rejected by check: {_in_one_line(problems[0])}"
            deps.store.revise_experiment(experiment.id, status=ExperimentStatus.INVALID, note=note)
            Notebook(deps.store, deps.study_id).note_rejected(state["iteration"], arm.name, note)
            deps.log.warn("arm.rejected", f"{arm.name}: {note}")
        else:
            deps.store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
            deps.log.note("arm.ready", f"{arm.name}: program and job passed the check.")
            _note_style(deps, state, arm.name, load_arm_program(experiment))
    return state


def _note_style(deps: Deps, state: ResearchState, name: str, program: ArmProgram) -> None:
    """Put what a linter finds in a program that runs all the same into the record, where the planner sees it."""
    if warnings := find_style_warnings(program.code):
        text = "; ".join(warning.message for warning in warnings)
        deps.log.warn("program.style", f"{name}: {text}. It runs all the same.")
        Notebook(deps.store, deps.study_id).note_style(state["iteration"], name, text)


def _check_and_repair(
    deps: Deps, arm: Arm, experiment: Experiment, program: ArmProgram, *, needs_preflight: bool
) -> tuple[ProgramProblem, ...]:
    """Return the problems that remain; empty once the program passes. The last repaired program is stored.

    Raises EnvironmentBroken or SandboxUnavailable if preflight failed through no fault of the arm.
    """
    charter = deps.charter()
    for attempt in range(MAX_REPAIRS + 1):
        problems = _find_part_outside(deps, program, charter) or _check_on_server(
            deps, arm, experiment, program, charter, needs_preflight=needs_preflight
        )
        if problems and problems[0].stage in ("preflight", "trial"):
            refuse_to_blame(deps)
        if not problems or attempt == MAX_REPAIRS:
            return problems
        deps.log.warn("arm.repair", f"{arm.name}: {_in_one_line(problems[0])}")
        try:
            told = (*problems, *find_style_warnings(program.code))
            program = replace(deps.planner.repair_program(charter, arm, program, told), arm=arm.name)
        except PlannerError:
            return problems
        save_arm_program(deps, experiment, program)
    raise AssertionError("the loop returns")


def _check_on_server(
    deps: Deps, arm: Arm, experiment: Experiment, program: ArmProgram, charter: Charter, *, needs_preflight: bool
) -> tuple[ProgramProblem, ...]:
    """Check a program, at most `MAX_OUTAGES` times, until one server has answered throughout.

    A program that somebody else wrote is then tried with the real model.

    Raises Drained, ServerProblem, and EnvironmentBroken if the environment fails the baseline.
    """
    for attempt in count(1):
        slot = await_slot(deps) if needs_preflight else None
        url = None if slot is None else slot.url
        try:
            problems = check_program(
                program,
                dict(experiment.job),
                workdir=deps.arm_folder(experiment),
                sandbox=None if program.trusted else deps.sandbox,
                preflight_url=url,
                environment=deps.environments.reference(trained_on(experiment, charter)),
                token=None if url is None else deps.pool.token_of(url),
            )
            if problems or program.trusted or slot is None:
                return problems
            return deps.trials().check_arm(slot, experiment, program, arm.manipulation)
        except EnvironmentBroken as error:
            if experiment.is_baseline:
                raise
            # The environment may fail only on the replies of this arm, or only this arm may use it.
            return (ProgramProblem("preflight", f"its environment fails: {error}"),)
        except ServerProblem as error:
            if slot is None or attempt == MAX_OUTAGES:
                raise
            deps.pool.report_outage(slot, error)
        finally:
            if slot is not None:
                deps.pool.give_back(slot)
    raise AssertionError("the loop returns")


def _in_one_line(problem: ProgramProblem) -> str:
    """Return a problem without the transcripts that follow its first line."""
    return f"{problem.stage}: {problem.message.splitlines()[0]}"


def _passed_before(deps: Deps, program: ArmProgram) -> bool:
    """Return whether the program is trusted and an arm with the same code is ready already."""
    return program.trusted and any(
        experiment.status is ExperimentStatus.READY
        and experiment.program_code == program.code
        and is_trusted(experiment)
        for experiment in deps.store.list_experiments(deps.study_id)
    )


def _find_part_outside(deps: Deps, program: ArmProgram, charter: Charter) -> tuple[ProgramProblem, ...]:
    """Return the problems of a program that changes what arms may not differ in."""
    baseline = _baseline_of(deps).program_code
    if check_parse(program.code) or check_parse(baseline):
        return ()
    return find_parts_outside(program.code, baseline, charter.asks.scope)


def _find_setting_outside(deps: Deps, experiment: Experiment) -> tuple[ProgramProblem, ...]:
    return find_settings_outside(experiment, _baseline_of(deps), deps.charter().asks)


def _baseline_of(deps: Deps) -> Experiment:
    """Return the baseline, whose program is written before all others."""
    return next(item for item in deps.store.list_experiments(deps.study_id) if item.is_baseline)


def _find_twin(deps: Deps, arm: Arm) -> tuple[ProgramProblem, ...]:
    """Return a problem if the arm equals a ready one: the study would compare a thing with itself."""
    experiments = deps.store.list_experiments(deps.study_id)
    own = next(item for item in experiments if item.name == arm.name)
    for other in experiments:
        is_ready = other.id != own.id and other.status is ExperimentStatus.READY
        is_same = (other.program_code, other.train_environment) == (own.program_code, own.train_environment)
        if is_ready and is_same and build_job(other.job) == build_job(own.job):
            return (
                ProgramProblem("twin", f"its settings and its program are those of {other.name}: change one of them"),
            )
    return ()


def _find_broken_promise(deps: Deps, arm: Arm) -> tuple[ProgramProblem, ...]:
    """Return a problem if the arm is not what its name or its factors state.

    Its name gives a setting that the job does not have, or its program is to differ from another arm's and is the same.
    """
    experiments = deps.store.list_experiments(deps.study_id)
    own = next(item for item in experiments if item.name == arm.name)
    if problem := contradict_name(own.name, own.job):
        return (ProgramProblem("promise", problem),)
    named = own.factors.get(PROGRAM)
    for other in experiments:
        has_program = other.id != own.id and other.status is ExperimentStatus.READY and PROGRAM in other.factors
        if has_program and other.factors[PROGRAM] != named and other.program_code == own.program_code:
            return (
                ProgramProblem(
                    "promise",
                    f"its program is to differ from that of {other.name} ({named!r}, {other.factors[PROGRAM]!r}) "
                    "and is the same to the last byte: write what it does differently, or say that it is the same",
                ),
            )
    return ()


def _find_leak(deps: Deps, experiment: Experiment) -> tuple[ProgramProblem, ...]:
    """Return a problem if the arm's training environment has tasks that the arm is judged by."""
    if experiment.train_environment is None:
        return ()
    charter = deps.log.charter()
    judged = deps.environments.open(charter.environment)
    trained = deps.environments.open(experiment.train_environment)
    question = find_held_out(trained, judged, (charter.search_split, charter.test_split), charter.held_out)
    if question is None:
        return ()
    return (ProgramProblem("environment", f"it trains on a task that it is judged by: {question[:100]!r}"),)
