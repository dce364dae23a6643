"""The pipe protocol between a server and its worker processes: msgpack messages; nothing is pickled."""

# A message is a map behind its length. Parent to worker: {"op": name, "id": int, "args": ...}. Worker to parent, one of
#     {"id": int, "result": ...}                  the answer to a call
#     {"id": int, "error": [code, message, param]}    a call or a generation failed
#     {"tokens": [[id, [token, ...], [logprob, ...], finish | None], ...], "version": int}    the newly sampled tokens
# If a request asked for the likeliest tokens, its entry ends with those of each token: [[[token, logprob], ...], ...].

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from swarm.errors import EngineFailure, SwarmError, error_class
from swarm.processes.child import claim_stdout
from swarm.types import FinishReason, TokenDelta, TrainBatch

LENGTH_BYTES = 8
LARGEST_MESSAGE = 2**40
"""Bytes. A larger length is no length: the sender does not follow the protocol."""

LONGEST_REASON = 300

logger = logging.getLogger(__name__)

Message = dict[str, Any]


def pack(message: Message) -> bytes:
    """Return a message as bytes.

    Dataclasses become maps, and enums their values; `msgspec.convert` restores them.
    """
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


class Unpacker:
    """Decoder from arriving bytes to complete messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that these bytes complete. Raise ValueError for malformed bytes."""
        self._data += data
        start = 0
        try:
            while len(self._data) >= start + LENGTH_BYTES:
                head = start + LENGTH_BYTES
                end = head + int.from_bytes(self._data[start:head], "big")
                if end - head > LARGEST_MESSAGE:
                    raise ValueError(f"no message has {end - head:,} bytes")
                if len(self._data) < end:
                    return
                message = msgspec.msgpack.decode(memoryview(self._data)[head:end])
                start = end
                yield message
        finally:
            # The front is cut off once for all messages of a read, because each cut moves the rest.
            del self._data[:start]


def pack_error(error: SwarmError) -> list[str | None]:
    return [error.code, error.message, error.param]


def unpack_error(packed: list[Any]) -> SwarmError:
    code, message, param = packed
    return error_class(code)(message, param=param)


def attempt(op: str, carry_out: Callable[[], Any]) -> Message:
    """Return the result or the error of an operation, as the answer to its call."""
    try:
        return {"result": carry_out()}
    except SwarmError as error:
        return {"error": pack_error(error)}
    except Exception as error:
        # The boundary of the process: the parent learns the reason, the log keeps the traceback.
        logger.exception("operation %s failed", op)
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        return {"error": pack_error(EngineFailure(f"{op} failed: {type(error).__name__}: {reason}"))}


def pack_batch(batch: TrainBatch) -> bytes:
    return msgspec.msgpack.encode(batch)


def unpack_batch(packed: bytes) -> TrainBatch:
    return msgspec.msgpack.decode(packed, type=TrainBatch)


def unpack_delta(packed: list[Any], weight_version: int) -> TokenDelta:
    """Return the delta of an entry of "tokens", passed without its id."""
    token_ids, logprobs, finish, *likeliest = packed
    tops = tuple(tuple((token, value) for token, value in each) for each in likeliest[0]) if likeliest else None
    return TokenDelta(
        tuple(token_ids),
        tuple(logprobs),
        (weight_version,) * len(token_ids),
        None if finish is None else FinishReason(finish),
        tops,
    )


def join_deltas(pieces: Sequence[TokenDelta]) -> TokenDelta:
    """Return neighbouring pieces of one completion as one."""
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


READ_BYTES = 2**18


Inbox = queue.SimpleQueue[Message | None]


def open_pipes(on_close: Callable[[Inbox], None]) -> tuple[Inbox, Callable[[Message], None]]:
    """Return the messages that arrive on standard input, and a function that sends one on the former standard output.

    When the parent has closed the pipe or died, `on_close` is called in a thread with the inbox.
    """
    faulthandler.enable()
    # A Ctrl-C is meant for the parent, which then stops this process in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(inbox, on_close), daemon=True).start()
    output = claim_stdout()

    def send(message: Message) -> None:
        data = memoryview(pack(message))
        while data:
            data = data[os.write(output.fileno(), data) :]

    return inbox, send


def _read_input(inbox: Inbox, on_close: Callable[[Inbox], None]) -> None:
    unpacker = Unpacker()
    while data := os.read(sys.stdin.fileno(), READ_BYTES):
        for message in unpacker.feed(data):
            inbox.put(message)
    on_close(inbox)
