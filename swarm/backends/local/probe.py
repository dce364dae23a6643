"""`python -m swarm.backends.local.probe`: a report on the tensor library, and on a run of the bundled model."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from swarm.processes.imports import kept_out, plain_httpx


def describe_devices() -> dict[str, Any]:
    """Return version, threads, and one entry per GPU."""
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "cuda_build": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def run_bundled_model() -> dict[str, Any]:
    """Run one forward pass over one token. Raise EngineFailure if the model cannot be loaded."""
    # As in a worker; worker.py explains why.
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
