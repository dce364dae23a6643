"""The fork of a study: a new study that begins with a copy of another one's record up to a decision.

Place in the flow: the CLI calls `prepare_fork` and `carry_out_fork` in the foreground; the loop then goes on with the
plan after that decision. The copy has arms, runs, scores and findings, under new ids but with their original times. So
everything that reads or verifies a study works on a fork too. Each copied run names its original, and none is trained
again. The test split is unopened in a fork.

A fork with the same topic has the alpha that the other study's charter leaves after the decision. A fork with a topic
of its own asks another question and has its own alpha. Its plans are judged by fresh runs, never by copied ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from experiments_db import (
    BudgetKind,
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    IterationDocument,
    Run,
    RunStatus,
    Study,
    open_store,
)
from researcher.analysis import Analysis
from researcher.charter import Charter
from researcher.errors import NothingToExtend, TopicInvalid
from researcher.history import History
from researcher.judge.judgement import share_of_alpha
from researcher.memory.findings import record_verdicts
from researcher.phases import CHECKPOINTS, ENDED_AT, FROM_RUNG, MEASURED_ON, PRUNED, TEST
from researcher.planner.rules import build_rules_planner
from researcher.record.exclusions import find_excluded
from researcher.record.log import DIAGNOSED, StudyLog, analysis_from_json, to_json
from researcher.record.runs import cost_of, run_key, trial_key
from researcher.study.changes.continuation import (
    FORKED,
    Continuation,
    ContinuationRequest,
    check_alpha,
    check_plan,
    count_claims,
    record,
    runs_per_arm,
)
from researcher.study.settings import ForkOrigin, StudySettings, read_settings, without_question
from researcher.study.topic import complete_from_topic

COPIED_FROM = "copied_from"
"""Key in a run's external ids: the id of the run that it is a copy of."""
_OF_ARM = [
    *("factors", "job", "program_code", "train_environment", "author", "iteration", "is_baseline", "note"),
    *("operator", "purpose", "manipulation"),
]
_OF_RUN = [
    "server_url",
    "environment",
    "base_weight_version",
    "final_weight_version",
    "log_path",
    "exit_reason",
    "diagnosis",
    "training_cost",
]
_OF_SCORE = ["phase", "split", "metric", "weight_version", "episodes", "successes", "mean", "stderr", "evaluator_hash"]
"""The fields of an arm, of a run and of a score that are copied unchanged."""
_KEPT_IDS = ("checkpoint", CHECKPOINTS, PRUNED, FROM_RUNG, ENDED_AT)


