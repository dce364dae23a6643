"""Imports of large libraries made faster or kept out, and names of packages that load on first use."""

from __future__ import annotations

import ast
import gc
import importlib
import os
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

COLLECTED_AFTER = (50_000, 20, 50)
"""Arguments of `gc.set_threshold`: new objects per collection, and collections per one of the next generation."""


@contextmanager
def collector_paused(library: str) -> Generator[None]:
    """Pause the collector for an import whose largest library is `library`, unless that is imported already.

    An import makes hundreds of thousands of objects that all stay. To look for garbage among them takes a third of the
    import's time, and later a part of every request's.
    """
    if library in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Only once: at a later import there may be garbage, which freezing would keep for good.
        if gc.get_freeze_count() == 0:
            gc.freeze()
        gc.enable()


@contextmanager
def kept_out(library: str) -> Generator[None]:
    """Make `library` appear not installed to imports within the block.

    This is for libraries that another one imports for a part that is never used here. A library that is imported
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
    """Keep rich out, so that httpx is imported without its command line, which takes a tenth of a client's start."""
    return kept_out("rich")


def collect_rarely() -> None:
    """Let the collector of this process look for garbage less often.

    With Python's own thresholds, a server with thousands of episodes needs a tenth of its time to look through them.
    The price is some tens of megabytes of garbage.
    """
    gc.set_threshold(*COLLECTED_AFTER)


def keep_torch_out() -> None:
    """Make torch appear not installed in this process, unless it is imported already.

    A server leaves tensors to its workers. But transformers, which reads some tokenizers, imports torch wherever it is
    installed. That takes two seconds of every start, and 180 MB.
    """
    cast("dict[str, Any]", sys.modules).setdefault("torch", None)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def lazy_names(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package whose names load their modules on first use.

    The names are those that the package's `__init__.py` imports under `if TYPE_CHECKING`.
    """
    code = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
    guarded = [statement for block in code.body if isinstance(block, ast.If) for statement in block.body]
    imports = [statement for statement in guarded if isinstance(statement, ast.ImportFrom)]
    by_name = {alias.name: str(statement.module) for statement in imports for alias in statement.names}

    def find(name: str) -> object:
        if name not in by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(by_name[name]), name)

    return find, lambda: sorted(by_name)
