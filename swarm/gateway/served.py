"""The service of the model as the routes find it, and the error while there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.rollout.completion import ModelService
from swarm.run.lifecycle import EngineLifecycle


@dataclass(frozen=True, slots=True)
class Served:
    """The service of the model. `find` returns it, or None while no engine runs."""

    find: Callable[[], ModelService | None]
    lifecycle: EngineLifecycle

    def __call__(self) -> ModelService | None:
        return self.find()

    def require(self) -> ModelService:
        """Return the service. Raises FailedEngine or EngineNotReady while no engine runs."""
        service = self.find()
        if service is None:
            raise self.lifecycle.refusal()
        return service
