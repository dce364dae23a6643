"""The process of one part: `python -m bench.gpu.child ORDER`, where schedule.py has written the order as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu.measurement import Measurement


def main(order: dict[str, Any]) -> None:
    import torch

    # Threads that wait for one another make the figures of a busy CPU worthless, and a GPU needs no more.
    torch.set_num_threads(1)
    seconds = order["deadline"] - time.time()
    directory, figures = Path(order["directory"]), Path(order["figures"])
    measurement = Measurement(order["device"], seconds, directory, figures, order["peaks"])
    importlib.import_module(f"bench.gpu.parts.{order['module']}").measure(measurement)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    # All is written; the ordinary end of a process that has used torch takes seconds of the time box.
    sys.stderr.flush()
    os._exit(0)
