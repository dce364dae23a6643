"""The bundled base models: small, loadable by the standard classes, append-only in the template, sometimes right."""

from __future__ import annotations

import json
import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import Late
from tests_support import examples

from swarm.backends.grammar import GrammarCompiler
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORIES, read_stop_ids, read_tokenizer, resolve_model
from swarm.tasks import CALCULATOR, task_family
from swarm.tracker.codec import Codec
from swarm.types import SamplingParams, ToolChoice, ToolMode

transformers, batching = Late("transformers"), Late("swarm.backends.local.decoding.batching")
scoring, micro_scoring = Late("recipes.nano.score"), Late("recipes.micro.score")

NANO, MICRO = BUNDLED_DIRECTORIES["nano"], BUNDLED_DIRECTORIES["micro"]
QUESTIONS = 1


@cache
def tokenizer_of(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)


@cache
def model_of(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="float32").eval()


def render(messages, tools=None, **options):
    return tokenizer_of(NANO).apply_chat_template(messages, tools=tools, tokenize=False, **options)


def assistant_call(arguments):
    call = {"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


contents = st.text("ABC abc12+?\n", max_size=12)
messages = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, contents),
    st.builds(lambda text: {"role": "assistant", "content": text}, contents),
    st.builds(lambda text: assistant_call(json.dumps({"expression": text})), contents),
    st.builds(lambda text: {"role": "tool", "tool_call_id": "call_1", "content": text}, contents),
)


def test_nano_is_a_small_qwen3_with_tied_embeddings():
    model, tokenizer = model_of(NANO), tokenizer_of(NANO)
    assert sum(path.stat().st_size for path in NANO.iterdir()) <= 2_000_000
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert 470_000 < model.num_parameters() < 490_000
    assert model.config.vocab_size == len(tokenizer) == 384
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 2048
    assert tokenizer.convert_ids_to_tokens(model.config.eos_token_id) == "<|im_end|>"


def test_words_and_numbers_are_read_by_character_and_tags_of_tool_calls_are_no_special_tokens():
    tokenizer = tokenizer_of(NANO)
    assert tokenizer.tokenize("XYZ") == ["X", "Y", "Z"]
    assert tokenizer.tokenize("2048") == ["2", "0", "4", "8"]
    ids = tokenizer.encode("<tool_call>\n{}\n</tool_call><|im_end|>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>\n{}\n</tool_call>"


@given(conversation=st.lists(messages, min_size=1, max_size=6), cut=st.integers(1, 6), has_tools=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_later_messages_never_change_how_earlier_ones_are_written(conversation, cut, has_tools):
    tools, tokenizer = [CALCULATOR] * has_tools or None, tokenizer_of(NANO)
    whole = render(conversation, tools)
    start = render(conversation[:cut], tools)
    rest = render(conversation[cut:]) if conversation[cut:] else ""
    assert start + rest == whole
    pieces = [tokenizer.encode(text, add_special_tokens=False) for text in (start, rest)]
    assert pieces[0] + pieces[1] == tokenizer.encode(whole, add_special_tokens=False)


@pytest.mark.parametrize("arguments", ['{"expression": "2*3"}', {"expression": "2*3"}])
def test_a_conversation_with_tools_is_written_as_chatml_with_hermes_tags(arguments):
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2*3?"},
        assistant_call(arguments),
        {"role": "tool", "tool_call_id": "call_1", "content": "6"},
        {"role": "assistant", "content": "6"},
    ]
    assert render(conversation, [CALCULATOR], add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n<tools>\n" + json.dumps(CALCULATOR) + "\n</tools><|im_end|>\n"
        "<|im_start|>user\nWhat is 2*3?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "2*3"}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n6\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n6<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("directory", "family", "count", "highest"),
    [
        (NANO, "reverse", 100, 0.40),
        (NANO, "chain", 100, 0.40),
        (NANO, "calc", 50, 0.20),
        (MICRO, "copy", 50, 1.0),
    ],
)
def test_a_base_model_is_right_now_and_then(directory, family, count, highest):
    model, tokenizer = model_of(directory), tokenizer_of(directory)
    assert 0.0 < scoring.evaluate(model, tokenizer, task_family(family), count=count, temperature=1.0) < highest


def test_a_job_finds_micro_by_its_name():
    job = TrainJob(model="micro").resolve()
    assert resolve_model(job.model) == MICRO
    assert (MICRO / "model.safetensors").stat().st_size <= 8_000_000
    assert (job.engine, job.lr) == ("local", 1e-3)


def test_micro_answers_and_answers_the_same_again():
    request = {"messages": [{"role": "user", "content": "Repeat: apple"}], "max_tokens": 48}
    replies = [scoring.sample_replies(model_of(MICRO), tokenizer_of(MICRO), [request], 0.0)[0] for _ in range(2)]
    assert [reply["content"] for reply in replies] == ["apple", "apple"]


def test_a_call_that_micro_is_made_to_give_is_whole():
    codec, tokenizer = Codec.load(MICRO), read_tokenizer(MICRO)
    ends, size = sorted(read_stop_ids(MICRO, tokenizer)), tokenizer.get_vocab_size()
    grammars, limits = GrammarCompiler(tokenizer, size, ends), batching.BatchingLimits(512, size, 16)
    sampler = batching.BatchSampler(model_of(MICRO), limits, ends, tokenizer.decode, grammars=grammars)
    choice = ToolChoice(ToolMode.REQUIRED, parallel=False)
    tokens = {}
    for seed in range(8):
        prompt = codec.render([{"role": "user", "content": f"What is {seed}*7?"}], [CALCULATOR])
        grammar = codec.forced_grammar([CALCULATOR], choice, prompt)
        sampler.submit(seed, prompt, SamplingParams(96, 0.5, seed=seed, grammar=grammar))
        tokens[seed] = []
    while not sampler.idle:
        for piece in sampler.step():
            tokens[piece.handle].append(piece.token_id)
    replies = [codec.parse_reply(said, [CALCULATOR], choice=choice, turn_index=0) for said in tokens.values()]
    assert sum(bool(reply.get("tool_calls")) for reply in replies) >= 7


@pytest.mark.slow
def test_the_recorded_accuracies_of_micro_are_measured_again():
    record = json.loads((MICRO / "build.json").read_text())
    measured = micro_scoring.score(model_of(MICRO), tokenizer_of(MICRO), count=QUESTIONS, temperature=1.0, seed=2)
    for part in micro_scoring.PARTS:
        recorded = record["means"][part]
        questions = QUESTIONS * len(measured[part])
        # Four standard errors of a mean over so many questions; the kinds' own differences make it smaller still.
        margin = 4 * math.sqrt(recorded * (1 - recorded) / questions)
        assert micro_scoring.mean_score(measured, part) == pytest.approx(recorded, abs=margin)
