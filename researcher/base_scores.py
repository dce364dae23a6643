"""The scores of base weights, measured once for all arms and seeds that share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments_db import DetailedEvaluation, ExperimentStore, hash_json
from researcher.phases import KEY
from swarm.job import NOT_OF_SAMPLING

WITHOUT_EFFECT = NOT_OF_SAMPLING | {"seed", "temperature", "resume_from"}
"""The settings of a job that cannot change the score of base weights.

Evaluation draws its own sampling seeds and has its own temperature. A run that goes on from a checkpoint has the base
score of the run that wrote it. A setting that no job has counts as relevant."""
FIRST_SCORE = "base.scored"
"""Kind of the event whose payload is the score that was measured before the first plan."""


def key_of(job: Mapping[str, Any], program_code: str, evaluator_hash: str) -> str:
    """Return a key that is equal for runs whose base weights score the same.

    `job` is a whole job, with its defaults.
    """
    served = {name: value for name, value in job.items() if name not in WITHOUT_EFFECT}
    return hash_json({"job": served, "program": program_code, "evaluator": evaluator_hash})


@dataclass(frozen=True, slots=True)
class FirstScore:
    """The score of the base weights with the baseline's agent, measured before the first plan.

    Runs with this `key` take it for their own. `score` is what they store, and `sampled` are the ids of some tasks and
    of their episodes on the server at `url`.
    """

    key: str
    url: str
    sampled: tuple[tuple[str, str], ...]
    score: Mapping[str, Any]

    @property
    def mean(self) -> float:
        return float(self.score["mean"])

    @property
    def text(self) -> str:
        """The score in words."""
        return f"{self.mean:.3f} (standard error {self.score['stderr']:.3f}, {self.score['episodes']} attempts)"

    def is_all(self, worst: float | None) -> bool:
        """Return whether every attempt has the worst score that there is; False if that is unknown."""
        return worst is not None and all(reward == worst for reward in self.score["details"]["rewards"])


def read_first_score(store: ExperimentStore, study_id: str) -> FirstScore | None:
    """Return the score that was measured before the first plan; None if there is none."""
    for event in store.list_events(study_id, kind=FIRST_SCORE, limit=1):
        found = event.payload
        return FirstScore(found["key"], found["url"], tuple(map(tuple, found["sampled"])), found["score"])
    return None


def record_first_score(store: ExperimentStore, study_id: str, found: FirstScore) -> None:
    message = f"The base weights score {found.text} with the baseline's agent."
    store.append_event(study_id, FIRST_SCORE, message, payload=asdict(found))


def find_base_score(
    store: ExperimentStore, study_id: str, *, phase: str, split: str, key: str, weight_version: int
) -> DetailedEvaluation | None:
    """Return the first score of a study with this key and weight version."""
    return store.find_detailed_evaluation(
        study_id, phase=phase, split=split, weight_version=weight_version, detail=(KEY, key)
    )