@dataclass(frozen=True, slots=True)
class ForkChanges:
    """The differences of a fork from its parent study; None means no difference.

    `seeds` are runs per arm of the next plan.
    """

    topic: str | None = None
    seeds: int | None = None
    max_runs: int | None = None
    max_hours: float | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork that passed its checks; `iteration` is the last one that is copied."""

    parent: Study
    iteration: int
    settings: StudySettings
    charter: Charter
    request: ContinuationRequest

    @property
    def topic(self) -> str:
        return self.charter.topic


def prepare_fork(store: ExperimentStore, parent: Study, decision: int, changes: ForkChanges) -> Fork:
    """Return a checked fork; nothing is stored.

    Raises NothingToExtend for a decision that does not exist or that no plan can follow, AlphaSpent, TopicInvalid.
    """
    made = [item.iteration for item in store.list_decisions(parent.id)]
    if decision - 1 not in made:
        known = ", ".join(str(iteration + 1) for iteration in made) or "none yet"
        raise NothingToExtend(
            f"study {parent.id} has no decision {decision}: --at takes one of its decisions ({known})"
        )
    log = StudyLog(store, parent.id)
    if decision < log.charter().rule.plans_of_parent:
        raise NothingToExtend(
            f"decision {decision} is not study {parent.id}'s own: fork the study that it was taken in"
        )
    settings = _settings(parent, decision, changes)
    history = _until(log.history(), decision)
    charter = _charter(store, parent, log.charter(), settings, changes, decision, history)
    request = ContinuationRequest(seeds=changes.seeds)
    wanted = Continuation(decision, request)
    check_alpha(charter, parent.id, wanted, history)
    if settings.planner == "rules" and charter.search is None:
        check_plan(charter, history, parent.id, wanted, build_rules_planner(settings).plan)
    return Fork(parent, decision - 1, settings, charter, request)


def carry_out_fork(store: ExperimentStore, location: str, fork: Fork) -> Study:
    """Store the new study with its copied record, and return it.

    `location` is that of the store, which is opened a second time to write rows with their original times.
    """
    study = store.create_study(
        fork.topic, planner=fork.settings.planner, settings=fork.settings.model_dump(mode="json")
    )
    store.freeze_charter(study.id, to_json(fork.charter))
    clock = _Clock(study.created_at)
    with closing(open_store(location, clock=clock)) as target:
        copy = _Copy(store, target, clock, fork.parent.id, study.id, fork.iteration)
        copy.carry_out()
    runs = len(copy.runs)
    message = (
        f"Forked from study {fork.parent.id} after decision {fork.iteration + 1}, with {runs} of its runs; the next "
        f"plan has {runs_per_arm(fork.request)}."
    )
    record(store, study.id, FORKED, message, Continuation(fork.iteration + 1, fork.request))
    return store.get_study(study.id)


def _settings(parent: Study, decision: int, changes: ForkChanges) -> StudySettings:
    given = {"seeds": changes.seeds, "max_runs": changes.max_runs, "max_hours": changes.max_hours}
    origin = ForkOrigin(study=parent.id, decision=decision).model_dump()
    kept = parent.settings if changes.topic is None else without_question(parent.settings)
    settings = read_settings(
        {**kept, **{name: value for name, value in given.items() if value is not None}, "parent": origin}
    )
    return settings if changes.topic is None else complete_from_topic(changes.topic, settings)


def _until(history: History, decision: int) -> History:
    return replace(
        history,
        plans=tuple(plan for plan in history.plans if plan.iteration < decision),
        analyses=history.analyses[:decision],
        runs_used=None,
    )


def _charter(
    store: ExperimentStore,
    parent: Study,
    known: Charter,
    settings: StudySettings,
    changes: ForkChanges,
    decision: int,
    history: History,
) -> Charter:
    """Return the charter of the fork: that of its parent, or one with its own question on the same baseline."""
    sentence = (
        f"The record up to decision {decision} is that of study {parent.id}: its runs were copied and not trained "
        "again, and its verdicts are those of that study."
    )
    charter = replace(known, budget=settings.budget(), assumptions=(*known.assumptions, sentence))
    if changes.topic is None:
        return charter
    if settings.planner != "rules":
        raise TopicInvalid(
            "--topic: a language model frames a question only as a study begins: begin one of its own for that "
            "(researcher start)"
        )
    planner = build_rules_planner(settings)
    framed = planner.frame(settings.request(changes.topic))
    if known.search is not None or framed.search is not None:
        raise TopicInvalid(
            "--topic: a search explores on held-out tasks of its own, so its runs answer no other question: begin a "
            "study of its own for that (researcher start)"
        )
    before = tuple(share_of_alpha(known.rule, claim) for claim in range(count_claims(history, decision)))
    _check_same_ground(store, parent, known, framed, {arm.name: arm.job for arm in planner.list_arms(framed)})
    return replace(
        charter,
        topic=framed.topic,
        question=framed.question,
        asks=framed.asks,
        job=framed.job,
        not_studied=framed.not_studied,
        assumptions=(*framed.assumptions, sentence),
        rule=replace(known.rule, shares=(*before, *framed.rule.shares), plans_of_parent=len(before)),
    )


def _check_same_ground(
    store: ExperimentStore, parent: Study, known: Charter, framed: Charter, arms: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise TopicInvalid if the new topic's arms could not be compared with the copied ones."""
    anew = "begin a study of its own for that (researcher start)"
    for name in ("environment_name", "baseline", "compared_at", "amount"):
        was, wanted = getattr(known, name), getattr(framed, name)
        if was != wanted:
            raise TopicInvalid(f"--topic: its {name} is {wanted!r}, that of study {parent.id} {was!r}: {anew}")
    for experiment in store.list_experiments(parent.id):
        job = {name: value for name, value in experiment.job.items() if name != "save_freq"}
        if experiment.name in arms and job != dict(arms[experiment.name]):
            raise TopicInvalid(f"--topic: {experiment.name} has other settings in study {parent.id}: {anew}")


