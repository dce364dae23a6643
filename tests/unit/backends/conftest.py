"""Tiny random models of several architectures, and a way to run requests through a sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen3Config

from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler
from swarm.types import FinishReason, SamplingParams, TokenLogprobs

VOCABULARY = 97
CONTEXT = 256


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Completion:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None


def build_model(config: PretrainedConfig) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=0.15)
    return model.eval()


@pytest.fixture(scope="session")
def make_model() -> Callable[[PretrainedConfig], torch.nn.Module]:
    return build_model


@pytest.fixture
def model() -> torch.nn.Module:
    """A random Qwen3, new for each test: some change its weights."""
    return build_model(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=CONTEXT,
            pad_token_id=None,
        )
    )


MakeSampler = Callable[..., BatchSampler]


@pytest.fixture
def make_sampler() -> MakeSampler:
    """A sampler whose text is one letter per token; token 2 ends completions."""

    def make(model: torch.nn.Module, *, max_running: int = 16, stop_ids: Sequence[int] = (2,)) -> BatchSampler:
        limits = BatchingLimits(CONTEXT, VOCABULARY, max_running)
        return BatchSampler(model, limits, stop_ids, lambda ids: "".join(chr(ord("A") + each % 26) for each in ids))

    return make


Requests = Mapping[int, tuple[list[int], SamplingParams]]


@pytest.fixture
def run() -> Callable[[BatchSampler, Requests], dict[int, Completion]]:
    """Submit all, step until idle, and collect what each request got."""

    def run(sampler: BatchSampler, requests: Requests) -> dict[int, Completion]:
        completions = {handle: Completion() for handle in requests}
        for handle, (prompt_ids, params) in requests.items():
            sampler.submit(handle, prompt_ids, params)
        collect(sampler, completions)
        return completions

    return run


def collect(sampler: BatchSampler, completions: dict[int, Completion]) -> None:
    while not sampler.idle:
        for piece in sampler.step():
            assert piece.error is None and piece.token_id is not None
            completion = completions[piece.handle]
            completion.token_ids.append(piece.token_id)
            completion.logprobs.append(piece.logprob)
            if piece.likeliest is not None:
                completion.likeliest.append(piece.likeliest)
            completion.finish = piece.finish_reason
