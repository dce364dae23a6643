"""Faults of what a study stands on, its environment and its sandbox, told apart from those of its arms.

Place in the flow: session.py looks before any server is started, the graph between its nodes, and check and monitor
before they say that a program failed. What is raised here ends the study's work for now: no arm is at fault, no run is
tried again in vain, and `resume` goes on once the cause is mended. This module knows nothing of runs.
"""

from __future__ import annotations

from researcher.errors import EnvironmentBroken, ScoreIncomplete
from researcher.loop.deps import ActiveRun, Deps


def examine_environment(deps: Deps) -> None:
    """The one that arms are judged on, before anything is trained. Raises EnvironmentBroken, SandboxUnavailable."""
    charter = deps.log.charter()
    deps.environments.examine(charter.environment or charter.task, charter.environment_digest)


def refuse_to_blame(deps: Deps) -> None:
    """Call it before a failure is put down to an arm. Raises EnvironmentBroken, SandboxUnavailable."""
    if deps.sandbox is not None:
        deps.sandbox.check()
    examine_environment(deps)


def refuse_to_repeat(deps: Deps, active: ActiveRun, error: BaseException) -> None:
    """Raises EnvironmentBroken where the baseline's score lacks attempts that the environment failed: no other arm
    could be compared with it."""
    is_of_baseline = isinstance(error, ScoreIncomplete) and active.experiment.is_baseline
    if is_of_baseline and (reason := deps.environments.failed_since(active.began)):
        raise EnvironmentBroken(f"the environment fails while the baseline is scored: {reason}")
