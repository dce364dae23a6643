"""verl's own check of a merged configuration.

Place in the flow: the driver asks before it starts anything. Unlike configuration.py, this module needs verl, and
therefore tensors.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import importlib.util

from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from swarm.backends.verl.settings.configuration import VerlSettings
from swarm.errors import JobInvalid


def validate(settings: VerlSettings) -> None:
    """Raise JobInvalid with verl's reason if verl refuses the settings."""
    config = settings.config
    try:
        validate_config(config, need_reference_policy(config), need_critic(config))
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        omega_conf_to_dataclass(config.algorithm)
    except Exception as error:
        # verl and hydra raise assertions, type and value errors, and their own errors.
        reason = " ".join(str(error.__cause__ or error).split())[:300] or type(error).__name__
        raise JobInvalid(f"verl refuses this job: {reason}", param="verl") from error
    if config.actor_rollout_ref.actor.strategy == "megatron":
        _require("megatron.core", "actor_rollout_ref.actor.strategy", "megatron-core")


def _require(module: str, key: str, package: str) -> None:
    found = False
    with contextlib.suppress(ModuleNotFoundError):
        found = importlib.util.find_spec(module) is not None
    if not found:
        raise JobInvalid(f"verl.{key}: needs the package {package} on every node of the trainer", param=f"verl.{key}")
