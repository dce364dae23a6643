"""Requests and answers in vLLM's terms, completions over several replicas, and which replica is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, grammar_from

from swarm.backends.grammar import GrammarCompiler, write_lark
from swarm.backends.replicas.adapter import SamplerRequest, StreamPiece
from swarm.backends.replicas.client import error_of, read_event
from swarm.backends.replicas.generation import Generation, ModelFacts, read_facts
from swarm.backends.replicas.pool import BLOCK_TOKENS, PrefixRouter
from swarm.backends.replicas.vllm.server import completion_body
from swarm.backends.stopping import check_request
from swarm.errors import BadRequest, ContextLengthExceeded, EngineFailure, UnknownParameter
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.sampler import EngineLost
from swarm.types import FinishReason, Grammar, GrammarKind, SamplingParams

PROMPT = (50, 51, 52)


@pytest.fixture(scope="module")
def facts() -> ModelFacts:
    return read_facts(BUNDLED_DIRECTORY)


def body_of(params: SamplingParams, **options: Any) -> dict[str, Any]:
    request = SamplerRequest(
        "id", list(PROMPT), params, params.max_tokens, params.min_tokens, frozenset({2}), eos_id=2, seed=params.seed
    )
    return completion_body(replace(request, **options))


def event(token_ids: Sequence[int], finish: str | None = None, **options: Any) -> bytes:
    values = options.get("values", [-0.5] * len(token_ids))
    top = options.get("top", [{}] * len(token_ids))
    choice = {
        "token_ids": list(token_ids),
        "finish_reason": finish,
        "logprobs": {"token_logprobs": values, "top_logprobs": top},
    }
    return json.dumps({"choices": [choice]}).encode()


def test_every_parameter_reaches_vllm_and_ends_are_plain_stop_tokens() -> None:
    params = SamplingParams(
        max_tokens=9, temperature=0.5, top_p=0.9, top_k=7, seed=2**63 + 5, min_p=0.1, presence_penalty=0.2,
        frequency_penalty=0.3, repetition_penalty=1.1, logit_bias=((3, -1.5),), min_tokens=4, top_logprobs=5,
        stop=("never told",),
    )  # fmt: skip
    body = body_of(params, end_ids=frozenset({2, 7}))
    assert body["prompt"] == list(PROMPT)
    assert body["seed"] == 5
    assert body["logit_bias"] == {"3": -1.5}
    assert body["stop_token_ids"] == [2, 7]
    assert body["ignore_eos"] is True
    assert "stop" not in body
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    assert [body[name] for name in names] == [0.5, 0.9, 7, 0.1, 0.2, 0.3, 1.1]
    assert (body["max_tokens"], body["min_tokens"], body["logprobs"]) == (9, 4, 5)
    assert "seed" not in body_of(SamplingParams(max_tokens=1))


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(max_tokens=1, temperature=1e-3), "temperature"),
        (SamplingParams(max_tokens=1, logit_bias=((1, 101.0),)), "logit_bias"),
        (SamplingParams(max_tokens=1, logit_bias=((999, 1.0),)), "logit_bias"),
        (SamplingParams(max_tokens=1, top_logprobs=21), "top_logprobs"),
        (SamplingParams(max_tokens=1, ignore_eos=True, grammar=Grammar(GrammarKind.REGEX, "a")), "ignore_eos"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parameter_that_vllm_would_change_is_refused_by_name(params: SamplingParams, name: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_request(PROMPT, params, vocabulary=384, context_length=100)
    assert refused.value.param == name
    assert isinstance(refused.value, UnknownParameter) or name in {"logit_bias", "ignore_eos"}


def test_event_becomes_tokens_with_their_probabilities() -> None:
    top = [{"token_id:9": -3.0, "token_id:4": -0.1, "token_id:5": -2.0, "token_id:6": -9999.0}]
    piece = read_event(event([9], "stop", values=[-3.0], top=top), "vLLM", top_logprobs=2)
    assert piece == StreamPiece((9,), (-3.0,), (((4, -0.1), (5, -2.0)),), "stop")
    assert read_event(b'{"choices": []}', "vLLM", top_logprobs=0) is None
    assert read_event(event([]), "vLLM", top_logprobs=0) is None


def test_event_without_numbers_says_so() -> None:
    piece = read_event(event([9], values=[None]), "vLLM", top_logprobs=0)
    assert piece is not None
    assert math.isnan(piece.logprobs_T[0])
    with pytest.raises(EngineFailure, match="too old"):
        read_event(b'{"choices": [{"text": "hello", "token_ids": [1]}]}', "vLLM", top_logprobs=0)


@pytest.mark.parametrize(
    ("status", "answer", "kind"),
    [
        (400, {"error": {"message": "bad grammar"}}, BadRequest),
        (400, {"error": {"message": "This model's maximum context length is 5"}}, ContextLengthExceeded),
        (422, {"detail": [{"msg": "int"}]}, BadRequest),
        (404, "nothing", EngineFailure),
        (500, {"error": "dead"}, EngineLost),
        (503, "", EngineLost),
    ],
)
def test_refusals_are_told_apart(status: int, answer: object, kind: type[Exception]) -> None:
    assert type(error_of(status, answer, "vLLM")) is kind
    with pytest.raises(kind):
        read_event(json.dumps({"error": {"message": str(answer), "code": status}}).encode(), "vLLM", top_logprobs=0)


@given(
    st.lists(st.integers(3, 300), min_size=1, max_size=40),
    st.lists(st.integers(1, 7), max_size=12),
    st.integers(1, 45),
    st.integers(0, 5),
    st.lists(st.integers(3, 300), max_size=2),
)
def test_pieces_make_the_same_completion_wherever_they_are_cut(
    tokens: list[int], cuts: list[int], max_tokens: int, min_tokens: int, ends: list[int]
) -> None:
    """One token at a time is the plain case; whatever is cut or joined must end at the same token, for one reason."""
    facts = read_facts(BUNDLED_DIRECTORY)
    params = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=tuple(ends))
    whole = [StreamPiece((token,), (-0.1,), (), None) for token in tokens]
    pieces: list[list[int]] = []
    rest = list(tokens)
    for size in [*cuts, len(tokens)]:
        if rest:
            pieces.append(rest[:size])
            rest = rest[size:]
    joined = [StreamPiece(tuple(piece), (-0.1,) * len(piece), (), None) for piece in pieces]
    outcomes = [_feed(Generation("r", PROMPT, params, facts, room=1000), each) for each in (whole, joined)]
    assert outcomes[0] == outcomes[1]


def _feed(generation: Generation, pieces: list[StreamPiece]) -> tuple[list[int], FinishReason | None]:
    for piece in pieces:
        delta = generation.accept([(piece, 0)])
        if delta is not None and delta.finish_reason is not None:
            return generation.output_ids, delta.finish_reason
    return generation.output_ids, None


def test_rest_of_a_completion_asks_for_what_is_missing(facts: ModelFacts) -> None:
    params = SamplingParams(max_tokens=10, min_tokens=6, seed=1, repetition_penalty=1.2)
    generation = Generation("r", PROMPT, params, facts, room=8)
    first = generation.next_request()
    assert (first.max_tokens, first.min_tokens, first.seed) == (8, 6, 1)
    generation.accept([(StreamPiece((60, 61), (-0.1, -0.2), (), None), 3)])
    assert generation.can_move
    rest = generation.next_request()
    assert rest.prompt_ids == [*PROMPT, 60, 61]
    assert (rest.max_tokens, rest.min_tokens) == (6, 4)
    assert rest.seed not in {1, None}
    assert rest.request_id != first.request_id


def test_what_another_replica_cannot_know_does_not_move(facts: ModelFacts) -> None:
    for params in (
        SamplingParams(max_tokens=9, presence_penalty=0.1),
        SamplingParams(max_tokens=9, frequency_penalty=0.1),
        SamplingParams(max_tokens=9, grammar=Grammar(GrammarKind.REGEX, "[a-z]+")),
    ):
        generation = Generation("r", PROMPT, params, facts, room=100)
        assert generation.can_move
        generation.accept([(StreamPiece((60,), (-0.1,), (), None), 0)])
        assert not generation.can_move


def test_abort_by_vllm_brings_nothing(facts: ModelFacts) -> None:
    generation = Generation("r", PROMPT, SamplingParams(max_tokens=9), facts, room=100)
    assert generation.accept([(StreamPiece((), (), (), "abort"), 0)]) is None


def test_sentence_of_a_model_without_end_tokens_ends_where_it_is_complete(facts: ModelFacts) -> None:
    grammar = Grammar(GrammarKind.REGEX, "ab")
    endless = ModelFacts(1, facts.vocabulary, frozenset(), None, facts.tokenizer)
    constraint = GrammarCompiler(facts.tokenizer, facts.vocabulary, ()).start(grammar, ())
    params = SamplingParams(max_tokens=9, grammar=grammar)
    generation = Generation("r", PROMPT, params, endless, room=100, constraint=constraint)
    for letter, finish in (("a", None), ("b", FinishReason.STOP)):
        token = facts.tokenizer.encode(letter, add_special_tokens=False).ids[0]
        delta = generation.accept([(StreamPiece((token,), (-0.1,), (), None), 0)])
        assert delta is not None
        assert delta.finish_reason is finish


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(GrammarKind.JSON_OBJECT),
        Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object", "x-guidance": {"lenient": true}}'),
        Grammar(GrammarKind.JSON_OBJECT, '{"type": "object", "x-guidance": {"whitespace_flexible": false}}'),
        Grammar(GrammarKind.REGEX, "a/b\\/[/]\n"),
        Grammar(GrammarKind.LARK, 'start: "}" /[}]/\n'),
    ],
    ids=lambda grammar: grammar.kind.value,
)
@pytest.mark.parametrize("end_ids", [{2}, {2, 7}, {7}])
def test_grammars_are_well_formed_in_vllms_notation(grammar: Grammar, end_ids: set[int]) -> None:
    told = write_lark(grammar, end_ids, eos_id=2)
    assert LLMatcher.validate_grammar(grammar_from("grammar", told), None) == ""
    assert ("<[7]>" in told) == (7 in end_ids)
    if grammar.kind in {GrammarKind.JSON_SCHEMA, GrammarKind.JSON_OBJECT}:
        assert '"lenient": false' in told
        assert ('"whitespace_pattern": null' in told) == ('"whitespace_flexible": false' in told)


def test_grammar_that_is_no_schema_or_too_large_is_refused() -> None:
    for text in ("[1]", "{", "{" * 100_000):
        with pytest.raises(BadRequest):
            write_lark(Grammar(GrammarKind.JSON_SCHEMA, text), {2}, eos_id=2)


def test_new_conversation_goes_to_the_least_loaded_and_comes_back_to_where_it_was() -> None:
    router = PrefixRouter(max_num_seqs=16)
    long = list(range(3 * BLOCK_TOKENS))
    assert router.choose(long, {0: 3, 1: 2, 2: 5}) == 1
    router.remember(1, long)
    assert router.choose([*long, 7], {0: 0, 1: 3, 2: 0}) == 1
    assert router.choose([*long, 7], {0: 0, 1: 4, 2: 0}) == 0
    assert router.choose([9, *long], {0: 1, 1: 2, 2: 0}) == 2
    assert router.choose([*long, 7], {0: 5, 2: 4}) == 2
    router.forget(1)
    assert router.choose([*long, 7], {0: 0, 1: 3, 2: 0}) == 0


def test_longest_known_beginning_decides() -> None:
    router = PrefixRouter(max_num_seqs=64)
    shared = list(range(BLOCK_TOKENS))
    one, other = [*shared, *range(500, 500 + BLOCK_TOKENS)], [*shared, *range(900, 900 + BLOCK_TOKENS)]
    router.remember(0, one)
    router.remember(1, other)
    assert router.choose([*one, 1], {0: 3, 1: 0}) == 0
    assert router.choose([*other, 1], {0: 0, 1: 3}) == 1
