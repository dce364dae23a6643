"""Calls that the bundled model is made to give are whole within 96 tokens, whatever it is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from constrained_rollouts import CONTEXT, END, TOKENIZER, VOCABULARY, bundled_model

from swarm.backends.grammar import GrammarCompiler
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.tasks.families import CALCULATOR
from swarm.tracker.codec import Codec
from swarm.types import FinishReason, SamplingParams, ToolChoice, ToolMode


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global BatchingLimits, BatchSampler
    from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler


MUST_CALL = ToolChoice(ToolMode.REQUIRED, parallel=False)
MAX_TOKENS = 96
SEEDS = range(50)


def tool(name: str, properties: dict[str, Any], *required: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


MULTIPLY = tool("multiply", {"a": {"type": "integer"}, "b": {"type": "integer"}}, "a", "b")
CITY = {"type": "string", "maxLength": 24}


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.load(BUNDLED_DIRECTORY)


@pytest.fixture(scope="module")
def module() -> Any:
    return bundled_model()


def whole_calls(module: Any, codec: Codec, asked: dict[str, Any], question: str) -> int:
    """How many of the replies for `SEEDS` ended by themselves and are read as one call of the tool."""
    grammars = GrammarCompiler(TOKENIZER, VOCABULARY, [END])
    sampler = BatchSampler(module, BatchingLimits(CONTEXT, VOCABULARY, 64), [END], TOKENIZER.decode, grammars=grammars)
    token_ids: dict[int, list[int]] = {seed: [] for seed in SEEDS}
    ended: dict[int, FinishReason] = {}
    for seed in SEEDS:
        prompt = codec.render([{"role": "user", "content": f"{question} {11 + 7 * seed}*{99 - seed}"}], [asked])
        grammar = codec.forced_grammar([asked], MUST_CALL, prompt)
        sampler.submit(seed, prompt, SamplingParams(MAX_TOKENS, 1.0, seed=seed, grammar=grammar))
    while not sampler.idle:
        for piece in sampler.step():
            assert piece.token_id is not None
            token_ids[piece.handle].append(piece.token_id)
            if piece.finish_reason is not None:
                ended[piece.handle] = piece.finish_reason
    whole = 0
    for seed in SEEDS:
        reply = codec.parse_reply(token_ids[seed], [asked], choice=MUST_CALL, turn_index=0)
        if ended[seed] is FinishReason.STOP:
            [call] = reply["tool_calls"]
            assert set(json.loads(call["function"]["arguments"])) <= set(asked["function"]["parameters"]["properties"])
            whole += 1
    return whole


@pytest.mark.parametrize(
    "asked",
    [MULTIPLY, tool("now", {}), tool("weather", {"city": CITY}, "city"), tool("find", {"n": {"type": "integer"}})],
    ids=lambda asked: asked["function"]["name"],
)
def test_a_call_whose_arguments_have_a_size_is_always_whole(module: Any, codec: Codec, asked: dict[str, Any]) -> None:
    assert whole_calls(module, codec, asked, "What is") == len(SEEDS)


def test_a_call_of_the_tool_that_the_model_knows_is_nearly_always_whole(module: Any, codec: Codec) -> None:
    # Its argument is a string of any length, which a model may go on with until its limit.
    assert whole_calls(module, codec, CALCULATOR, "Compute:") >= len(SEEDS) - 3
