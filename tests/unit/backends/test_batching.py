"""Continuous batching: what a request gets does not depend on what runs beside it, and rows come free at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plain_sampling import plain_logprobs
from tiny_models import random_model

from swarm.backends.grammar import GrammarCompiler
from swarm.errors import BadRequest, ContextLengthExceeded, EngineFailure, UnknownParameter
from swarm.model_path import BUNDLED_DIRECTORY, read_tokenizer
from swarm.types import FinishReason, Grammar, GrammarKind, SamplingParams


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, AutoModelForCausalLM, batching, BatchingLimits, BatchSampler, SHORTEST_MATCH, SlotForward
    global verify_model
    import torch
    from transformers import AutoModelForCausalLM

    from swarm.backends.local.decoding import batching
    from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler
    from swarm.backends.local.decoding.forward import SHORTEST_MATCH, SlotForward, verify_model


VOCABULARY = 97
CONTEXT = 256
TURN, REPLY = "<|im_start|>user\nReverse: ", "<|im_end|>\n<|im_start|>assistant\n"
GRAMMARS = [
    Grammar(GrammarKind.REGEX, "[a-j]{3,9}"),
    Grammar(GrammarKind.JSON_OBJECT),
    Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'),
    Grammar(GrammarKind.LARK, 'start: "ab" tail\ntail: /[0-9]+/ | "x"'),
]
BEYOND: dict[str, Any] = {
    "temperature": 1e-39, "top_p": 1.5, "min_p": float("nan"), "presence_penalty": float("inf"),
    "frequency_penalty": -3.0, "repetition_penalty": 1e-39, "logit_bias": ((5, 1e39),), "top_logprobs": 21,
    "stop_token_ids": (5, VOCABULARY),
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "mistral-sliding": ("Mistral", {"sliding_window": 16}),
    "gpt-neox": ("GPTNeoX", {}),
    "gemma3-mixed": ("Gemma3Text", {"num_hidden_layers": 6, "head_dim": 8, "sliding_window": 16}),
}


def model_of(name: str) -> Any:
    kind, sizes = CONFIGS[name]
    return random_model(kind, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, **sizes)


def mixed_requests(count: int = 50) -> dict[int, tuple[list[int], SamplingParams]]:
    """Requests of mixed temperature, cuts, penalties, bias, length, seed and stop strings; many set but a few.

    A third begin with the same prompt, half of these have no other.
    """
    generator = np.random.default_rng(0)
    requests: dict[int, tuple[list[int], SamplingParams]] = {}
    for handle in range(count):
        prompt = generator.integers(3, VOCABULARY, int(generator.integers(1, 90))).tolist()
        if handle % 3 == 0:
            prompt = [*range(10, 50), *(prompt if handle % 2 else ())]
        requests[handle] = (
            prompt,
            SamplingParams(
                max_tokens=int(generator.integers(1, 40)),
                temperature=float(generator.choice([0, 0.5, 1, 1.3])),
                top_p=float(generator.choice([1, 1, 0.9])),
                top_k=int(generator.choice([0, 0, 20])),
                seed=handle,
                stop=("AB", "QRS") if handle % 5 == 0 else (),
                min_p=float(generator.choice([0, 0, 0, 0.02])),
                presence_penalty=float(generator.choice([0, 0, 0, 1.5])),
                frequency_penalty=float(generator.choice([0, 0, 0, -0.7, 0.7])),
                repetition_penalty=float(generator.choice([1, 1, 1, 0.8, 1.4])),
                logit_bias=((2, -100.0), (7, 1.5), (90, 3.0)) if handle % 7 == 0 else (),
                min_tokens=int(generator.choice([0, 0, 6])),
                ignore_eos=handle % 11 == 0,
                top_logprobs=handle % 4,
            ),
        )
    return requests


def full_forward_gap(
    model: torch.nn.Module,
    prompt: list[int],
    params: SamplingParams,
    completion: Any,
    grammars: GrammarCompiler | None = None,
) -> float:
    """Largest difference to the log-probabilities that one plain forward pass and the definition give.

    Relative where they are below -1: the forward passes themselves round relative to the logits.
    """
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 : -1]
    end_ids = {2} if not params.ignore_eos else set[int]()
    constraint = grammars.start(params.grammar, end_ids) if grammars and params.grammar else None
    gap = 0.0
    for index, token in enumerate(completion.token_ids):
        before = completion.token_ids[:index]
        allowed = None if constraint is None else set(np.flatnonzero(unpack(constraint.allowed())))
        plain = plain_logprobs(logits[index].numpy(), prompt, before, params, end_ids=end_ids, allowed=allowed)
        given = ((token, completion.logprobs[index]), *(completion.likeliest[index] if params.top_logprobs else ()))
        gap = max(gap, *(abs(plain[each] - logprob) / max(1, -logprob) for each, logprob in given))
        if constraint is not None:
            constraint.take(token)
    return gap


def unpack(words: np.ndarray | None) -> np.ndarray:
    assert words is not None
    return np.unpackbits(words.view(np.uint8), bitorder="little")


@pytest.mark.parametrize("name", CONFIGS)
def test_mixed_requests_get_the_same_tokens_batched_as_alone(
    name: str, make_sampler: Any, run: Callable[..., Any]
) -> None:
    model = model_of(name)
    verify_model(model, CONTEXT, VOCABULARY)
    requests = mixed_requests(12)
    together = run(make_sampler(model, max_running=8), requests)
    for handle, request in requests.items():
        alone = run(make_sampler(model, max_running=1), {handle: request})[handle]
        assert alone.token_ids == together[handle].token_ids
        assert alone.finish is together[handle].finish
        assert alone.logprobs == pytest.approx(together[handle].logprobs, abs=1e-5)
        assert len(together[handle].likeliest) == (len(alone.token_ids) if request[1].top_logprobs else 0)
        assert full_forward_gap(model, *request, together[handle]) < 1e-5


def test_bundled_model_samples_the_same_batched_as_alone(
    run: Callable[..., Any],
) -> None:
    model = AutoModelForCausalLM.from_pretrained(BUNDLED_DIRECTORY).eval()
    tokenizer = read_tokenizer(BUNDLED_DIRECTORY)
    grammars = GrammarCompiler(tokenizer, 384, [2])
    letters = np.random.default_rng(2).choice(list("abcdefghij"), (50, 8))
    requests = {
        handle: (tokenizer.encode(f"{TURN}{''.join(letters[handle, : 3 + handle % 6])}{REPLY}").ids, params)
        for handle, (_, params) in mixed_requests(20).items()
    }
    for handle, (prompt, params) in requests.items():
        if handle % 3 == 0:
            grammar = GRAMMARS[handle % len(GRAMMARS)]
            requests[handle] = (prompt, replace(params, grammar=grammar, min_tokens=0, ignore_eos=False))

    def sampler(max_running: int) -> BatchSampler:
        decode: Any = tokenizer.decode
        return BatchSampler(model, BatchingLimits(2048, 384, max_running), [2], decode, grammars=grammars)

    together = run(sampler(16), requests)
    alone = {handle: run(sampler(1), {handle: request})[handle] for handle, request in requests.items()}
    gaps = [full_forward_gap(model, *request, together[handle], grammars) for handle, request in requests.items()]
    same = sum(alone[handle].token_ids == together[handle].token_ids for handle in requests)
    assert same == len(requests)
    assert max(gaps) < 1e-5


def test_long_prompts_are_prefilled_in_pieces_while_others_decode(
    model: torch.nn.Module, make_sampler: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = mixed_requests(16)
    whole = run(make_sampler(model), requests)
    monkeypatch.setattr(batching, "PREFILL_TOKENS", 7)
    pieces = run(make_sampler(model), requests)
    for handle in requests:
        assert pieces[handle].token_ids == whole[handle].token_ids
        assert pieces[handle].logprobs == pytest.approx(whole[handle].logprobs, abs=1e-5)


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens that each prefill computed for a row."""
    found: list[int] = []
    fill = SlotForward.fill

    def record(forward: SlotForward, first_row: int, pieces: Any) -> None:
        found.extend(len(piece.token_ids) for piece in pieces)
        fill(forward, first_row, pieces)

    monkeypatch.setattr(SlotForward, "fill", record)
    return found


