"""One completion in vLLM's protocol: the body of a request, the pieces of its answer, and its errors.

Place in the flow: between generation.py, which handles tokens, and replica_client.py, which handles bytes. Requests go
to the completions route with token ids as the prompt. Every piece of the answer has token ids and the log-probabilities
with which vLLM drew them.

This side decides where a completion ends, in the same way for every sampler. vLLM receives the end tokens as plain stop
tokens, and this side looks for stop strings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from swarm.backends.vllm.replicas.command import MOST_TOP_LOGPROBS, SERVED_NAME
from swarm.backends.vllm.requests.grammars import structured_outputs
from swarm.errors import BadRequest, ContextLengthExceeded, EngineFailure, SwarmError, UnknownParameter
from swarm.sampler import EngineLost
from swarm.types import SamplingParams, TokenLogprobs

LOWEST_TEMPERATURE: Final = 0.01
"""vLLM raises lower temperatures to this one, except 0."""
LARGEST_BIAS: Final = 100.0
"""vLLM reduces larger biases to this one."""
IMPOSSIBLE: Final = -9999.0
"""vLLM's value for minus infinity."""
SEED_RANGE: Final = 2**63
LONGEST_REASON: Final = 300


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Content of one event of a stream. `ended` tells that vLLM will send no more tokens."""

    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    likeliest_T: tuple[TokenLogprobs, ...]
    ended: str | None


def check_params(params: SamplingParams, vocabulary: int | None = None) -> None:
    """Raise BadRequest for a parameter that vLLM would change silently, or that this sampler does not support."""
    if 0 < params.temperature < LOWEST_TEMPERATURE:
        raise UnknownParameter(
            f"temperature {params.temperature:g} cannot be honoured: use 0, or {LOWEST_TEMPERATURE:g} and above",
            param="temperature",
        )
    if any(abs(bias) > LARGEST_BIAS for _, bias in params.logit_bias):
        raise UnknownParameter(f"logit_bias beyond {LARGEST_BIAS:g} cannot be honoured", param="logit_bias")
    if vocabulary is not None and any(not 0 <= token_id < vocabulary for token_id, _ in params.logit_bias):
        raise BadRequest(f"logit_bias has token ids outside the vocabulary of {vocabulary}", param="logit_bias")
    if params.top_logprobs > MOST_TOP_LOGPROBS:
        raise UnknownParameter(
            f"top_logprobs {params.top_logprobs} cannot be honoured: ask for at most {MOST_TOP_LOGPROBS}",
            param="top_logprobs",
        )
    if params.grammar is not None:
        for name in ("min_tokens", "ignore_eos"):
            if getattr(params, name):
                raise BadRequest(f"{name} cannot go with a grammar, which alone says where to end", param=name)


def completion_body(
    request_id: str,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    limit: int,
    end_ids: Collection[int],
    eos_id: int | None,
    seed: int | None,
) -> dict[str, Any]:
    """Return the request for at most `limit` tokens that ends after any of `end_ids`.

    `eos_id` is the tokenizer's own end token.
    """
    body: dict[str, Any] = {
        "model": SERVED_NAME,
        "request_id": request_id,
        "prompt": list(prompt_ids),
        "stream": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "logprobs": params.top_logprobs,
        "skip_special_tokens": False,
        "max_tokens": limit,
        "min_tokens": min(params.min_tokens, limit),
        "ignore_eos": True,
        "stop_token_ids": sorted(end_ids),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
    }
    if params.logit_bias:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    if seed is not None:
        body["seed"] = seed % SEED_RANGE
    if params.grammar is not None:
        body["structured_outputs"] = structured_outputs(params.grammar, end_ids, eos_id)
    return body


def read_event(data: bytes, *, top_logprobs: int) -> StreamPiece | None:
    """Return the piece of one event, or None for an empty one. Raise the error that the event reports."""
    event = json.loads(data)
    if "error" in event:
        code = event["error"].get("code") if isinstance(event["error"], dict) else None
        raise error_of(code if isinstance(code, int) else 500, event)
    if not event.get("choices"):
        return None
    choice = event["choices"][0]
    token_ids: list[int] = choice.get("token_ids") or []
    told: dict[str, Any] = choice.get("logprobs") or {}
    logprobs: list[float | None] = told.get("token_logprobs") or []
    likeliest: list[dict[str, float | None]] = told.get("top_logprobs") or []
    piece = StreamPiece(
        tuple(token_ids),
        tuple(_number(value) for value in logprobs),
        tuple(_likeliest(each, top_logprobs) for each in likeliest) if top_logprobs else (),
        choice.get("finish_reason"),
    )
    if len(piece.token_ids_T) != len(piece.logprobs_T):
        raise EngineFailure("vLLM sent tokens without their ids or probabilities: it is too old for this engine")
    return piece if piece.token_ids_T or piece.ended else None


def error_of(status: int, answer: object) -> SwarmError:
    """Return the error for a refusal by vLLM: the caller's mistake, or a replica that cannot continue."""
    message = _message(answer)
    if status == 400 or status == 422:
        if "context length" in message or "max_model_len" in message:
            return ContextLengthExceeded(message)
        return BadRequest(f"vLLM refuses the request: {message}")
    if status in {401, 403, 404}:
        return EngineFailure(f"vLLM answers with status {status}: {message}")
    return EngineLost(f"vLLM answers with status {status}: {message}")


def _number(value: float | None) -> float:
    """Return a log-probability, or NaN for null and impossible values: JSON has no NaN, so vLLM sends null."""
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
