"""Modules that tests import when they first use them, so that no worker pays for torch to collect tests."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """A module by name. It is imported as soon as something is asked of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)
