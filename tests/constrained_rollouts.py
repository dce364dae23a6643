"""Episodes sampled under grammars on the engine's own sampler, for the tests of the trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turns import plain_turn

from swarm.backends.grammar import GrammarCompiler
from swarm.model_path import BUNDLED_DIRECTORY, read_tokenizer
from swarm.tracker.merge import merge
from swarm.types import FinishedEpisode, FinishReason, Grammar, GrammarKind, Group, SamplingParams, TrainBatch, Turn

if TYPE_CHECKING:
    import torch

TOKENIZER: Any = read_tokenizer(BUNDLED_DIRECTORY)
VOCABULARY = 384
CONTEXT = 2048
END = TOKENIZER.token_to_id("<|im_end|>")
OTHER_END = TOKENIZER.token_to_id("<|endoftext|>")
PROMPT: list[int] = TOKENIZER.encode("<|im_start|>user\nReverse: abc<|im_end|>\n<|im_start|>assistant\n").ids
NEXT: list[int] = TOKENIZER.encode("\n<|im_start|>user\nAgain<|im_end|>\n<|im_start|>assistant\n").ids

TOOL_CALL = Grammar(
    GrammarKind.LARK,
    """start: "<tool_call>\\n" call "\\n</tool_call>"
call: %json {
  "x-guidance": {"whitespace_pattern": "[ \\n]{1,9}"},
  "type": "object",
  "properties": {
    "name": {"const": "calculator"},
    "arguments": {
      "type": "object",
      "properties": {"expression": {"type": "string", "maxLength": 9}},
      "required": ["expression"],
      "additionalProperties": false
    }
  },
  "required": ["name", "arguments"],
  "additionalProperties": false
}
""",
)


def schema(value: Mapping[str, Any]) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


PERSON = schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


COMPACT = schema(
    {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3}},
        "x-guidance": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    }
)


def bundled_model() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(BUNDLED_DIRECTORY).eval()


@dataclass
class Sampled:
    """What a request got."""

    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    finish: FinishReason | None = None


class Stage:
    """One model, its sampler and what the learner needs to follow grammars, all in this process."""

    def __init__(self, module: torch.nn.Module, stop_ids: Sequence[int] = (END,)) -> None:
        from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler
        from swarm.backends.local.learning.microbatches import GrammarFollower

        self.module = module
        compiler = GrammarCompiler(TOKENIZER, VOCABULARY, stop_ids)
        self.grammars = GrammarFollower(compiler, stop_ids)
        decode = TOKENIZER.decode
        self.sampler = BatchSampler(
            module, BatchingLimits(CONTEXT, VOCABULARY, 64), stop_ids, decode, grammars=compiler
        )

    def sample(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Sampled]:
        found = [Sampled() for _ in requests]
        for handle, (prompt_ids, params) in enumerate(requests):
            self.sampler.submit(handle, prompt_ids, params)
        while not self.sampler.idle:
            for piece in self.sampler.step():
                assert piece.error is None and piece.token_id is not None
                found[piece.handle].token_ids.append(piece.token_id)
                found[piece.handle].logprobs.append(piece.logprob)
                found[piece.handle].versions.append(self.sampler.weight_version)
                found[piece.handle].finish = piece.finish_reason
        return found

    def play(self, rounds: Sequence[Sequence[SamplingParams]], prompt: Sequence[int] = PROMPT) -> list[list[Turn]]:
        """One linear episode for each entry of a round; in round n it has its n-th turn, with these parameters."""
        episodes: list[list[Turn]] = [[] for _ in rounds[0]]
        for index, params in enumerate(rounds):
            prompts = [
                [*turns[-1].prompt_ids, *turns[-1].output_ids_T, *NEXT] if turns else list(prompt) for turns in episodes
            ]
            replies = self.sample(list(zip(prompts, params, strict=True)))
            for number, turns in enumerate(episodes):
                reply = replies[number]
                turns.append(
                    plain_turn(
                        index,
                        prompts[number],
                        reply.token_ids,
                        episode_id=f"episode-{number}",
                        logprobs_T=tuple(reply.logprobs),
                        weight_versions_T=tuple(reply.versions),
                        finish_reason=reply.finish,
                        params=params[number],
                        parent=index - 1 if turns else None,
                    )
                )
        return episodes


def make_batch(
    episodes: Sequence[Sequence[Turn]], rewards: Sequence[float] | None = None, *, size: int = 4, step: int = 1
) -> TrainBatch:
    """Groups of `size` episodes in order; rewards 0, 1, 0, 1 ... if none are given."""
    finished = [
        FinishedEpisode(
            turns[0].episode_id, f"task-{number // size}", "client", reward, None, merge(turns), ended_at=0.0
        )
        for number, (turns, reward) in enumerate(
            zip(episodes, rewards or [float(number % 2) for number in range(len(episodes))], strict=True)
        )
    ]
    groups = [
        Group(f"task-{start // size}", tuple(finished[start : start + size])) for start in range(0, len(finished), size)
    ]
    return TrainBatch(f"batch-{step}", step, tuple(groups))
