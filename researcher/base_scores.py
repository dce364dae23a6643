"""The scores of base weights, measured once for all arms and seeds that share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments_db import DetailedEvaluation, ExperimentStore, hash_json
from researcher.phases import KEY
from swarm.job import NOT_OF_SAMPLING

WITHOUT_EFFECT = NOT_OF_SAMPLING | {"seed", "temperature", "resume_from"}
"""The settings of a job that cannot change the score of base weights.

Evaluation draws its own sampling seeds and has its own temperature. A run that goes on from a checkpoint has the base
score of the run that wrote it. A setting that no job has counts as relevant."""


def key_of(job: Mapping[str, Any], program_code: str, evaluator_hash: str) -> str:
    """Return a key that is equal for runs whose base weights score the same.

    `job` is a whole job, with its defaults.
    """
    served = {name: value for name, value in job.items() if name not in WITHOUT_EFFECT}
    return hash_json({"job": served, "program": program_code, "evaluator": evaluator_hash})


def find_base_score(
    store: ExperimentStore, study_id: str, *, phase: str, split: str, key: str, weight_version: int
) -> DetailedEvaluation | None:
    """Return the first score of a study with this key and weight version."""
    return store.find_detailed_evaluation(
        study_id, phase=phase, split=split, weight_version=weight_version, detail=(KEY, key)
    )
