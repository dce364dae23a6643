"""Grammars: completions are sentences of them, end only where they may, and bad ones are refused in one line."""

from __future__ import annotations

import json
import re
import string
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from constrained_rollouts import END, PERSON, PROMPT, TOKENIZER, TOOL_CALL, VOCABULARY, bundled_model, schema
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests_support import examples
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from swarm.backends.grammar import GrammarCompiler
from swarm.errors import BadRequest
from swarm.grammars import LARGEST_TEXT
from swarm.types import FinishReason, Grammar, GrammarKind, SamplingParams


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, BatchingLimits, BatchSampler
    import torch

    from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, VOCABULARY, [END])


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


def decode(token_ids: list[int]) -> str:
    return TOKENIZER.decode(token_ids, skip_special_tokens=False)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return bundled_model()


def sampler(model: torch.nn.Module, stop_ids: tuple[int, ...] = (END,)) -> BatchSampler:
    return BatchSampler(
        model,
        BatchingLimits(2048, VOCABULARY, 16),
        stop_ids,
        decode,
        grammars=GrammarCompiler(TOKENIZER, VOCABULARY, stop_ids),
    )


integers = st.tuples(st.integers(-999, 999), st.integers(0, 999)).map(
    lambda pair: {"type": "integer", "minimum": pair[0], "maximum": sum(pair)}
)
leaves = st.one_of(
    integers,
    st.just({"type": "number", "minimum": 0.5, "exclusiveMaximum": 3}),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.integers(0, 8).map(lambda length: {"type": "string", "minLength": length // 2, "maxLength": length}),
    st.just({"type": "string", "pattern": "^[a-c]{2,4}(-[0-9]+)?$"}),
    st.just({"type": "string", "format": "date"}),
    st.lists(st.text(max_size=6) | st.integers() | st.none(), min_size=1, max_size=3, unique_by=str).map(
        lambda values: {"enum": values}
    ),
    st.text(max_size=9).map(lambda value: {"const": {"é": [value]}}),
)


def extend(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.tuples(inner, st.integers(0, 2)).map(
        lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1], "maxItems": pair[1] + 1}
    )
    objects = st.dictionaries(st.text(min_size=1, max_size=5), st.tuples(inner, st.booleans()), max_size=4).map(
        lambda items: {
            "type": "object",
            "properties": {name: value for name, (value, _) in items.items()},
            "required": [name for name, (_, is_required) in items.items() if is_required],
            "additionalProperties": False,
        }
    )
    return arrays | objects | st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options})


@given(st.recursive(leaves, extend, max_leaves=6), st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_any_walk_through_the_masks_of_a_schema_is_valid_json_of_it(wanted: dict[str, Any], seed: int) -> None:
    generator = np.random.default_rng(seed)
    constraint = compiler().start(schema(wanted), {END})
    token_ids: list[int] = []
    while True:
        words = constraint.allowed()
        assert words is not None, constraint.error
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        if (token := int(generator.choice(allowed))) == END:
            break
        token_ids.append(token)
        constraint.take(token)
    Draft202012Validator(wanted).validate(json.loads(decode(token_ids)))


SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": -5, "maximum": 12},
    {"type": "array", "items": {"enum": ["a", "bc", 3]}, "minItems": 1, "maxItems": 4},
    json.loads(PERSON.text),
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "boolean"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"const": 0}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
]


