"""The recipe that builds nano: honest demonstrations, exact masks, deterministic training."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from recipes.nano.demos import demonstrate, stream_demos
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.tasks import TASK_FAMILIES, Split, split_of, task_family


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, encode, render, NanoRecipe, make_tokenizer, warm_up
    import torch

    from recipes.nano.vocabulary import encode, render
    from recipes.nano.warmup import NanoRecipe, make_tokenizer, warm_up


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def test_demonstrations_come_from_the_train_split_only():
    words = set()
    demos = stream_demos({"reverse": 1}, Random(0), lambda _: 0.5)
    for demo in islice(demos, 500):
        words.add(demo.messages[0]["content"].removeprefix("Reverse: "))
    assert {split_of(word) for word in words} == {Split.TRAIN}


@given(name=st.sampled_from(list(TASK_FAMILIES)), seed=st.integers(0, 10_000), quality=st.floats(0, 1))
@settings(max_examples=examples(60), deadline=None)
def test_the_mask_covers_exactly_what_the_assistant_sampled(tokenizer, name, seed, quality):
    family = task_family(name)
    demo = demonstrate(family, family.tasks(Split.TRAIN, 1, seed=seed)[0], Random(seed), quality)
    [(ids, mask)] = encode(tokenizer, render(tokenizer, [demo]))
    expected = ""
    for index, message in enumerate(demo.messages):
        if message["role"] == "assistant":
            history = render_text(tokenizer, demo, index, add_generation_prompt=True)
            expected += render_text(tokenizer, demo, index + 1).removeprefix(history).removesuffix("\n")
    assert tokenizer.decode([token for token, chosen in zip(ids, mask, strict=True) if chosen]) == expected


def render_text(tokenizer, demo, length, **options):
    tools = list(demo.tools) or None
    return tokenizer.apply_chat_template(list(demo.messages[:length]), tools=tools, tokenize=False, **options)


def test_the_same_seed_gives_the_same_weights():
    trained = [warm_up(NanoRecipe(steps=3, seed=1), lambda progress: None)[0].state_dict() for _ in range(2)]
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def build(out, *options):
    command = [sys.executable, "-m", "recipes.nano.build", "--out", str(out), *options]
    subprocess.run(command, capture_output=True, timeout=1500, check=True)
    return json.loads((out / "build.json").read_text()), hashlib.sha256((out / "model.safetensors").read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_script_reproduces_the_bundled_model_s_accuracies(tmp_path):
    bundled = json.loads((BUNDLED_DIRECTORY / "build.json").read_text())["accuracies"]
    rebuilt = build(tmp_path / "rebuilt")[0]["accuracies"]
    # Other processors round otherwise, and the skills then differ as between seeds; on one kind they are equal.
    for name, accuracies in bundled.items():
        assert rebuilt[name]["sampled"] == pytest.approx(accuracies["sampled"], abs=0.15)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_builds_on_one_machine_give_the_same_bytes(tmp_path):
    digests = [build(tmp_path / str(attempt), "--steps", "60")[1].hexdigest() for attempt in range(2)]
    assert digests[0] == digests[1]
