"""The watch over training steps: it reports each step as it is done, and what the guard does."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress

from swarm.client import SwarmClient
from swarm.errors import SwarmError
from swarm.schemas import GuardView

REWARD = "critic/score/mean"
LOSS, HELD_OUT_LOSS = "sft/loss", "sft/held_out_loss"
WATCH_S = 0.5
LAST_TIMEOUT_S = 60.0
"""The longest wait for the watcher at the end, which may be asking a server that no longer answers."""


@contextmanager
def watch_steps(
    client: SwarmClient, on_step: Callable[[int, str], None], on_guard: Callable[[GuardView], None]
) -> Generator[None]:
    """Call `on_step` from a thread with each finished step and its description.

    Call `on_guard` with each fault that the guard of the server finds. Steps that it has undone are reported again once
    they are done anew.

    Steps that were done while the server could not be reached are reported afterwards. Raises the server's error at the
    begin of the `with` block, and at its end unless the block itself has raised.
    """
    ended = threading.Event()
    status = client.status()
    last, known = status.step, status.guard

    def tell() -> None:
        nonlocal last, known
        status = client.status()
        if status.guard is not None and status.guard != known:
            on_guard(status.guard)
            last = last if status.guard.back_to is None else min(last, status.guard.back_to)
        known = status.guard
        for point in client.metrics(after_step=last):
            last = point.step
            on_step(point.step, describe_step(point.metrics))

    def watch() -> None:
        while not ended.wait(WATCH_S):
            with suppress(SwarmError):
                tell()

    watcher = threading.Thread(target=watch, name="steps", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(LAST_TIMEOUT_S)
    tell()


def describe_step(metrics: Mapping[str, float]) -> str:
    """Return what a step was about: its mean reward, or the loss of its demonstrations in nats per token."""
    shown = {"reward": REWARD, "loss": LOSS, "held-out loss": HELD_OUT_LOSS}
    parts = [f"{name} {metrics[metric]:.3f}" for name, metric in shown.items() if metric in metrics]
    return "  ".join(parts) or f"reward {math.nan}"
