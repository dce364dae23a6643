"""A held-out score for people and for programs.

Place in the flow: `swarm eval` and `swarm train` print it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swarm.errors import EngineFailure

if TYPE_CHECKING:
    from swarm.client import Evaluation


def score_text(score: Evaluation) -> str:
    """The mean with its 95 % interval. Raises EngineFailure if nothing was scored."""
    mean = mean_of(score)
    margin = "" if score.stderr is None else f" ± {1.96 * score.stderr:.3f}"
    return f"{mean:.3f}{margin} (95 %, n={score.n})"


def mean_of(score: Evaluation) -> float:
    """Raises EngineFailure if nothing was scored."""
    if score.mean is None:
        raise EngineFailure(f"no episode was scored; the first failure: {score.failures[0].error}")
    return score.mean


def score_figures(score: Evaluation) -> dict[str, Any]:
    return {"mean": score.mean, "stderr": score.stderr, "n": score.n, "failures": len(score.failures)}
