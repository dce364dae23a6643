"""The cost of the attempts of one score, or of one training, and its stored form.

Place in the flow: the evaluator computes the cost of a score from the server's receipts for its episodes. It computes
the cost of a training from the server's usage record for the job. This module knows nothing of arms and no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import TypeAdapter

from experiments_db import Run
from swarm import SwarmClient, errors
from swarm.schemas import EndEpisodeResponse
from swarm.types import EpisodeType

_CLIENT_ERROR = "client_error:"
_SILENT = frozenset({"idle_timeout", "deadline", "no_result"})
_INTERRUPTIONS = frozenset({"KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError"})


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """The inference cost of one arm, per attempt.

    The numbers come from the ledgers of the arm's servers, never from its program. `calls`, `prompt_tokens`,
    `sampled_tokens` and `seconds` are means over `attempts`. `temperatures` are the distinct sampling temperatures in
    rising order. `other_sampling` are further settings that restrict sampling, such as `top_k=1`. `model_share` is the
    mean share, from 0 to 1, of the characters of the graded replies that the model wrote; None if it was not measured.
    `broken` counts attempts that the program broke. `repeated` counts attempts that the system broke and that were made
    again. `bounded` counts attempts that met a limit on calls or tokens.
    """

    attempts: int
    calls: float
    prompt_tokens: float
    sampled_tokens: float
    seconds: float
    temperatures: tuple[float, ...] = ()
    other_sampling: tuple[str, ...] = ()
    model_share: float | None = None
    broken: int = 0
    repeated: int = 0
    bounded: int = 0


_ADAPTER = TypeAdapter(AttemptCost)


def cost_of_attempts(
    receipts: Iterable[EndEpisodeResponse], *, broken: int = 0, repeated: int = 0
) -> AttemptCost | None:
    """Return the cost of the attempts that ended with these receipts; None without any.

    `broken` attempts were broken by the program. `repeated` attempts were broken by the system and made again.
    """
    ended = tuple(receipts)
    if not ended:
        return None
    count = len(ended)
    usages = [receipt.usage for receipt in ended]
    shares = [receipt.model_share for receipt in ended if receipt.model_share is not None]
    return AttemptCost(
        attempts=count,
        calls=sum(usage.calls for usage in usages) / count,
        prompt_tokens=sum(usage.prompt_tokens for usage in usages) / count,
        sampled_tokens=sum(usage.sampled_tokens for usage in usages) / count,
        seconds=sum(usage.seconds or 0.0 for usage in usages) / count,
        temperatures=tuple(sorted({value for usage in usages for value in usage.temperatures})),
        other_sampling=_others(
            (value for usage in usages for value in usage.top_p),
            (value for usage in usages for value in usage.top_k),
            (name for usage in usages for name in usage.other_sampling),
        ),
        model_share=sum(shares) / len(shares) if shares else None,
        broken=broken,
        repeated=repeated,
        bounded=sum(usage.limited for usage in usages),
    )


def read_training_cost(client: SwarmClient, run: Run) -> AttemptCost | None:
    """Return the cost of a run's train episodes from its server; None without any, or if it runs another job.

    An attempt counts as broken by the program in two cases: its client gave it up, or the server did because its agent
    was silent. Neither counts if a call of the attempt had failed by a fault of the server.
    """
    resolved = client.job().resolved or {}
    if resolved.get("experiment_name") != run.job.get("experiment_name"):
        return None
    usage = client.usage(EpisodeType.TRAIN)
    if not usage.episodes:
        return None
    return AttemptCost(
        attempts=usage.episodes,
        calls=usage.calls / usage.episodes,
        prompt_tokens=usage.prompt_tokens / usage.episodes,
        sampled_tokens=usage.sampled_tokens / usage.episodes,
        seconds=usage.seconds / usage.episodes,
        temperatures=tuple(usage.temperatures),
        other_sampling=_others(usage.top_p, usage.top_k, usage.other_sampling),
        model_share=usage.model_share,
        broken=sum(count for outcome, count in usage.unrewarded.items() if _is_of_program(outcome)),
        repeated=usage.faulty,
        bounded=usage.limited,
    )


def cost_to_json(cost: AttemptCost) -> dict[str, Any]:
    """Return the form in which a cost is stored."""
    return _ADAPTER.dump_python(cost, mode="json")


def cost_from_json(stored: Mapping[str, Any]) -> AttemptCost:
    return _ADAPTER.validate_python(stored)


def _others(top_p: Iterable[float], top_k: Iterable[int], named: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*(f"top_p={p:g}" for p in top_p), *(f"top_k={k}" for k in top_k), *named}))


def error_of_program(outcome: str | None) -> str | None:
    """Return the class name of the program's error in an attempt that its client gave up.

    None for errors of the server, the environment or the network, and for interruptions.
    """
    if outcome is None or not outcome.startswith(_CLIENT_ERROR):
        return None
    name = outcome.removeprefix(_CLIENT_ERROR)
    is_of_system = hasattr(errors, name) or hasattr(httpx, name) or name in _INTERRUPTIONS
    return None if is_of_system and name != errors.ProgramFailure.__name__ else name


def _is_of_program(outcome: str) -> bool:
    """Return whether the agent caused the end of an attempt without a reward."""
    return outcome in _SILENT or error_of_program(outcome) is not None
