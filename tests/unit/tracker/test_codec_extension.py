"""A turn's prompt begins with the exact tokens of the turn it extends, whatever the chat template."""

from __future__ import annotations

import copy
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.errors import BadRequest, JobInvalid
from swarm.tracker.codec import Codec
from swarm.tracker.conversation import prefix_fingerprints
from swarm.types import FinishReason, ForkReason

STYLES = ("chatml", "llama3", "mistral", "zephyr", "qwen3", "plain")
QUESTION = [{"role": "user", "content": "What is the weather in Paris today?"}]
FOLLOW_UP = {"role": "user", "content": "Thanks! And tomorrow?"}
CALCULATOR = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}


def _continued(turn, *messages):
    return [*turn.messages, turn.reply, *messages]


def _ids(codec, text):
    return codec.encode_text(text)


def _sampled_as_rendered(codec, messages, reply):
    """The ids of `reply` as a full rendering tokenizes it, up to its stop token."""
    prompt = codec.render(messages)
    full = _ids(codec, codec.render_text([*messages, reply], (), generation_prompt=False))
    assert full[: len(prompt)] == prompt
    ends = [i for i in range(len(prompt), len(full)) if full[i] in codec.stop_token_ids]
    return full[len(prompt) : ends[0] + 1 if ends else len(full)]


@pytest.mark.parametrize("style", ("chatml", "llama3", "mistral", "zephyr", "qwen3"))
def test_extension_equals_full_rendering_when_the_reply_was_tokenized_as_rendered(codecs, make_turn, style):
    codec = codecs[style]
    messages = list(QUESTION)
    previous = None
    for index, answer in enumerate(("It is sunny.", "I do not know.", "Größe: 21")):
        output = _sampled_as_rendered(codec, messages, {"role": "assistant", "content": answer})
        prompt = codec.render(messages) if previous is None else codec.extend(previous, messages).prompt_ids
        assert prompt == codec.render(messages)
        previous = make_turn(codec, messages, output, index=index, prompt_ids=prompt)
        messages = _continued(previous, FOLLOW_UP)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), style=st.sampled_from(STYLES))
def test_extension_keeps_sampled_ids_and_shows_the_text_of_the_template(codecs, make_turn, data, style):
    codec = codecs[style]
    ordinary = st.integers(0, len(codec._tokenizer) - 1).filter(codec.is_visible)
    messages, previous = list(QUESTION), None
    for index in range(3):
        prompt = codec.render(messages) if previous is None else codec.extend(previous, messages).prompt_ids
        body = data.draw(st.lists(ordinary, max_size=8))
        finish = data.draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
        ending = [codec.stop_token_ids[-1]] if finish is FinishReason.STOP else []
        turn = make_turn(codec, messages, body + ending, index=index, prompt_ids=prompt, finish=finish)
        messages = _continued(turn, FOLLOW_UP)
        extension = codec.extend(turn, messages)
        if extension.prompt_ids is None:
            assert "</think>" in turn.reply["content"]
            return
        kept = turn.prompt_ids + turn.output_ids_T
        assert extension.prompt_ids[: len(kept)] == kept
        added = codec.raw_text(extension.prompt_ids[len(kept) :])
        assert FOLLOW_UP["content"] in added
        shown = codec.render_text(messages, (), generation_prompt=True)
        sampled = codec.render_text(turn.messages, (), generation_prompt=True) + codec.raw_text(turn.output_ids_T)
        # The Mistral-like tokenizer's decoder shows a space behind each special token.
        if shown.startswith(sampled) and style != "mistral":
            assert sampled + added == shown
        previous = turn


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("finish", (FinishReason.LENGTH, FinishReason.ABORT))
def test_a_reply_cut_off_is_closed_as_the_template_closes_it(codecs, make_turn, style, finish):
    codec = codecs[style]
    turn = make_turn(codec, QUESTION, _ids(codec, "It is"), finish=finish)
    messages = _continued(turn, FOLLOW_UP)

    extension = codec.extend(turn, messages)

    added = extension.prompt_ids[len(turn.prompt_ids + turn.output_ids_T) :]
    closing = codec.render_text(messages, (), generation_prompt=True).split("It is", 1)[1]
    assert added == _ids(codec, closing)