def test_next_turn_reuses_the_last_one_and_samples_the_same(
    model: torch.nn.Module, make_sampler: Any, run: Callable[..., Any], filled: list[int]
) -> None:
    first = (list(range(3, 60)), SamplingParams(max_tokens=20, seed=1))
    sampler = make_sampler(model, stop_ids=())
    reply = run(sampler, {0: first})[0].token_ids
    second = ([*first[0], *reply, *range(5, 20)], SamplingParams(max_tokens=20, seed=2))
    fresh = run(make_sampler(model, stop_ids=()), {1: second})[1]
    filled.clear()
    reused = run(sampler, {1: second})[1]
    assert reused.token_ids == fresh.token_ids
    assert reused.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)
    # The first turn leaves all of itself but its last token; the last token of the prompt is fed to decoding.
    assert filled == [len(second[0]) - 1 - (len(first[0]) + len(reply) - 1)]


def test_requests_that_share_a_prompt_compute_it_once_also_when_they_come_together(
    model: torch.nn.Module,
    make_sampler: Any,
    run: Callable[..., Any],
    filled: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = [list(range(3, 60)), [*range(3, 40), *range(60, 90)], list(range(40, 90))]
    requests = {handle: (prompts[handle % 3], SamplingParams(max_tokens=9, seed=handle)) for handle in range(9)}
    expected = {handle: run(make_sampler(model), {handle: request})[handle] for handle, request in requests.items()}
    # The second prompt begins like the first one, with 37 tokens.
    once = 56 + 66 - 37 + 49
    # In small pieces, waiting for the last few tokens of another prompt is not worth it.
    for budget, most in ((2048, once), (20, once + 2 * SHORTEST_MATCH)):
        filled.clear()
        monkeypatch.setattr(batching, "PREFILL_TOKENS", budget)
        together = run(make_sampler(model), requests)
        assert once <= sum(filled) <= most
        for handle in requests:
            assert together[handle].token_ids == expected[handle].token_ids
            assert together[handle].logprobs == pytest.approx(expected[handle].logprobs, abs=1e-5)


def test_abort_frees_the_row_before_the_next_step(model: torch.nn.Module, make_sampler: Any) -> None:
    sampler = make_sampler(model, max_running=2, stop_ids=())
    for handle in range(3):
        sampler.submit(handle, [5, 6, 7], SamplingParams(max_tokens=100, seed=handle))
    assert {piece.handle for piece in sampler.step()} == {0, 1}
    sampler.abort(0)
    assert sampler.running == 1
    assert {piece.handle for piece in sampler.step()} == {1, 2}
    for handle in (1, 2, 99):
        sampler.abort(handle)
    assert sampler.idle


def test_a_step_that_admits_nobody_goes_on_with_those_who_have_begun(
    model: torch.nn.Module, make_sampler: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In small pieces, so that the first prompt has begun and is not whole yet.
    monkeypatch.setattr(batching, "PREFILL_TOKENS", 20)
    requests = {
        handle: (list(range(3 + handle, 43 + handle)), SamplingParams(max_tokens=9, seed=handle)) for handle in range(3)
    }
    expected = run(make_sampler(model), requests)
    sampler = make_sampler(model)
    received: dict[int, list[int]] = {handle: [] for handle in requests}
    sampler.submit(0, *requests[0])
    assert sampler.step() == []
    for handle in (1, 2):
        sampler.submit(handle, *requests[handle])
    for _ in range(4):
        for piece in sampler.step(admits=False):
            received[piece.handle].append(piece.token_id)
    assert sampler.waiting == 2 and len(received[0]) > 1 and not received[1] and not received[2]
    while not sampler.idle:
        for piece in sampler.step():
            received[piece.handle].append(piece.token_id)
    assert received == {handle: completion.token_ids for handle, completion in expected.items()}


def test_aborts_at_random_do_not_disturb_the_others(
    model: torch.nn.Module, make_sampler: Any, run: Callable[..., Any]
) -> None:
    requests = mixed_requests(24)
    expected = run(make_sampler(model), requests)
    sampler = make_sampler(model, max_running=8)
    generator = np.random.default_rng(1)
    received: dict[int, list[int]] = {handle: [] for handle in requests}
    doomed = set(generator.choice(24, 10, replace=False).tolist())
    for handle, (prompt, params) in requests.items():
        sampler.submit(handle, prompt, params)
    alive = set(requests)
    while not sampler.idle:
        for piece in sampler.step():
            received[piece.handle].append(piece.token_id)
        victim = int(generator.integers(24))
        if victim in doomed:
            sampler.abort(victim)
            alive.discard(victim)
    for handle in alive:
        assert received[handle] == expected[handle].token_ids


def test_weights_published_in_mid_generation_continue_from_what_was_sampled(
    model: torch.nn.Module, make_sampler: Any
) -> None:
    sampler = make_sampler(model, stop_ids=())
    tokens = {handle: list(range(3, 13 + handle)) for handle in range(4)}
    for handle, prompt in tokens.items():
        sampler.submit(handle, prompt, SamplingParams(max_tokens=20, seed=handle))
    for _ in range(5):
        for piece in sampler.step():
            tokens[piece.handle].append(piece.token_id)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    sampler.publish(1)
    assert sampler.weight_version == 1
    pieces = sampler.step()
    assert {piece.handle for piece in pieces} == set(tokens)
    for piece in pieces:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens[piece.handle]])).logits[0, -1]
        assert piece.logprob == pytest.approx(torch.log_softmax(logits, -1)[piece.token_id].item(), abs=1e-5)


