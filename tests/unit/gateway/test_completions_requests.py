"""A text completion's body is honoured, or refused by the name of the field."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.errors import BadRequest, UnknownParameter
from swarm.gateway.dialects.completions.request import MAX_PROMPT_TOKENS, MAX_PROMPTS, parse_completion_request
from swarm.rollout.model_request import RawPrompt, SamplingDefaults

DEFAULTS = SamplingDefaults(temperature=0.7, top_p=1.0, max_tokens=99, stop_token_ids=(2,))


def parse(**fields: Any) -> Any:
    return parse_completion_request({"model": "default", "prompt": "Once", **fields}, DEFAULTS)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Once", [RawPrompt(text="Once")]),
        (["Once", "Twice"], [RawPrompt(text="Once"), RawPrompt(text="Twice")]),
        ([5, 6], [RawPrompt(token_ids=(5, 6))]),
        ([[5, 6], [7]], [RawPrompt(token_ids=(5, 6)), RawPrompt(token_ids=(7,))]),
        (["Once", [7]], [RawPrompt(text="Once"), RawPrompt(token_ids=(7,))]),
    ],
)
def test_a_prompt_is_text_or_token_ids_or_a_list_of_them(prompt: Any, prompts: list[RawPrompt]) -> None:
    assert list(parse(prompt=prompt).call.prompts) == prompts


@pytest.mark.parametrize(
    "prompt",
    [
        None, "", 5, True, {}, [], [[]], [""], [5, "six"], [5, -1], [5, True], [True], [5.0], [2**31], [None], [[[5]]],
        ["x"] * (MAX_PROMPTS + 1), [1] * (MAX_PROMPT_TOKENS + 1), [[1] * (MAX_PROMPT_TOKENS + 1)],
    ],
)  # fmt: skip
def test_what_is_no_prompt_is_refused_in_one_short_line(prompt: Any) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse(prompt=prompt)
    assert refusal.value.param == "prompt"
    assert len(refusal.value.message) < 120 and "\n" not in refusal.value.message


def test_a_silent_request_gets_the_defaults_of_the_job() -> None:
    request = parse()
    assert (request.stream, request.body.logprobs, request.body.includes_usage) == (False, None, False)
    params = request.call.params
    assert (params.temperature, params.max_tokens, params.stop_token_ids) == (0.7, 99, (2,))
    assert request.call.choices == 1


def test_sampling_fields_reach_the_sampler() -> None:
    request = parse(
        max_tokens=5, temperature=0, seed=7, stop="\n", n=3, best_of=3, logprobs=5, top_p=0.5, logit_bias={"5": 1}
    )
    params = request.call.params
    assert (params.max_tokens, params.temperature, params.seed, params.stop) == (5, 0.0, 7, ("\n",))
    assert (params.top_logprobs, params.top_p, params.logit_bias) == (5, 0.5, ((5, 1.0),))
    assert (request.call.choices, request.body.logprobs) == (3, 5)


def test_logprobs_of_the_sampled_tokens_alone_are_not_no_logprobs() -> None:
    assert parse(logprobs=0).body.logprobs == 0
    assert parse(logprobs=None).body.logprobs is None


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("best_of", {"best_of": 2}),
        ("logprobs", {"logprobs": 6}),
        ("logprobs", {"logprobs": -1}),
        ("stream_options.continuous_usage_stats", {"stream_options": {"continuous_usage_stats": True}}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UnknownParameter) as refusal:
        parse(**fields)
    assert refusal.value.param == name


def test_echo_and_logprobs_exclude_one_another() -> None:
    with pytest.raises(UnknownParameter, match="echo and logprobs"):
        parse(echo=True, logprobs=0)
