"""The completions route of OpenAI's API with token ids: the pieces of a stream, and the errors of an answer.

Place in the flow: adapters of servers that speak this protocol read with it what client.py receives. Besides OpenAI's
fields, each choice of an event has `token_ids`, and the likeliest tokens are named by id.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from swarm.backends.replicas.adapter import StreamPiece
from swarm.errors import BadRequest, ContextLengthExceeded, EngineFailure, SwarmError
from swarm.sampler import EngineLost
from swarm.types import TokenLogprobs

IMPOSSIBLE: Final = -9999.0
"""The protocol's value for minus infinity."""
LONGEST_REASON: Final = 300


def read_event(data: bytes, server: str, *, top_logprobs: int) -> StreamPiece | None:
    """Return the piece of one event, or None for an empty one. Raise the error that the event reports.

    `server` is the name of the server in messages.
    """
    event = json.loads(data)
    if "error" in event:
        code = event["error"].get("code") if isinstance(event["error"], dict) else None
        raise error_of(code if isinstance(code, int) else 500, event, server)
    if not event.get("choices"):
        return None
    choice = event["choices"][0]
    token_ids: list[int] = choice.get("token_ids") or []
    reported: dict[str, Any] = choice.get("logprobs") or {}
    logprobs: list[float | None] = reported.get("token_logprobs") or []
    likeliest: list[dict[str, float | None]] = reported.get("top_logprobs") or []
    piece = StreamPiece(
        tuple(token_ids),
        tuple(_number(value) for value in logprobs),
        tuple(_likeliest(each, top_logprobs) for each in likeliest) if top_logprobs else (),
        choice.get("finish_reason"),
    )
    if len(piece.token_ids_T) != len(piece.logprobs_T):
        raise EngineFailure(f"{server} sent tokens without their ids or probabilities: it is too old for this engine")
    return piece if piece.token_ids_T or piece.ended else None


def error_of(status: int, answer: object, server: str) -> SwarmError:
    """Return the error for a refusal by a server: the caller's mistake, or a replica that cannot continue."""
    message = _message(answer)
    if status == 400 or status == 422:
        if "context length" in message or "max_model_len" in message:
            return ContextLengthExceeded(message)
        return BadRequest(f"{server} refuses the request: {message}")
    if status in {401, 403, 404}:
        return EngineFailure(f"{server} answers with status {status}: {message}")
    return EngineLost(f"{server} answers with status {status}: {message}")


def _number(value: float | None) -> float:
    """Return a log-probability, or NaN for null and impossible values: JSON has no NaN, so servers send null."""
    return math.nan if value is None or value <= IMPOSSIBLE else value


def _likeliest(named: Mapping[str, float | None], count: int) -> TokenLogprobs:
    """Return the likeliest tokens. `named` maps "token_id:5" to a logprob, and may also have the sampled token."""
    pairs = [
        (int(name.removeprefix("token_id:")), value)
        for name, value in named.items()
        if value is not None and value > IMPOSSIBLE
    ]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:count])


def _message(answer: object) -> str:
    found: Any = answer
    for name in ("error", "detail", "message"):
        if isinstance(found, dict) and name in found:
            found = found[name]  # pyright: ignore[reportUnknownVariableType]
    text = found if isinstance(found, str) else json.dumps(found)
    return " ".join(text.split())[:LONGEST_REASON] or "no reason given"