def test_sampled_completions_follow_their_grammars(model: torch.nn.Module, run: Callable[..., Any]) -> None:
    def check_call(text: str) -> None:
        begin, call, end = text.split("\n", 1)[0], text[len("<tool_call>\n") : -len("\n</tool_call>")], text[-12:]
        assert (begin, end) == ("<tool_call>", "</tool_call>")
        assert json.loads(call)["name"] == "calculator"

    def check_regex(text: str) -> None:
        assert re.fullmatch("(ab|c){2,5}[0-9]", text)

    kinds: list[tuple[Grammar, Callable[[str], object]]] = [
        *((schema(each), lambda text, s=each: Draft202012Validator(s).validate(json.loads(text))) for each in SCHEMAS),
        (TOOL_CALL, check_call),
        (regex("(ab|c){2,5}[0-9]"), check_regex),
        (Grammar(GrammarKind.JSON_OBJECT), lambda text: json.loads(text).items()),
    ]
    temperatures = (0.0, 0.5, 1.0)
    requests = {
        handle: (PROMPT, SamplingParams(700, temperatures[handle % 3], seed=handle, grammar=kinds[handle % 7][0]))
        for handle in range(21)
    }
    for handle, completion in run(sampler(model), requests).items():
        if completion.finish is FinishReason.STOP:
            assert completion.token_ids[-1] == END
            kinds[handle % 7][1](decode(completion.token_ids[:-1]))
        else:
            # Only these two have sentences of any length.
            assert kinds[handle % 7][0] in (schema(SCHEMAS[3]), Grammar(GrammarKind.JSON_OBJECT))


COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


def follows(grammar: Grammar, text: str) -> bool:
    constraint = compiler().start(grammar, {END})
    for token in [*TOKENIZER.encode(text).ids, END]:
        if not constraint.allowed()[token // 32] >> token % 32 & 1:
            return False
        constraint.take(token)
    return True


@pytest.mark.parametrize("kind", [GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA])
def test_json_has_the_blanks_that_its_grammar_names_and_else_such_as_the_model_likes(kind: GrammarKind) -> None:
    value = {"a": [1, "x y"], "b": {}}
    compact, spread = json.dumps(value, separators=(",", ":")), json.dumps(value, indent=1)
    free = Grammar(kind, "" if kind is GrammarKind.JSON_OBJECT else '{"type": "object"}')
    assert follows(free, compact) and follows(free, spread)
    fixed = Grammar(kind, json.dumps({"type": "object", "x-guidance": COMPACT}))
    assert follows(fixed, compact)
    assert not any(follows(fixed, text) for text in (spread, json.dumps(value), " {}", "{ }", "{}\n"))


def test_a_completion_ends_without_an_end_token_where_a_model_has_none(
    model: torch.nn.Module, run: Callable[..., Any]
) -> None:
    bounded, open_end = regex("a{3}"), regex("a+")
    requests = {
        handle: (PROMPT, SamplingParams(max_tokens=9, seed=1, grammar=grammar))
        for handle, grammar in enumerate((bounded, open_end))
    }
    completions = run(sampler(model, stop_ids=()), requests)
    assert decode(completions[0].token_ids) == "aaa"
    assert completions[0].finish is FinishReason.STOP
    assert set(decode(completions[1].token_ids)) == {"a"}
    assert completions[1].finish is FinishReason.LENGTH


def test_stop_tokens_of_the_request_may_come_only_where_the_grammar_may_end(
    model: torch.nn.Module, run: Callable[..., Any]
) -> None:
    other_end = TOKENIZER.token_to_id("<|endoftext|>")
    bias = ((other_end, 100.0),)
    params = SamplingParams(max_tokens=9, seed=1, stop_token_ids=(other_end,), logit_bias=bias, grammar=regex("a{3}b*"))
    completion = run(sampler(model), {0: (PROMPT, params)})[0]
    assert completion.token_ids[-1] == other_end
    assert decode(completion.token_ids[:-1]) == "aaa"


def test_stop_strings_end_a_completion_in_mid_grammar(model: torch.nn.Module, run: Callable[..., Any]) -> None:
    params = SamplingParams(max_tokens=50, seed=1, stop=("5",), grammar=regex("[3-5]{40}"))
    completion = run(sampler(model), {0: (PROMPT, params)})[0]
    assert completion.finish is FinishReason.STOP
    assert re.fullmatch("[34]*5", decode(completion.token_ids))


def test_abort_and_new_weights_in_mid_grammar_leave_the_others_on_course(
    model: torch.nn.Module, run: Callable[..., Any]
) -> None:
    batch = sampler(model)
    params = [SamplingParams(max_tokens=60, seed=handle, grammar=regex("(abc){20}")) for handle in range(4)]
    texts: dict[int, list[int]] = {handle: [] for handle in range(4)}
    for handle in range(4):
        batch.submit(handle, PROMPT, params[handle])
    for step in range(300):
        if batch.idle:
            break
        for piece in batch.step():
            assert piece.error is None and piece.token_id is not None
            texts[piece.handle].append(piece.token_id)
        if step == 2:
            batch.abort(1)
        if step == 4:
            batch.publish(1)
    for handle in (0, 2, 3):
        assert decode(texts[handle]).removesuffix("<|im_end|>") == "abc" * 20
    again = run(batch, {1: (PROMPT, params[1])})[1]
    assert decode(again.token_ids).startswith("abcabc")


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar(GrammarKind.JSON_SCHEMA, "{"), "malformed"),
        (Grammar(GrammarKind.JSON_SCHEMA, "[]"), "must be an object"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type":"array","items":' * 9999 + "{}" + "}" * 9999), "larger than"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type":"array","items":' * 900 + "{}" + "}" * 900), "malformed"),
        (schema({"type": "strin"}), "strin"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "use anyOf"),
        (schema({"$ref": "#"}), "allows no completion"),
        (schema({"$ref": "http://example.org/schema.json"}), "example.org"),
        (regex("(a"), "unclosed group"),
        (Grammar(GrammarKind.LARK, "start: other"), "unknown name"),
        (Grammar(GrammarKind.LARK, ""), "[Ee]mpty"),
        (regex("a" * (LARGEST_TEXT + 1)), "larger than"),
    ],
)
def test_grammars_that_cannot_be_followed_are_refused_in_one_line(grammar: Grammar, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason) as caught:
        compiler().start(grammar, {END})
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


