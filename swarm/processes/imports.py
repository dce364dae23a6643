"""Heavy imports, with the garbage collector out of the way or not at all, and how often it runs afterwards.

Place in the flow: bottom of the package. The engine worker and the server wrap the import of their large libraries in
this, because until it is done nothing is served.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

COLLECTED_AFTER = (50_000, 20, 50)
"""New objects before the youngest are looked through, and how many such rounds before the older ones are."""


@contextmanager
def collector_paused(library: str) -> Generator[None]:
    """Pauses the collector around an import whose largest library is `library`, unless that has been imported already.

    Importing makes objects by the hundred thousand, all of which stay: looking for garbage among them takes a third
    of the time, and would go on taking some of every request's.
    """
    if library in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Once: what a later import finds may be garbage, which would be kept for good.
        if gc.get_freeze_count() == 0:
            gc.freeze()
        gc.enable()


@contextmanager
def kept_out(library: str) -> Generator[None]:
    """What is imported within the block finds `library` not installed; what is imported later finds it as ever.

    For libraries that others import for a part of themselves that is never used here. One that has been imported
    already stays.
    """
    modules = cast("dict[str, Any]", sys.modules)
    if library in modules:
        yield
        return
    modules[library] = None
    try:
        yield
    finally:
        del modules[library]


def plain_httpx() -> AbstractContextManager[None]:
    """Within the block, httpx is imported without the command line that it brings: a tenth of a client's start."""
    return kept_out("rich")


def collect_rarely() -> None:
    """Let the collector of this process look for garbage less often.

    By Python's own thresholds, a server that keeps thousands of episodes spends a tenth of its time looking through
    them. What it may leave lying about for that is some tens of megabytes.
    """
    gc.set_threshold(*COLLECTED_AFTER)


def keep_torch_out() -> None:
    """From now on torch is not to be had in this process, unless it is there already.

    A server leaves tensors to its workers. transformers, which reads some tokenizers, would import torch for no other
    reason than that it is installed: two seconds of every start, and 180 MB.
    """
    cast("dict[str, Any]", sys.modules).setdefault("torch", None)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
