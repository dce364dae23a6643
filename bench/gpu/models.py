"""Random models in the shape of Qwen2, and random batches for them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from bench.gpu.measurement import Measurement
from swarm.model_path import BUNDLED_DIRECTORY, WEIGHT_SUFFIXES, read_tokenizer
from swarm.types import FinishedEpisode, Group, Sample, TrainBatch


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model. Input and output embeddings are one matrix."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int

    @property
    def name(self) -> str:
        count = self.of_layers + self.of_head
        return f"{count / 1e9:.2f} B" if count >= 1e8 else f"{count / 1e6:.1f} M"

    @property
    def of_layers(self) -> int:
        """Number of weights of all linear layers below the output head."""
        keys = self.hidden * self.hidden * self.key_heads // self.heads
        return self.layers * (2 * self.hidden**2 + 2 * keys + 3 * self.hidden * self.intermediate)

    @property
    def of_head(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def cached_numbers(self) -> int:
        """Keys and values of one token, as numbers."""
        return 2 * self.layers * self.hidden * self.key_heads // self.heads


def shapes(measurement: Measurement) -> tuple[ModelShape, ModelShape]:
    """Return the smaller and the larger model for this device."""
    if measurement.on_gpu:
        return ModelShape(896, 4864, 24, 14, 2, 151_936), ModelShape(1536, 8960, 28, 12, 2, 151_936)
    vocabulary = read_tokenizer(BUNDLED_DIRECTORY).get_vocab_size()
    return ModelShape(128, 512, 4, 4, 2, vocabulary), ModelShape(192, 768, 6, 6, 2, vocabulary)


def build_model(shape: ModelShape, device: torch.device, dtype: torch.dtype, context: int = 2048) -> torch.nn.Module:
    """Return a model with random weights, made on the device itself."""
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with device:
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.to(device).eval()


def write_model(shape: ModelShape, measurement: Measurement, context: int = 2048) -> Path:
    """Write a random model with the bundled tokenizer, and return its directory. The largest ids have no text."""
    directory = measurement.directory / f"model-{shape.hidden}"
    if not directory.exists():
        shutil.copytree(
            BUNDLED_DIRECTORY, directory, ignore=lambda _, names: {n for n in names if n.endswith(WEIGHT_SUFFIXES)}
        )
        model: Any = build_model(shape, measurement.device, measurement.dtype, context)
        model.save_pretrained(str(directory))
    return directory


def random_batch(shape: ModelShape, *, tasks: int, repeats: int, prompt: int, completion: int) -> TrainBatch:
    """Return a batch of random tokens whose rewards alternate; the repeats of a task have its prompt in common."""
    random = np.random.default_rng(0)
    logprob = -math.log(shape.vocabulary)
    groups: list[Group] = []
    for task in range(tasks):
        opening = tuple(random.integers(0, shape.vocabulary, prompt).tolist())
        episodes: list[FinishedEpisode] = []
        for repeat in range(repeats):
            name = f"{task}-{repeat}"
            sampled = tuple(random.integers(0, shape.vocabulary, completion).tolist())
            sample = to_sample(name, opening, sampled, (logprob,) * completion, 0)
            episodes.append(FinishedEpisode(name, f"task-{task}", "bench", float(repeat % 2), None, (sample,), 0.0))
        groups.append(Group(f"task-{task}", tuple(episodes)))
    return TrainBatch(batch_id="batch", step=1, groups=tuple(groups))


def to_sample(
    episode_id: str, prompt: tuple[int, ...], sampled: tuple[int, ...], logprobs: tuple[float, ...], version: int
) -> Sample:
    """Return the sample of an episode of one turn."""
    read, count = len(prompt), len(sampled)
    return Sample(
        episode_id=episode_id,
        token_ids_T=prompt + sampled,
        loss_mask_T=(False,) * read + (True,) * count,
        logprobs_T=(0.0,) * read + logprobs,
        weight_versions_T=(-1,) * read + (version,) * count,
        turn_indices_T=(-1,) * read + (0,) * count,
        temperatures_T=(1.0,) * (read + count),
    )