def test_weights_that_are_not_finite_fail_the_request_by_reason(model: torch.nn.Module, make_sampler: Any) -> None:
    sampler = make_sampler(model)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    sampler.submit(0, [5, 6], SamplingParams(max_tokens=3))
    (piece,) = sampler.step()
    assert isinstance(piece.error, EngineFailure)
    assert "not finite" in str(piece.error)
    assert sampler.idle


def test_overflow_by_the_parameters_of_a_request_is_its_own_error(model: torch.nn.Module, make_sampler: Any) -> None:
    sampler = make_sampler(model)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1e37)
    sampler.submit(0, [5, 6], SamplingParams(max_tokens=3, temperature=0.01, repetition_penalty=0.01))
    sampler.submit(1, [5, 6], SamplingParams(max_tokens=3, logit_bias=((7, 100.0),)))
    pieces = {piece.handle: piece for piece in sampler.step()}
    assert isinstance(pieces[0].error, UnknownParameter)
    assert pieces[0].error.param == "temperature"
    assert "repetition_penalty 0.01" in pieces[0].error.message
    assert pieces[1].error is None


def test_context_end_finishes_with_length(model: torch.nn.Module, make_sampler: Any, run: Callable[..., Any]) -> None:
    completion = run(make_sampler(model, stop_ids=()), {0: ([5] * (CONTEXT - 4), SamplingParams(max_tokens=99))})[0]
    assert len(completion.token_ids) == 4
    assert completion.finish is FinishReason.LENGTH


