"""The end of a run's training at a server that was killed meanwhile, or whose engine has failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from researcher.errors import RunBroken
from researcher.servers.jobs import end_job
from swarm import SwarmClient


class Server:
    """Says at each look at its engine the next of `states`; the batch that fills is known once it has booted."""

    def __init__(self, *states: str) -> None:
        self._states = list(states)
        self._state = ""
        self.asked: list[dict[str, Any]] = []

    def status(self) -> SimpleNamespace:
        self._state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return SimpleNamespace(state=self._state, step=4, reason="the worker died")

    def job(self) -> SimpleNamespace:
        return SimpleNamespace(filling=None if self._state in ("BOOTING", "FAILED") else 5)

    def change_job(self, settings: dict[str, Any]) -> None:
        self.asked.append(settings)

    def episodes(self, **_: Any) -> list[Any]:
        return []

    def metrics(self, after: int) -> list[Any]:
        return []


def end(server: Server) -> int:
    return end_job(cast(SwarmClient, server), None, 0, wait_s=60, check_stop=lambda: None).step


def test_server_that_boots_again_is_asked_once_it_serves() -> None:
    server = Server("BOOTING", "BOOTING", "ROLLING", "COMPLETE")
    assert (end(server), server.asked) == (4, [{"total_steps": 4}])


def test_engine_that_failed_says_why_itself() -> None:
    with pytest.raises(RunBroken, match="the engine is FAILED: the worker died"):
        end(Server("FAILED"))
