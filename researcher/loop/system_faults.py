"""Faults of a study's environment and sandbox, separated from failures of its arms.

Place in the flow: session.py checks before any server is started, and the graph between its nodes. check and monitor
ask before they say that a program failed. The errors raised here end the study's work for now. No arm gets the blame,
no run is repeated in vain, and `resume` goes on once the cause is fixed. This module knows nothing of runs.
"""

from __future__ import annotations

from researcher.errors import EnvironmentBroken, ScoreIncomplete
from researcher.loop.deps import ActiveRun, Deps
from researcher.record.runs import ENVIRONMENT, FAILURE, PROGRAM, Diagnosis
from swarm.processes import KILLED
from swarm.program import ENVIRONMENT_FAILED, PROGRAM_FAILED


def examine_environment(deps: Deps) -> None:
    """Examine the environment that arms are judged on. Raises EnvironmentBroken, SandboxUnavailable."""
    charter = deps.log.charter()
    deps.environments.examine(charter.environment, charter.environment_digest)


def refuse_to_blame(deps: Deps) -> None:
    """Raise EnvironmentBroken or SandboxUnavailable if the environment or the sandbox fails, and not the arm."""
    if deps.sandbox is not None:
        deps.sandbox.check()
    examine_environment(deps)


def refuse_to_repeat(deps: Deps, active: ActiveRun, error: BaseException) -> None:
    """Raise EnvironmentBroken if environment failures made the score of the baseline incomplete.

    No other arm could be compared with such a baseline.
    """
    is_of_baseline = isinstance(error, ScoreIncomplete) and active.experiment.is_baseline
    if is_of_baseline and (reason := deps.environments.failed_since(active.began)):
        raise EnvironmentBroken(f"the environment fails while the baseline is scored: {reason}")


def diagnose_exit(active: ActiveRun, code: int, reason: str) -> Diagnosis:
    """Return a diagnosis of the exit code of the process that trained a run: whose fault it was.

    Raises EnvironmentBroken if the environment fails the baseline.
    """
    if code == ENVIRONMENT_FAILED and active.experiment.is_baseline:
        raise EnvironmentBroken(f"the environment fails while the baseline trains: {reason}")
    if code == ENVIRONMENT_FAILED:
        return Diagnosis(ENVIRONMENT, reason, is_scored=False, is_retried=True)
    is_own = code in (0, PROGRAM_FAILED, KILLED)
    return Diagnosis(PROGRAM if is_own else FAILURE, reason, is_scored=False, is_retried=not is_own)
