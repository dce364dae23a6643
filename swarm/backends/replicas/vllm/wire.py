"""The request for one completion in vLLM's protocol, and the parameters that vLLM could not honour.

Place in the flow: server.py sends the request to vLLM's completions route, with token ids as the prompt. Every piece of
the answer has token ids and the log-probabilities with which vLLM drew them.

This side decides where a completion ends, in the same way for every sampler. vLLM receives the end tokens as plain stop
tokens, and this side looks for stop strings.
"""

from __future__ import annotations

from typing import Any, Final

from swarm.backends.grammar.lark import write_lark
from swarm.backends.replicas.adapter import SamplerRequest
from swarm.backends.replicas.vllm.command import MOST_TOP_LOGPROBS, SERVED_NAME
from swarm.errors import UnknownParameter
from swarm.types import SamplingParams

LOWEST_TEMPERATURE: Final = 0.01
"""vLLM raises lower temperatures to this one, except 0."""
LARGEST_BIAS: Final = 100.0
"""vLLM reduces larger biases to this one."""
SEED_RANGE: Final = 2**63


def check_params(params: SamplingParams) -> None:
    """Raise UnknownParameter for a parameter that vLLM would change silently."""
    if 0 < params.temperature < LOWEST_TEMPERATURE:
        raise UnknownParameter(
            f"temperature {params.temperature:g} cannot be honoured: use 0, or {LOWEST_TEMPERATURE:g} and above",
            param="temperature",
        )
    if any(abs(bias) > LARGEST_BIAS for _, bias in params.logit_bias):
        raise UnknownParameter(f"logit_bias beyond {LARGEST_BIAS:g} cannot be honoured", param="logit_bias")
    if params.top_logprobs > MOST_TOP_LOGPROBS:
        raise UnknownParameter(
            f"top_logprobs {params.top_logprobs} cannot be honoured: ask for at most {MOST_TOP_LOGPROBS}",
            param="top_logprobs",
        )


def completion_body(request: SamplerRequest) -> dict[str, Any]:
    """Return the body of a request. Raise BadRequest for an invalid grammar."""
    params = request.params
    body: dict[str, Any] = {
        "model": SERVED_NAME,
        "request_id": request.request_id,
        "prompt": request.prompt_ids,
        "stream": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "logprobs": params.top_logprobs,
        "skip_special_tokens": False,
        "max_tokens": request.max_tokens,
        "min_tokens": request.min_tokens,
        "ignore_eos": True,
        "stop_token_ids": sorted(request.end_ids),
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
    if request.seed is not None:
        body["seed"] = request.seed % SEED_RANGE
    if params.grammar is not None:
        body["structured_outputs"] = {"grammar": write_lark(params.grammar, request.end_ids, request.eos_id)}
    return body
