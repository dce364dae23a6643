"""Heavy imports with the garbage collector out of the way.

Place in the flow: bottom of the package. The engine worker and the server wrap the import of their large libraries in
this, because until it is done nothing is served.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Importing makes objects by the hundred thousand, all of which stay: looking for garbage among them takes a third
    of the time, and would go on taking some of every request's."""
    gc.disable()
    try:
        yield
    finally:
        # Once: what a later import finds may be garbage, which would be kept for good.
        if gc.get_freeze_count() == 0:
            gc.freeze()
        gc.enable()
