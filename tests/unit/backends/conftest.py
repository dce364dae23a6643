"""Tiny random models of several architectures, and a way to run requests through a sampler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import random_model

from swarm.types import FinishReason, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    import torch
    from vllm_stand_in import StandIns

    from swarm.backends.local.decoding.batching import BatchSampler

VOCABULARY = 97
CONTEXT = 256


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    """What a module of tests imports when its first test runs; one with tensors has a fixture of this name itself."""


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread(late_imports: None) -> Iterator[None]:
    torch = sys.modules.get("torch")
    before = torch and torch.get_num_threads()
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(before)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """Stand-ins for vLLM, which the replicas of this process are from now on."""
    from vllm_stand_in import StandIns

    made = StandIns(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@dataclass
class Completion:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None


@pytest.fixture
def model() -> torch.nn.Module:
    """A random Qwen3, new for each test: some change its weights."""
    return random_model(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT)


MakeSampler = Callable[..., Any]


@pytest.fixture
def make_sampler() -> MakeSampler:
    """A sampler whose text is one letter per token; token 2 ends completions."""

    from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler

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
        while not sampler.idle:
            for piece in sampler.step():
                assert piece.error is None and piece.token_id is not None
                completion = completions[piece.handle]
                completion.token_ids.append(piece.token_id)
                completion.logprobs.append(piece.logprob)
                if piece.likeliest is not None:
                    completion.likeliest.append(piece.likeliest)
                completion.finish = piece.finish_reason
        return completions

    return run
