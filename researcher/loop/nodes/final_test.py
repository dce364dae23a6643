"""Final test: winner, baseline and perhaps the runner-up are scored once, on a split that was not used before."""

from __future__ import annotations

from experiments_db import Run, Verdict
from researcher.charter import Charter
from researcher.history import History
from researcher.loop.checkpoint_scores import CheckpointScore, score_checkpoints
from researcher.loop.deps import Deps, ResearchState
from researcher.phases import PRUNED, TEST
from researcher.plan import Relation
from researcher.record.log import StudyLog
from researcher.record.runs import list_all_trials
from researcher.report.formats import join_names


def final_test(deps: Deps, state: ResearchState) -> ResearchState:
    """Score the finalists on the test split.

    Raises Drained if the study is asked to stop meanwhile. Scores measured before stay stored.
    """
    charter = deps.log.charter()
    if state["is_budget_used_up"]:
        deps.log.warn(
            "test.postponed",
            f"The budget ended the study before its time: the {charter.test_split} split stays unopened, so that the "
            "study can go on with a raised budget.",
        )
        return state
    arms = choose_finalists(deps.log, charter)
    if len(arms) < 2:
        deps.log.note("test.skipped", f"The {charter.test_split} split stays unopened: there are no two arms to score.")
        return state
    pending = _unscored(deps, charter, arms)
    if not pending:
        return state
    deps.store.open_test_split(deps.study_id, f"score {join_names(arms)}")
    deps.log.note("test.opened", f"The {charter.test_split} split is opened for {join_names(arms)}.")
    measure = deps.evaluator().measure_test
    score_checkpoints(deps, [CheckpointScore(f"test/{run.id}", "test score", run, measure) for run in pending])
    _announce(deps, charter, arms)
    return state


def choose_finalists(log: StudyLog, charter: Charter) -> list[str]:
    """Return the arms to score, best first and the baseline last, among those with finished runs.

    A disqualified arm is not ranked, so it is never a finalist. Exploring runs make no finalist.
    """
    history = log.history()
    if not history.analyses:
        return []
    last = history.analyses[-1]
    trials = [trial for trial in list_all_trials(log.store, log.study_id) if not trial.rung]
    finished = {trial.experiment.name for trial in trials if trial.finished}
    kept = {item.arm for item in last.comparisons if item.verdict is Verdict.KEEP}
    best_first = sorted((arm for arm in last.ranking if arm in finished), key=lambda arm: arm not in kept)
    has_runner_up = _is_best_asked(history) or best_first[:1] == [charter.baseline]
    chosen = best_first[: 2 if has_runner_up else 1]
    return list(dict.fromkeys([*chosen, *(arm for arm in best_first if arm == charter.baseline)]))


def _is_best_asked(history: History) -> bool:
    """Return whether a hypothesis is about the best arm, or several arms are compared with the baseline."""
    relations = {item.contrast.relation for plan in history.plans for item in plan.hypotheses if item.contrast}
    return Relation.BEST in relations or len({arm.name for plan in history.plans for arm in plan.arms}) > 2


def _unscored(deps: Deps, charter: Charter, arms: list[str]) -> list[Run]:
    trials = (trial for trial in list_all_trials(deps.store, deps.study_id) if not trial.rung)
    runs = [trial.finished for trial in trials if trial.experiment.name in arms]
    finished = [run for run in runs if run is not None]
    evaluator = deps.evaluator()
    unscored = [run for run in finished if not evaluator.is_scored(run, TEST, charter.test_split)]
    pruned = [run for run in unscored if run.external_ids.get("checkpoint") in run.external_ids.get(PRUNED, ())]
    if pruned:
        names = ", ".join(run.id for run in pruned)
        deps.log.warn("test.pruned", f"Runs whose weights were removed have no score on the test split: {names}.")
    return [run for run in unscored if run not in pruned]


def _announce(deps: Deps, charter: Charter, arms: list[str]) -> None:
    names = {item.id: item.name for item in deps.store.list_experiments(deps.study_id)}
    by_arm: dict[str, list[float]] = {}
    for item in deps.store.list_evaluations(study_id=deps.study_id, phase=TEST, split=charter.test_split):
        by_arm.setdefault(names[deps.store.get_run(item.run_id).experiment_id], []).append(item.mean)
    means = [f"{arm} {sum(by_arm[arm]) / len(by_arm[arm]):.3f}" for arm in arms if arm in by_arm]
    deps.log.note("test.scored", f"Test split: {', '.join(means) or 'no score'}.")
