"""The names under which the record of a study stores its scores and what belongs to a run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BASE, FINAL, TEST = "base", "final", "test"
"""Phases of a score: before training, after training, and on the test split."""
PLAIN_AGENT: Mapping[str, str] = MappingProxyType({FINAL: "final-plain-agent", TEST: "test-plain-agent"})
"""The phases in which the baseline's agent plays with the weights of an arm that has another one, by its own phase."""
AT_STEP = "step-"
"""The prefix of the phase of a score in mid-training; the number of steps follows."""

# Keys in the details of a score.
COST = "cost"
"""The cost of its attempts."""
MANIPULATION = "manipulation"
"""How many of the attempts looked at pass the arm's manipulation check, and of how many."""
AUTHORSHIP = "authorship"
"""In how many of the attempts looked at the code did the work of the model."""
REQUESTS = "requests"
"""One request of the agent beside that of the plain agent, and how many requests have the words of their task."""
KEY, MEASURED_ON = "base_key", "measured_on"
"""What a base score scores, and the run whose server measured it."""

# Keys in the external ids of a run.
CHECKPOINTS = "checkpoints"
"""The paths of checkpoints to score in mid-training, by step."""
MANIFESTS = "manifests"
"""The SHA-256 of the manifest of each kept checkpoint, by its path. A manifest has the digests of its files."""
PRUNED = "pruned"
"""The paths of checkpoints that the study has removed."""
RECORD = "record"
"""The beginning of the run's record on its server."""
TRAIN_DIGEST = "train_environment_digest"
FROM_RUNG = "from_rung"
"""The rung of the run whose checkpoint it goes on from."""
ENDED_AT = "ended_at"
"""The step with which the study ended the run's job."""
ENDED_BY = "ended_by"
"""The diagnosis for which the study ends the job, until the run is over."""

MANIFEST, LEDGER = "manifest.json", "ledger.db"
"""Files that a server writes: in each checkpoint the digests of its other files, and in its home the record."""

RESUME_FROM = "resume_from"
"""The setting of a job for the checkpoint that its training goes on from."""
