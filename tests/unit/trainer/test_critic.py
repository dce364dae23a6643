"""gae on the local engine: verl's advantages and value loss by a critic that learns, is saved and comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import MakeBatch, MakeModel, raises_in_pass

from swarm.errors import CheckpointError, EngineFailure
from swarm.job import TrainJob
from swarm.trainer.token_rows import Row, build_rows


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global CPU, torch, compute_gae_advantage_return, compute_value_loss, Critic, ValueModel, ValueTargets, Learner
    global compute_critic_advantages, Meter
    import torch
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return, compute_value_loss

    from swarm.backends.local.learning.critic import Critic, ValueModel, ValueTargets
    from swarm.backends.local.learning.learner import Learner
    from swarm.trainer.advantages import compute_critic_advantages
    from swarm.trainer.description import Meter

    CPU = torch.device("cpu")


def job_of(**more: Any) -> TrainJob:
    return TrainJob.model_validate({"algorithm": "gae", "lr": 1e-3, "critic_lr": 1e-2, **more}).resolve()


def moved_critic(model: torch.nn.Module, job: TrainJob) -> tuple[Critic, ValueModel]:
    """One whose values are not 0, and its network."""
    critic = Critic(model, job, CPU)
    network: ValueModel = critic._module  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        network.head.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    return critic, network


def plain_values(network: ValueModel, rows: list[Row]) -> torch.Tensor:
    """One sample at a time."""
    lines = []
    width = max(row.tokens for row in rows)
    for row in rows:
        values_L = torch.zeros(width)
        for sample in row.samples:
            hidden = network.body(input_ids=torch.from_numpy(sample.token_ids_T)[None]).last_hidden_state[0]
            places = torch.from_numpy(sample.positions_K) - 1
            values_L = values_L.index_copy(0, torch.from_numpy(sample.columns_K), network.head(hidden[places])[:, 0])
        lines.append(values_L)
    return torch.stack(lines)


def mask_of(rows: list[Row]) -> torch.Tensor:
    return torch.arange(max(row.tokens for row in rows))[None] < torch.tensor([row.tokens for row in rows])[:, None]


def test_a_critic_begins_with_values_of_zero(make_model: MakeModel, make_batch: MakeBatch) -> None:
    rows = build_rows(make_batch())
    assert not Critic(make_model(), job_of(), CPU).values(rows).any()


@pytest.mark.parametrize("settings", [{}, {"gamma": 0.9, "lam": 0.8}])
def test_advantages_and_returns_are_those_of_verls_function_on_the_same_batch(
    make_model: MakeModel, make_batch: MakeBatch, settings: dict[str, float]
) -> None:
    job, rows = job_of(ppo_max_token_len=64, **settings), build_rows(make_batch())
    critic, network = moved_critic(make_model(), job)
    values = critic.values(rows)
    with torch.no_grad():
        torch.testing.assert_close(values, plain_values(network, rows), rtol=1e-5, atol=1e-5)
    rewards, mask = torch.zeros_like(values), mask_of(rows).float()
    for line, row in enumerate(rows):
        rewards[line, row.tokens - 1] = row.reward
    expected, returns = compute_gae_advantage_return(rewards, values, mask, job.gamma, job.lam)  # type: ignore[arg-type]
    got, got_returns = compute_critic_advantages(rows, values, job)
    torch.testing.assert_close(got, expected * mask, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got_returns, returns * mask, rtol=1e-5, atol=1e-5)
    assert got.abs().sum() > 0


def test_turn_rewards_stand_at_the_ends_of_their_turns(make_batch: MakeBatch) -> None:
    batch = make_batch(((1, 0),))
    turns = 1 + max(index for sample in batch.episodes[0].samples for index in sample.turn_indices_T)
    given = tuple(0.5 + turn for turn in range(turns))
    episode = replace(batch.episodes[0], turn_rewards=given)
    [row, _] = build_rows(replace(batch, groups=(replace(batch.groups[0], episodes=(episode, batch.episodes[1])),)))
    found = row.token_rewards()
    ends = [place for place in range(row.tokens) if found[place]]
    assert [int(row.turn_indices_L[end]) for end in ends] == list(range(turns))
    assert found[ends].tolist() == pytest.approx([*given[:-1], given[-1] + 1.0])


@pytest.mark.parametrize("cliprange", [0.05, 0.5])
def test_value_loss_and_gradient_are_those_of_verls_function_however_it_is_cut(
    make_model: MakeModel, make_batch: MakeBatch, cliprange: float
) -> None:
    rows = build_rows(make_batch())
    returns = torch.rand(len(rows), max(row.tokens for row in rows), generator=torch.Generator().manual_seed(1))
    for limit in (64, 16_384):
        job = job_of(ppo_max_token_len=limit, cliprange_value=cliprange, grad_clip=1e9)
        critic, network = moved_critic(make_model(), job)
        with torch.no_grad():
            values = plain_values(network, rows) - 0.06
        mask, meter = mask_of(rows), Meter()
        loss, _ = compute_value_loss(plain_values(network, rows), returns, values, mask, cliprange)
        loss.backward()
        expected = torch.cat([weight.grad.flatten() for weight in network.parameters() if weight.grad is not None])
        network.zero_grad()
        critic.run(rows, range(len(rows)), ValueTargets(values, returns), meter)
        measured = meter.read()
        assert measured["critic/vf_loss"] == pytest.approx(loss.item(), rel=1e-5)
        # After one gradient, Adam's first moment is a share of that gradient.
        moments = critic.state()["optimizer"]["adamw"].values()
        gradient = torch.cat([each["exp_avg"].flatten() for each in moments]) / (1 - job.betas[0])
        assert ((gradient - expected).norm() / expected.norm()).item() < 1e-5


def test_a_critic_learns_what_episodes_return_and_the_policy_learns_from_it(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    model = make_model()
    learner = Learner(model, job_of(ppo_epochs=2, mini_batch_num=2))
    measured = [learner.step(make_batch(step=step)).metrics for step in range(1, 9)]
    assert measured[-1]["critic/vf_loss"] < 0.5 * measured[0]["critic/vf_loss"]
    assert measured[0]["critic/updates"] == measured[0]["actor/updates"] == 4
    assert measured[-1]["critic/vf_explained_var"] > 0.3
    assert not torch.equal(next(model.parameters()), next(make_model().parameters()))


def test_before_the_end_of_its_warm_up_the_critic_learns_alone(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model()
    learner = Learner(model, job_of(critic_warmup=2))
    first = learner.step(make_batch(step=1)).metrics
    assert (first["critic/updates"], first["actor/updates"]) == (1, 0)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), make_model().parameters(), strict=True))
    assert learner.step(make_batch(step=2)).metrics["actor/updates"] == 1


@pytest.mark.parametrize("merged", [True, False])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    make_model: MakeModel, make_batch: MakeBatch, tmp_path: Path, merged: bool
) -> None:
    job = job_of(ppo_epochs=2, mini_batch_num=2)
    batches = [make_batch(step=step, merged=merged) for step in (1, 2, 3)]
    models = [make_model(), make_model()]
    whole = Learner(models[0], job)
    reports = [whole.step(batch) for batch in batches]
    first = Learner(make_model(), job)
    first.step(batches[0])
    first.save(tmp_path / "one", step=1, weight_version=1, tokenizer=None)
    second = Learner(models[1], job)
    second.load(tmp_path / "one")
    again = [second.step(batch) for batch in batches[1:]]
    assert all(torch.equal(*pair) for pair in zip(models[0].parameters(), models[1].parameters(), strict=True))
    for report, other in zip(reports[1:], again, strict=True):
        assert report.metrics["critic/vf_loss"] == other.metrics["critic/vf_loss"]
        assert report.advantages == other.advantages


def test_a_checkpoint_without_a_critic_begins_a_new_one_from_its_policy(
    make_model: MakeModel, make_batch: MakeBatch, tmp_path: Path
) -> None:
    plain = Learner(make_model(), TrainJob(lr=1e-2))
    plain.step(make_batch())
    plain.save(tmp_path / "plain", step=1, weight_version=1, tokenizer=None)
    losses = []
    for used_before in (False, True):
        learner = Learner(make_model(), job_of())
        if used_before:
            learner.step(make_batch())
        learner.load(tmp_path / "plain")
        losses.append(learner.step(make_batch(step=2)).metrics["critic/grad_norm"])
    assert losses[0] == losses[1]


def test_a_critic_of_another_model_is_refused_and_nothing_is_changed(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    critic = Critic(make_model(), job_of(), CPU)
    state = critic.state()
    with pytest.raises(CheckpointError, match="critic"):
        critic.check({**state, "weights": {**state["weights"], "head.bias": torch.zeros(2)}})


def test_a_step_that_breaks_off_leaves_the_critic_as_it_was(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model()
    learner, reference = (Learner(each, job_of(mini_batch_num=2)) for each in (model, make_model()))
    with raises_in_pass(model, 1, EngineFailure("given up")), pytest.raises(EngineFailure, match="given up"):
        learner.step(make_batch())
    after, expected = (each.step(make_batch()).metrics for each in (learner, reference))
    assert after["critic/vf_loss"] == expected["critic/vf_loss"]
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
