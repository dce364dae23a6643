"""Turns of which only what a test is about is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swarm.types import FinishReason, ForkReason, SamplingParams, Turn


def plain_turn(index: int, prompt_ids: Sequence[int], output_ids: Sequence[int], **more: Any) -> Turn:
    given: dict[str, Any] = {
        "episode_id": "episode",
        "logprobs_T": (-0.5,) * len(output_ids),
        "weight_versions_T": (0,) * len(output_ids),
        "finish_reason": FinishReason.STOP,
        "params": SamplingParams(max_tokens=64),
        "messages": (),
        "reply": {},
        "tools": (),
        "parent": None,
        "fork_reason": None if more.get("parent") is not None else ForkReason.NEW_CONVERSATION,
        "started_at": 0.0,
        "ended_at": 1.0,
    }
    return Turn(index=index, prompt_ids=tuple(prompt_ids), output_ids_T=tuple(output_ids), **{**given, **more})
