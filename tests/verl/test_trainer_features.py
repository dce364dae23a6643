"""Features of verl that a job reaches by configuration alone, each trained for a step or two on the CPU."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from verl_batches import make_batch

from swarm.errors import JobInvalid
from swarm.model_path import BUNDLED_DIRECTORY


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, load_file
    import torch
    from safetensors.torch import load_file


pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.slow, pytest.mark.timeout(900)]

OpenTrainer = Callable[..., Awaitable[Any]]


async def test_lora_with_packed_sequences_and_gradient_checkpointing_lets_out_merged_weights(
    open_trainer: OpenTrainer, tmp_path: Path
) -> None:
    running = await open_trainer(
        verl={"actor_rollout_ref": {"model": {"use_remove_padding": True}}},
        lora_rank=8,
        enable_gradient_checkpointing=True,
        use_kl_loss=True,
    )
    report = await running.trainer.train(make_batch(step=1, temperatures=(1.0, 0.7)))
    assert report.metrics["training/rollout_probs_diff_max"] < 1e-5
    assert report.metrics["actor/grad_norm"] > 0
    base = load_file(BUNDLED_DIRECTORY / "model.safetensors")
    moved = {name for name, weight in base.items() if not torch.equal(running.published.tensors[name], weight)}
    assert moved and all("proj" in name for name in moved), "adapters are on the linear layers, and merged"
    one = running.published.tensors[sorted(moved)[0]]
    assert not torch.equal(one, one.bfloat16().float()), "not rounded on the way"
    await running.trainer.save(tmp_path / "checkpoint")
    after = (await running.trainer.train(make_batch(step=2))).metrics["actor/grad_norm"]
    await running.trainer.start()
    await running.trainer.load(tmp_path / "checkpoint")
    assert (await running.trainer.train(make_batch(step=2))).metrics["actor/grad_norm"] == after


async def test_gae_trains_a_critic_beside_the_policy(open_trainer: OpenTrainer, tmp_path: Path) -> None:
    running = await open_trainer(ranks=2, algorithm="gae", mini_batch_num=2, critic_lr=1e-3, lam=0.95)
    report = await running.trainer.train(make_batch(step=1, turn_rewards=True))
    assert report.metrics["critic/updates"] == report.metrics["actor/updates"] == 2
    assert report.metrics["critic/vf_loss"] > 0
    assert all(math.isfinite(value) for value in report.advantages.values())
    assert report.advantages["s1-e0-0"] > report.advantages["s1-e0-1"], "what was rewarded is better than what was not"
    assert set(report.advantages) == {episode.episode_id for episode in make_batch(step=1).episodes}
    await running.trainer.save(tmp_path / "checkpoint")
    after = (await running.trainer.train(make_batch(step=2))).metrics
    await running.trainer.start()
    await running.trainer.load(tmp_path / "checkpoint")
    again = (await running.trainer.train(make_batch(step=2))).metrics
    for name in ("actor/grad_norm", "critic/grad_norm", "critic/vf_loss"):
        assert again[name] == pytest.approx(after[name], rel=1e-6), name


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        (
            {
                "policy_loss": "bypass_mode",
                "loss_type": "reinforce",
                "rollout_is": "token",
                "rollout_rs": "token_k1",
                "rollout_rs_threshold": "0.5_2",
            },
            "rollout_corr/rollout_rs_masked_fraction",
        ),
        ({"policy_loss": "dro", "dro_beta": 0.1}, "actor/ppo_kl"),
    ],
    ids=["bypass_mode", "dro"],
)
async def test_losses_with_settings_of_their_own_are_trained(
    open_trainer: OpenTrainer, settings: dict[str, Any], metric: str
) -> None:
    running = await open_trainer(ranks=2, mini_batch_num=2, **settings)
    report = await running.trainer.train(make_batch(step=1))
    assert report.metrics["actor/updates"] == 2
    assert report.metrics["actor/grad_norm"] > 0
    assert math.isfinite(report.metrics[metric])


async def test_stale_tokens_are_corrected_as_the_job_says(open_trainer: OpenTrainer) -> None:
    running = await open_trainer(max_staleness=2, rollout_is="sequence", policy_loss="gspo")
    for step in (1, 2):
        report = await running.trainer.train(make_batch(step=step, forked=False))
    assert report.metrics["staleness/max"] == 1
    assert report.metrics["rollout_corr/rollout_is_max"] != 1


async def test_job_that_verl_itself_refuses_is_told_by_its_reason(open_trainer: OpenTrainer) -> None:
    with pytest.raises(JobInvalid, match="expert_parallel_size") as caught:
        await open_trainer(verl={"actor_rollout_ref.rollout.expert_parallel_size": 3})
    assert caught.value.param == "verl"
