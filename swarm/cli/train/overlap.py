"""The refusal of demonstrations that repeat held-out tasks of the environment that scores them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from swarm.errors import BadRequest

if TYPE_CHECKING:
    from swarm.environments import Environment


def require_not_held_out(environment: Environment, demonstrations: Path | None, *, allowed: bool) -> None:
    """Raise BadRequest if demonstrations of this file repeat held-out tasks. If that is `allowed`, print it instead."""
    from swarm.demonstrations import parse_demonstrations, read_demonstration_file
    from swarm.environments.overlap import find_overlaps

    if demonstrations is None:
        return
    parsed = parse_demonstrations(read_demonstration_file(demonstrations))
    found = find_overlaps(environment, parsed)
    if not found:
        return
    first = found[0]
    message = (
        f"{demonstrations}: {len(found)} of {len(parsed)} demonstrations repeat held-out tasks of {environment.name},"
        f" the first is number {first.number}, with task {first.task_id} of the split {first.split}: the held-out score"
        " would count what was learned by heart"
    )
    if not allowed:
        raise BadRequest(f"{message}: take them out, or add --allow-overlap", param="demonstrations")
    typer.echo(f"swarm: {message}", err=True)
