"""The replication of a finding: its two arms again, on fresh seeds, as a study of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments_db import Author, Experiment, ExperimentStore, FindingKind
from researcher.charter import Charter, JudgedBy
from researcher.errors import TopicInvalid
from researcher.execution.environments import look_at
from researcher.memory.settlement import find_finding
from researcher.memory.standing import KnownFinding, describe_comparison, describe_effect, know, list_known
from researcher.record.log import StudyLog
from researcher.study.settings import ReplicationOrigin, StudySettings, read_settings
from swarm.environments import is_bundled


@dataclass(frozen=True, slots=True)
class Replication:
    """A finding that is to be repeated.

    `charter` is that of its study, and `arm` and `baseline` are its arms. `first_seed` is larger than every seed of an
    earlier study of the same question. `accept` are the arms that a person keeps in, whatever their code does.
    """

    known: KnownFinding
    charter: Charter
    arm: Experiment
    baseline: Experiment
    first_seed: int
    accept: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        finding = self.known.finding
        return (
            f"Study {finding.study_id} found {describe_comparison(self.known.recipe)}: "
            f"{describe_effect(finding)}, {finding.verdict.about(finding.about)}, from {self.known.recipe.runs} "
            "runs of the arm"
        )


def read_replication(store: ExperimentStore, finding_id: str, seeds: int | None = None) -> Replication:
    """Return a finding with all that is needed to repeat it; `seeds` is the number of runs that a person chose.

    Raises FindingNotFound. Raises TopicInvalid for a finding without a comparison, and for one that decided nothing
    unless its number of runs is chosen: as many as before would leave it open again.
    """
    finding = find_finding(store, finding_id)
    arms = {item.id: item for item in store.list_experiments(finding.study_id)}
    arm, baseline = (arms.get(each or "") for each in (finding.experiment_id, finding.baseline_id))
    if finding.kind is not FindingKind.COMPARISON:
        raise TopicInvalid(f"finding {finding_id} is of kind {finding.kind}: only a comparison can be repeated")
    if not finding.recipe or arm is None or baseline is None:
        raise TopicInvalid(f"finding {finding_id} has no baseline, so there is no comparison to repeat")
    known = know(finding)
    if finding.effect is None:
        raise TopicInvalid(f"finding {finding_id} has no difference to check: ask its question in a new study")
    if not known.is_decided and seeds is None:
        raise TopicInvalid(
            f"finding {finding_id} is {finding.verdict.value}, so there is nothing to check: say with --seeds how many "
            "runs per arm are to decide it"
        )
    alike = [item.finding.study_id for item in list_known(store, {known.question})]
    studies = dict.fromkeys([finding.study_id, *alike])
    used = (run.seed for study in studies for run in store.list_runs(study_id=study))
    return Replication(
        known=known,
        charter=StudyLog(store, finding.study_id).charter(),
        arm=arm,
        baseline=baseline,
        first_seed=1 + max(used, default=-1),
        accept=store.get_study(finding.study_id).settings.get("accept", ()),
    )


def settings_of(replication: Replication, given: Mapping[str, Any]) -> StudySettings:
    """Return the settings of a study that repeats a finding; `given` are those that a person chose.

    Raises TopicInvalid if the environment is not the one of the finding any more.
    """
    charter, recipe = replication.charter, replication.known.recipe
    reference = charter.environment or charter.environment_name
    if look_at(reference).digest != recipe.environment_digest:
        raise TopicInvalid(
            f"the environment {recipe.environment_name} was changed since study {replication.known.finding.study_id}: "
            "put it back as it was, or ask the question in a new study"
        )
    level = f":{charter.judged_level:g}" if charter.judged_by is JudgedBy.STEPS_TO else ""
    is_trusted = all(item.author is Author.PACKAGE for item in (replication.arm, replication.baseline))
    origin = ReplicationOrigin(finding=replication.known.finding.id, is_trusted=is_trusted)
    return read_settings(
        {
            "planner": "rules",
            "family" if is_bundled(reference) else "env": reference,
            "metric": f"{charter.judged_by}{level}",
            "eval_episodes": charter.eval_episodes,
            "eval_every": charter.eval_every or None,
            "attempt_calls": charter.attempt_calls,
            "attempt_tokens": charter.attempt_tokens,
            "replicates": origin.model_dump(),
            "accept": replication.accept,
            **{name: value for name, value in given.items() if value is not None},
        }
    )


def title_of_replication(replication: Replication) -> str:
    """Return the topic of a study that repeats a finding."""
    recipe = replication.known.recipe
    return f"Replication of {replication.known.finding.id}: {recipe.arm.name} against {recipe.baseline.name}"
