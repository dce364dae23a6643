"""Checks of a server's address: its port, its access tokens and its clock.

Place in the flow: checks.py lists them. They send a running server GET requests only. They know nothing of the server's
directory, except that its last write cannot be in the future.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from swarm import __version__
from swarm.client import SwarmClient
from swarm.config import LEDGER, ServerConfig
from swarm.doctor.examination import CheckFinding, fail, ok, warn
from swarm.errors import Forbidden, JobInvalid, ServerUnreachable, SwarmError, Unauthorized
from swarm.schemas import Status

ANSWER_LIMIT_S = 4.0
# Leases last tens of seconds, so a smaller difference hardly matters.
LARGEST_SKEW_S = 5.0
# 2026-01-01. A correct clock cannot show a time before this program was written.
EARLIEST_TIME = 1_767_225_600


def check_tokens(host: str) -> CheckFinding:
    """Check the tokens in the environment by the rule of `swarm start`."""
    try:
        config = ServerConfig.from_environment(host=host)
    except JobInvalid as error:
        return fail(
            error.message,
            "set a new one: export SWARM_TOKEN=$(python -c 'import secrets; print(secrets.token_urlsafe(24))')",
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
        return ok(f"none, and none is needed: only this machine can reach {host}")
    return ok(f"set for {', '.join(roles)}")


def check_port(host: str, port: int, token: str | None) -> CheckFinding:
    """Check that the port is free, or that a swarm server of this version answers there."""
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
        return ok(f"a swarm server answers at {url}; it does not accept the token that is set here")
    except SwarmError:
        return fail(f"another program, which is no swarm server, listens on {host}:{port}", "choose another --port")
    if status.server_version != __version__:
        return warn(
            f"a swarm server of version {status.server_version} answers at {url}, and this is version {__version__}",
            "install the same version on both",
        )
    return ok(f"a swarm server answers at {url}: {status.state}, step {status.step}")


def check_clock(host: str, port: int, token: str | None, home: Path) -> CheckFinding:
    """Check the clock. Deadlines and leases are stored as times of day, so a wrong clock ends episodes wrongly."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < EARLIEST_TIME:
        return fail(f"{shown} cannot be right", "set the clock, preferably by NTP")
    ledger = home / LEDGER
    ahead_s = ledger.stat().st_mtime - now if ledger.exists() else 0.0
    if ahead_s > LARGEST_SKEW_S:
        return warn(
            f"{shown}: the ledger was last written {ahead_s:.0f} s in the future", "set the clock, preferably by NTP"
        )
    try:
        skew_s = _status(url_of(host, port), token).now - time.time()
    except SwarmError:
        return ok(shown)
    if abs(skew_s) > LARGEST_SKEW_S:
        return warn(f"{shown}: the server's clock differs by {skew_s:+.0f} s", "set both clocks by NTP")
    return ok(f"{shown}, the same as the server's")


def url_of(host: str, port: int) -> str:
    """Return the address at which a client on this machine finds a server that listens on `host`."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def _status(url: str, token: str | None) -> Status:
    with SwarmClient(url, token, timeout=ANSWER_LIMIT_S) as client:
        return client.status()
