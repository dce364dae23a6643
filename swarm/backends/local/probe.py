"""`python -m swarm.backends.local.probe`: what the tensor library can use here, and whether the bundled model runs.

Place in the flow: run by the doctor as a process of its own, for a broken build of a tensor library may crash or hang
the process that imports it. Prints one line of JSON for the library, then one for the model; knows nothing of servers.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from swarm.processes.imports import kept_out, plain_httpx


def describe_devices() -> dict[str, Any]:
    """Version, threads, and one entry per GPU."""
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "cuda_build": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def run_bundled_model() -> dict[str, Any]:
    """One forward pass over one token. Raises EngineFailure if the model cannot be loaded."""
    # As in a worker: worker.py says why.
    with kept_out("scipy"), plain_httpx():
        from swarm.backends.local.model.loading import load_model
        from swarm.model_path import BUNDLED_DIRECTORY

    torch.set_num_threads(1)
    began = time.monotonic()
    model = load_model(BUNDLED_DIRECTORY, device="cpu", max_model_len=None)
    with torch.inference_mode():
        logits = model.module(torch.tensor([[0]])).logits
    if not bool(torch.isfinite(logits).all()):
        raise RuntimeError("its first scores are not finite numbers")
    return {"parameters": model.parameters, "seconds": round(time.monotonic() - began, 2)}


def main() -> None:
    for describe in (describe_devices, run_bundled_model):
        sys.stdout.write(json.dumps(describe()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
