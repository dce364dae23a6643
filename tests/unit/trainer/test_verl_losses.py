"""verl's workers evaluate the local trainer's objective, however a minibatch is cut over ranks and filled up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from changed_batches import with_episodes
from late import Late
from loss_matrix import combinations, job_with_loss
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.trainer.token_rows import build_rows
from swarm.types import TrainBatch

torch, plain, advantages = Late("torch"), Late("plain_gradients"), Late("swarm.trainer.advantages")
tensordict, utils = Late("tensordict"), Late("verl.utils.tensordict_utils")
sequences, ranks_losses = Late("swarm.backends.verl.driver.sequences"), Late("swarm.backends.verl.ranks.losses")

Row = dict[str, Any]
"""The tensors of a sequence by name."""
OF_SEQUENCES = {"gspo", "geo_mean", "bypass_mode"}
"""Losses that judge a sequence, by its ratio or for rejection: a sample here, an episode in the local trainer."""
OF_WHOLE_CALLS = {"clip_cov", "kl_cov"}
"""Losses that compare the tokens of one call with one another; clip_cov draws among them."""


def without_forks(batch: TrainBatch) -> TrainBatch:
    return with_episodes(batch, lambda _number, each: replace(each, samples=each.samples[:1]))


def token_logprobs(module: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each position, the logprob of the token after it (0 for the last) and the entropy, as verl's engine gives."""
    logprobs = torch.log_softmax(module(input_ids=ids[None]).logits[0], -1)
    picked = logprobs[:-1].gather(1, ids[1:, None])[:, 0]
    return torch.cat([picked, picked.new_zeros(1)]), -(logprobs.exp() * logprobs).sum(-1)


def shares(rows: list[Row], ranks: int, per_call: int) -> list[list[list[Row]]]:
    """For each rank its microbatches, filled up so that all ranks have the same number of rows."""
    filled = rows + [sequences.padding_fields(rows[0])] * (-len(rows) % ranks)
    dealt = [filled[rank::ranks] for rank in range(ranks)]
    return [[own[start : start + per_call] for start in range(0, len(own), per_call)] for own in dealt]


def verl_gradient(
    module: torch.nn.Module,
    job: TrainJob,
    batch: TrainBatch,
    reference: torch.nn.Module | None,
    *,
    ranks: int,
    per_call: int,
) -> tuple[float, torch.Tensor]:
    """Policy loss and gradient as the ranks would average them."""
    job = job.resolve()
    rows = build_rows(batch)
    built = sequences.build_sequences(
        rows,
        advantages.compute_advantages(rows, job),
        {},
        loss_agg_mode=str(job.loss_agg_mode),
        per_token_temperature=True,
    )
    tokens = sum(sequence.tokens for sequence in built.trained)
    config, losses = plain.actor_config(job), list[torch.Tensor]()
    module.zero_grad()
    for own in shares([sequence.fields for sequence in built.trained], ranks, per_call):
        for fields in own:
            data, output = one_call(module, fields, reference)
            utils.assign_non_tensor(data, dp_size=ranks, batch_num_tokens=tokens, global_batch_size=len(rows))
            total, metrics = ranks_losses.policy_loss(config, output, data)
            (total / ranks).backward()
            losses.append(torch.tensor(metrics["actor/pg_loss"].aggregate() / ranks))
    return float(sum(losses)), plain.flat_gradient(module)


def one_call(
    module: torch.nn.Module, rows: Sequence[Row], reference: torch.nn.Module | None
) -> tuple[Any, dict[str, Any]]:
    scored = [token_logprobs(module, fields["input_ids"]) for fields in rows]
    given: list[Row] = []
    for fields in rows:
        extra = {"old_log_probs": fields["rollout_log_probs"]}
        if reference is not None:
            with torch.no_grad():
                logprobs, _entropies = token_logprobs(reference, fields["input_ids"])
            first = len(fields["prompts"])
            extra["ref_log_prob"] = logprobs[first - 1 : len(fields["input_ids"]) - 1]
        given.append({**fields, **extra})
    nested = [torch.nested.as_nested_tensor(list(column), layout=torch.jagged) for column in zip(*scored, strict=True)]
    # verl's queue gives ragged rows, also where they happen to be of one length.
    columns = {
        name: torch.stack([fields[name] for fields in given])
        if given[0][name].dim() == 0
        else torch.nested.as_nested_tensor([fields[name] for fields in given], layout=torch.jagged)
        for name in given[0]
    }
    return tensordict.TensorDict(columns, batch_size=len(given)), {"log_probs": nested[0], "entropy": nested[1]}


@pytest.mark.parametrize(("policy_loss_name", "aggregation"), combinations("clip_cov"))
def test_gradient_is_the_local_trainers(
    make_model: MakeModel, make_batch: MakeBatch, policy_loss_name: str, aggregation: str
) -> None:
    terms: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coeff": 0.03}
    job = job_with_loss(policy_loss_name, loss_agg_mode=aggregation, **terms)
    batch = make_batch() if policy_loss_name not in OF_SEQUENCES else without_forks(make_batch())
    cuts = [(1, 100)] if policy_loss_name in OF_WHOLE_CALLS else [(1, 100), (2, 3), (7, 1)]
    model = make_model()
    reference = plain.nudged(model)
    value, gradient = plain.learner_gradient(model, job, batch, reference)
    for ranks, per_call in cuts:
        other, found = verl_gradient(model, job, batch, reference, ranks=ranks, per_call=per_call)
        assert other == pytest.approx(value, rel=1e-4, abs=1e-6)
        assert plain.relative_error(found, gradient) < 1e-4
