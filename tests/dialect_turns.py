"""Turns as the tracker records them, for tests of what each API makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swarm.rollout.model_request import ModelRequest
from swarm.types import FinishReason, Turn


def recorded_turn(
    call: ModelRequest,
    output_ids: Sequence[int],
    reply: Any,
    finish: FinishReason = FinishReason.STOP,
    *,
    prompt_ids: Sequence[int] = (1, 2, 3, 4),
    first_logprob: float = 0.0,
    step: float = -0.25,
    index: int = 3,
    choice: int = 0,
    call_id: str = "0f3c",
) -> Turn:
    """A turn of one prompt of the call. The logprobs begin at `first_logprob` and change by `step` with each token."""
    prompt = call.prompts[choice // call.choices]
    return Turn(
        episode_id="episode",
        index=index,
        prompt_ids=tuple(prompt_ids),
        output_ids_T=tuple(output_ids),
        logprobs_T=tuple(first_logprob + step * place for place in range(len(output_ids))),
        weight_versions_T=(0,) * len(output_ids),
        finish_reason=finish,
        params=call.params,
        messages=getattr(prompt, "messages", ()),
        reply=reply,
        tools=getattr(prompt, "tools", ()),
        parent=None,
        fork_reason=None,
        started_at=0.0,
        ended_at=1.0,
        choice=choice,
        call_id=call_id,
    )
