"""gae on the local engine: verl's advantages and value loss by a critic that learns, is saved and comes back."""

from __future__ import annotations

from typing import Any

import pytest
from late import Late
from plain_rows import mask_of
from tiny_models import MakeBatch, MakeModel

from swarm.errors import CheckpointError
from swarm.job import TrainJob
from swarm.trainer.token_rows import Row, build_rows

torch, core_algos = Late("torch"), Late("verl.trainer.ppo.core_algos")
critics, learning = (Late(f"swarm.backends.local.learning.{name}") for name in ("critic", "learner"))
advantages, description = Late("swarm.trainer.advantages"), Late("swarm.trainer.description")


def job_of(**more: Any) -> TrainJob:
    return TrainJob.model_validate({"algorithm": "gae", "lr": 1e-3, "critic_lr": 1e-2, **more}).resolve()


def moved_critic(model: torch.nn.Module, job: TrainJob) -> tuple[Any, Any]:
    """One whose values are not 0, and its network."""
    critic = critics.Critic(model, job, torch.device("cpu"))
    network: Any = critic._module  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        network.head.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    return critic, network


def plain_values(network: Any, rows: list[Row]) -> torch.Tensor:
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


def test_a_critic_begins_with_values_of_zero(make_model: MakeModel, make_batch: MakeBatch) -> None:
    rows = build_rows(make_batch())
    assert not critics.Critic(make_model(), job_of(), torch.device("cpu")).values(rows).any()


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
    expected, returns = core_algos.compute_gae_advantage_return(rewards, values, mask, job.gamma, job.lam)  # type: ignore[arg-type]
    got, got_returns = advantages.compute_critic_advantages(rows, values, job)
    torch.testing.assert_close(got, expected * mask, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got_returns, returns * mask, rtol=1e-5, atol=1e-5)
    assert got.abs().sum() > 0


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
        mask, meter = mask_of(rows), description.Meter()
        loss, _ = core_algos.compute_value_loss(plain_values(network, rows), returns, values, mask, cliprange)
        loss.backward()
        expected = torch.cat([weight.grad.flatten() for weight in network.parameters() if weight.grad is not None])
        network.zero_grad()
        critic.run(rows, range(len(rows)), critics.ValueTargets(values, returns), meter)
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
    learner = learning.Learner(model, job_of(ppo_epochs=2, mini_batch_num=2))
    measured = [learner.step(make_batch(step=step)).metrics for step in range(1, 9)]
    assert measured[-1]["critic/vf_loss"] < 0.5 * measured[0]["critic/vf_loss"]
    assert measured[0]["critic/updates"] == measured[0]["actor/updates"] == 4
    assert measured[-1]["critic/vf_explained_var"] > 0.3
    assert not torch.equal(next(model.parameters()), next(make_model().parameters()))


def test_before_the_end_of_its_warm_up_the_critic_learns_alone(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model()
    learner = learning.Learner(model, job_of(critic_warmup=2))
    first = learner.step(make_batch(step=1)).metrics
    assert (first["critic/updates"], first["actor/updates"]) == (1, 0)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), make_model().parameters(), strict=True))
    assert learner.step(make_batch(step=2)).metrics["actor/updates"] == 1


def test_a_critic_of_another_model_is_refused_and_nothing_is_changed(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    critic = critics.Critic(make_model(), job_of(), torch.device("cpu"))
    state = critic.state()
    with pytest.raises(CheckpointError, match="critic"):
        critic.check({**state, "weights": {**state["weights"], "head.bias": torch.zeros(2)}})
