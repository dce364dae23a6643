# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""What parent and worker write into each other's pipes: msgpack messages, and how dataclasses become them.

Place in the flow: process.py (parent) and the worker both encode and decode here, so that the two cannot differ.
Messages are maps that carry their own length; nothing is pickled.

Parent to worker: `{"op": name, "id": int, "args": ...}`. Worker to parent, one of
    {"id": int, "result": ...}                  the answer to a call
    {"id": int, "error": [code, message, param]}    a call or a generation failed
    {"tokens": [[id, token | None, logprob, finish | None], ...], "version": int}     one decoding step
An entry of a request that asked for the likeliest tokens ends with them: [[token, logprob], ...].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, cast

import msgpack

from swarm.errors import SwarmError, error_class
from swarm.sampler import EngineInfo
from swarm.types import (
    ConstrainedTurn,
    FinishedEpisode,
    FinishReason,
    Grammar,
    GrammarKind,
    Group,
    Sample,
    SamplingParams,
    TokenDelta,
    TrainBatch,
)

LARGEST_MESSAGE = 2**31 - 1
"""Bytes; msgpack's own limit is 100 MiB, which a batch of long episodes can pass."""

Message = dict[str, Any]


def pack(message: Message) -> bytes:
    return cast("bytes", msgpack.packb(message))


class Unpacker:
    """Bytes as they come -> whole messages."""

    def __init__(self) -> None:
        self._unpacker: Any = msgpack.Unpacker(max_buffer_size=LARGEST_MESSAGE, strict_map_key=False)

    def feed(self, data: bytes) -> Iterator[Message]:
        self._unpacker.feed(data)
        yield from self._unpacker


def pack_error(error: SwarmError) -> list[str | None]:
    return [error.code, error.message, error.param]


def unpack_error(packed: list[Any]) -> SwarmError:
    code, message, param = packed
    return error_class(code)(message, param=param)


def pack_params(params: SamplingParams) -> Message:
    """Only what differs from the defaults: most requests set little."""
    packed = {each.name: value for each in fields(params) if (value := getattr(params, each.name)) != each.default}
    if params.grammar is not None:
        packed["grammar"] = [params.grammar.kind.value, params.grammar.text]
    return packed


def unpack_params(packed: Message) -> SamplingParams:
    named: dict[str, Any] = {
        name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value for name, value in packed.items()
    }
    if "grammar" in packed:
        kind, text = packed["grammar"]
        named["grammar"] = Grammar(GrammarKind(kind), text)
    if "logit_bias" in packed:
        named["logit_bias"] = tuple((token_id, bias) for token_id, bias in packed["logit_bias"])
    return SamplingParams(**named)


def pack_info(info: EngineInfo) -> list[Any]:
    return [info.model, info.tokenizer_path, info.context_length, info.parameters, info.device]


def unpack_info(packed: list[Any]) -> EngineInfo:
    return EngineInfo(*packed)


def pack_finish(reason: FinishReason | None) -> str | None:
    return None if reason is None else reason.value


def unpack_delta(packed: list[Any], weight_version: int) -> TokenDelta:
    """`packed` is an entry of "tokens" without its id."""
    token_id, logprob, finish, *likeliest = packed
    reason = None if finish is None else FinishReason(finish)
    if token_id is None:
        return TokenDelta((), (), (), reason)
    top = (tuple((token, value) for token, value in likeliest[0]),) if likeliest else None
    return TokenDelta((token_id,), (logprob,), (weight_version,), reason, top)


def join_deltas(pieces: Sequence[TokenDelta]) -> TokenDelta:
    """Neighbouring pieces of one completion as one."""
    if len(pieces) == 1:
        return pieces[0]
    tops = [piece.top_logprobs_T for piece in pieces if piece.top_logprobs_T is not None]
    return TokenDelta(
        tuple(chain.from_iterable(piece.token_ids_T for piece in pieces)),
        tuple(chain.from_iterable(piece.logprobs_T for piece in pieces)),
        tuple(chain.from_iterable(piece.weight_versions_T for piece in pieces)),
        pieces[-1].finish_reason,
        tuple(chain.from_iterable(tops)) if tops else None,
    )


def pack_batch(batch: TrainBatch) -> Message:
    """Each grammar stands once, in "grammars", and in samples by its number: many turns share a few long ones."""
    numbers: dict[Grammar, int] = {}
    groups = [
        [group.task_id, [_pack_episode(episode, numbers) for episode in group.episodes]] for group in batch.groups
    ]
    return {
        "batch_id": batch.batch_id,
        "step": batch.step,
        "groups": groups,
        "grammars": [[grammar.kind.value, grammar.text] for grammar in numbers],
    }


def unpack_batch(packed: Mapping[str, Any]) -> TrainBatch:
    grammars = [Grammar(GrammarKind(kind), text) for kind, text in packed["grammars"]]
    return TrainBatch(
        batch_id=packed["batch_id"],
        step=packed["step"],
        groups=tuple(
            Group(task_id, tuple(_unpack_episode(episode, grammars) for episode in episodes))
            for task_id, episodes in packed["groups"]
        ),
    )


def _pack_episode(episode: FinishedEpisode, numbers: dict[Grammar, int]) -> list[Any]:
    return [
        episode.episode_id,
        episode.task_id,
        episode.client_id,
        episode.reward,
        episode.is_success,
        [_pack_sample(sample, numbers) for sample in episode.samples],
        episode.ended_at,
        episode.data_source,
        episode.turn_rewards,
    ]


def _unpack_episode(packed: list[Any], grammars: Sequence[Grammar]) -> FinishedEpisode:
    *head, samples, ended_at, data_source, turn_rewards = packed
    return FinishedEpisode(
        *head,
        samples=tuple(_unpack_sample(each, grammars) for each in samples),
        ended_at=ended_at,
        data_source=data_source,
        turn_rewards=None if turn_rewards is None else tuple(turn_rewards),
    )


def _pack_sample(sample: Sample, numbers: dict[Grammar, int]) -> list[Any]:
    return [
        sample.episode_id,
        sample.token_ids_T,
        sample.loss_mask_T,
        sample.logprobs_T,
        sample.weight_versions_T,
        sample.turn_indices_T,
        sample.temperatures_T,
        [
            [turn.index, numbers.setdefault(turn.grammar, len(numbers)), turn.stop_token_ids]
            for turn in sample.constrained_turns
        ],
    ]


def _unpack_sample(packed: list[Any], grammars: Sequence[Grammar]) -> Sample:
    episode_id, *arrays, constrained = packed
    turns = (
        ConstrainedTurn(index, grammars[number], tuple(stops))
        for index, number, stops in cast("list[tuple[int, int, list[int]]]", constrained)
    )
    return Sample(episode_id, *(tuple(array) for array in arrays), constrained_turns=tuple(turns))
