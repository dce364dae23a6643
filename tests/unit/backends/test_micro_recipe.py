"""The recipe that builds micro: right answers, wordings held out, a tokenizer that knows all text, the same bytes."""

from __future__ import annotations

import json
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.micro.kinds import HELD_OUT_KINDS, KINDS
from recipes.micro.wording import ask, ask_again, wordings


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, build, make_tokenizer, MicroRecipe, warm_up
    import torch

    from recipes.micro.build import build
    from recipes.micro.vocabulary import make_tokenizer
    from recipes.micro.warmup import MicroRecipe, warm_up


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


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


@given(text=st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_survives_a_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


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
