"""A check for programs that fail most of their attempts before the first step, so that such a run ends early.

Place in the flow: monitor asks while no step is done. The server records why it gave up each train episode. Failures of
the server, the environment or the network do not count. This module knows nothing of scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from researcher.record.costs import error_of_program
from researcher.record.runs import PROGRAM, Diagnosis
from swarm import SwarmClient
from swarm.job import build_job
from swarm.schemas import Status

MAX_SHARE = 0.5
"""The largest share of failed attempts that a run may have before its first step."""
MAX_READ = 10_000


def diagnose_attempts(client: SwarmClient, status: Status, job: Mapping[str, Any]) -> Diagnosis | None:
    """Return a diagnosis once a batch's worth of attempts, and more than MAX_SHARE of all, have failed.

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
