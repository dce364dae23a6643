"""The arms of a study as its search sees them: their parents, their exploring runs, their checks and their failures.

Nothing here is a claim: an exploring run ends at a rung, has one seed, and no verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from experiments_db.kinds import ExperimentStatus, RunStatus
from experiments_db.records import DetailedEvaluation, Experiment, JsonObject, ProgramTrial, Run
from experiments_db.trainings import TRAINING_SECONDS

if TYPE_CHECKING:
    from experiments_db.store import ExperimentStore

BASE, FINAL = "base", "final"
AUTHORSHIP = "authorship"
"""Key in the details of an evaluation: in how many attempts the code did the work of the model, and the `problem`."""
REQUESTS = "requests"
"""Key in the details of an evaluation: a request of the arm's agent, beside that of the plain agent."""
MANIPULATION = "manipulation"
"""Key in the details of an evaluation: how many of the attempts looked at pass the arm's manipulation check."""
RULED_OUT = "disqualified: "
"""The beginning of the note of a comparison whose arm is out; the reason follows."""
DEFAULT_SHARE = 0.5


class ArmFailure(StrEnum):
    """The reason for which an arm is out of the search."""

    REJECTED = "rejected by check"
    CRASHED = "its training failed"
    NOT_AS_CLAIMED = "not what it claims to be"
    WITHDRAWN = "withdrawn after a review"
    DISQUALIFIED = "disqualified"


@dataclass(frozen=True, slots=True)
class CheckCount:
    """The number of attempts that pass a manipulation check; the arm passes if the part `needed` of them does."""

    passed: int
    total: int
    needed: float

    @property
    def is_enough(self) -> bool:
        return self.passed >= self.needed * self.total

    @property
    def in_words(self) -> str:
        return f"{self.passed} of {self.total} attempts pass, {100 * self.needed:g} % must"


@dataclass(frozen=True, slots=True)
class ExploringRun:
    """A run that ended, or is to end, at a rung.

    `share` is that rung as a part of the full training, and `cost` the part of a full run that it took. A run that
    resumed from an earlier rung costs the difference. `seconds` are those of its steps, without pauses; None before the
    first step. `score` and `stderr` are on the search split, and `base` is the
    score of the same agent before training; each is None where it was not measured.
    """

    run: Run
    share: float
    cost: float
    score: float | None = None
    stderr: float | None = None
    base: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SearchArm:
    """One arm in the tree of experiments.

    `parents` are names. `depth` and `row` are its place in a picture: an arm stands one column to the right of its
    parents, and the rows of two arms of a column differ. `is_explored` is true if a plan of exploration has it.
    `passed` counts the held-out attempts of all its runs that pass its manipulation check; None without counts.
    `requests` has one request of its agent beside that of the plain agent; None for an arm without an agent.
    `failure` is why it is out of the search, and `reason` the same with what is on record; None if it is in.
    """

    experiment: Experiment
    parents: tuple[str, ...]
    depth: int
    row: float
    is_explored: bool
    runs: tuple[ExploringRun, ...] = ()
    trials: tuple[ProgramTrial, ...] = ()
    passed: CheckCount | None = None
    requests: JsonObject | None = None
    failure: ArmFailure | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def scored(self) -> tuple[ExploringRun, ...]:
        """The exploring runs with a score, by rising rung."""
        runs = [item for item in self.runs if item.score is not None]
        return tuple(sorted(runs, key=lambda item: item.share))

    @property
    def last(self) -> ExploringRun | None:
        """The run at the highest rung that has a score."""
        return self.scored[-1] if self.scored else None

    @property
    def cost(self) -> float:
        """The full runs that its exploration took."""
        return sum(item.cost for item in self.runs)

    @property
    def seconds(self) -> float:
        """The seconds of training of its exploring runs, without pauses."""
        return sum(item.seconds or 0.0 for item in self.runs)

    @property
    def statement(self) -> str:
        """The condition of its manipulation check in words; empty without one."""
        return str((self.experiment.manipulation or {}).get("statement", ""))