def test_a_grammar_is_compiled_once_and_in_bounded_cpu_time() -> None:
    wide = schema({"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(2200)}})
    assert len(wide.text) < LARGEST_TEXT
    seconds: list[float] = []
    for _ in range(2):
        begun = time.process_time()
        compiler().start(wide, {END})
        seconds.append(time.process_time() - begun)
    assert seconds[0] < 10
    assert seconds[1] < seconds[0] / 2


def blank_first_tokenizer() -> Tokenizer:
    """As SentencePiece makes them: a blank before every text, and bytes for what the vocabulary lacks."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *string.ascii_letters]
    pairs = [("\u2581", "a"), ("a", "b")]
    tokens += ["".join(pair) for pair in pairs]
    model = BPE({token: index for index, token in enumerate(tokens)}, pairs, byte_fallback=True, unk_token="<unk>")
    tokenizer: Any = Tokenizer(model)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(8)
    return tokenizer


@pytest.mark.parametrize("text", ["ab c", "\u00e9\u4e16\n{a}", " abab"])
def test_forced_text_comes_out_whole_whatever_the_tokenizer_does_to_beginnings(text: str) -> None:
    tokenizer: Any = blank_first_tokenizer()
    # Logits may be wider than the vocabulary.
    follower = GrammarCompiler(tokenizer, tokenizer.get_vocab_size() + 70, [END])
    constraint = follower.start(schema({"const": [text]}), {END})
    token_ids: list[int] = []
    for _ in range(99):
        words = constraint.allowed()
        assert words is not None, constraint.error
        token = int(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))[0])
        if token == END:
            break
        token_ids.append(token)
        constraint.take(token)
    assert json.loads(tokenizer.decode(token_ids)) == [text]


def test_an_endless_run_of_blanks_is_not_allowed() -> None:
    constraint = compiler().start(Grammar(GrammarKind.JSON_OBJECT), {END})
    blank = TOKENIZER.token_to_id("Ġ")
    for token in TOKENIZER.encode('{"a":').ids:
        constraint.take(token)
    for _ in range(200):
        words = constraint.allowed()
        assert words is not None
        if not np.unpackbits(words.view(np.uint8), bitorder="little")[blank]:
            return
        constraint.take(blank)
    pytest.fail("blanks without end")
