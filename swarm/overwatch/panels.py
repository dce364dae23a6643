"""The panels of the monitor as Rich renderables, one function per panel."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swarm.client.evaluation import interval_on_record
from swarm.overwatch.curve import SHOWN_METRICS, curve, figures
from swarm.overwatch.snapshot import ServerSnapshot
from swarm.schemas import (
    STOP_RULES,
    BatchPolicyView,
    DiskView,
    EngineState,
    EventView,
    PoolView,
    RunningEpisodeView,
    SourceView,
    Status,
)

STYLE_BY_STATE: Mapping[EngineState, str] = {
    EngineState.OFFLINE: "dim",
    EngineState.BOOTING: "yellow",
    EngineState.ROLLING: "green",
    EngineState.DRAINING: "cyan",
    EngineState.TRAINING: "cyan",
    EngineState.EXPORTING: "cyan",
    EngineState.COMPLETE: "bold green",
    EngineState.FAILED: "bold red",
}
# A client that is silent for longer is dead or hangs, because the library sends a heartbeat every 10 s.
SILENT_CLIENT_S = 60.0


def header(snapshot: ServerSnapshot, *, is_paused: bool = False, is_short: bool = False) -> RenderableType:
    """Return the state and the job, and below them the reason of the state, the study, the scores and any problem.

    A short one leaves the speed and the age of the server out.
    """
    status = snapshot.status
    lines: list[RenderableType] = [
        _spread(Text(f"swarm {snapshot.url}", style="bold"), _state(snapshot, is_paused=is_paused))
    ]
    if status is not None:
        lines.append(_spread(_job(status), _progress(snapshot, status)))
        if not is_short:
            lines.append(_line(_pace(status), "dim"))
        if status.reason is not None:
            lines.append(_line(printable(status.reason), STYLE_BY_STATE[status.state]))
        if status.ledger_fault is not None:
            lines.append(_line(printable(status.ledger_fault), "bold red"))
        lines += [_line(f"{_date(loss.noticed_at)}: {loss.sentence}", "bold yellow") for loss in status.lost]
        if (lease := status.lease) is not None:
            words = f"used by study {lease.study_id} of {lease.host} (process {lease.pid}) since {_date(lease.since)}"
            lines.append(_line(printable(words), "dim"))
        if (scores := _scores(status)) is not None:
            lines.append(_line(printable(scores), "dim"))
    if (problem := _problem(snapshot)) is not None:
        lines.append(problem)
    return Group(*lines)


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def batch(status: Status) -> RenderableType:
    """Return how full the current batch is, in all and for each data source if there are several."""
    if status.pool is None:
        return _line("no engine is running: no episodes are collected", "dim")
    pool = status.pool
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, ratio=1)
    table.add_column(no_wrap=True, style="dim")
    running_eval = f"{pool.running_eval} eval" if pool.running_eval else ""
    table.add_row("tasks", f"{pool.tasks}/{pool.tasks_target}", _bar(pool.tasks, pool.tasks_target), running_eval)
    fill = _bar(pool.episodes, pool.episodes_target)
    waiting = f", {pool.waiting_begins} wait" if pool.waiting_begins else ""
    table.add_row("episodes", f"{pool.episodes}/{pool.episodes_target}", fill, f"{pool.running_train} run{waiting}")
    for name, source in _sources(pool):
        fill = "" if source.tasks_target is None else _bar(source.tasks, source.tasks_target)
        target = "" if source.tasks_target is None else f"/{source.tasks_target}"
        table.add_row(f"  {printable(name)}", f"{source.tasks}{target}", fill, f"{source.running} run")
    return table


def policy(active: BatchPolicyView | None) -> RenderableType:
    """Return the batch policy in force, as one paragraph."""
    if active is None:
        return _line("none", "dim")
    parts = [
        f"{active.stop_rule}: {active.batch_size} tasks x {active.num_repeat}, groups of {active.min_group} or more",
        f"drains {duration(active.drain_timeout_s)}",
        "on-policy" if active.max_staleness == 0 else f"tokens up to {active.max_staleness} versions old",
    ]
    if active.batch_timeout_s is not None:
        parts.append(f"closed after {duration(active.batch_timeout_s)} at the latest")
    if active.mixture:
        parts.append("mixture " + ", ".join(f"{printable(name)} {share:.0%}" for name, share in active.mixture.items()))
    if STOP_RULES[active.stop_rule].is_grouped:
        parts.append(f"an idle group waits {duration(active.group_timeout_s)}")
    return Text("; ".join(parts))


def clients(status: Status, limit: int | None = None) -> RenderableType:
    """Return the clients of the server, busiest first."""
    if not status.clients:
        return _line("none seen", "dim")
    table = _columns("client", "run", "done", "lost", "seen")
    busiest = sorted(status.clients, key=lambda client: (-client.running, -client.last_seen_at))
    for client in busiest[:limit]:
        silent_s = status.now - client.last_seen_at
        table.add_row(
            Text(printable(client.client_id)),
            str(client.running),
            str(client.completed),
            Text(str(client.lost), style="yellow" if client.lost else ""),
            Text(duration(silent_s), style="yellow" if client.running and silent_s > SILENT_CLIENT_S else ""),
        )
    return table


def longest_idle(status: Status, limit: int | None = None) -> RenderableType:
    """Return the running episodes, the longest idle first."""
    if not status.running:
        return _line("none", "dim")
    table = _columns("episode", "task", "client", "turn", "idle")
    for episode in status.running[:limit]:
        table.add_row(
            episode.episode_id[:8],
            Text(printable(_task(episode))),
            Text(printable(episode.client_id)),
            f"{episode.turns}{'…' if episode.calls_in_flight else ''}",
            duration(episode.idle_s),
        )
    return table


def warnings(status: Status, limit: int | None = None) -> RenderableType:
    """Return the server's warnings about clients that probably have a mistake, the latest first."""
    if not status.warnings:
        return _line("none", "dim")
    latest = sorted(status.warnings, key=lambda warning: -warning.last_at)
    lines = [
        _line(f"{printable(warning.client_id)}: {printable(warning.message)} ({warning.count}x)", "yellow")
        for warning in latest[:limit]
    ]
    return Group(*lines)


