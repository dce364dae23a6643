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
    of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
