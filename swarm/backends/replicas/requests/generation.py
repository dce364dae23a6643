"""One completion from its first token to its last, over as many replicas as it takes.

Place in the flow: the sampler makes one `Generation` per request. It builds the request for the next replica, and turns
the returned pieces into deltas for the gateway. It knows nothing of processes or HTTP.

If a replica breaks, the next one continues from prompt and tokens so far. The distribution is the same, token by token,
but the random numbers are not: a seeded request then continues with a new seed derived from the first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from swarm.backends.grammar.compiler import Constraint
from swarm.backends.replicas.adapter import SamplerRequest
from swarm.backends.replicas.model_facts import ModelFacts
from swarm.backends.replicas.requests.streams import Arrival
from swarm.backends.stopping import StopRule
from swarm.errors import WeightsNotFinite
from swarm.types import FinishReason, SamplingParams, TokenDelta, TokenLogprobs

ENDS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Generation:
    """One running completion. `output_ids` grows as pieces are accepted."""

    def __init__(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        facts: ModelFacts,
        room: int,
        constraint: Constraint | None = None,
    ) -> None:
        """Begin a completion. `room` is the number of tokens that the context leaves for it.

        `constraint` is needed if a grammar applies and no end token exists to mark the end of its sentence.
        """
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
        """True if another replica can continue where this one stopped.

        The token sequence alone does not determine a grammar's state, or counts of tokens in the completion.
        """
        params = self._params
        return not self.output_ids or not (
            params.grammar is not None or params.presence_penalty or params.frequency_penalty
        )

    def next_request(self) -> SamplerRequest:
        """Return the request for the rest of the completion."""
        self._attempts += 1
        given = len(self.output_ids)
        return SamplerRequest(
            f"{self._request_id}-{self._attempts}",
            self.sequence,
            self._params,
            max_tokens=self._limit - given,
            min_tokens=max(0, min(self._params.min_tokens, self._limit) - given),
            end_ids=frozenset(self._rule.stop_ids),
            eos_id=self._eos_id,
            seed=self._next_seed(),
        )

    def accept(self, arrivals: Sequence[Arrival]) -> TokenDelta | None:
        """Return arrived pieces as one delta, cut where the completion ends, or None if they are empty.

        Raise WeightsNotFinite if the model returns values that are not numbers.
        """
        logprobs: list[float] = []
        versions: list[int] = []
        likeliest: list[TokenLogprobs] = []
        before = len(self.output_ids)
        finish: FinishReason | None = None
        for piece, version in arrivals:
            for place, token_id in enumerate(piece.token_ids_T):
                if not math.isfinite(piece.logprobs_T[place]):
                    raise WeightsNotFinite(
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
                finish = ENDS.get(piece.ended)
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
