"""Whether a program fails most of its attempts before the first step, so that its run need not wait for a limit.

Place in the flow: monitor asks while no step is done. The server's record of the train episodes tells why each was
given up; what the server, the environment or the network broke does not count. This module knows nothing of scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from researcher.execution.early_stopping import Diagnosis
from researcher.execution.runs import PROGRAM
from researcher.study.costs.attempts import error_of_program
from swarm import SwarmClient
from swarm.job import build_job
from swarm.schemas import Status

MAX_SHARE = 0.5
"""Of the attempts for the first batch."""
MAX_READ = 10_000


def diagnose_attempts(client: SwarmClient, status: Status, job: Mapping[str, Any]) -> Diagnosis | None:
    """A diagnosis once as many attempts have failed as a batch has, and more than MAX_SHARE of all.

    Raises SwarmError.
    """
    if status.step or status.pool is None:
        return None
    batch = build_job(dict(job)).resolve()
    needed = batch.batch_size * batch.num_repeat
    if sum(status.failures.values()) < needed:
        return None
    given_up = client.episodes(limit=MAX_READ, state="aborted", episode_type="train")
    reasons = Counter(name for episode in given_up if (name := error_of_program(episode.outcome)) is not None)
    failed = reasons.total()
    made = failed + status.pool.episodes
    if failed < needed or failed <= MAX_SHARE * made:
        return None
    ((name, count),) = reasons.most_common(1)
    sentence = f"{failed} of {made} attempts of its program failed before the first step, {count} of them by {name}."
    return Diagnosis(PROGRAM, sentence, is_scored=False, is_retried=False)
