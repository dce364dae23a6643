"""Supervised steps: which demonstrations they train, with which gradient, and what a demonstration becomes."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from late import Late
from tiny_models import MakeBatch, MakeModel

from swarm.demonstrations import parse_demonstrations
from swarm.errors import BadRequest
from swarm.job import TrainJob
from swarm.model_path import resolve_model
from swarm.tracker.codec import Codec
from swarm.tracker.supervised import encode_demonstrations
from swarm.trainer.schedule import draw_demonstrations, learning_rate, split_demonstrations
from swarm.trainer.supervision import Supervision
from swarm.types import FinishedEpisode, TrainBatch

torch, learning, plain = Late("torch"), Late("swarm.backends.local.learning.learner"), Late("plain_gradients")

JOB = TrainJob(
    demonstrations="sha256:0", sft_steps=2, sft_lr=1e-2, lr=1e-3, ppo_max_token_len=64, sft_coeff=0.5, seed=3
)
FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


def episodes_of(batch: TrainBatch) -> tuple[FinishedEpisode, ...]:
    return tuple(replace(each, reward=1.0) for each in batch.episodes)


def mean_loss(module: Any, episodes: tuple[FinishedEpisode, ...]) -> Any:
    """The definition: the mean over all trained tokens of -log p(token | the tokens before it)."""
    terms = []
    for sample in (sample for each in episodes for sample in each.samples):
        logits = module(input_ids=torch.tensor([sample.token_ids_T])).logits[0].double()
        logprobs = torch.log_softmax(logits, dim=-1)
        terms += [
            -logprobs[place - 1, sample.token_ids_T[place]]
            for place, is_trained in enumerate(sample.loss_mask_T)
            if is_trained
        ]
    return torch.stack(terms).mean()


@pytest.mark.parametrize("merged", [True, False])
def test_gradient_of_the_supervised_loss_is_that_of_its_definition(
    make_model: MakeModel, make_batch: MakeBatch, merged: bool
) -> None:
    demonstrations = episodes_of(make_batch(merged=merged))
    module = make_model()
    learner = learning.Learner(module, JOB)
    measured = learner._updater.accumulate_supervised(learning.build_demonstration_rows(demonstrations), 1.0)
    found = plain.flat_gradient(module)

    module.zero_grad()
    loss = mean_loss(module, demonstrations)
    loss.backward()
    assert plain.relative_error(found, plain.flat_gradient(module)) < 1e-5
    assert measured is not None and measured.read()["sft/loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_a_supervised_term_adds_its_share_to_the_gradient_of_the_rewards(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    batch, demonstrations = make_batch(), episodes_of(make_batch(seed=1))
    _, of_rewards = plain.learner_gradient(make_model(), JOB, batch)
    module = make_model()
    mean_loss(module, demonstrations).backward()
    expected = of_rewards + JOB.sft_coeff * plain.flat_gradient(module)

    trained, gradients = make_model(), []
    learner = learning.Learner(trained, JOB)
    learner._optimizer.update = lambda lr: gradients.append(plain.flat_gradient(trained)) or 1.0
    learner.step(replace(batch, step=3, demonstrations=demonstrations))
    assert plain.relative_error(gradients[0], expected) < 1e-5


def test_a_run_of_both_stages_resumes_bit_for_bit_and_forgets_the_moments_between_them(
    make_model: MakeModel, make_batch: MakeBatch, tmp_path: Path
) -> None:
    supervision = Supervision.of(JOB.resolve(), episodes_of(make_batch(seed=5)))
    batches = [
        supervision.complete(
            TrainBatch("", step, ()) if JOB.is_supervised(step) else make_batch(seed=step, step=step), JOB.resolve()
        )
        for step in range(1, 5)
    ]
    models = [make_model() for _ in range(3)]
    through, first, second = (learning.Learner(model, JOB) for model in models)
    reports = [through.step(batch) for batch in batches]
    for batch in batches[:2]:
        first.step(batch)
    first.save(tmp_path / "step-2", step=2, weight_version=2, tokenizer=None)
    second.load(tmp_path / "step-2")
    for batch in batches[2:]:
        second.step(batch)

    one, other = (torch.cat([weight.flatten() for weight in model.parameters()]) for model in (models[0], models[2]))
    assert torch.equal(one, other)
    assert all("sft/held_out_loss" in report.metrics for report in reports[:2])
    assert all("sft/loss" in report.metrics for report in reports)
    steps = {float(state["step"]) for state in through._optimizer.state()["adamw"].values()}
    assert steps == {2.0}, "the moments are those of the two steps on rewards alone"


def test_every_demonstration_is_trained_once_before_one_is_trained_again() -> None:
    job = TrainJob(demonstrations="sha256:0", sft_steps=30, sft_batch_size=7, seed=1)
    trained, held_out = split_demonstrations(23, job)
    assert sorted([*trained, *held_out]) == list(range(23)) and len(held_out) == 2
    drawn = [number for step in range(1, 31) for number in draw_demonstrations(21, job, step)]
    for begin in range(0, 210, 21):
        assert sorted(drawn[begin : begin + 21]) == list(range(21))
    assert drawn[:21] != drawn[21:42] and Counter(drawn).most_common(1)[0][1] == 10
    assert split_demonstrations(1, job) == ([0], [])


def test_rates_of_both_stages() -> None:
    job = TrainJob(
        demonstrations="sha256:0", sft_steps=3, sft_lr=0.5, lr=0.1, lr_warmup_steps=2, total_steps=7,
        lr_scheduler_type="linear",
    ).resolve()  # fmt: skip
    assert [learning_rate(job, step) for step in range(1, 8)] == pytest.approx([0.5, 0.5, 0.5, 0.05, 0.1, 0.1, 0.05])


def line(*messages: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"messages": list(messages), **more}).encode()


ASK, SAY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no demonstration"),
        (b"\n\n", "holds no demonstration"),
        (line(ASK, SAY) + b"\n{", "line 2: no JSON"),
        (b"[]", "line 1: "),
        (b"\xff", "line 1: no JSON"),
        (line(ASK, SAY, prompt="x"), "unknown field prompt"),
        (line(ASK), "messages"),
        (line(ASK, ASK), "no message of the assistant"),
        (line(ASK, {**SAY, "weight": 0}), "no message of the assistant"),
        (line(ASK, {**SAY, "weight": 0.5}), "weight"),
        (line(SAY, ASK), "the first message is the assistant's"),
        (line(ASK, {"role": "assistant", "content": ""}), "needs content or tool_calls"),
        (line(ASK, {"role": "bot", "content": "x"}), "messages.1.role"),
        (line(ASK, {"role": "assistant", "tool_calls": [{"id": "1"}]}), "function"),
        (line(ASK, SAY, tools=[{"name": "find"}]), "tools.0.function"),
    ],
)
def test_a_line_that_is_no_demonstration_is_refused_by_its_number(content: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_demonstrations(content)
    assert says in refused.value.message


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.load(resolve_model("micro"))


def texts(codec: Codec, content: bytes) -> list[tuple[str, str]]:
    """The whole text and the trained text of each sample."""
    return [
        (
            codec.raw_text(sample.token_ids_T),
            codec.raw_text([t for t, m in zip(sample.token_ids_T, sample.loss_mask_T, strict=True) if m]),
        )
        for each in encode_demonstrations(codec, parse_demonstrations(content))
        for sample in each.samples
    ]


def test_replies_are_trained_with_the_token_that_ends_them_and_nothing_else(codec: Codec) -> None:
    [(whole, trained)] = texts(
        codec, line(ASK, SAY, {"role": "user", "content": "Bye"}, {**SAY, "content": "So long\n"})
    )

    assert trained == "Hello!<|im_end|>So long\n<|im_end|>"
    assert whole.endswith("<|im_start|>assistant\nSo long\n<|im_end|>")
    [(_, second)] = texts(codec, line(ASK, {**SAY, "weight": 0}, ASK, {**SAY, "content": "Again"}))
    assert second == "Again<|im_end|>"


def test_the_prompt_of_a_demonstration_is_the_prompt_that_the_service_samples_from(codec: Codec) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"name": "Bob"}'}}
    messages = (ASK, {"role": "assistant", "content": None, "tool_calls": [call]})
    [demonstration] = encode_demonstrations(codec, parse_demonstrations(line(*messages, tools=[FIND])))
    [sample] = demonstration.samples
    prompt = codec.render([ASK], [FIND])

    assert sample.token_ids_T[: len(prompt)] == prompt and not any(sample.loss_mask_T[: len(prompt)])
    reply = codec.parse_reply(sample.token_ids_T[len(prompt) :], [FIND], turn_index=0)
    assert reply["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"name": "Bob"}'}


def test_tools_that_a_chat_template_leaves_out_are_refused(tmp_path: Path) -> None:
    model = shutil.copytree(resolve_model("nano"), tmp_path / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    (model / "chat_template.jinja").unlink(missing_ok=True)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(BadRequest, match="demonstration-1: the model's chat template does not show the tool find"):
        encode_demonstrations(Codec.load(model), parse_demonstrations(line(ASK, SAY, tools=[FIND])))
