"""The check that a Ray cluster is reachable at its address.

Place in the flow: called before the trainer or a replica connects, because Ray itself waits for minutes. This module
knows nothing of Ray.
"""

from __future__ import annotations

import socket
from typing import Final

from swarm.errors import EngineFailure

CONNECT_TIMEOUT_S: Final = 10.0


def check_address(address: str) -> None:
    """Raise EngineFailure unless a process listens at the address."""
    if address == "auto":
        return
    host, _colon, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise EngineFailure(f"ray_address {address}: give the cluster's own address, host:port, not a client's")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise EngineFailure(f"a Ray cluster at {address} cannot be reached: {error}") from error
