"""Base: the score of the base weights, measured before the first plan, so that the planner knows where it begins."""

from __future__ import annotations

from itertools import count

from researcher.base_scores import FirstScore, read_first_score, record_first_score
from researcher.charter import Charter
from researcher.errors import NothingToLearnFrom, PlannerError, RunBroken, ServerProblem
from researcher.loop.deps import Deps, ResearchState
from researcher.loop.outages import MAX_OUTAGES, await_slot, refuse_to_blame
from researcher.plan import ArmProgram
from researcher.planner.designs import program_of
from researcher.planner.language_model.arms import find_baseline
from researcher.planner.rules import RulesPlanner
from researcher.player import agent_in
from researcher.record.failure_reason import in_one_line
from researcher.record.runs import PROJECT, engine_of
from researcher.search.rules import PLAIN_PROGRAM
from researcher.servers.server_pool import is_outage
from swarm.errors import SwarmError

UNKNOWN = "base.unknown"


def measure_base(deps: Deps, state: ResearchState) -> ResearchState:
    """Measure the base score unless it is on record.

    Raises NothingToLearnFrom if every attempt has the worst score, unless a person goes on all the same.
    """
    if deps.log.find_plan(0) is not None:
        return state
    charter = deps.charter()
    found = read_first_score(deps.store, deps.study_id) or _measure(deps, charter)
    # The fake engine has no model: it is for trying the loop.
    is_exempt = deps.goes_on_from_zero or engine_of(find_baseline(charter).job) == "fake"
    if found is not None and found.is_all(_worst_of(charter)) and not is_exempt:
        raise NothingToLearnFrom(
            f"the model of this study earns {found.mean:g} in all {found.score['episodes']} attempts at "
            f"{charter.environment_name}, so reward alone has nothing to work with: take easier tasks, a model that "
            "solves some, or supervised training first, or go on all the same with --go-on"
        )
    return state


def _measure(deps: Deps, charter: Charter) -> FirstScore | None:
    """Measure and record the base score. Return None, after an event, if it cannot be measured before there are runs.

    Raises what ends a study: EnvironmentBroken, SandboxUnavailable, Drained, and ServerProblem if no server is left.
    """
    arm = find_baseline(charter)
    program = _program_of_baseline(deps, charter)
    if program is None or deps.ledger.find_exhausted() is not None:
        return None
    job = {**arm.job, "project_name": PROJECT, "experiment_name": f"{deps.study_id}/base", "seed": 0}
    agent = agent_in(program.code, is_trusted=program.trusted)
    for attempt in count(1):
        if (slot := await_slot(deps)) is None:
            return None
        try:
            found = deps.evaluator().measure_base(deps.study_id, str(slot.url), job, agent)
        except (RunBroken, ServerProblem, SwarmError) as error:
            refuse_to_blame(deps)
            if is_outage(error) and attempt < MAX_OUTAGES:
                deps.pool.report_outage(slot, error)
                continue
            # A run that meets the same fault says more about it, and may be tried on another server.
            deps.log.warn(UNKNOWN, f"The base weights have no score before the first plan: {in_one_line(str(error))}")
            return None
        finally:
            deps.pool.give_back(slot)
        record_first_score(deps.store, deps.study_id, found)
        return found
    raise AssertionError("the loop returns")


def _program_of_baseline(deps: Deps, charter: Charter) -> ArmProgram | None:
    """Return the program of the baseline; None if a language model has yet to write it."""
    arm = find_baseline(charter)
    if program_of(arm) != PLAIN_PROGRAM and deps.planner.name != RulesPlanner.name:
        return None
    try:
        return deps.planner.write_program(charter, arm, None)
    except PlannerError:
        return None


def _worst_of(charter: Charter) -> float | None:
    """Return the worst score that an attempt can have; None if that is unknown."""
    is_minimized = charter.direction == "minimize"
    if charter.metric_range is None:
        return None if is_minimized else 0.0
    return charter.metric_range[1 if is_minimized else 0]
