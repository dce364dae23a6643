"""Modules that tests import when they first use them, so that no worker pays for torch to collect tests."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """A module by name. It is imported as soon as one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # pytest looks for names such as `__test__` on every object of a test module.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
