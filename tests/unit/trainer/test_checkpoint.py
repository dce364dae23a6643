"""Checkpoints: bit-exact resume, a layout that transformers loads, and no half-written one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import MakeBatch, MakeModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from swarm.errors import CheckpointError
from swarm.job import TrainJob


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Learner
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config

    from swarm.backends.local.learning.learner import Learner


JOB = TrainJob(lr=1e-2, lr_warmup_steps=3, mini_batch_num=2, ppo_epochs=2, use_kl_loss=True, weight_decay=0.01)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")))


@pytest.fixture
def saved(make_model: MakeModel, make_batch: MakeBatch, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    learner = Learner(make_model(), JOB)
    learner.step(make_batch())
    learner.save(tmp_path / "step-1", step=1, weight_version=1, tokenizer=tokenizer)
    return tmp_path / "step-1"


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone().float() for weight in module.parameters()])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resumed_training_equals_uninterrupted_training_bit_for_bit(
    make_model: MakeModel,
    make_batch: MakeBatch,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    dtype: str,
) -> None:
    batches = [make_batch(seed=step, step=step) for step in range(1, 6)]
    through = make_model(dtype=dtype)
    learner = Learner(through, JOB)
    for batch in batches:
        learner.step(batch)

    first = Learner(make_model(dtype=dtype), JOB)
    for batch in batches[:2]:
        first.step(batch)
    first.save(tmp_path / "step-2", step=2, weight_version=2, tokenizer=tokenizer)
    resumed = make_model(dtype=dtype)
    second = Learner(resumed, JOB)
    info = second.load(tmp_path / "step-2")
    assert (info.step, info.weight_version) == (2, 2)
    for batch in batches[2:]:
        second.step(batch)
    assert torch.equal(weights(resumed), weights(through))


def test_transformers_loads_weights_and_tokenizer(
    make_model: MakeModel, make_batch: MakeBatch, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = make_model()
    learner = Learner(model, JOB)
    learner.step(make_batch())
    learner.save(tmp_path / "c", step=1, weight_version=1, tokenizer=tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "c", dtype=torch.float32)
    assert torch.equal(weights(loaded), weights(model))
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "c").get_vocab() == {"a": 0, "b": 1}
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert TrainJob.model_validate(manifest["job"]) == JOB.resolve()


def test_loading_keeps_the_parameters_that_the_sampler_shares(make_model: MakeModel, saved: Path) -> None:
    model = make_model(seed=3)
    shared = [weight.data_ptr() for weight in model.parameters()]
    Learner(model, JOB).load(saved)
    assert [weight.data_ptr() for weight in model.parameters()] == shared


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.pt", "config.json", "manifest.json"])
def test_an_incomplete_checkpoint_is_refused_and_changes_nothing(make_model: MakeModel, saved: Path, name: str) -> None:
    (saved / name).unlink()
    model = make_model()
    before = weights(model)
    with pytest.raises(CheckpointError, match=name) as caught:
        Learner(model, JOB).load(saved)
    assert "\n" not in caught.value.message
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.pt"])
def test_a_damaged_file_is_refused_by_name(make_model: MakeModel, saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=f"damaged: {name}"):
        Learner(make_model(), JOB).load(saved)


def test_a_manifest_that_is_not_ours_is_refused(make_model: MakeModel, saved: Path) -> None:
    for text, reason in (("{", "not valid JSON"), ("[]", "another trainer"), ('{"format": 9}', "another trainer")):
        (saved / "manifest.json").write_text(text)
        with pytest.raises(CheckpointError, match=reason):
            Learner(make_model(), JOB).load(saved)


def test_a_directory_that_does_not_exist_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        Learner(make_model(), JOB).load(tmp_path / "nowhere")


def test_a_checkpoint_of_another_model_is_refused(make_model: MakeModel, saved: Path) -> None:
    model = make_model(hidden_size=16, num_hidden_layers=1)
    before = weights(model)
    with pytest.raises(CheckpointError, match="another model"):
        Learner(model, JOB).load(saved)
    assert torch.equal(weights(model), before)


def test_saving_again_replaces_the_checkpoint_and_leaves_nothing_beside_it(
    make_model: MakeModel, make_batch: MakeBatch, saved: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    (saved.parent / ".step-1.draft").mkdir()
    (saved.parent / ".step-1.draft" / "rest-of-a-killed-write").touch()
    learner = Learner(make_model(), JOB)
    learner.load(saved)
    learner.step(make_batch(step=2))
    learner.save(saved, step=2, weight_version=2, tokenizer=tokenizer)
    assert learner.load(saved).step == 2
    assert [path.name for path in saved.parent.iterdir()] == ["step-1"]


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(
    make_model: MakeModel, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="was not written"):
        Learner(make_model(), JOB).save(tmp_path / "file" / "c", step=1, weight_version=1, tokenizer=tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failing_write_keeps_the_checkpoint_that_was_there(make_model: MakeModel, saved: Path) -> None:
    class FullDisk:
        def save_pretrained(self, save_directory: str) -> object:
            raise OSError(28, "No space left on device")

    model = make_model()
    learner = Learner(model, JOB)
    learner.load(saved)
    with pytest.raises(CheckpointError, match="No space left on device"):
        learner.save(saved, step=9, weight_version=9, tokenizer=FullDisk())
    assert learner.load(saved).step == 1
    assert [path.name for path in saved.parent.iterdir()] == ["step-1"]
