"""`swarm export`: the weights of a run as a folder that transformers loads, and one clear line for what cannot be."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from swarm.backends.fake import FakeSampler, FakeTrainer
from swarm.cli import app
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY

if TYPE_CHECKING:
    from local_runs import Drawn

    from swarm.backends.process.worker_process import WorkerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, load_file, save_file, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, largest_gap, local_run
    global build_worker, CheckpointOrigin, write_checkpoint
    import torch
    from local_runs import largest_gap, local_run
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from swarm.backends.local.engine import build_worker
    from swarm.backends.verl.driver.checkpoint import CheckpointOrigin, write_checkpoint


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass(frozen=True)
class Trained:
    """A home with checkpoints of two steps, and what the sampler said at the later one."""

    home: Path
    drawn: list[Drawn]


@pytest.fixture(scope="module")
async def worker(
    late_imports: None, anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[WorkerProcess]:
    """One process for both runs, which come one after the other."""
    worker = build_worker(ServerConfig(), tmp_path_factory.mktemp("worker") / "worker.log")
    yield worker
    await worker.stop()


@pytest.fixture(scope="module")
async def trained(worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trained]:
    home = tmp_path_factory.mktemp("home")
    async with local_run(home, worker, project_name="shop", experiment_name="third/try") as run:
        await run.train(1, 1)
        await run.save(home, 1)
        await run.train(2, 2)
        await run.save(home, 2)
        yield Trained(home, await run.draw())


@pytest.fixture(scope="module")
async def adapted(worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trained]:
    """The same of a run with an adapter."""
    home = tmp_path_factory.mktemp("lora")
    async with local_run(home, worker, lora_rank=8, lr=0.03) as run:
        for metrics in await run.train(1, 3):
            assert metrics["training/rollout_logprob_gap_max"] < 1e-5
        await run.save(home, 3)
        yield Trained(home, await run.draw())


def export(trained: Trained, *words: str) -> Result:
    return CliRunner().invoke(app, ["export", "--home", str(trained.home), *words])


async def test_the_exported_model_says_of_every_token_what_the_sampler_said(trained: Trained, tmp_path: Path) -> None:
    done = export(trained, "shop/third/try", str(tmp_path / "out"), "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["step"], figures["dtype"], figures["directory"]) == (2, "float32", str(tmp_path / "out"))
    assert figures["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert largest_gap(tmp_path / "out", trained.drawn) < 1e-4
    assert largest_gap(BUNDLED_DIRECTORY, trained.drawn) > 1e-3


async def test_tokenizer_template_and_generation_settings_come_with_it(trained: Trained, tmp_path: Path) -> None:
    assert export(trained, str(tmp_path / "out")).exit_code == 0
    chat = [{"role": "user", "content": "Reverse: abc"}]
    own, base = (AutoTokenizer.from_pretrained(place) for place in (tmp_path / "out", BUNDLED_DIRECTORY))
    assert own.apply_chat_template(chat, tokenize=False) == base.apply_chat_template(chat, tokenize=False)
    ends = [GenerationConfig.from_pretrained(place).eos_token_id for place in (tmp_path / "out", BUNDLED_DIRECTORY)]
    assert ends[0] == ends[1]
    assert not [path for path in (tmp_path / "out").iterdir() if path.name in {"trainer_state.pt", "manifest.json"}]


async def test_a_step_and_a_run_directory_can_be_chosen(trained: Trained, tmp_path: Path) -> None:
    run = trained.home / "shop" / "third_try" / "run-0001"
    assert export(trained, str(run), str(tmp_path / "one"), "--step", "1").exit_code == 0
    assert export(trained, str(run / "checkpoints" / "step-000001"), str(tmp_path / "two")).exit_code == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert largest_gap(tmp_path / "one", trained.drawn) > 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_weights_are_written_in_the_precision_that_is_asked_for(
    trained: Trained, tmp_path: Path, dtype: str
) -> None:
    assert export(trained, str(tmp_path / "out"), "--dtype", dtype).exit_code == 0
    assert {str(weight.dtype) for weight in load_file(tmp_path / "out" / "model.safetensors").values()} == {
        f"torch.{dtype}"
    }
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no/such", "OUT"], 3, "its runs are shop/third_try"),
        (["OUT", "--step", "7"], 3, "no checkpoint of step 7: it holds those of 1, 2"),
        (["CHECKPOINT", "OUT", "--step", "2"], 2, "one checkpoint already"),
        (["a", "b", "OUT"], 2, "too many arguments"),
        (["FULL"], 2, "is not empty"),
        (["FULL/file"], 2, "is not empty"),
        (["OUT", "--dtype", "int8"], 2, "unknown dtype 'int8'"),
        (["OUT", "--home", "EMPTY"], 3, "holds no run"),
    ],
)
async def test_what_cannot_be_exported_is_one_line_and_writes_nothing(
    trained: Trained, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    places = {
        "OUT": "out", "FULL": "full", "FULL/file": "full/file", "EMPTY": "empty",
        "CHECKPOINT": str(trained.home / "shop" / "third_try" / "run-0001" / "checkpoints" / "step-000002"),
    }  # fmt: skip
    done = export(trained, *(str(tmp_path / places[word]) if word in places else word for word in words))
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1), done.output
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


async def test_a_merged_adapter_is_a_model_like_any_other(adapted: Trained, tmp_path: Path) -> None:
    done = export(adapted, str(tmp_path / "out"), "--merge-lora", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["is_adapter"] is False
    assert not list((tmp_path / "out").glob("adapter*"))
    assert largest_gap(tmp_path / "out", adapted.drawn) < 1e-4
    assert largest_gap(BUNDLED_DIRECTORY, adapted.drawn) > 1e-3
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


async def test_an_adapter_alone_is_small_and_transformers_finds_its_base_model(
    adapted: Trained, tmp_path: Path
) -> None:
    done = export(adapted, "swarm/default", str(tmp_path / "out"))
    assert done.exit_code == 0 and "an adapter of" in done.stdout
    weights = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert sum(weight.numel() for weight in weights.values()) < 50_000
    assert largest_gap(tmp_path / "out", adapted.drawn) < 1e-4
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


async def test_whole_weights_have_no_adapter_to_merge(trained: Trained, tmp_path: Path) -> None:
    done = export(trained, str(tmp_path / "out"), "--merge-lora")
    assert done.exit_code == 2 and "leave --merge-lora out" in done.stderr


@pytest.mark.slow
async def test_an_adapter_whose_base_model_is_gone_or_changed_is_not_exported(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(BUNDLED_DIRECTORY, base)
    async with local_run(tmp_path, model=str(base), lora_rank=2) as run:
        checkpoint = await run.save(tmp_path / "home", 0)
    weights: dict[str, Any] = load_file(base / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, base / "model.safetensors")
    for said in ("the adapter of another base model", "is not there any more"):
        done = CliRunner().invoke(app, ["export", str(checkpoint), str(tmp_path / "out"), "--merge-lora"])
        assert done.exit_code == 1 and said in done.stderr, done.output
        shutil.rmtree(base, ignore_errors=True)
    assert not (tmp_path / "out").exists()


async def test_a_damaged_checkpoint_is_named_and_not_exported(trained: Trained, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(trained.home / "shop" / "third_try" / "run-0001" / "checkpoints" / "step-000002", damaged)
    with (damaged / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x07")
    done = export(trained, str(damaged), str(tmp_path / "out"))
    assert done.exit_code == 1 and "model.safetensors is not the file that was written" in done.stderr
    assert not (tmp_path / "out").exists()


async def test_a_checkpoint_of_engine_fake_has_no_model_to_export(trained: Trained, tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-000000"
    await FakeTrainer(FakeSampler(), TrainJob(engine="fake")).save(checkpoint)
    done = export(trained, str(checkpoint), str(tmp_path / "out"))
    assert done.exit_code == 1 and "holds no weights" in done.stderr


@pytest.mark.slow
async def test_the_whole_weights_of_a_verl_checkpoint_are_exported(trained: Trained, tmp_path: Path) -> None:
    weights: dict[str, Any] = load_file(BUNDLED_DIRECTORY / "model.safetensors")

    def save(draft: Path) -> None:
        (draft / "actor").mkdir()
        (draft / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"a shard")
        shutil.copyfile(BUNDLED_DIRECTORY / "model.safetensors", draft / "model.safetensors")

    checkpoint = tmp_path / "step-000003"
    write_checkpoint(
        checkpoint,
        origin=CheckpointOrigin.of(BUNDLED_DIRECTORY, strategy="fsdp2", ranks=1, lora_rank=0, has_critic=False),
        step=3,
        weight_version=3,
        job={},
        model_directory=BUNDLED_DIRECTORY,
        save=save,
    )
    assert export(trained, str(checkpoint), str(tmp_path / "out")).exit_code == 0
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(written[name], weights[name]) for name in written)
    assert not (tmp_path / "out" / "actor").exists() and (tmp_path / "out" / "tokenizer.json").exists()
