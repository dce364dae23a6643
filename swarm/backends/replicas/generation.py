"""One completion over as many replicas as it takes: its pieces as they arrive, and the facts about its model."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from swarm.backends.grammar import Constraint
from swarm.backends.replicas.adapter import SamplerRequest, SamplerServer, StreamPiece
from swarm.backends.stopping import EndRule
from swarm.errors import EngineFailure, SwarmError, WeightsNotFinite
from swarm.model_path import read_stop_ids, read_tokenizer, stored_parameters
from swarm.sampler import EngineLost
from swarm.types import FinishReason, SamplingParams, TokenDelta, TokenLogprobs


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about one model.

    `parameters` is 0 for weights that are not in safetensors files. `vocabulary` is the width of the logits. `stop_ids`
    end every completion; `eos_id` is the one of them that the tokenizer itself knows, or None.
    """

    parameters: int
    vocabulary: int
    stop_ids: frozenset[int]
    eos_id: int | None
    tokenizer: Tokenizer

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)


def read_facts(directory: Path) -> ModelFacts:
    """Return the facts of a model directory.

    Raise EngineFailure if a file is missing or broken, CheckpointError for damaged weights.
    """
    tokenizer = read_tokenizer(directory)
    return ModelFacts(
        parameters=stored_parameters(directory),
        vocabulary=_vocabulary(directory / "config.json"),
        stop_ids=read_stop_ids(directory, tokenizer),
        eos_id=_eos_id(directory / "tokenizer_config.json", tokenizer),
        tokenizer=tokenizer,
    )


def _vocabulary(path: Path) -> int:
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        size = config.get("vocab_size") or cast("dict[str, Any]", config["text_config"])["vocab_size"]
    except (OSError, ValueError, KeyError) as error:
        raise EngineFailure(f"{path}: says no vocab_size: {error}") from error
    return int(size)


def _eos_id(path: Path, tokenizer: Tokenizer) -> int | None:
    if not path.is_file():
        return None
    # `read_stop_ids` has read this file before, and would have refused a broken one.
    eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


Arrival = tuple[StreamPiece, int]
"""A piece and the weight version of its tokens."""


class PieceStream:
    """Stream of one completion's pieces. Used from one asyncio event loop."""

    def __init__(
        self,
        replica: int,
        server: SamplerServer,
        request: SamplerRequest,
        arrived: Callable[[], int],
        over: Callable[[PieceStream], None],
    ) -> None:
        """Begin a completion on a replica.

        `arrived` is called with every piece and returns its version; `over` is called after the last piece.
        """
        self.replica = replica
        self._arrived = arrived
        self._over = over
        self._inbox: asyncio.Queue[Arrival | SwarmError] = asyncio.Queue()
        self._error: SwarmError | None = None
        self._is_broken_off = False
        self._reader = asyncio.create_task(self._read(server, request))

    async def read(self) -> list[Arrival]:
        """Return all arrived pieces, at least one, or raise the error that ended the stream.

        The replica's watch limits the wait.
        """
        if self._error is not None:
            raise self._error
        first = await self._inbox.get()
        if isinstance(first, SwarmError):
            self._error = first
            raise first
        arrivals = [first]
        while self._error is None and not self._inbox.empty():
            following = self._inbox.get_nowait()
            if isinstance(following, SwarmError):
                self._error = following
            else:
                arrivals.append(following)
        return arrivals

    def fail(self, error: SwarmError) -> None:
        """End the stream from outside: after the arrived pieces, a read raises `error`."""
        if self._break_off():
            self._inbox.put_nowait(error)

    async def close(self) -> None:
        """Close the stream; the replica then aborts the completion."""
        self._break_off()
        await asyncio.wait({self._reader})
        self._over(self)

    def _break_off(self) -> bool:
        """Cancel the reader once, and return whether more pieces were still to come.

        A second cancellation would keep the reader from closing its connection, and the replica would continue
        without a reader.
        """
        if self._reader.done() or self._is_broken_off:
            return False
        self._is_broken_off = True
        self._reader.cancel()
        return True

    async def _read(self, server: SamplerServer, request: SamplerRequest) -> None:
        try:
            async with aclosing(server.complete(request)) as pieces:
                async for piece in pieces:
                    self._inbox.put_nowait((piece, self._arrived()))
                    if piece.ended is not None:
                        return
            raise EngineLost("a replica broke off in the middle of a completion")
        except SwarmError as error:
            self._inbox.put_nowait(error)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            self._inbox.put_nowait(EngineLost(f"a replica sent what cannot be read: {error!r}"))
        finally:
            self._over(self)


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
        self._rule = EndRule(params, facts.stop_ids, room, facts.decode)
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
