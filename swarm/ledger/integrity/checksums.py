"""Checksums of an episode's record: its turns, and the result that its client reported."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

Stored = None | int | float | str | bytes

RESULT_COLUMNS = (
    "episode_id", "task_id", "idempotency_key", "payload_digest", "reward", "is_success", "metadata", "turn_rewards",
    "rewards",
)  # fmt: skip
"""The columns of an episode's result, in the order of its checksum."""

TURN_COLUMNS = (
    "episode_id", "turn_index", "prompt_ids", "output_ids", "logprobs", "weight_versions", "finish_reason", "params",
    "messages", "reply", "tools", "parent", "fork_reason", "started_at", "ended_at", "call_id", "choice",
    "request_sha256", "attempt", "withheld",
)  # fmt: skip
"""All columns of a turn, in the order of the table and of its checksum."""


def checksum(values: Iterable[Stored]) -> int:
    """Return the CRC-32 of values as SQLite stores them. Text and its UTF-8 bytes are the same."""
    total = 0
    for value in values:
        total = zlib.crc32(_bytes_of(value), total)
    return total


def is_intact(stored: Stored, values: Iterable[Stored]) -> bool:
    """Return whether a row is as it was written."""
    return stored == checksum(values)


def _bytes_of(value: Stored) -> bytes:
    match value:
        case None:
            return b"\0"
        case str():
            value = value.encode()
        case int():
            return b"i%d" % value
        case float():
            # SQLite stores whole numbers as integers, and so has no negative zero.
            return struct.pack("<cd", b"f", value + 0.0)
        case _:
            pass
    return b"t%d:%b" % (len(value), value)