@pytest.mark.parametrize(
    ("style", "text", "stop", "shown", "added"),
    [
        ("chatml", "It is sunny END of it", " END", "It is sunny", "<|im_end|>\n"),
        ("llama3", "It is sunny END of it", " END", "It is sunny", "<|eot_id|>"),
        ("plain", "It is sunny END of it", " END", "It is sunny", "\n\n"),
        ("chatml", "sunny<", "<", "sunny", "<|im_end|>\n"),
        # Another stop token takes the place of the template's.
        ("llama3", "sunny<|end_of_text|>", None, "sunny", "<|start_header_id|>user"),
        # What the template trims stays.
        ("llama3", "  sunny \n<|eot_id|>", None, "  sunny \n", "<|start_header_id|>user"),
        ("chatml", "sun<|im_start|>ny<|im_end|>", None, "sunny", "\n<|im_start|>user"),
        ("chatml", "sun<|endoftext|>ny<|im_end|>", None, "sunny", "\n<|im_start|>user"),
    ],
)
def test_a_reply_keeps_its_sampled_ids_and_is_closed_however_it_ended(
    codecs, make_turn, style, text, stop, shown, added
):
    codec = codecs[style]
    turn = make_turn(codec, QUESTION, _ids(codec, text), stop=(stop,) if stop else ())
    assert turn.reply["content"] == shown

    extension = codec.extend(turn, _continued(turn, FOLLOW_UP))

    kept = turn.prompt_ids + turn.output_ids_T
    assert extension.prompt_ids[: len(kept)] == kept
    assert codec.raw_text(extension.prompt_ids[len(kept) :]).startswith(added)


def test_thinking_that_the_template_removes_is_a_template_rewrite(codecs, make_turn):
    codec = codecs["qwen3"]
    turn = make_turn(codec, QUESTION, _ids(codec, "<think>Paris?</think>\nsunny<|im_end|>"))

    forked = codec.extend(turn, _continued(turn, FOLLOW_UP))
    kept = codec.extend(turn, _continued(turn, {"role": "tool", "content": "21 degrees"}))

    assert (forked.prompt_ids, forked.reason) == (None, ForkReason.TEMPLATE_REWRITE)
    assert kept.prompt_ids[: len(turn.prompt_ids)] == turn.prompt_ids


def test_a_generation_prompt_that_history_does_not_show_is_a_template_rewrite(codecs, make_turn):
    tokenizer = copy.deepcopy(codecs["chatml"]._tokenizer)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "assistant\\n' }}{%- endif", "assistant\\n<think>' }}{%- endif"
    )
    codec = Codec(tokenizer)
    turn = make_turn(codec, QUESTION, _ids(codec, "Paris?</think>sunny<|im_end|>"))
    assert codec.raw_text(turn.prompt_ids).endswith("<think>")

    assert codec.extend(turn, _continued(turn, FOLLOW_UP)).reason is ForkReason.TEMPLATE_REWRITE


def test_tool_calls_extend_whatever_their_json_looks_like(chatml, make_turn):
    output = _ids(chatml, '<tool_call>{ "arguments":{"expression":"3*4"},"name" : "calculator" }</tool_call><|im_end|>')
    turn = make_turn(chatml, QUESTION, output, tools=[CALCULATOR])
    assert turn.reply["tool_calls"][0]["function"] == {"name": "calculator", "arguments": '{"expression":"3*4"}'}

    extension = chatml.extend(turn, _continued(turn, {"role": "tool", "content": "12"}), [CALCULATOR])

    added = extension.prompt_ids[len(turn.prompt_ids + turn.output_ids_T) :]
    assert chatml.raw_text(added) == "\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n"


