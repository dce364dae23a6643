"""A LoRA adapter is trained in place of the weights: frozen base, reference without a copy, exact resume, few bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_models import MakeBatch, MakeModel

from swarm.errors import CheckpointError, EngineFailure
from swarm.job import TrainJob
from swarm.trainer.token_rows import build_rows


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, PeftModel, load_file, AutoModelForCausalLM, Learner, collate, TokenScorer
    global adapter_weights, add_adapter, describe_weights
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from swarm.backends.local.learning.learner import Learner
    from swarm.backends.local.learning.microbatches import collate
    from swarm.backends.local.learning.updater import TokenScorer
    from swarm.backends.local.model.adapter import adapter_weights, add_adapter, describe_weights


JOB = TrainJob(lr=1e-2, lora_rank=4, lora_alpha=8, ppo_epochs=2, mini_batch_num=2, use_kl_loss=True, weight_decay=0.01)


def with_adapter(module: torch.nn.Module, job: TrainJob = JOB) -> torch.nn.Module:
    add_adapter(module, job)
    return module


def base_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in module.named_parameters() if "lora_" not in name}


def train(module: torch.nn.Module, make_batch: MakeBatch, job: TrainJob = JOB, steps: int = 2) -> Learner:
    learner = Learner(module, job)
    for step in range(1, steps + 1):
        assert learner.step(make_batch(seed=step, step=step)).metrics["actor/updates"] > 0
    return learner


def test_only_the_adapter_is_trained_and_it_begins_as_the_base_model(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    plain, module = make_model(), with_adapter(make_model())
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(module(input_ids=ids).logits, plain(input_ids=ids).logits)
    train(module, make_batch)
    left = zip(base_weights(module).values(), plain.parameters(), strict=True)
    assert all(torch.equal(mine, base) for mine, base in left)
    assert not torch.equal(module(input_ids=ids).logits, plain(input_ids=ids).logits)
    assert all(weight.abs().max() > 0 for weight in adapter_weights(module).values())


def test_the_reference_is_the_base_model_to_the_bit_and_no_copy_of_it(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    module = with_adapter(make_model())
    train(module, make_batch)
    rows = build_rows(make_batch())
    advantages_EL = torch.zeros(len(rows), max(row.tokens for row in rows))
    micro = collate(rows, range(len(rows)), advantages_EL, torch.device("cpu"))
    with torch.no_grad():
        by_base = TokenScorer(make_model())(micro).logprobs_N
        policy = TokenScorer(module)
        before = policy(micro).logprobs_N
        assert torch.equal(TokenScorer(module, has_adapter=False)(micro).logprobs_N, by_base)
        assert torch.equal(policy(micro).logprobs_N, before) and not torch.equal(before, by_base)
    assert {name for name, weight in module.named_parameters() if weight.requires_grad} == {
        name for name, _ in module.named_parameters() if "lora_" in name
    }


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_layers_computed_again_give_the_same_weights_to_the_bit(
    make_model: MakeModel, make_batch: MakeBatch, lora_rank: int
) -> None:
    trained: list[torch.Tensor] = []
    for again in (False, True):
        job = JOB.model_copy(update={"lora_rank": lora_rank, "enable_gradient_checkpointing": again})
        module = with_adapter(make_model(), job) if lora_rank else make_model()
        train(module, make_batch, job)
        trained.append(torch.cat([weight.detach().flatten() for weight in module.parameters()]))
    assert torch.equal(*trained)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resumed_training_equals_uninterrupted_training_bit_for_bit(
    make_model: MakeModel, make_batch: MakeBatch, tmp_path: Path, dtype: str
) -> None:
    through = with_adapter(make_model(dtype=dtype))
    learner = train(through, make_batch)
    learner.save(tmp_path / "step-2", step=2, weight_version=2, tokenizer=None)
    learner.step(make_batch(seed=3, step=3))

    resumed = with_adapter(make_model(dtype=dtype))
    second = Learner(resumed, JOB)
    assert second.load(tmp_path / "step-2").step == 2
    second.step(make_batch(seed=3, step=3))
    for name, weight in adapter_weights(resumed).items():
        assert torch.equal(weight, adapter_weights(through)[name]), name
    if dtype == "bfloat16":
        state = torch.load(tmp_path / "step-2" / "trainer_state.pt", weights_only=True)
        assert {master.dtype for master in state["optimizer"]["masters"].values()} == {torch.float32}
        assert len(state["optimizer"]["masters"]) == len(adapter_weights(resumed))


def test_a_checkpoint_holds_the_adapter_alone_and_peft_loads_it(
    make_model: MakeModel, make_batch: MakeBatch, tmp_path: Path
) -> None:
    make_model().save_pretrained(tmp_path / "base")  # pyright: ignore
    module = with_adapter(AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval())
    learner = train(module, make_batch)
    learner.save(tmp_path / "c", step=2, weight_version=2, tokenizer=None)
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {
        "adapter_config.json", "adapter_model.safetensors", "base_model.json", "trainer_state.pt", "manifest.json",
    }  # fmt: skip
    ids = torch.tensor([[1, 2, 3]])
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), str(tmp_path / "c"))
    assert torch.allclose(loaded(input_ids=ids).logits, module(input_ids=ids).logits, atol=1e-6)


def test_a_checkpoint_of_another_kind_adapter_or_base_model_is_refused_and_changes_nothing(
    make_model: MakeModel, make_batch: MakeBatch, tmp_path: Path
) -> None:
    for seed in (0, 1):
        make_model(seed).save_pretrained(tmp_path / f"base-{seed}")  # pyright: ignore
    module = with_adapter(AutoModelForCausalLM.from_pretrained(tmp_path / "base-0").eval())
    train(module, make_batch).save(tmp_path / "lora", step=2, weight_version=2, tokenizer=None)
    job = TrainJob(lr=1e-2)
    train(make_model(), make_batch, job).save(tmp_path / "full", step=2, weight_version=2, tokenizer=None)

    other = with_adapter(AutoModelForCausalLM.from_pretrained(tmp_path / "base-1").eval())
    before = {name: weight.clone() for name, weight in adapter_weights(other).items()}
    with pytest.raises(CheckpointError, match="adapter of another base model"):
        Learner(other, JOB).load(tmp_path / "lora")
    with pytest.raises(CheckpointError, match="holds no adapter"):
        Learner(other, JOB).load(tmp_path / "full")
    larger = JOB.model_copy(update={"lora_rank": 8})
    with pytest.raises(CheckpointError, match="names or shapes differ"):
        Learner(with_adapter(AutoModelForCausalLM.from_pretrained(tmp_path / "base-0").eval(), larger), larger).load(
            tmp_path / "lora"
        )
    with pytest.raises(CheckpointError):
        Learner(make_model(), job).load(tmp_path / "lora")
    assert all(torch.equal(weight, before[name]) for name, weight in adapter_weights(other).items())


def test_a_base_whose_weights_changed_on_the_disk_is_noticed(make_model: MakeModel, tmp_path: Path) -> None:
    make_model(0).save_pretrained(tmp_path / "base")  # pyright: ignore
    before = describe_weights(tmp_path / "base")
    shutil.rmtree(tmp_path / "base")
    make_model(1).save_pretrained(tmp_path / "base")  # pyright: ignore
    assert before.keys() == describe_weights(tmp_path / "base").keys() == {"model.safetensors"}
    assert before != describe_weights(tmp_path / "base")


def test_targets_are_the_modules_that_are_named(make_model: MakeModel, make_batch: MakeBatch, tmp_path: Path) -> None:
    job = JOB.model_copy(update={"lora_target_modules": ["q_proj", "v_proj"]})
    module = with_adapter(make_model(), job)
    assert {name.split(".")[-3] for name in adapter_weights(module)} == {"q_proj", "v_proj"}
    train(module, make_batch, job).save(tmp_path / "c", step=2, weight_version=2, tokenizer=None)
    assert json.loads((tmp_path / "c" / "adapter_config.json").read_text())["r"] == 4
    assert load_file(tmp_path / "c" / "adapter_model.safetensors").keys() == adapter_weights(module).keys()


@pytest.mark.parametrize("targets", [["nonsense"], ["q_proj", "nonsense"]])
def test_a_target_that_the_model_has_not_is_refused_by_name(make_model: MakeModel, targets: list[str]) -> None:
    with pytest.raises(EngineFailure, match=r"lora_target_modules: .* no module 'nonsense'; it has .*q_proj"):
        add_adapter(make_model(), JOB.model_copy(update={"lora_target_modules": targets}))


def test_the_same_seed_gives_the_same_adapter_whatever_was_drawn_before(make_model: MakeModel) -> None:
    first = adapter_weights(with_adapter(make_model()))
    torch.rand(7)
    second = adapter_weights(with_adapter(make_model()))
    other = adapter_weights(with_adapter(make_model(), JOB.model_copy(update={"seed": 1})))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