def read_search_arms(store: ExperimentStore, study_id: str) -> tuple[SearchArm, ...]:
    """Return the arms of a study in the order of creation. Raises RecordNotFound."""
    charter = store.find_charter(study_id)
    split = "" if charter is None else str(charter.document.get("search_split", ""))
    experiments = store.list_experiments(study_id)
    runs = store.list_runs(study_id=study_id)
    scores = {(item.run_id, item.phase): item for item in store.list_evaluations(study_id=study_id, split=split)}
    seconds = store.sum_metric([run.id for run in runs if run.rung], TRAINING_SECONDS)
    explored = _explored(plan.document for plan in store.list_plans(study_id))
    withdrawn = {
        review.experiment_id: f"{review.reviewer} objected, and the planner withdrew it: {review.response}"
        for review in store.list_reviews(study_id)
        if review.is_withdrawn
    }
    disqualified: dict[str, str] = {}
    for decision in store.list_decisions(study_id):
        disqualified = {**decision.details.get("disqualified", {}), **disqualified}
    trials = store.list_program_trials(study_id)
    failed = _failed(item.document for item in store.list_analyses(study_id))
    accepted = store.get_study(study_id).settings.get("accept", ())
    names = {item.id: item.name for item in experiments}
    places = lay_out_experiments(experiments)
    arms: list[SearchArm] = []
    for item in experiments:
        own = [run for run in runs if run.experiment_id == item.id]
        exploring = _exploring_runs(item, [run for run in own if run.rung], scores, seconds)
        passed = _count_passed(item, own, scores)
        ruled_out = {
            ArmFailure.DISQUALIFIED: disqualified.get(item.name, "")
            or (_find_solved_in_code(own, scores) if item.name not in accepted else ""),
            ArmFailure.WITHDRAWN: withdrawn.get(item.id, ""),
            ArmFailure.CRASHED: failed.get(item.name, ""),
        }
        failure, reason = _find_failure(item, exploring, passed, ruled_out)
        arms.append(
            SearchArm(
                item,
                tuple(names[parent] for parent in _parents(item) if parent in names),
                *places[item.id],
                is_explored=item.name in explored or bool(exploring),
                runs=exploring,
                trials=tuple(trial for trial in trials if trial.experiment_id == item.id),
                passed=passed,
                requests=_find_requests(own, scores),
                failure=failure,
                reason=reason,
            )
        )
    return tuple(arms)


def lay_out_experiments(experiments: Sequence[Experiment]) -> dict[str, tuple[int, float]]:
    """Return column and row of each arm by id: children to the right of their parents, no two leaves in one row.

    An arm stands in the middle of its children.
    """
    known = {item.id for item in experiments}
    children: dict[str | None, list[Experiment]] = {}
    depths: dict[str, int] = {}
    for item in experiments:
        # A parent is always older than its children.
        parents = [parent for parent in _parents(item) if parent in depths]
        depths[item.id] = 1 + max((depths[parent] for parent in parents), default=-1)
        children.setdefault(item.parent_id if item.parent_id in known else None, []).append(item)
    rows: dict[str, float] = {}
    leaves = 0
    stack = [(item, False) for item in reversed(children.get(None, []))]
    while stack:
        item, is_done = stack.pop()
        below = children.get(item.id, [])
        if not below:
            rows[item.id] = float(leaves)
            leaves += 1
        elif is_done:
            rows[item.id] = (rows[below[0].id] + rows[below[-1].id]) / 2
        else:
            stack.append((item, True))
            stack.extend((child, False) for child in reversed(below))
    return {item.id: (depths[item.id], rows[item.id]) for item in experiments}


def _parents(item: Experiment) -> tuple[str, ...]:
    return tuple(parent for parent in (item.parent_id, item.second_parent_id) if parent is not None)


def _explored(documents: Iterable[JsonObject]) -> set[str]:
    """Return the names of the arms in plans of exploration."""
    return {arm["name"] for plan in documents if plan.get("stage") == "explore" for arm in plan["arms"]}


