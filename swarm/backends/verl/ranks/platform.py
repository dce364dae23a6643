"""The CPU as one of verl's platforms."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUntypedClassDecorator=false, reportUnknownParameterType=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _nothing(*_args: Any, **_options: Any) -> None:
    return None


def _no_bytes(*_args: Any, **_options: Any) -> int:
    return 0


class CpuDevice(ModuleType):
    """`torch.cpu`, with the calls on memory and random state that verl makes on a device module.

    It is equal to `torch.cpu`, because verl compares the two to find out where it runs.
    """

    empty_cache: Callable[..., None] = staticmethod(_nothing)
    reset_peak_memory_stats: Callable[..., None] = staticmethod(_nothing)
    ipc_collect: Callable[..., None] = staticmethod(_nothing)
    memory_allocated: Callable[..., int] = staticmethod(_no_bytes)
    memory_reserved: Callable[..., int] = staticmethod(_no_bytes)
    max_memory_allocated: Callable[..., int] = staticmethod(_no_bytes)
    max_memory_reserved: Callable[..., int] = staticmethod(_no_bytes)
    get_rng_state: Callable[[], torch.Tensor] = staticmethod(torch.get_rng_state)
    set_rng_state: Callable[[torch.Tensor], None] = staticmethod(torch.set_rng_state)

    @staticmethod
    def is_available() -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is torch.cpu

    __hash__ = ModuleType.__hash__


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """Platform with Gloo between processes. On a private cluster, slots of Ray's resource "GPU" are only numbers."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = CpuDevice("verl_cpu_device")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return False: verl selects this platform only by name."""
        return False

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        # verl's resource pools count only the names of accelerators.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
