"""Whether a program fails most of its attempts before the first step, so that its run need not wait for a limit.

Place in the flow: monitor asks while no step is done. The server's record of the train episodes tells why each was
given up; what the server, the environment or the network broke does not count. This module knows nothing of scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx

from researcher.execution.early_stopping import Diagnosis
from swarm import SwarmClient, errors
from swarm.errors import ProgramFailure
from swarm.job import build_job
from swarm.schemas import Status

MAX_SHARE = 0.5
"""Of the attempts for the first batch."""
MAX_READ = 10_000
_OF_CLIENT = "client_error:"


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
    reasons = Counter(name for episode in given_up if (name := _own_error(episode.outcome)) is not None)
    failed = reasons.total()
    made = failed + status.pool.episodes
    if failed < needed or failed <= MAX_SHARE * made:
        return None
    ((name, count),) = reasons.most_common(1)
    sentence = f"{failed} of {made} attempts of its program failed before the first step, {count} of them by {name}."
    return Diagnosis("program", sentence, is_scored=False, is_retried=False)


def _own_error(outcome: str | None) -> str | None:
    """The class of what the program raised; None for what says nothing of the program."""
    if outcome is None or not outcome.startswith(_OF_CLIENT):
        return None
    name = outcome.removeprefix(_OF_CLIENT)
    is_of_system = hasattr(errors, name) or hasattr(httpx, name)
    return None if is_of_system and name != ProgramFailure.__name__ else name
