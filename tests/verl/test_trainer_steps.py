"""Two FSDP2 ranks over gloo compute what the local trainer computes, step by step, and publish it whole."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verl_batches import make_batch

from swarm.backends.pairing import shared_memory_of
from swarm.errors import CheckpointError
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.types import ConstrainedTurn, Grammar, GrammarKind, StepReport, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, load_file, AutoModelForCausalLM, Learner, LearnerReport
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from swarm.backends.local.learning.learner import Learner, LearnerReport


pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.timeout(900)]

JOB: dict[str, Any] = {
    "mini_batch_num": 3,
    "ppo_epochs": 2,
    "lr": 1e-3,
    "lr_warmup_steps": 3,
    "use_kl_loss": True,
    "kl_loss_coef": 0.1,
    "entropy_coeff": 0.01,
    "loss_agg_mode": "seq-mean-token-mean",
    "seed": 3,
}
WEIGHTS = 1e-4
"""Largest difference of any weight after a step, a tenth of the learning rate: the two sum in another order, and AdamW
makes steps of the same size out of gradients near 0. Most differ by less than 1e-7."""
Weights = dict[str, Any]


@pytest.fixture(scope="module")
async def opened_once(anyio_backend: str, opened: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    async with opened(tmp_path_factory.mktemp("steps"), ranks=2, **JOB) as running:
        yield running


@pytest.fixture
async def running(opened_once: Any) -> Any:
    """The base model again, and nothing published yet."""
    await opened_once.trainer.start()
    opened_once.published.versions.clear()
    opened_once.published.files.clear()
    return opened_once


class Local:
    """The local trainer of the same job, from the same base model."""

    def __init__(self, settings: dict[str, Any] = JOB) -> None:
        torch.set_num_threads(1)
        self._module = AutoModelForCausalLM.from_pretrained(
            BUNDLED_DIRECTORY, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._learner = Learner(self._module, TrainJob(**settings))

    def train(self, batch: TrainBatch) -> LearnerReport:
        return self._learner.step(batch, weight_version=batch.step - 1)

    @property
    def weights(self) -> Weights:
        return self._module.state_dict()


def furthest(one: Weights, other: Weights) -> float:
    return max((one[name] - weight).abs().max().item() for name, weight in other.items())


def base_weights() -> Weights:
    return load_file(BUNDLED_DIRECTORY / "model.safetensors")


async def test_steps_are_those_of_the_local_trainer(running: Any) -> None:
    local = Local()
    for step in (1, 2):
        batch = make_batch(step=step, temperatures=(1.0, 0.7), turn_rewards=True)
        report: StepReport = await running.trainer.train(batch)
        expected = local.train(batch)
        assert report.advantages == pytest.approx(expected.advantages, abs=1e-5)
        assert furthest(running.published.tensors, local.weights) < WEIGHTS
        for name in ("actor/pg_loss", "actor/kl_loss", "actor/grad_norm", "actor/lr", "actor/updates"):
            assert report.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-4, abs=1e-6), name
        shared = {name: value for name, value in expected.metrics.items() if name.startswith(("critic/", "rollout/"))}
        assert {name: report.metrics[name] for name in shared} == pytest.approx(shared, abs=1e-5)
    assert furthest(running.published.tensors, base_weights()) > 10 * WEIGHTS


async def test_logprobs_of_the_present_weights_leave_no_gap(running: Any) -> None:
    metrics = (await running.trainer.train(make_batch(temperatures=(1.0, 0.6)))).metrics
    assert metrics["training/rollout_probs_diff_max"] < 1e-5
    assert metrics["training/rollout_logprob_gap_max"] < 1e-4
    stale = (await running.trainer.train(make_batch(step=2))).metrics
    assert "training/rollout_probs_diff_max" not in stale
    assert stale["staleness/max"] == 1


async def test_report_has_verls_metrics_and_only_finite_numbers(running: Any) -> None:
    metrics = (await running.trainer.train(make_batch())).metrics
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["perf/total_num_tokens"] == metrics["merge/tokens"]
    for name in ("perf/throughput", "timing_s/step", "timing_s/update_actor", "timing_s/publish_weights"):
        assert metrics[name] > 0, name


async def test_published_file_is_whole_and_the_one_before_is_removed(running: Any) -> None:
    for step in (1, 2):
        await running.trainer.train(make_batch(step=step))
    published = running.published
    assert published.versions == [1, 2]
    assert [path.exists() for path in published.files] == [False, True]
    assert set(published.tensors) == {*base_weights(), "lm_head.weight"}, "the tied output head is there by its name"
    assert {tensor.dtype for tensor in published.tensors.values()} == {torch.float32}
    assert torch.equal(published.tensors["lm_head.weight"], published.tensors["model.embed_tokens.weight"])
    assert list(shared_memory_of(running.home).iterdir()) == published.files[-1:]


async def test_batch_that_can_move_nothing_is_reported_and_published(running: Any) -> None:
    batch = make_batch(((1,), (1, 1)))
    grammar = Grammar(GrammarKind.REGEX, "[a-z]*")

    def constrain(sample: Any) -> Any:
        turns = sorted({turn for turn in sample.turn_indices_T if turn >= 0})
        return replace(sample, constrained_turns=tuple(ConstrainedTurn(turn, grammar) for turn in turns))

    groups = tuple(
        replace(
            group, episodes=tuple(replace(each, samples=tuple(map(constrain, each.samples))) for each in group.episodes)
        )
        for group in batch.groups
    )
    report = await running.trainer.train(replace(batch, groups=groups))
    assert report.weight_version.version == 1
    assert report.advantages == {"s1-e0-0": 0.0, "s1-e1-0": 0.0, "s1-e1-1": 0.0}
    assert report.metrics["grammar/tokens_left_out"] == sum(episode.trained_tokens for episode in batch.episodes)
    assert report.metrics["actor/updates"] == 0
    assert furthest(running.published.tensors, base_weights()) == 0


async def test_ragged_groups_and_lone_survivors_are_trained(running: Any) -> None:
    report = await running.trainer.train(make_batch(((1, 0, 1), (1,), (0, 0))))
    expected = Local().train(make_batch(((1, 0, 1), (1,), (0, 0))))
    assert report.advantages == pytest.approx(expected.advantages, abs=1e-5)
    assert report.advantages["s1-e1-0"] == report.advantages["s1-e2-0"] == 0
    assert report.metrics["actor/updates"] == expected.metrics["actor/updates"] == 6


async def test_resumed_run_goes_on_as_the_uninterrupted_one(running: Any, tmp_path: Path) -> None:
    for step in (1, 2):
        await running.trainer.train(make_batch(step=step))
    await running.trainer.save(tmp_path / "checkpoint")
    uninterrupted = await running.trainer.train(make_batch(step=3))
    after = dict(running.published.tensors)

    await running.trainer.start()
    restored = await running.trainer.load(tmp_path / "checkpoint")
    assert (restored.step, restored.version) == (2, 2)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32).state_dict()
    assert furthest(running.published.tensors, saved) == 0, "the checkpoint is also a Hugging Face model"
    resumed = await running.trainer.train(make_batch(step=3))
    assert resumed.weight_version.version == 3
    assert resumed.metrics["actor/lr"] == uninterrupted.metrics["actor/lr"]
    assert furthest(running.published.tensors, after) == 0


async def test_damaged_checkpoint_is_refused_and_training_goes_on(running: Any, tmp_path: Path) -> None:
    await running.trainer.train(make_batch())
    await running.trainer.save(tmp_path / "checkpoint")
    shard = next((tmp_path / "checkpoint" / "actor").glob("optim*rank_1.pt"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        await running.trainer.load(tmp_path / "checkpoint")
    shard.unlink()
    with pytest.raises(CheckpointError, match="incomplete"):
        await running.trainer.load(tmp_path / "checkpoint")
    assert (await running.trainer.train(make_batch(step=2))).weight_version.version == 2


async def test_supervised_steps_are_those_of_the_local_trainer_and_so_is_the_reward_after_them(
    opened: Any, tmp_path: Path
) -> None:
    without_kl = {name: value for name, value in JOB.items() if "kl_loss" not in name}
    of_demonstrations = {"demonstrations": "sha256:0", "sft_steps": 2, "sft_lr": 2e-3}
    settings = {**without_kl, **of_demonstrations, "total_steps": 6, "lr_scheduler_type": "cosine"}
    local = Local(settings)
    async with opened(tmp_path, ranks=2, **settings) as running:
        await running.trainer.start()
        for step in (1, 2, 3, 4):
            batch = make_batch(step=step)
            if step <= 2:
                shown = replace(batch, groups=(), demonstrations=batch.episodes, held_out=batch.episodes[:3])
            else:
                shown = batch
            report: StepReport = await running.trainer.train(shown)
            expected = local.train(shown)
            assert furthest(running.published.tensors, local.weights) < WEIGHTS
            names = [name for name in expected.metrics if name.startswith(("sft/", "actor/lr", "actor/pg_loss"))]
            assert len(names) >= (5 if step <= 2 else 2)
            for name in (*names, "actor/grad_norm", "actor/updates"):
                assert report.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-4, abs=1e-6), name
