# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""What parent and worker write into each other's pipes: msgpack messages, and how dataclasses become them.

Place in the flow: process.py (parent) and the worker both encode and decode here, so that the two cannot differ.
Messages are maps that carry their own length; nothing is pickled.

Parent to worker: `{"op": name, "id": int, "args": ...}`. Worker to parent, one of
    {"id": int, "result": ...}                  the answer to a call
    {"id": int, "error": [code, message, param]}    a call or a generation failed
    {"tokens": [[id, token | None, logprob, finish | None], ...], "version": int}     one decoding step
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgpack

from swarm.engine.base import EngineInfo
from swarm.errors import SwarmError, error_class
from swarm.types import FinishedEpisode, FinishReason, Group, Sample, SamplingParams, TrainBatch

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


def pack_params(params: SamplingParams) -> list[Any]:
    return [
        params.max_tokens,
        params.temperature,
        params.top_p,
        params.top_k,
        params.seed,
        params.stop,
        params.stop_token_ids,
    ]


def unpack_params(packed: list[Any]) -> SamplingParams:
    max_tokens, temperature, top_p, top_k, seed, stop, stop_token_ids = packed
    return SamplingParams(max_tokens, temperature, top_p, top_k, seed, tuple(stop), tuple(stop_token_ids))


def pack_info(info: EngineInfo) -> list[Any]:
    return [info.model, info.tokenizer_path, info.context_length, info.parameters, info.device]


def unpack_info(packed: list[Any]) -> EngineInfo:
    return EngineInfo(*packed)


def pack_finish(reason: FinishReason | None) -> str | None:
    return None if reason is None else reason.value


def unpack_finish(packed: str | None) -> FinishReason | None:
    return None if packed is None else FinishReason(packed)


def pack_batch(batch: TrainBatch) -> Message:
    return {
        "batch_id": batch.batch_id,
        "step": batch.step,
        "groups": [[group.task_id, [_pack_episode(episode) for episode in group.episodes]] for group in batch.groups],
    }


def unpack_batch(packed: Mapping[str, Any]) -> TrainBatch:
    return TrainBatch(
        batch_id=packed["batch_id"],
        step=packed["step"],
        groups=tuple(
            Group(task_id, tuple(_unpack_episode(episode) for episode in episodes))
            for task_id, episodes in packed["groups"]
        ),
    )


def _pack_episode(episode: FinishedEpisode) -> list[Any]:
    return [
        episode.episode_id,
        episode.task_id,
        episode.client_id,
        episode.reward,
        episode.is_success,
        [_pack_sample(sample) for sample in episode.samples],
        episode.ended_at,
        episode.data_source,
        episode.turn_rewards,
    ]


def _unpack_episode(packed: list[Any]) -> FinishedEpisode:
    *head, samples, ended_at, data_source, turn_rewards = packed
    return FinishedEpisode(
        *head,
        samples=tuple(_unpack_sample(each) for each in samples),
        ended_at=ended_at,
        data_source=data_source,
        turn_rewards=None if turn_rewards is None else tuple(turn_rewards),
    )


def _pack_sample(sample: Sample) -> list[Any]:
    return [
        sample.episode_id,
        sample.token_ids_T,
        sample.loss_mask_T,
        sample.logprobs_T,
        sample.weight_versions_T,
        sample.turn_indices_T,
        sample.temperatures_T,
    ]


def _unpack_sample(packed: list[Any]) -> Sample:
    episode_id, *arrays = packed
    return Sample(episode_id, *(tuple(array) for array in arrays))
