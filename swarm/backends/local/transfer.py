"""Copies of arrays from the host to the device of a model.

Place in the flow: the sampler calls it at each decoding step, and the learner for each microbatch. A plain copy to a
GPU waits until the GPU has done all earlier work, and the host cannot prepare the next work meanwhile. A copy from
pinned memory does not wait. This module knows nothing of models.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on the device. On a CPU both share memory."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
