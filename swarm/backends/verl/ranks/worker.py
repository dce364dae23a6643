"""verl's training workers with additions for this service.

Place in the flow: Ray runs one of these processes per GPU (on the CPU: per slot). The driver's trainer calls their
registered methods on all ranks at once. Importing this module registers the engines and weight transports with verl.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUntypedFunctionDecorator=false
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportUnusedImport=false

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from swarm.backends.replicas.weight_file import gather, write_weights
from swarm.backends.verl.ranks import broadcast as _broadcast  # noqa: F401  registers
from swarm.backends.verl.ranks.losses import policy_loss
from swarm.backends.verl.ranks.policy_engine import PolicyEngine, ValueEngine

COLLECTIVE_TIMEOUT_S = 600
"""Longest wait of a rank for the others. A dead rank is noticed at once; this limit is for one that hangs."""


def _join_process_group() -> None:
    """Create the process group here if verl would ask torch for gloo twice, which torch refuses.

    The group is created once.
    """
    if get_device_name() == "cpu":
        initialize_global_process_group_ray(timeout_second=COLLECTIVE_TIMEOUT_S, backend="cpu:gloo")


class PolicyWorker(ActorRolloutRefWorker):
    """Actor, with the reference policy beside it if the job needs one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _join_process_group()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        self._set_loss()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def restore_base(self) -> None:
        """Restore weights, optimizer and schedule from before the first step."""
        self.actor.reset()
        self._set_loss()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def end_step(self) -> None:
        """Move the learning rate, once for all updates of a step."""
        if self.actor is not None:
            _end_step(self.actor)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_weights(self, path: str, dtype: str) -> None:
        """Write the whole weights as one file, from rank 0."""
        weights, _adapter = self.actor.engine.get_per_tensor_param()
        is_kept = torch.distributed.get_rank() == 0
        tensors = gather(weights, getattr(torch, dtype), is_kept=is_kept)
        if is_kept:
            write_weights(Path(path), tensors)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def describe_weights(self) -> list[tuple[str, str, list[int]]]:
        """Return name, dtype and shape of every tensor, in the order in which they are sent."""
        weights, _adapter = self.actor.engine.get_per_tensor_param()
        return [(name, str(weight.dtype).removeprefix("torch."), list(weight.shape)) for name, weight in weights]

    def _set_loss(self) -> None:
        if self.actor is not None:
            self.actor.set_loss_fn(partial(policy_loss, config=self.loss_fn.keywords["config"]))


class ValueWorker(TrainingWorker):
    """Critic, for algorithms that have one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        _join_process_group()
        super().__init__(*args, **options)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def end_step(self) -> None:
        _end_step(self)


def _end_step(worker: TrainingWorker) -> None:
    # verl's other model engines move the learning rate themselves.
    if isinstance(worker.engine, PolicyEngine | ValueEngine):
        worker.engine.end_step()
