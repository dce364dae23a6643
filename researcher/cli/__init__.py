"""The command `researcher`. Its parts load on first use, because an install without extras lacks their dependencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from researcher.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    from swarm.extras import named_extras

    with named_extras("researcher", "researcher"):
        from researcher.cli.commands import app

        app()


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module 'researcher.cli' has no attribute {name!r}")
    from researcher.cli.commands import app

    return app