def _failed(documents: Iterable[JsonObject]) -> dict[str, str]:
    """Return the arms that the newest round of exploration calls failed, with the reasons."""
    found: dict[str, str] = {}
    for analysis in documents:
        if nodes := analysis.get("explored"):
            found = {node["name"]: node["failure"] for node in nodes}
    return found


Scores = Mapping[tuple[str, str], DetailedEvaluation]
"""Evaluations on the search split by run and phase."""


def _exploring_runs(
    item: Experiment, runs: Sequence[Run], scores: Scores, seconds: Mapping[str, float]
) -> tuple[ExploringRun, ...]:
    total = item.job.get("total_steps")
    reached = 0.0
    found: list[ExploringRun] = []
    for run in sorted(runs, key=lambda run: (run.rung, run.attempt)):
        share = run.rung / total if isinstance(total, int) and total else 1.0
        is_begun = run.status is not RunStatus.PLANNED or run.server_url is not None
        from_share = reached if run.job.get("resume_from") else 0.0
        final, base = scores.get((run.id, FINAL)), scores.get((run.id, BASE))
        found.append(
            ExploringRun(
                run,
                share,
                share - from_share if is_begun else 0.0,
                None if final is None else final.mean,
                None if final is None else final.stderr,
                None if base is None else base.mean,
                seconds.get(run.id),
            )
        )
        if final is not None:
            reached = share
    return tuple(found)


def _count_passed(item: Experiment, runs: Iterable[Run], scores: Scores) -> CheckCount | None:
    """Return the passed attempts over all runs of an arm; None for an arm without a check or counts."""
    if item.manipulation is None:
        return None
    counts: list[Mapping[str, Any]] = [
        counted
        for run in runs
        if (score := scores.get((run.id, FINAL))) is not None
        and (counted := score.details.get(MANIPULATION)) is not None
    ]
    total = sum(int(counted["total"]) for counted in counts)
    if not total:
        return None
    needed = float(item.manipulation.get("share", DEFAULT_SHARE))
    return CheckCount(sum(int(counted["passed"]) for counted in counts), total, needed)


def _find_solved_in_code(runs: Iterable[Run], scores: Scores) -> str:
    """Return why a final score of an arm is one of its code and not of the model; empty if none is."""
    found = (scores[run.id, FINAL].details.get(AUTHORSHIP, {}) for run in runs if (run.id, FINAL) in scores)
    return next((str(counts["problem"]) for counts in found if "problem" in counts), "")


def _find_requests(runs: Iterable[Run], scores: Scores) -> JsonObject | None:
    """Return what the first score of an arm shows of its requests."""
    found = (scores[run.id, FINAL].details.get(REQUESTS) for run in runs if (run.id, FINAL) in scores)
    return next((requests for requests in found if requests), None)


def _find_failure(
    item: Experiment,
    runs: Sequence[ExploringRun],
    passed: CheckCount | None,
    ruled_out: Mapping[ArmFailure, str],
) -> tuple[ArmFailure | None, str]:
    if item.status is ExperimentStatus.INVALID:
        return ArmFailure.REJECTED, item.note or "no reason is on record"
    if passed is not None and not passed.is_enough:
        return ArmFailure.NOT_AS_CLAIMED, passed.in_words
    is_of_training = any(item.run.status is RunStatus.FAILED or item.run.diagnosis for item in runs)
    for failure, reason in ruled_out.items():
        if reason:
            # An arm whose trainings went well is out by what its attempts show.
            is_crash = failure is ArmFailure.CRASHED and is_of_training
            return failure if is_crash or failure is not ArmFailure.CRASHED else ArmFailure.DISQUALIFIED, reason
    last = runs[-1] if runs else None
    if last is not None and last.run.status is RunStatus.FAILED:
        return ArmFailure.CRASHED, last.run.exit_reason or "no reason is on record"
    return None, ""
