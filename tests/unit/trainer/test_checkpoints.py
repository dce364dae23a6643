"""Checkpoints of either trainer: bit-exact resume, a layout that libraries load, and no half-written one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from late import Late
from tiny_models import MakeBatch, MakeModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from swarm.errors import CheckpointError
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.trainer.checkpoint_files import CheckpointInfo
from swarm.types import TrainBatch

torch, transformers = Late("torch"), Late("transformers")
learning, adapters = Late("swarm.backends.local.learning.learner"), Late("swarm.backends.local.model.adapter")
verl = Late("swarm.backends.verl.driver.checkpoint")

JOB = TrainJob(lr=1e-2, lr_warmup_steps=3, mini_batch_num=2, ppo_epochs=2, use_kl_loss=True, weight_decay=0.01)
LORA = JOB.model_copy(update={"lora_rank": 4, "lora_alpha": 8})
GAE = TrainJob(algorithm="gae", lr=1e-3, critic_lr=1e-2, mini_batch_num=2, ppo_epochs=2)


def prepared(model: torch.nn.Module, job: TrainJob) -> torch.nn.Module:
    if job.lora_rank:
        adapters.add_adapter(model, job)
    return model


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone().float() for weight in module.parameters()])


def save(learner: Any, directory: Path, step: int, tokenizer: Any = None) -> Path:
    learner.save(directory, step=step, weight_version=step, tokenizer=tokenizer)
    return directory


@pytest.mark.parametrize(
    ("job", "dtype"),
    [(JOB, "float32"), (JOB, "bfloat16"), (LORA, "float32"), (LORA, "bfloat16"), (GAE, "float32")],
    ids=["full", "full-bfloat16", "lora", "lora-bfloat16", "critic"],
)
def test_resumed_training_equals_uninterrupted_training_bit_for_bit(
    make_model: MakeModel, make_batch: MakeBatch, tmp_path: Path, job: TrainJob, dtype: str
) -> None:
    models = [prepared(make_model(dtype=dtype), job) for _ in range(3)]
    through, first, second = (learning.Learner(model, job) for model in models)
    batches: list[TrainBatch] = [make_batch(seed=step, step=step, merged=step != 4) for step in range(1, 5)]
    reports = [through.step(batch) for batch in batches]
    for batch in batches[:2]:
        first.step(batch)
    info = second.load(save(first, tmp_path / "step-2", 2))
    assert (info.step, info.weight_version) == (2, 2)
    again = [second.step(batch) for batch in batches[2:]]
    assert torch.equal(weights(models[2]), weights(models[0]))
    for report, other in zip(reports[2:], again, strict=True):
        assert report.advantages == other.advantages
        assert report.metrics.get("critic/vf_loss") == other.metrics.get("critic/vf_loss")
    if dtype == "bfloat16":
        masters = torch.load(tmp_path / "step-2" / "trainer_state.pt", weights_only=True)["optimizer"]["masters"]
        assert {master.dtype for master in masters.values()} == {torch.float32}
        assert len(masters) == sum(weight.requires_grad for weight in models[0].parameters())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words)


@pytest.fixture
def saved(make_model: MakeModel, make_batch: MakeBatch, tokenizer: Any, tmp_path: Path) -> Path:
    learner = learning.Learner(make_model(), JOB)
    learner.step(make_batch())
    return save(learner, tmp_path / "step-1", 1, tokenizer)


def test_transformers_loads_weights_and_tokenizer_and_the_sampler_keeps_its_parameters(
    make_model: MakeModel, saved: Path
) -> None:
    model = make_model(seed=3)
    shared = [weight.data_ptr() for weight in model.parameters()]
    learning.Learner(model, JOB).load(saved)
    assert [weight.data_ptr() for weight in model.parameters()] == shared
    loaded = transformers.AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32)
    assert torch.equal(weights(loaded), weights(model))
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert transformers.AutoTokenizer.from_pretrained(saved).get_vocab() == {"a": 0, "b": 1}
    assert TrainJob.model_validate(json.loads((saved / "manifest.json").read_text())["job"]) == JOB.resolve()


@dataclass
class Kind:
    """A checkpoint of one trainer. `load` may change `state`, unless it refuses."""

    directory: Path
    files: list[str]
    load: Callable[[], object]
    state: Callable[[], object] = lambda: None


@pytest.fixture(params=["local", "verl"])
def kind(request: pytest.FixtureRequest, make_model: MakeModel, tmp_path: Path) -> Kind:
    if request.param == "verl":
        directory = write_shards(tmp_path / "step-1")
        files = ["model.safetensors", "actor/model_world_size_2_rank_1.pt"]
        return Kind(directory, files, lambda: verl.read_checkpoint(directory, origin()))
    directory, model = request.getfixturevalue("saved"), make_model(seed=3)
    files = ["model.safetensors", "trainer_state.pt", "config.json"]
    return Kind(directory, files, lambda: learning.Learner(model, JOB).load(directory), lambda: weights(model).tolist())


def test_incomplete_damaged_and_foreign_checkpoints_are_refused_by_name_and_change_nothing(kind: Kind) -> None:
    before, manifest = kind.state(), kind.directory / "manifest.json"

    def refused(reason: str) -> None:
        with pytest.raises(CheckpointError, match=reason) as caught:
            kind.load()
        assert "\n" not in caught.value.message
        assert kind.state() == before

    for name in kind.files:
        path, content = kind.directory / name, bytearray((kind.directory / name).read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
        refused(f"damaged: {name}")
        path.unlink()
        refused(f"{name} is missing")
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
    for text, reason in (("{", "not valid JSON"), ("[]", "another trainer"), ('{"format": 9}', "another trainer")):
        manifest.write_text(text)
        refused(reason)
    manifest.unlink()
    refused("not a complete checkpoint: manifest.json")
    shutil.rmtree(kind.directory)
    refused("not a complete checkpoint")


def test_a_checkpoint_of_another_model_is_refused(make_model: MakeModel, saved: Path) -> None:
    model = make_model(hidden_size=16, num_hidden_layers=1)
    before = weights(model)
    with pytest.raises(CheckpointError, match="another model"):
        learning.Learner(model, JOB).load(saved)
    assert torch.equal(weights(model), before)


def test_saving_again_replaces_the_checkpoint_and_a_failing_write_keeps_it(
    make_model: MakeModel, make_batch: MakeBatch, saved: Path, tokenizer: Any
) -> None:
    class FullDisk:
        def save_pretrained(self, save_directory: str) -> object:
            raise OSError(28, "No space left on device")

    (saved.parent / ".step-1.draft").mkdir()
    (saved.parent / ".step-1.draft" / "rest-of-a-killed-write").touch()
    learner = learning.Learner(make_model(), JOB)
    learner.load(saved)
    learner.step(make_batch(step=2))
    save(learner, saved, 2, tokenizer)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(learner, saved, 9, FullDisk())
    assert learner.load(saved).step == 2
    assert [path.name for path in saved.parent.iterdir()] == ["step-1"]


def test_a_checkpoint_without_a_critic_begins_a_new_one_from_its_policy(
    make_model: MakeModel, make_batch: MakeBatch, saved: Path
) -> None:
    norms = []
    for used_before in (False, True):
        learner = learning.Learner(make_model(), GAE)
        if used_before:
            learner.step(make_batch())
        learner.load(saved)
        norms.append(learner.step(make_batch(step=2)).metrics["critic/grad_norm"])
    assert norms[0] == norms[1]


def test_a_checkpoint_of_an_adapter_holds_it_alone_and_peft_loads_it_on_its_own_base_only(
    make_model: MakeModel, make_batch: MakeBatch, saved: Path, tmp_path: Path
) -> None:
    bases = [tmp_path / f"base-{seed}" for seed in (0, 1)]
    for seed, base in enumerate(bases):
        make_model(seed).save_pretrained(base)  # pyright: ignore

    def load_base(number: int) -> torch.nn.Module:
        return transformers.AutoModelForCausalLM.from_pretrained(bases[number]).eval()

    module = prepared(load_base(0), LORA)
    learner = learning.Learner(module, LORA)
    learner.step(make_batch())
    directory = save(learner, tmp_path / "lora", 1)
    assert {path.name for path in directory.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "base_model.json", "trainer_state.pt", "manifest.json",
    }  # fmt: skip
    ids = torch.tensor([[1, 2, 3]])
    loaded = Late("peft").PeftModel.from_pretrained(load_base(0), str(directory))
    assert torch.allclose(loaded(input_ids=ids).logits, module(input_ids=ids).logits, atol=1e-6)

    other, larger = prepared(load_base(1), LORA), LORA.model_copy(update={"lora_rank": 8})
    before = weights(other)
    for model, job, found, reason in (
        (other, LORA, directory, "adapter of another base model"),
        (other, LORA, saved, "holds no adapter"),
        (prepared(load_base(0), larger), larger, directory, "names or shapes differ"),
        (make_model(), JOB, directory, "of another model"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            learning.Learner(model, job).load(found)
    assert torch.equal(weights(other), before)


def origin() -> Any:
    return verl.CheckpointOrigin.of(BUNDLED_DIRECTORY, strategy="fsdp2", ranks=2, lora_rank=0, has_critic=False)


def save_shards(draft: Path) -> None:
    (draft / "actor").mkdir()
    for rank in range(2):
        (draft / "actor" / f"model_world_size_2_rank_{rank}.pt").write_bytes(bytes([rank]) * 100)
    (draft / "model.safetensors").write_bytes(b"weights")


def write_shards(directory: Path, save: Callable[[Path], None] = save_shards, step: int = 7) -> Path:
    verl.write_checkpoint(
        directory,
        origin=origin(),
        info=CheckpointInfo(step, step + 1),
        job={"lr": 1.0},
        model_directory=BUNDLED_DIRECTORY,
        save=save,
    )
    return directory


def test_a_sharded_checkpoint_is_read_lies_as_a_hugging_face_model_and_survives_a_failing_write(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "step")
    assert verl.read_checkpoint(directory, origin()) == CheckpointInfo(step=7, weight_version=8)
    assert (directory / "model.safetensors").read_bytes() == b"weights", "the trained weights, not the base's"
    assert (directory / "tokenizer.json").is_file() and (directory / "config.json").is_file()

    def fail(draft: Path) -> None:
        save_shards(draft)
        raise OSError("no space left on device")

    with pytest.raises(CheckpointError, match="no space left"):
        write_shards(directory, fail, step=9)
    assert verl.read_checkpoint(directory, origin()).step == 7
    assert [path.name for path in tmp_path.iterdir()] == ["step"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ranks": 4}, "ranks 2, and the job has ranks 4"),
        ({"strategy": "megatron"}, "strategy fsdp2, and the job has strategy megatron"),
        ({"lora_rank": 8}, "lora_rank 0"),
        ({"has_critic": True}, "has_critic False"),
        ({"model": "another"}, "of another model"),
    ],
)
def test_a_sharded_checkpoint_of_another_trainer_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        verl.read_checkpoint(write_shards(tmp_path / "step"), replace(origin(), **change))


def test_the_origin_of_a_sharded_checkpoint_tells_models_apart_wherever_they_lie(tmp_path: Path) -> None:
    other = Path(shutil.copytree(BUNDLED_DIRECTORY, tmp_path / "other"))
    same = verl.CheckpointOrigin.of(other, strategy="fsdp2", ranks=2, lora_rank=0, has_critic=False)
    assert same == origin()
    config = other / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": 128', '"hidden_size": 64'))
    assert verl.CheckpointOrigin.of(other, strategy="fsdp2", ranks=2, lora_rank=0, has_critic=False) != origin()
