"""The failure of a command: one line on stderr, and one of the exit codes of docs/operations.md."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import typer

from swarm.errors import (
    BadRequest,
    Forbidden,
    LedgerDamaged,
    LedgerError,
    NotFound,
    SandboxUnavailable,
    ServerUnreachable,
    SwarmError,
    Unauthorized,
    Unavailable,
)


def exit_code(error: SwarmError) -> int:
    """Return the documented exit code of a failure."""
    by_class: tuple[tuple[type[SwarmError], int], ...] = (
        (BadRequest, 2),
        (NotFound, 3),
        (Unauthorized, 4),
        (Forbidden, 4),
        (ServerUnreachable, 5),
        (SandboxUnavailable, 6),
        (LedgerDamaged, 74),
        (LedgerError, 1),
        (Unavailable, 75),
    )
    if error.code in {"port_in_use", "ledger_in_use"}:
        return 75
    return next((code for cls, code in by_class if isinstance(error, cls)), 1)


@contextmanager
def failures_in_one_line() -> Generator[None]:
    """Turn a domain error into one line on stderr and its exit code."""
    try:
        yield
    except SwarmError as error:
        typer.echo(f"swarm: {error.message}", err=True)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
