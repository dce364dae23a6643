"""The bundled base model: small, loadable by the standard classes, append-only in its template, sometimes right."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.model_path import BUNDLED_DIRECTORY
from swarm.tasks import CALCULATOR, task_family


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, evaluate, AutoModelForCausalLM, AutoTokenizer
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from recipes.nano.score import evaluate


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(BUNDLED_DIRECTORY)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(BUNDLED_DIRECTORY, dtype=torch.float32).eval()


def render(tokenizer, messages, tools=None, **options):
    return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options)


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


def test_the_model_is_a_small_qwen3_with_tied_embeddings(model, tokenizer):
    assert sum(path.stat().st_size for path in BUNDLED_DIRECTORY.iterdir()) <= 2_000_000
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert 470_000 < model.num_parameters() < 490_000
    assert model.config.vocab_size == len(tokenizer) == 384
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 2048
    assert tokenizer.convert_ids_to_tokens(model.config.eos_token_id) == "<|im_end|>"


def test_words_and_numbers_are_read_by_character(tokenizer):
    assert tokenizer.tokenize("XYZ") == ["X", "Y", "Z"]
    assert tokenizer.tokenize("2048") == ["2", "0", "4", "8"]


def test_tags_of_tool_calls_outlive_the_removal_of_special_tokens(tokenizer):
    ids = tokenizer.encode("<tool_call>\n{}\n</tool_call><|im_end|>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>\n{}\n</tool_call>"


@given(conversation=st.lists(messages, min_size=1, max_size=6), cut=st.integers(1, 6), tools=st.sampled_from([0, 1]))
@settings(max_examples=examples(60), deadline=None)
def test_later_messages_never_change_how_earlier_ones_are_written(tokenizer, conversation, cut, tools):
    tools = [CALCULATOR] * tools or None
    whole = render(tokenizer, conversation, tools)
    start = render(tokenizer, conversation[:cut], tools)
    rest = render(tokenizer, conversation[cut:]) if conversation[cut:] else ""
    assert start + rest == whole
    pieces = [tokenizer.encode(text, add_special_tokens=False) for text in (start, rest)]
    assert pieces[0] + pieces[1] == tokenizer.encode(whole, add_special_tokens=False)


@pytest.mark.parametrize("arguments", ['{"expression": "2*3"}', {"expression": "2*3"}])
def test_a_conversation_with_tools_is_written_as_chatml_with_hermes_tags(tokenizer, arguments):
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2*3?"},
        assistant_call(arguments),
        {"role": "tool", "tool_call_id": "call_1", "content": "6"},
        {"role": "assistant", "content": "6"},
        {"role": "user", "content": "Thanks"},
    ]
    assert render(tokenizer, conversation, [CALCULATOR], add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n<tools>\n" + json.dumps(CALCULATOR) + "\n</tools><|im_end|>\n"
        "<|im_start|>user\nWhat is 2*3?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "2*3"}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n6\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n6<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(("family", "highest"), [("reverse", 0.40), ("chain", 0.40), ("calc", 0.20)])
def test_the_base_model_is_right_now_and_then(model, tokenizer, family, highest):
    assert 0.0 < evaluate(model, tokenizer, task_family(family), count=100, temperature=1.0) < highest
