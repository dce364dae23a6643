"""The live dashboard: the panels on a Textual screen, which are redrawn after every look at the server."""

from __future__ import annotations

import time
from typing import ClassVar

from rich.console import RenderableType
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Footer, Static

from swarm.overwatch import panels
from swarm.overwatch.snapshot import ServerSnapshot, Watcher

TALL_SCREEN_LINES = 34


class Dashboard(App[None]):
    """The app that shows what `watcher` sees, every `every_s` seconds. It closes the watcher when it ends."""

    TITLE = "swarm"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("r", "refresh", "Refresh now"),
    ]
    CSS = """
    Screen { background: $background; }
    Static { height: auto; }
    #header { padding: 0 1; }
    .panel { border: round $panel-lighten-2; border-title-color: $text-muted; padding: 0 1; height: auto; }
    #columns { height: auto; max-height: 65%; }
    #left, #right { width: 1fr; height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    #events { height: 1fr; min-height: 4; }
    .is-stale .panel { opacity: 60%; }
    """

    def __init__(self, watcher: Watcher, every_s: float) -> None:
        super().__init__()
        self._watcher = watcher
        self._every_s = every_s
        self._snapshot: ServerSnapshot | None = None
        self._looked_at = 0.0
        self.is_paused = False

    def compose(self) -> ComposeResult:
        yield Static(id="header")
        with Vertical(id="body"):
            yield _panel("curve", "Reward")
            with Horizontal(id="columns"):
                with VerticalScroll(id="left", can_focus=False):
                    yield _panel("batch")
                    yield _panel("clients")
                with VerticalScroll(id="right", can_focus=False):
                    yield _panel("idle")
                    yield _panel("warnings")
                    yield _panel("failures")
            yield _panel("events", "Events")
        yield Footer()

    def on_mount(self) -> None:
        self.theme = "textual-dark"
        self._look()
        self.set_interval(self._every_s, self._look_if_due)

    async def on_unmount(self) -> None:
        await self._watcher.close()

    def on_resize(self) -> None:
        self._draw()

    def action_pause(self) -> None:
        self.is_paused = not self.is_paused
        self._draw()

    def action_refresh(self) -> None:
        self._look()

    def _look_if_due(self) -> None:
        if not self.is_paused:
            self._look()

    def _look(self) -> None:
        # In a worker, so that a slow answer does not block the keys. One at a time, so that answers stay in order.
        if not any(worker.is_running for worker in self.workers):
            self.run_worker(self._look_and_draw, exit_on_error=True)

    async def _look_and_draw(self) -> None:
        self._snapshot = await self._watcher.look()
        self._looked_at = time.monotonic()
        self._draw()

    def _draw(self) -> None:
        if not self.is_running:
            # The answer came after the user had left.
            return
        snapshot = self._snapshot
        if snapshot is None:
            self._show("header", f"swarm {self._watcher.url}: waiting for the first answer")
            self.query_one("#body").display = False
            return
        is_tall = self.size.height >= TALL_SCREEN_LINES
        self.screen.set_class(snapshot.error is not None, "is-stale")
        self._show("header", panels.header(snapshot, is_paused=self.is_paused, is_short=not is_tall))
        self.query_one("#body").display = snapshot.status is not None
        if snapshot.status is None:
            return
        status, rows = snapshot.status, 10 if is_tall else 3
        self.query_one("#curve", Static).border_title = panels.figures(snapshot) or "Reward"
        self._show("curve", panels.curve(snapshot, height=5 if is_tall else 1))
        self._show("batch", panels.batch(status))
        self._show("clients", panels.clients(status, rows))
        self._show("idle", panels.longest_idle(status, rows))
        self._show("warnings", panels.warnings(status, rows - 1))
        self._show("failures", panels.not_trained(status))
        self._show("events", panels.events(snapshot))

        for name, title in panels.titles(status).items():
            self.query_one(f"#{name}", Static).border_title = title

    def _show(self, name: str, content: RenderableType) -> None:
        self.query_one(f"#{name}", Static).update(content)


def _panel(name: str, title: str = "") -> Static:
    panel = Static(id=name, classes="panel")
    panel.border_title = title
    return panel
