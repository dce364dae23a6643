"""One completion from its first token to its last, over as many replicas as it takes.

Place in the flow: the engine makes one `Generation` per request. It says what to ask the next replica for, and turns
the pieces that come back into what the gateway wants. Knows nothing of processes or HTTP.

If a replica breaks, the next one is asked to go on from prompt and tokens so far. That is the same distribution, token
by token, but not the same random numbers: a seeded request then goes on with a seed of its own, made of the first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

from swarm.backends.local.decoding.grammar import Constraint
from swarm.backends.stopping import StopRule
from swarm.backends.vllm.replicas.model_facts import ModelFacts
from swarm.backends.vllm.requests.streams import Arrival
from swarm.backends.vllm.requests.wire import completion_body
from swarm.errors import EngineFailure
from swarm.types import FinishReason, SamplingParams, TokenDelta, TokenLogprobs

VLLM_ENDS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Generation:
    """`output_ids` grows as pieces are accepted."""

    def __init__(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        facts: ModelFacts,
        room: int,
        constraint: Constraint | None = None,
    ) -> None:
        """`room` is how many tokens the context leaves for the completion. `constraint` is needed to see the end of a
        sentence where a grammar is to be followed and no token exists to end it."""
        self.prompt_ids = list(prompt_ids)
        self.output_ids: list[int] = []
        self._request_id = request_id
        self._params = params
        self._limit = min(params.max_tokens, room)
        self._rule = StopRule(params, facts.stop_ids, room, facts.decode)
        self._eos_id = facts.eos_id
        self._constraint = constraint
        self._attempts = 0

    @property
    def sequence(self) -> list[int]:
        return self.prompt_ids + self.output_ids

    @property
    def can_move(self) -> bool:
        """Whether another replica can go on where this one stopped.

        A grammar's state, and counts of tokens in the completion alone, are not in the sequence.
        """
        params = self._params
        return not self.output_ids or not (
            params.grammar is not None or params.presence_penalty or params.frequency_penalty
        )

    def next_body(self) -> dict[str, Any]:
        """What to ask a replica for: the rest."""
        self._attempts += 1
        given = len(self.output_ids)
        body = completion_body(
            f"{self._request_id}-{self._attempts}",
            self.sequence,
            self._params,
            limit=self._limit - given,
            end_ids=self._rule.stop_ids,
            eos_id=self._eos_id,
            seed=self._next_seed(),
        )
        body["min_tokens"] = max(0, min(self._params.min_tokens, self._limit) - given)
        return body

    def accept(self, arrivals: Sequence[Arrival]) -> TokenDelta | None:
        """Pieces that have arrived as one delta, cut off where the completion ends. None if they bring nothing.

        Raises EngineFailure if the model gives no numbers.
        """
        logprobs: list[float] = []
        versions: list[int] = []
        likeliest: list[TokenLogprobs] = []
        before = len(self.output_ids)
        finish: FinishReason | None = None
        for piece, version in arrivals:
            for place, token_id in enumerate(piece.token_ids_T):
                if not math.isfinite(piece.logprobs_T[place]):
                    raise EngineFailure(
                        f"the model's logits are not finite at weight version {version}: training has diverged"
                    )
                self.output_ids.append(token_id)
                logprobs.append(min(piece.logprobs_T[place], 0.0))
                versions.append(version)
                if self._params.top_logprobs:
                    likeliest.append(piece.likeliest_T[place])
                finish = self._finish_after(token_id)
                if finish is not None:
                    break
            if finish is None and piece.ended is not None:
                finish = VLLM_ENDS.get(piece.ended)
            if finish is not None:
                break
        sampled = tuple(self.output_ids[before:])
        if not sampled and finish is None:
            return None
        top = tuple(likeliest) if self._params.top_logprobs else None
        return TokenDelta(sampled, tuple(logprobs), tuple(versions), finish, top)

    def _finish_after(self, token_id: int) -> FinishReason | None:
        finish = self._rule.check(self.output_ids)
        if finish is None and self._constraint is not None:
            self._constraint.take(token_id)
            return FinishReason.STOP if self._constraint.is_over else None
        return finish

    def _next_seed(self) -> int | None:
        seed, given = self._params.seed, len(self.output_ids)
        if seed is None or not given:
            return seed
        return int.from_bytes(hashlib.sha256(f"{seed} after {given}".encode()).digest()[:7])
