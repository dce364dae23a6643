"""Evaluate: trained runs are scored and free their servers. Score steps: checkpoints of earlier steps are scored."""

from __future__ import annotations

from functools import partial

from experiments_db import Run, RunStatus
from researcher.evaluation.evaluator import Evaluator
from researcher.loop.checkpoint_scores import CheckpointScore, score_checkpoints
from researcher.loop.deps import ActiveRun, Deps, Phase, ResearchState
from researcher.loop.nodes.monitor import end_with
from researcher.loop.outages import is_out
from researcher.loop.pruning import prune
from researcher.phases import AT_STEP, BASE, CHECKPOINTS, ENDED_AT, FINAL
from researcher.record.runs import list_all_trials
from researcher.servers.jobs import free_engine


def evaluate(deps: Deps, state: ResearchState) -> ResearchState:
    before = len(deps.active_runs)
    for active in deps.active_runs.in_phase(Phase.TRAINED):
        if not is_out(deps, active):
            _begin_measuring(deps, active)
    for active in deps.active_runs.in_phase(Phase.MEASURING):
        with deps.background.ended(active.run_id) as task:
            if task is None:
                if not is_out(deps, active) and active.is_waiting:
                    _begin_measuring(deps, active)
            elif (error := task.exception()) is None:
                _finish(deps, active)
            else:
                end_with(deps, active, error)
    if len(deps.active_runs) < before:
        prune(deps)
    return state


def score_steps(deps: Deps, state: ResearchState) -> ResearchState:
    """Score the checkpoints of earlier steps.

    Raises Drained if the study is asked to stop meanwhile. Scores measured before stay stored.
    """
    charter = deps.log.charter()
    if not charter.eval_every:
        return state
    trials = list_all_trials(deps.store, deps.study_id)
    # Exploring runs are compared at their rungs alone.
    finished = [trial.finished for trial in trials if trial.finished is not None and not trial.rung]
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


def _begin_measuring(deps: Deps, active: ActiveRun) -> None:
    assert active.slot.url is not None, "a run in training has a server"
    run = deps.store.update_run(active.run_id, status=RunStatus.EVALUATING)
    active.phase, active.is_waiting = Phase.MEASURING, False
    deps.background.submit(active.run_id, partial(_measure, deps, active, run, active.slot.url))


def _measure(deps: Deps, active: ActiveRun, run: Run, url: str) -> None:
    """Score a run, then stop an own server's engine, so that its cores are free for the others."""
    deps.evaluator(active.dropped).measure(run, url, active.child)
    if active.slot.is_local:
        with deps.pool.connect(url) as client:
            free_engine(client)


def _finish(deps: Deps, active: ActiveRun) -> None:
    """Record that a run is finished; after an early end, it counts with the score of the weights so far."""
    run = deps.store.get_run(active.run_id)
    ended_at = run.external_ids.get(ENDED_AT)
    reason, diagnosis = f"all {active.steps} steps done", None
    if ended_at is not None:
        what = "rung" if run.rung else "training quota"
        reason = f"ended at its {what}: {ended_at} steps"
    if active.diagnosis is not None:
        reason = f"stopped early after step {ended_at}: {active.diagnosis.sentence}"
        diagnosis = active.diagnosis.as_recorded()
    deps.store.update_run(run.id, status=RunStatus.FINISHED, exit_reason=reason, diagnosis=diagnosis)
    deps.ledger.end_run(run.id)
    split = deps.log.charter().search_split
    scores = {item.phase: item.mean for item in deps.store.list_evaluations(run_ids=[run.id], split=split)}
    deps.log.note(
        "run.finished",
        f"{active.name}: held-out reward {scores[BASE]:.3f} -> {scores[FINAL]:.3f}; {reason}",
        run_id=run.id,
    )
    deps.active_runs.remove(active)
    deps.pool.report_run(active.slot, is_well=True)
    deps.pool.give_back(active.slot)
