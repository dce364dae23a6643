"""Score steps: what finished runs had learned by the steps that the charter names, before the study is analyzed."""

from __future__ import annotations

from functools import partial

from researcher.evaluator import AT_STEP, CHECKPOINTS, Evaluator
from researcher.execution.runs import list_all_trials
from researcher.loop.checkpoint_scores import CheckpointScore, score_checkpoints
from researcher.loop.deps import Deps
from researcher.loop.state import ResearchState


def score_steps(deps: Deps, state: ResearchState) -> ResearchState:
    """Raises Drained if the study is asked to stop meanwhile; what has been scored stays scored."""
    charter = deps.log.charter()
    if not charter.eval_every:
        return state
    trials = list_all_trials(deps.store, deps.study_id)
    finished = [trial.finished for trial in trials if trial.finished is not None]
    evaluator = deps.evaluator()
    score_checkpoints(
        deps,
        [
            CheckpointScore(f"{AT_STEP}{step}/{run.id}", f"score at step {step}", run, _at(evaluator, step))
            for run in finished
            for step in sorted(map(int, run.external_ids.get(CHECKPOINTS, {})))
            if deps.store.find_evaluation(run.id, f"{AT_STEP}{step}", charter.search_split) is None
        ],
    )
    return state


def _at(evaluator: Evaluator, step: int) -> partial[None]:
    return partial(evaluator.measure_at_step, step=step)
