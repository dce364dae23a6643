"""Faults of what a study stands on, its environment and its sandbox, told apart from those of its arms.

Place in the flow: session.py looks before any server is started, the graph between its nodes, and check and monitor
before they say that a program failed. What is raised here ends the study's work for now: no arm is at fault, no run is
tried again in vain, and `resume` goes on once the cause is mended. This module knows nothing of runs.
"""

from __future__ import annotations

from researcher.errors import EnvironmentBroken, ScoreIncomplete
from researcher.execution.early_stopping import Diagnosis
from researcher.execution.runs import ENVIRONMENT, FAILURE, PROGRAM
from researcher.loop.deps import ActiveRun, Deps
from swarm.processes.child import KILLED
from swarm.program.command_line import ENVIRONMENT_FAILED, PROGRAM_FAILED


def examine_environment(deps: Deps) -> None:
    """Examine the one that arms are judged on. Raises EnvironmentBroken, SandboxUnavailable."""
    charter = deps.log.charter()
    deps.environments.examine(charter.environment, charter.environment_digest)


def refuse_to_blame(deps: Deps) -> None:
    """Raise EnvironmentBroken or SandboxUnavailable where an arm's failure is no fault of the arm."""
    if deps.sandbox is not None:
        deps.sandbox.check()
    examine_environment(deps)


def refuse_to_repeat(deps: Deps, active: ActiveRun, error: BaseException) -> None:
    """Raise EnvironmentBroken where the baseline's score lacks attempts that the environment failed: no other arm
    could be compared with it."""
    is_of_baseline = isinstance(error, ScoreIncomplete) and active.experiment.is_baseline
    if is_of_baseline and (reason := deps.environments.failed_since(active.began)):
        raise EnvironmentBroken(f"the environment fails while the baseline is scored: {reason}")


def diagnose_exit(active: ActiveRun, code: int, reason: str) -> Diagnosis:
    """Say whose fault it is that the process that trains a run ended with this code. Raises EnvironmentBroken where
    the environment fails the baseline."""
    if code == ENVIRONMENT_FAILED and active.experiment.is_baseline:
        raise EnvironmentBroken(f"the environment fails while the baseline trains: {reason}")
    if code == ENVIRONMENT_FAILED:
        return Diagnosis(ENVIRONMENT, reason, is_scored=False, is_retried=True)
    is_own = code in (0, PROGRAM_FAILED, KILLED)
    return Diagnosis(PROGRAM if is_own else FAILURE, reason, is_scored=False, is_retried=not is_own)