@dataclass(slots=True)
class _Clock:
    """A clock that shows the time of the row being copied."""

    at: float

    def __call__(self) -> float:
        return self.at


@dataclass(slots=True)
class _Copy:
    """A copy of one study's rows into another study.

    `runs` and `hypotheses` map old ids to new ones. `arms` maps old ids to the stored copies.
    """

    source: ExperimentStore
    target: ExperimentStore
    clock: _Clock
    parent_id: str
    study_id: str
    last: int
    arms: dict[str, Experiment] = field(default_factory=dict[str, Experiment])
    hypotheses: dict[str, str] = field(default_factory=dict[str, str])
    runs: dict[str, str] = field(default_factory=dict[str, str])

    def carry_out(self) -> None:
        analyses = [item for item in self.source.list_analyses(self.parent_id) if item.iteration <= self.last]
        ends = max(item.created_at for item in analyses)
        self._copy_plans()
        for run in self.source.list_runs(study_id=self.parent_id):
            if run.status.is_over and (run.finished_at or math.inf) <= ends and run.experiment_id in self.arms:
                self._copy_run(run, ends)
        self._copy_analyses(analyses)
        for item in self.source.list_decisions(self.parent_id):
            if item.iteration <= self.last:
                self.clock.at = item.created_at
                found = self.target.list_findings(study_id=self.study_id, iteration=item.iteration)
                self.target.record_decision(
                    self.study_id,
                    item.iteration,
                    action=item.action,
                    reason=item.reason,
                    finding_ids=[finding.id for finding in found],
                    details=self._renamed(item.details),
                )
        self._copy_notebook()
        for event in self.source.list_events(self.parent_id, kind=DIAGNOSED, limit=None):
            if event.run_id in self.runs:
                self.clock.at = event.created_at
                self.target.append_event(
                    self.study_id, event.kind, event.message, severity=event.severity, run_id=self.runs[event.run_id]
                )

    def _copy_notebook(self) -> None:
        """Copy the notebook and the reviews up to the decision; a withdrawn arm stays out."""
        for note in self.source.list_notes(self.parent_id):
            if note.iteration <= self.last:
                self.clock.at = note.created_at
                self.target.write_note(
                    self.study_id, note.key, note.kind, note.text, iteration=note.iteration, author=note.author
                )
        for review in self.source.list_reviews(self.parent_id):
            if review.iteration <= self.last and review.experiment_id in self.arms:
                self.clock.at = review.created_at
                copied = self.target.record_review(
                    self.study_id,
                    review.iteration,
                    self.arms[review.experiment_id].id,
                    reviewer=review.reviewer,
                    objections=review.objections,
                )
                if review.response is not None:
                    self.target.respond_to_review(copied.id, review.response, is_withdrawn=review.is_withdrawn)

    def _copy_analyses(self, analyses: Sequence[IterationDocument]) -> None:
        """Copy the analyses and record their verdicts as they were then.

        A later decision may have disqualified an arm since.
        """
        charter = StudyLog(self.target, self.study_id).charter()
        judged: list[Analysis] = []
        for item in analyses:
            self.clock.at = item.created_at
            document = self._renamed(item.document)
            self.target.record_analysis(self.study_id, item.iteration, document)
            judged.append(analysis_from_json(document))
            out = find_excluded(self.source, self.parent_id, until=item.iteration)
            record_verdicts(self.target, self.study_id, charter, judged, item.iteration, out)

    def _copy_plans(self) -> None:
        for item in self.source.list_plans(self.parent_id):
            if item.iteration <= self.last:
                self.clock.at = item.created_at
                self.target.record_plan(self.study_id, item.iteration, item.document)
        for item in self.source.list_hypotheses(self.parent_id):
            if item.iteration <= self.last:
                self.clock.at = item.created_at
                copied = self.target.create_hypothesis(
                    self.study_id, item.key, item.statement, rationale=item.rationale, iteration=item.iteration
                )
                self.hypotheses[item.id] = copied.id
        for item in self.source.list_experiments(self.parent_id):
            if item.iteration <= self.last and item.status is not ExperimentStatus.DRAFT:
                self._copy_arm(item)

    def _copy_arm(self, arm: Experiment) -> None:
        self.clock.at = arm.created_at
        copied = self.target.create_experiment(
            self.study_id,
            arm.name,
            **_fields_of(arm, _OF_ARM),
            hypothesis_id=self.hypotheses.get(arm.hypothesis_id or ""),
            parent_id=self._copied_arm(arm.parent_id),
            second_parent_id=self._copied_arm(arm.second_parent_id),
        )
        self.arms[arm.id] = self.target.revise_experiment(copied.id, status=arm.status)

    def _copied_arm(self, arm_id: str | None) -> str | None:
        return self.arms[arm_id].id if arm_id in self.arms else None

    def _copy_run(self, run: Run, ends: float) -> None:
        self.clock.at = run.created_at
        experiment = self.arms[run.experiment_id]
        key = run_key(self.study_id, experiment.name, run.seed, run.attempt, run.rung)
        copied = self.target.claim_run(experiment.id, run.seed, key, rung=run.rung, attempt=run.attempt, job=run.job)
        self.runs[run.id] = copied.id
        kept = {name: run.external_ids[name] for name in _KEPT_IDS if name in run.external_ids}
        self.target.update_run(copied.id, external_ids={**kept, COPIED_FROM: run.id}, **_fields_of(run, _OF_RUN))
        self._copy_measurements(run, copied.id, ends)
        for status, at in _life_of(run):
            self.clock.at = at
            self.target.update_run(copied.id, status=status)
        if run.server_url is not None:
            self.target.charge_budget(
                self.study_id,
                BudgetKind.RUNS,
                cost_of(run, experiment),
                trial_key(experiment.name, run.seed, run.rung),
                run_id=copied.id,
            )

    def _copy_measurements(self, run: Run, copied: str, ends: float) -> None:
        steps: dict[int, dict[str, float]] = {}
        for point in self.source.list_metrics([run.id]):
            steps.setdefault(point.step, {})[point.name] = math.nan if point.value is None else point.value
        if steps:
            self.clock.at = run.finished_at or run.updated_at
            self.target.record_metrics(copied, steps)
        for item in self.source.list_evaluations(run_ids=[run.id]):
            if item.phase == TEST or item.created_at > ends:
                continue
            self.clock.at = item.created_at
            details = dict(item.details)
            if details.get(MEASURED_ON) in self.runs:
                details[MEASURED_ON] = self.runs[details[MEASURED_ON]]
            self.target.record_evaluation(copied, details=details, **_fields_of(item, _OF_SCORE))
        episodes = [
            self.source.get_episode(run.id, item.episode_id) for item in self.source.list_episodes(run.id, limit=None)
        ]
        self.target.record_episodes(
            copied, [replace(item, summary=replace(item.summary, run_id=copied)) for item in episodes]
        )

    def _renamed(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document with the ids of the copied runs."""
        text = json.dumps(document)
        for old, new in self.runs.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        return json.loads(text)


def _fields_of(row: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _life_of(run: Run) -> list[tuple[RunStatus, float]]:
    """Return the statuses of a run that is over, each with its time, as far as the record has them."""
    ended = run.finished_at or run.updated_at
    if run.started_at is None:
        return [(RunStatus.LAUNCHING, run.created_at), (run.status, ended)]
    moves = [(RunStatus.LAUNCHING, run.created_at), (RunStatus.RUNNING, run.started_at)]
    return [*moves, (RunStatus.EVALUATING, ended), (run.status, ended)]
