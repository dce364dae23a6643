"""Checks of a server's address: is the port free or does a server answer there, who may call it, does the clock agree.

Place in the flow: listed by checks.py. A running server is asked by GET alone. Knows nothing of the directory, except
that the time of its last write cannot lie ahead.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from swarm import __version__
from swarm.client import SwarmClient
from swarm.config import LEDGER, ServerConfig
from swarm.doctor.examination import Finding, fail, ok, warn
from swarm.errors import Forbidden, JobInvalid, ServerUnreachable, SwarmError, Unauthorized
from swarm.schemas import Status

ANSWER_LIMIT_S = 4.0
# Leases are counted in tens of seconds; below this no limit is met early or late by much.
LARGEST_SKEW_S = 5.0
# No clock that is right shows a time before this program was written: 2026-01-01.
EARLIEST_TIME = 1_767_225_600


def check_tokens(host: str) -> Finding:
    """The rule `start` goes by, applied to the environment as it is."""
    try:
        config = ServerConfig.from_environment(host=host)
    except JobInvalid as error:
        return fail(
            error.message,
            "a good one: export SWARM_TOKEN=$(python -c 'import secrets; print(secrets.token_urlsafe(24))')",
        )
    roles = [
        name
        for name, token in (
            ("commander", config.token),
            ("rollout", config.rollout_token),
            ("observer", config.observer_token),
        )
        if token is not None
    ]
    if not roles:
        return ok(f"none, and none is needed: {host} is this machine only")
    return ok(f"set for {', '.join(roles)}")


def check_port(host: str, port: int, token: str | None) -> Finding:
    """Free to listen on, or a swarm server answers there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return ok(f"{host}:{port} is free")
    url = url_of(host, port)
    try:
        status = _status(url, token)
    except ServerUnreachable:
        return fail(f"{host}:{port} cannot be used: {reason}", "stop what listens there, or choose another --port")
    except (Unauthorized, Forbidden):
        return ok(f"a swarm server answers at {url}; the token set here is not one of its own")
    except SwarmError:
        return fail(f"something that is no swarm server listens on {host}:{port}", "choose another --port")
    if status.server_version != __version__:
        return warn(
            f"a swarm {status.server_version} answers at {url}, this is {__version__}", "bring both to one version"
        )
    return ok(f"a swarm server answers at {url}: {status.state}, step {status.step}")


def check_clock(host: str, port: int, token: str | None, home: Path) -> Finding:
    """Deadlines and leases are kept as times of day: a clock that was wrong or jumps ends episodes early or never."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < EARLIEST_TIME:
        return fail(f"{shown} cannot be right", "set the clock, best by NTP")
    ledger = home / LEDGER
    ahead_s = ledger.stat().st_mtime - now if ledger.exists() else 0.0
    if ahead_s > LARGEST_SKEW_S:
        return warn(f"{shown}: the ledger was last written {ahead_s:.0f} s in the future", "set the clock, best by NTP")
    try:
        skew_s = _status(url_of(host, port), token).now - time.time()
    except SwarmError:
        return ok(shown)
    if abs(skew_s) > LARGEST_SKEW_S:
        return warn(f"{shown}: the server's clock differs by {skew_s:+.0f} s", "set both clocks by NTP")
    return ok(f"{shown}, as the server's")


def url_of(host: str, port: int) -> str:
    """Where a client on this machine finds a server that listens on `host`."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def _status(url: str, token: str | None) -> Status:
    with SwarmClient(url, token, timeout=ANSWER_LIMIT_S) as client:
        return client.status()