def not_trained(status: Status) -> RenderableType:
    """Return the numbers of episodes that were not trained, by reason."""
    if not status.failures:
        return _line("none", "dim")
    ordered = sorted(status.failures.items(), key=lambda item: -item[1])
    return Text(", ".join(f"{printable(reason)} {count:,}" for reason, count in ordered))


def events(snapshot: ServerSnapshot, limit: int | None = None) -> RenderableType:
    """Return the newest events, newest first."""
    if not snapshot.events:
        return _line("none", "dim")
    newest = list(reversed(snapshot.events))[:limit]
    return Group(*(_event(event) for event in newest))


def titles(status: Status) -> dict[str, str]:
    """Return the titles by panel, each with its total count, of which the panel may show only the first."""
    running, batch_title = 0, "Batch"
    if (pool := status.pool) is not None:
        running = pool.running_train + pool.running_eval
        batch_title += f" · {pool.stop_rule}" + (f" · {len(pool.agreed)} agreed" if pool.agreed else "")
    return {
        "batch": batch_title,
        "clients": _counted("Clients", len(status.clients)),
        "idle": _counted("Longest idle episodes", running),
        "warnings": _counted("Warnings", len(status.warnings)),
        "failures": _counted("Not trained", sum(status.failures.values())),
    }


def disk(use: DiskView) -> RenderableType:
    """Return the disk space that the server's directory uses, and the free space."""
    figures = (
        f"ledger {_megabytes(use.ledger_bytes)} · checkpoints {_megabytes(use.checkpoints_bytes)}, of these for crash"
        f" recovery {_megabytes(use.recovery_bytes)} · {_megabytes(use.free_bytes)} free"
    )
    return _line(figures)


def report(snapshot: ServerSnapshot, *, with_history: bool) -> RenderableType:
    """Return all panels one below the other, for output that is printed once."""
    status = snapshot.status
    if status is None:
        return header(snapshot)
    title = titles(status)
    sections: list[tuple[str, RenderableType]] = [
        (title["batch"], batch(status)),
        ("Policy", policy(status.policy)),
        (title["clients"], clients(status, 20)),
        (title["idle"], longest_idle(status, 10)),
        (title["warnings"], warnings(status, 10)),
        (title["failures"], not_trained(status)),
    ]
    if with_history:
        sections.insert(0, (figures(snapshot) or "Reward", curve(snapshot, height=4)))
        sections.append(("Events", events(snapshot, 8)))
    elif status.last_metrics:
        sections.insert(0, ("Last step", _last_step(status)))
    if status.disk is not None:
        sections.append(("Disk", disk(status.disk)))
    parts: list[RenderableType] = [header(snapshot)]
    for heading, body in sections:
        parts += [Text(heading, style="bold"), Padding(body, (0, 0, 0, 2))]
    return Group(*parts)


def _megabytes(amount: int) -> str:
    return f"{amount / 1e6:,.1f} MB"


