"""One running completion on one replica: its pieces as they arrive, each with its weight version.

Place in the flow: replica.py opens a stream per request; generation.py reads it. A separate task takes everything off
the connection at once, so that no slow reader delays tokens past a weight change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from swarm.backends.replicas.adapter import SamplerRequest, SamplerServer, StreamPiece
from swarm.errors import SwarmError
from swarm.sampler import EngineLost

Arrival = tuple[StreamPiece, int]
"""A piece and the weight version of its tokens."""


class PieceStream:
    """Stream of one completion's pieces. Used from one asyncio event loop."""

    def __init__(self, replica: int, arrived: Callable[[], int], over: Callable[[PieceStream], None]) -> None:
        """Open a stream on a replica.

        `arrived` is called with every piece and returns its version; `over` is called after the last piece.
        """
        self.replica = replica
        self._arrived = arrived
        self._over = over
        self._inbox: asyncio.Queue[Arrival | SwarmError] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None
        self._error: SwarmError | None = None
        self._is_broken_off = False

    def begin(self, server: SamplerServer, request: SamplerRequest) -> None:
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
        if self._reader is not None:
            await asyncio.wait({self._reader})
        self._over(self)

    def _break_off(self) -> bool:
        """Cancel the reader once, and return whether more pieces were still to come.

        A second cancellation would keep the reader from closing its connection, and the replica would continue
        without a reader.
        """
        if self._reader is None or self._reader.done() or self._is_broken_off:
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
