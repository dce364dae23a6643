"""Names of a package whose module is imported on their first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package, given its names by their modules."""
    by_name = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> object:
        if name not in by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(by_name[name]), name)

    return find, lambda: sorted(by_name)