def printable(text: str) -> str:
    """Return `text` on one line, with control characters replaced.

    So no client can control another person's terminal by a name or a message.
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def duration(seconds: float) -> str:
    """Return a duration with at most two units: `8s`, `2m05s`, `3h20m`, `4d2h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600}h"


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _counted(title: str, count: int) -> str:
    return f"{title} · {count:,}" if count else title


def _state(snapshot: ServerSnapshot, *, is_paused: bool) -> Text:
    shown = Text()
    if is_paused:
        shown.append("paused · ", style="yellow")
    if snapshot.status is None:
        return shown.append("unknown", style="dim")
    if recoveries := snapshot.status.recoveries:
        shown.append(f"{recoveries} recover{'y' if recoveries == 1 else 'ies'} · ", style="dim")
    style = "dim" if snapshot.error is not None else STYLE_BY_STATE[snapshot.status.state]
    return shown.append(snapshot.status.state.value, style=style)


def _scores(status: Status) -> str | None:
    """Return the newest held-out score, and the evaluation that the next step waits for, or None."""
    parts: list[str] = []
    if (score := status.last_evaluation) is not None and score.mean is not None:
        low, high = interval_on_record(score)
        ends = f" ({low:.3f} to {high:.3f})" if math.isfinite(low) else ""
        parts.append(f"held-out score at step {score.step}: {score.mean:.3f}{ends}")
    if (due := status.evaluation) is not None:
        how = f"is being measured by {due.evaluator}" if due.evaluator else "waits for an evaluator"
        parts.append(f"the score of step {due.step} {how}")
    return " · ".join(parts) or None


def _problem(snapshot: ServerSnapshot) -> Text | None:
    if snapshot.error is None or snapshot.failing_since is None:
        return None
    since = f"{clock(snapshot.failing_since)} ({duration(snapshot.at - snapshot.failing_since)})"
    if snapshot.is_unreachable:
        return _line(f"unreachable since {since}, still trying", "bold yellow")
    return _line(f"no answer since {since}: {printable(snapshot.error.message)}", "bold yellow")


def _job(status: Status) -> Text:
    if status.model is None:
        return Text("no job yet: a client sends one, or use `swarm start --job job.yaml`", style="dim")
    return Text(printable(f"{status.project_name}/{status.experiment_name} on {status.model}"))


def _progress(snapshot: ServerSnapshot, status: Status) -> Text:
    total = "" if status.total_steps is None else f"/{status.total_steps}"
    parts = [f"step {status.step}{total}"]
    if snapshot.step_s is not None:
        parts.append(f"{snapshot.step_s:.2g} s/step" if snapshot.step_s < 10 else f"{snapshot.step_s:.0f} s/step")
    if (left := snapshot.seconds_left) is not None:
        parts.append(f"about {duration(left)} left" if left >= 1 else "less than 1s left")
    elif snapshot.is_overdue and snapshot.step_took_s is not None:
        parts.append(f"this step takes longer than expected: {duration(snapshot.step_took_s)}")
    return Text(" · ".join(parts))


def _pace(status: Status) -> str:
    """Return the weights, the speed and the age of the server."""
    up = duration(status.now - status.started_at)
    return f"weights v{status.weight_version} · {status.tokens_per_second:,.0f} tok/s · up {up}"


def _last_step(status: Status) -> Text:
    names = {"critic/score/mean": "reward", **SHOWN_METRICS}
    return Text(" · ".join(f"{label} {status.last_metrics[name]:.3g}" for name, label in names.items()
                           if name in status.last_metrics))  # fmt: skip


def _sources(pool: PoolView) -> Iterable[tuple[str, SourceView]]:
    """Return the data sources to show. A single source without a quota is left out, as the totals show the same."""
    has_quota = any(source.tasks_target is not None for source in pool.sources.values())
    return sorted(pool.sources.items()) if has_quota or len(pool.sources) > 1 else ()


def _bar(completed: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(1, total), completed=min(completed, max(1, total)))


def _task(episode: RunningEpisodeView) -> str:
    if episode.task_id is None:
        return episode.episode_type.value
    return episode.task_id


def _event(event: EventView) -> Text:
    detail = " ".join(f"{name}={_value(value)}" for name, value in event.detail.items() if value not in (None, {}, []))
    text = Text(f"{clock(event.at)} ", style="dim", no_wrap=True, overflow="ellipsis")
    style = "red" if event.detail.get("state") == "FAILED" or event.kind == "batch.failed" else ""
    return text.append(f"{printable(event.kind)} ", style=style or "not dim").append(printable(detail), style=style)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _columns(name: str, *others: str) -> Table:
    """Return a table without lines. On a narrow screen the columns of names shrink, and the figures do not."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="dim")
    for title in (name, *others):
        is_name = title in {"client", "task"}
        table.add_column(
            title,
            justify="left" if is_name or title == "episode" else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_name else None,
        )
    return table


def _spread(left: Text, right: Text) -> Table:
    """Return one line with a left and a right part, of which the left one is cut if both do not fit."""
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    line.add_row(left, right)
    return line


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
