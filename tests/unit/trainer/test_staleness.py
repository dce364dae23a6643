"""Staleness: how old the trained tokens are, what is compared with the sampler, and that stale batches still teach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.tasks import task_family
from swarm.tracker.codec import Codec
from swarm.types import FinishedEpisode, Group, Sample, SamplingParams, Task, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, BatchingLimits, BatchSampler, Learner, load_model
    import torch

    from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler
    from swarm.backends.local.learning.learner import Learner
    from swarm.backends.local.model.loading import load_model


def with_versions(batch: TrainBatch, version_of: Callable[[int, int], int]) -> TrainBatch:
    """The same batch; `version_of` gets the number of the episode and the position of the token."""
    groups = []
    number = 0
    for group in batch.groups:
        episodes = []
        for episode in group.episodes:
            samples = [
                replace(
                    sample,
                    weight_versions_T=tuple(
                        version_of(number, place) if trained else -1 for place, trained in enumerate(sample.loss_mask_T)
                    ),
                )
                for sample in episode.samples
            ]
            episodes.append(replace(episode, samples=tuple(samples)))
            number += 1
        groups.append(replace(group, episodes=tuple(episodes)))
    return replace(batch, groups=tuple(groups))


def test_staleness_counts_versions_over_trained_tokens(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch = with_versions(make_batch(), lambda number, place: 5 - (number + place) % 3)
    ages = [
        7 - version
        for episode in batch.episodes
        for sample in episode.samples
        for version in sample.weight_versions_T
        if version >= 0
    ]
    metrics = Learner(make_model(), TrainJob(max_staleness=4)).step(batch, weight_version=7).metrics
    assert metrics["staleness/mean"] == pytest.approx(sum(ages) / len(ages))
    assert metrics["staleness/max"] == max(ages) == 4


def test_staleness_is_absent_where_the_version_is_not_known(make_model: MakeModel, make_batch: MakeBatch) -> None:
    metrics = Learner(make_model(), TrainJob()).step(make_batch()).metrics
    assert not any(name.startswith("staleness/") for name in metrics)


def test_the_gap_to_the_sampler_is_measured_on_tokens_of_the_present_weights(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    exact, noisy = make_batch(noise=0.0), make_batch(noise=0.5)
    mixed = replace(exact, groups=(noisy.groups[0], *exact.groups[1:]))
    stale = len(noisy.groups[0].episodes)
    batch = with_versions(mixed, lambda number, _place: 2 if number < stale else 3)
    job = TrainJob(max_staleness=1)
    assert Learner(make_model(), job).step(batch, weight_version=3).metrics["training/rollout_logprob_gap_max"] < 1.1e-4
    assert Learner(make_model(), job).step(batch).metrics["training/rollout_logprob_gap_max"] > 0.1
    assert "training/rollout_logprob_gap_max" not in Learner(make_model(), job).step(batch, weight_version=4).metrics


class Rollout:
    """The bundled model on words to reverse, without server or worker process."""

    def __init__(self, job: TrainJob) -> None:
        model = load_model(BUNDLED_DIRECTORY, device="cpu", max_model_len=None)
        limits = BatchingLimits(model.context_length, model.vocabulary, 128)
        self._sampler = BatchSampler(model.module, limits, model.stop_ids, model.decode, seed=0)
        self._codec = Codec.load(BUNDLED_DIRECTORY)
        self._family = task_family("reverse")
        self._repeats = job.num_repeat
        self.learner = Learner(model.module, job)
        self.tasks = list(self._family.tasks("train", job.batch_size * 32))

    @property
    def weight_version(self) -> int:
        return self._sampler.weight_version

    def publish(self) -> None:
        self._sampler.publish(self._sampler.weight_version + 1)

    def batch(self, step: int, tasks: Sequence[Task]) -> TrainBatch:
        episodes = self._attempt([task for task in tasks for _ in range(self._repeats)])
        groups = [
            Group(task.task_id, tuple(episodes[place * self._repeats : (place + 1) * self._repeats]))
            for place, task in enumerate(tasks)
        ]
        return TrainBatch(batch_id=f"batch-{step}", step=step, groups=tuple(groups))

    def _attempt(self, tasks: Sequence[Task]) -> list[FinishedEpisode]:
        exchanges = [self._family.start(task) for task in tasks]
        prompts = [self._codec.render(exchange.messages) for exchange in exchanges]
        outputs: list[tuple[list[int], list[float]]] = [([], []) for _ in tasks]
        for handle, prompt in enumerate(prompts):
            self._sampler.submit(handle, prompt, SamplingParams(max_tokens=16))
        while not self._sampler.idle:
            for piece in self._sampler.step():
                assert piece.token_id is not None
                outputs[piece.handle][0].append(piece.token_id)
                outputs[piece.handle][1].append(piece.logprob)
        episodes = []
        for number, (exchange, prompt, (ids, logprobs)) in enumerate(zip(exchanges, prompts, outputs, strict=True)):
            exchange.reply({"role": "assistant", "content": self._codec.decode(ids)})
            read, sampled = len(prompt), len(ids)
            sample = Sample(
                episode_id=f"e{number}",
                token_ids_T=(*prompt, *ids),
                loss_mask_T=(False,) * read + (True,) * sampled,
                logprobs_T=(0.0,) * read + tuple(logprobs),
                weight_versions_T=(-1,) * read + (self.weight_version,) * sampled,
                turn_indices_T=(-1,) * read + (0,) * sampled,
                temperatures_T=(1.0,) * (read + sampled),
            )
            episodes.append(
                FinishedEpisode(f"e{number}", tasks[number].task_id, "client", exchange.reward, None, (sample,), 0.0)
            )
        return episodes


def test_batches_one_version_old_teach_with_importance_sampling() -> None:
    job = TrainJob(batch_size=8, num_repeat=8, max_staleness=1, lr=3e-3)
    rollout = Rollout(job)
    waiting = rollout.batch(1, rollout.tasks[:8])
    scores: list[float] = []
    for step in range(1, 21):
        following = rollout.batch(step + 1, rollout.tasks[8 * step : 8 * step + 8])
        metrics = rollout.learner.step(waiting, weight_version=rollout.weight_version).metrics
        rollout.publish()
        scores.append(metrics["critic/score/mean"])
        assert metrics["staleness/max"] == (0 if step == 1 else 1)
        assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=0.1)
        waiting = following
    assert sum(scores[:3]) / 3 < 0.6
    assert sum(scores[-3:]) / 3 > 0.85, scores
