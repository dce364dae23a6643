"""The recipe that builds micro: right answers, wordings held out, a tokenizer that knows all text, the same bytes."""

from __future__ import annotations

import json
import re
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from recipes.micro.demonstrations import stream_conversations
from recipes.micro.kinds import HELD_OUT_KINDS, KINDS
from recipes.micro.wording import ask, ask_again, wordings


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, build, make_tokenizer, MicroRecipe, warm_up, encode, render
    import torch

    from recipes.micro.build import build
    from recipes.micro.vocabulary import make_tokenizer
    from recipes.micro.warmup import MicroRecipe, warm_up
    from recipes.nano.vocabulary import encode, render


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def test_each_kind_has_wordings_and_each_wording_a_kind():
    names = [kind.name for kind in (*KINDS, *HELD_OUT_KINDS)]
    assert len(names) == len(set(names))
    assert set(wordings()) == set(names)
    assert all(wordings()[kind.name]["trained"] for kind in KINDS)
    assert all(set(wordings()[kind.name]) == {"held_out"} for kind in HELD_OUT_KINDS)


def test_no_wording_is_trained_and_held_out():
    for parts in wordings().values():
        assert not set(parts.get("trained", ())) & set(parts.get("held_out", ()))


@pytest.mark.parametrize("kind", [*KINDS, *HELD_OUT_KINDS], ids=lambda kind: kind.name)
def test_questions_of_a_kind_leave_no_slot_open(kind):
    rng = Random(0)
    for part in wordings()[kind.name]:
        for _ in range(40):
            item = kind.draw(rng)
            question = ask(kind, item, rng, part)
            again = ask_again(kind, question, kind.draw(rng), rng)
            for text in (question.text, again, question.form.write(item)):
                assert text.strip()
                assert not re.search(r"\{[a-z]+\}", text)


def test_demonstrated_conversations_end_with_the_assistant():
    for demo in islice(stream_conversations(Random(0)), 300):
        assert demo.messages[-1]["role"] == "assistant"
        assert any(message["role"] == "user" for message in demo.messages)


def test_held_out_kinds_are_never_demonstrated():
    held_out = {kind.name for kind in HELD_OUT_KINDS}
    assert not held_out & {kind.name for kind in KINDS}


@pytest.mark.parametrize("text", ["banana", '"after"', "2048", ": after"])
def test_what_a_question_is_about_is_read_by_character(tokenizer, text):
    assert max(len(token) for token in tokenizer.tokenize(text)) <= 2


def test_words_of_instructions_are_read_whole(tokenizer):
    assert len(tokenizer.tokenize("How many letters are in the following word?")) == 9


@given(text=st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_survives_a_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@given(seed=st.integers(0, 10_000))
@settings(max_examples=examples(60), deadline=None)
def test_the_mask_covers_exactly_what_the_assistant_said(tokenizer, seed):
    demo = next(stream_conversations(Random(seed)))
    [(ids, mask)] = encode(tokenizer, render(tokenizer, [demo]))
    said = tokenizer.decode([token for token, chosen in zip(ids, mask, strict=True) if chosen])
    for message in demo.messages:
        if message["role"] == "assistant" and message["content"]:
            assert message["content"] + "<|im_end|>" in said
    assert said.count("<|im_end|>") == sum(message["role"] == "assistant" for message in demo.messages)


def test_the_same_seed_gives_the_same_weights():
    trained = [warm_up(MicroRecipe(steps=2, seed=1), lambda progress: None)[0].state_dict() for _ in range(2)]
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_build_learns_and_writes_its_record(tmp_path):
    record = build(tmp_path, MicroRecipe(steps=30), questions=1)
    assert json.loads((tmp_path / "build.json").read_text()) == record
    assert set(record["means"]) == {"trained", "held_out", "held_out_kinds"}
    assert (tmp_path / "model.safetensors").stat().st_size <= 8_000_000