def test_changed_tools_that_the_template_does_not_show_extend(codecs, make_turn):
    codec = codecs["llama3"]
    turn = make_turn(codec, QUESTION, (*_ids(codec, "sunny"), codec.stop_token_ids[1]), tools=[CALCULATOR])

    assert codec.extend(turn, _continued(turn, FOLLOW_UP), []).reason is None


@pytest.mark.parametrize(
    "reply",
    [
        {"role": "assistant", "content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]},
        {"content": "sunny", "role": "assistant", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "assistant", "content": "sunny", "tool_calls": []},
    ],
)
def test_an_echoed_reply_is_recognised_in_any_spelling(chatml, make_turn, reply):
    turn = make_turn(chatml, QUESTION, _ids(chatml, "sunny<|im_end|>"))

    assert prefix_fingerprints([*QUESTION, reply]) == prefix_fingerprints([*QUESTION, turn.reply])
    assert chatml.extend(turn, [*QUESTION, reply, FOLLOW_UP]).reason is None


@pytest.mark.parametrize("position", [0, 1])
def test_an_edited_history_has_another_fingerprint(chatml, make_turn, position):
    turn = make_turn(chatml, QUESTION, _ids(chatml, "sunny<|im_end|>"))
    messages = _continued(turn, FOLLOW_UP)
    messages[position] = {**messages[position], "content": "edited"}

    history = [*turn.messages, turn.reply]
    assert prefix_fingerprints(messages)[len(history) - 1] != prefix_fingerprints(history)[-1]


@pytest.mark.parametrize(
    ("style", "messages", "reason"),
    [
        ("mistral", [*QUESTION, *QUESTION], "roles must alternate"),
        ("plain", [{"role": "user", "content": "\ud800"}], "chat template refuses"),
        ("plain", [{"role": "user"}, {"tool": 1}], "chat template refuses"),
    ],
)
def test_what_the_template_cannot_render_is_a_bad_request(codecs, style, messages, reason):
    with pytest.raises(BadRequest, match=reason) as refused:
        codecs[style].render(messages)
    assert refused.value.param == "messages"


def test_a_tokenizer_that_is_not_there_or_has_no_template_is_named(tmp_path, codecs):
    with pytest.raises(JobInvalid, match="cannot be loaded"):
        Codec.load(tmp_path / "nowhere")
    bare = copy.deepcopy(codecs["chatml"]._tokenizer)
    bare.chat_template = None
    bare.save_pretrained(tmp_path / "bare")
    with pytest.raises(JobInvalid, match="no chat template"):
        Codec.load(tmp_path / "bare")


def test_a_saved_tokenizer_is_loaded_with_the_stop_tokens_of_its_generation_config(tmp_path, codecs):
    codecs["chatml"]._tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')

    loaded = Codec.load(tmp_path)

    assert loaded.stop_token_ids == (0, 2)
    assert loaded.render(QUESTION) == codecs["chatml"].render(QUESTION)


def test_developer_is_rendered_as_system_where_the_template_does_not_know_it(chatml):
    texts = [
        chatml.render_text([{"role": role, "content": "Be brief."}, *QUESTION], (), generation_prompt=True)
        for role in ("developer", "system")
    ]

    assert texts[0] == texts[1]


def test_token_texts_join_to_the_raw_text(chatml):
    ids = _ids(chatml, "<|im_start|>user\nWhat is 3*4?<|im_end|>")

    assert "".join(itertools.chain(chatml.token_text(ids))) == chatml.raw_text(ids)


@pytest.mark.parametrize("style", STYLES)
def test_a_prompt_that_a_group_shares_is_tokenized_once_and_is_the_same_for_each(codecs, style):
    codec = copy.copy(codecs[style])
    question = [{"role": "user", "content": f"How far is it from {style} to the sea?"}]
    known = codec._encode_shared.cache_info().misses
    prompts = {codec.render(copy.deepcopy(question)) for _ in range(8)}
    assert prompts == {_ids(codec, codec.render_text(question, (), generation_prompt=True))}
    assert codec._encode_shared.cache_info().misses == known + 1
