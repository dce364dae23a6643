"""A LoRA adapter is trained in place of the weights: frozen base, reference without a copy, few bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from late import Late
from tiny_models import MakeBatch, MakeModel

from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.trainer.token_rows import build_rows

torch, adapters = Late("torch"), Late("swarm.backends.local.model.adapter")
learning, microbatches = (Late(f"swarm.backends.local.learning.{name}") for name in ("learner", "microbatches"))
updating = Late("swarm.backends.local.learning.updater")

JOB = TrainJob(lr=1e-2, lora_rank=4, lora_alpha=8, ppo_epochs=2, mini_batch_num=2, use_kl_loss=True, weight_decay=0.01)


def with_adapter(module: torch.nn.Module, job: TrainJob = JOB) -> torch.nn.Module:
    adapters.add_adapter(module, job)
    return module


def train(module: torch.nn.Module, make_batch: MakeBatch, job: TrainJob = JOB) -> None:
    learner = learning.Learner(module, job)
    for step in (1, 2):
        assert learner.step(make_batch(seed=step, step=step)).metrics["actor/updates"] > 0


def test_only_the_adapter_is_trained_and_the_reference_is_its_base_to_the_bit_and_no_copy(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    plain, module = make_model(), with_adapter(make_model())
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(module(input_ids=ids).logits, plain(input_ids=ids).logits)
    train(module, make_batch)
    base = [weight for name, weight in module.named_parameters() if "lora_" not in name]
    assert all(torch.equal(*pair) for pair in zip(base, plain.parameters(), strict=True))
    assert not any(weight.requires_grad for weight in base)
    assert all(weight.abs().max() > 0 for weight in adapters.adapter_weights(module).values())
    rows = build_rows(make_batch())
    advantages_EL = torch.zeros(len(rows), max(row.tokens for row in rows))
    micro = microbatches.collate(rows, range(len(rows)), advantages_EL, torch.device("cpu"))
    with torch.no_grad():
        by_base = updating.TokenScorer(plain)(micro).logprobs_N
        policy = updating.TokenScorer(module)
        before = policy(micro).logprobs_N
        assert torch.equal(updating.TokenScorer(module, has_adapter=False)(micro).logprobs_N, by_base)
        assert torch.equal(policy(micro).logprobs_N, before) and not torch.equal(before, by_base)


def test_a_base_whose_weights_changed_on_the_disk_is_noticed(make_model: MakeModel, tmp_path: Path) -> None:
    make_model(0).save_pretrained(tmp_path / "base")  # pyright: ignore
    before = adapters.describe_weights(tmp_path / "base")
    shutil.rmtree(tmp_path / "base")
    make_model(1).save_pretrained(tmp_path / "base")  # pyright: ignore
    assert before.keys() == adapters.describe_weights(tmp_path / "base").keys() == {"model.safetensors"}
    assert before != adapters.describe_weights(tmp_path / "base")


def test_targets_are_the_modules_that_are_named(make_model: MakeModel, make_batch: MakeBatch) -> None:
    job = JOB.model_copy(update={"lora_target_modules": ["q_proj", "v_proj"]})
    module = with_adapter(make_model(), job)
    assert {name.split(".")[-3] for name in adapters.adapter_weights(module)} == {"q_proj", "v_proj"}
    train(module, make_batch, job)


@pytest.mark.parametrize("targets", [["nonsense"], ["q_proj", "nonsense"]])
def test_a_target_that_the_model_has_not_is_refused_by_name(make_model: MakeModel, targets: list[str]) -> None:
    with pytest.raises(EngineFailure, match=r"lora_target_modules: .* no module 'nonsense'; it has .*q_proj"):
        adapters.add_adapter(make_model(), JOB.model_copy(update={"lora_target_modules": targets}))


def test_the_same_seed_gives_the_same_adapter_whatever_was_drawn_before(make_model: MakeModel) -> None:
    first = adapters.adapter_weights(with_adapter(make_model()))
    torch.rand(7)
    second = adapters.adapter_weights(with_adapter(make_model()))
    other = adapters.adapter_weights(with_adapter(make_model(), JOB.model_copy(update={"seed": 1})))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
