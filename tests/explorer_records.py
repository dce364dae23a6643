"""Fills a database with calls of a language model and with a recorded training, for the explorer's tests."""

from __future__ import annotations

import json

from explorer_study import HOSTILE

from experiments_db import ExperimentStore, TrainedEpisode, TrainedEpisodeSummary, TrainingNews

LONG = ("A long text. " * 8000).strip()
STRANGE = f"{HOSTILE} **bold** :red[no] [x](javascript:1) a\x00b \u202eright to left\u202c שלום {LONG}"
"""Text that a page must show as text."""


def record_calls(store: ExperimentStore, study_id: str, *, price: float = 0.0) -> None:
    """Three calls: one that asks for a tool, one that answers, and one that failed. `price` is in $ per token."""
    asked = [{"role": "system", "content": "You plan experiments."}, {"role": "user", "content": STRANGE}]
    tool = {"id": "1", "type": "function", "function": {"name": "curve", "arguments": '{"arm": "lr=0.001"}'}}
    looked = [{"role": "tool", "tool_call_id": "1", "content": "0.31 0.44 0.58"}]
    calls = (
        ("plan", asked, json.dumps({"reasoning": "First I look.", "tool_calls": [tool]}), None, 4000, 50, "a" * 64),
        ("plan", looked, f"I plan two arms. {STRANGE}", None, 4100, 900, "a" * 64),
        (HOSTILE, asked, None, f"HTTP 503: {HOSTILE}", 0, 0, None),
    )
    for attempt, (node, prompt, response, error, inputs, outputs, prompt_hash) in enumerate(calls, 1):
        store.record_llm_call(
            study_id,
            node=node,
            model="planner-8b",
            prompt=json.dumps(prompt),
            response=response,
            input_tokens=inputs,
            output_tokens=outputs,
            cost_usd=price * (inputs + outputs),
            latency_s=1.5,
            attempt=attempt,
            error=error,
            prompt_hash=prompt_hash,
        )


def record_training(
    store: ExperimentStore, *, home: str = "/srv/swarm", steps: int = 12, launch_key: str | None = None
) -> str:
    """A training with eight kept episodes of each step, in two groups of four; returns its id."""
    training_id = store.record_training(
        f"ledger {home}", project="swarm", experiment="words", model="nano", engine="local", settings={}, changes={},
        home=home, launch_key=launch_key, status="ROLLING", reason=None, step=steps, begun_at=1_795_000_000.0,
    ).id  # fmt: skip
    episodes = [_trained(training_id, step, number) for step in range(1, steps + 1) for number in range(8)]
    store.add_to_training(training_id, TrainingNews(episodes=tuple(episodes)))
    return training_id


def _trained(training_id: str, step: int, number: int) -> TrainedEpisode:
    group, reward = number // 4, (number % 4) / 4
    word = HOSTILE if number == 7 else f"word{step}"
    tokens = ["Reverse: ", word, "\n", "\x00", "\u202e", "d", "row"]
    sample = {
        "token_ids": list(range(len(tokens))),
        "tokens": tokens,
        "loss_mask": [False] * 5 + [True] * 2,
        "logprobs": [0.0] * 5 + [-0.01, -1.3],
        "weight_versions": [-1] * 5 + [step - 1] * 2,
        "turn_indices": [0] * len(tokens),
    }
    summary = TrainedEpisodeSummary(
        training_id, f"ep-{step}-{number}", step, "best" if number == 3 else "random", f"task {step}.{group}", "words",
        group, reward, reward > 0.5, 2 * reward - 0.75, step - 1, 1_795_000_000.0 + 10 * step,
    )  # fmt: skip
    said = STRANGE if number == 7 else f"drow{step}"
    messages = ({"role": "user", "content": f"Reverse: {word}"}, {"role": "assistant", "content": said})
    return TrainedEpisode(summary, messages, (sample,))
