"""The second bundled base model: small, loadable by the standard classes, found by its name, right now and then."""

from __future__ import annotations

import json
import math

import pytest

from swarm.backends.grammar import GrammarCompiler
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORIES, read_stop_ids, read_tokenizer, resolve_model
from swarm.tasks import CALCULATOR, task_family
from swarm.tracker.codec import Codec
from swarm.types import SamplingParams, ToolChoice, ToolMode


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, AutoModelForCausalLM, AutoTokenizer, PARTS, mean_score, score, evaluate, sample_replies
    global BatchingLimits, BatchSampler
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from recipes.micro.score import PARTS, mean_score, score
    from recipes.nano.score import evaluate, sample_replies
    from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler


DIRECTORY = BUNDLED_DIRECTORIES["micro"]
QUESTIONS = 1


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(DIRECTORY)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(DIRECTORY, dtype=torch.float32).eval()


def reply(model, tokenizer, content, **fields):
    request = {"messages": [{"role": "user", "content": content}], "max_tokens": 48, **fields}
    return sample_replies(model, tokenizer, [request], 0.0)[0]


def test_a_job_finds_the_model_by_its_name():
    job = TrainJob(model="micro").resolve()
    assert resolve_model(job.model) == DIRECTORY
    assert (DIRECTORY / "model.safetensors").stat().st_size <= 8_000_000
    assert job.engine == "local"
    assert job.lr == 1e-3


def test_it_answers_and_answers_the_same_again(model, tokenizer):
    replies = [reply(model, tokenizer, "Repeat: apple")["content"] for _ in range(2)]
    assert replies == ["apple", "apple"]


def test_a_call_that_it_is_made_to_give_is_whole(model):
    codec, tokenizer = Codec.load(DIRECTORY), read_tokenizer(DIRECTORY)
    ends, size = sorted(read_stop_ids(DIRECTORY, tokenizer)), tokenizer.get_vocab_size()
    grammars = GrammarCompiler(tokenizer, size, ends)
    sampler = BatchSampler(model, BatchingLimits(512, size, 16), ends, tokenizer.decode, grammars=grammars)
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


def test_it_solves_some_bundled_tasks_and_not_all(model, tokenizer):
    assert 0.0 < evaluate(model, tokenizer, task_family("copy"), count=50, temperature=1.0) < 1.0


@pytest.mark.slow
def test_the_recorded_accuracies_are_measured_again(model, tokenizer):
    record = json.loads((DIRECTORY / "build.json").read_text())
    measured = score(model, tokenizer, count=QUESTIONS, temperature=1.0, seed=2)
    for part in PARTS:
        recorded = record["means"][part]
        questions = QUESTIONS * len(measured[part])
        # Four standard errors of a mean over so many questions; the kinds' own differences make it smaller still.
        margin = 4 * math.sqrt(recorded * (1 - recorded) / questions)
        assert mean_score(measured, part) == pytest.approx(recorded, abs=margin)
