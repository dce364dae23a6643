"""Token arrays as compact bytes: little-endian, fixed width, no framing."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import TypeVar

# Every token id and weight version fits in signed 32 bits; -1 means "none" in both.
_INTEGER = "i"
_FLOAT = "d"

NumberArray = TypeVar("NumberArray", "array[int]", "array[float]")


def pack_integers(values: Sequence[int]) -> bytes:
    """Return the values as bytes. Raise OverflowError for a value outside 32 signed bits."""
    return _to_little_endian(array(_INTEGER, values)).tobytes()


def unpack_integers(blob: bytes) -> tuple[int, ...]:
    values = array(_INTEGER)
    values.frombytes(blob)
    return tuple(_to_little_endian(values))


def pack_floats(values: Sequence[float]) -> bytes:
    return _to_little_endian(array(_FLOAT, values)).tobytes()


def unpack_floats(blob: bytes) -> tuple[float, ...]:
    values = array(_FLOAT)
    values.frombytes(blob)
    return tuple(_to_little_endian(values))


def _to_little_endian(values: NumberArray) -> NumberArray:
    if sys.byteorder == "big":
        values.byteswap()
    return values