def test_prompts_that_cannot_be_sampled_are_refused(model: torch.nn.Module, make_sampler: Any) -> None:
    sampler = make_sampler(model)
    params = SamplingParams(max_tokens=1)
    with pytest.raises(ContextLengthExceeded, match="256"):
        sampler.submit(0, [5] * CONTEXT, params)
    with pytest.raises(BadRequest, match="empty"):
        sampler.submit(0, [], params)
    for wrong in (-1, VOCABULARY):
        with pytest.raises(BadRequest, match="outside the vocabulary"):
            sampler.submit(0, [5, wrong], params)
    for name, value in BEYOND.items():
        with pytest.raises(BadRequest) as refused:
            sampler.submit(0, [5], SamplingParams(max_tokens=1, **{name: value}))
        assert refused.value.param == name
    assert sampler.idle


def test_model_whose_cache_cannot_be_served_is_refused_by_name() -> None:
    model = model_of("qwen3")

    class Stubborn(type(model)):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            # Ignores where its tokens stand, like a model that counts positions by itself.
            kwargs.pop("position_ids", None)
            return super().forward(*args, **kwargs)

    model.__class__ = Stubborn
    with pytest.raises(EngineFailure, match="Stubborn cannot be served"):
        verify_model(model, CONTEXT, VOCABULARY)


def test_mixed_layer_kinds_without_masks_are_refused_by_name() -> None:
    model = model_of("qwen3")
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(EngineFailure, match="chunked_attention"):
        verify_model(model, CONTEXT, VOCABULARY)
