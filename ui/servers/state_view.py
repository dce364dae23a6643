"""The live state of a server: what it trains, how far it is, who works with it, and what its guard found."""

from __future__ import annotations

import streamlit as st

from ui import elements, formats
from ui.servers.status import ShownPool, ShownStatus
from ui.tables.training_rows import REWARD

POLICY = ("stop_rule", "batch_size", "num_repeat", "min_group", "max_staleness", "mixture")


def show_state(status: ShownStatus) -> None:
    """Show all that the explorer shows of a status."""
    facts = [elements.badge(status.state)]
    if status.experiment_name:
        facts.append(_short(f"{status.project_name}/{status.experiment_name}", 200))
    if status.model:
        facts.append(f"model {formats.name(formats.shortened(status.model, 200))}")
    if status.server_version:
        facts.append(f"swarm {_short(status.server_version, 60)}")
    st.markdown(" · ".join(facts))
    if status.reason:
        st.error(_short(status.reason, 1000), icon=":material/error:")
    for loss in status.lost:
        st.error(_short(f"The ledger was {loss.sentence}", 500), icon=":material/history:")
    if status.guard is not None:
        did = _short(status.guard.did.replace("_", " "), 60)
        said = _short(f"{status.guard.sentence} {status.guard.advice}", 1000)
        st.warning(f"The guard {did} at step {status.guard.step}: {said}", icon=":material/shield:")
    for item in status.warnings[:5]:
        said = f"{_short(item.client_id, 120)}: {_short(item.message, 500)}"
        st.warning(f"{said} ({formats.count(item.count, 'time')})", icon=":material/warning:")
    _show_figures(status)
    _show_batch(status)
    _show_clients(status)


def _short(text: str, length: int) -> str:
    """Return a foreign text for Markdown, up to a length."""
    return formats.plain(formats.shortened(text, length))


def _show_figures(status: ShownStatus) -> None:
    pool = status.pool or ShownPool()
    reward = status.last_metrics.get(REWARD)
    score = status.last_evaluation
    with st.grid(4, min_column_width=150):
        elements.show_metric("Step", f"{status.step:,} / {f'{status.total_steps:,}' if status.total_steps else '∞'}")
        elements.show_metric("Episodes under way", f"{pool.running_train + pool.running_eval:,}")
        elements.show_metric("Tokens per second", f"{status.tokens_per_second:,.0f}")
        elements.show_metric("Clients", f"{len(status.clients):,}")
        elements.show_metric("Reward of the last step", formats.score(_number(reward)))
        elements.show_metric("Held-out score", formats.score(None if score is None else score.mean))
        elements.show_metric("Weight version", f"{status.weight_version:,}")
        elements.show_metric("Recoveries", f"{status.recoveries:,}", help="How often it went on after a crash")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _show_batch(status: ShownStatus) -> None:
    pool, policy = status.pool, status.policy
    if pool is None or policy is None:
        return
    done, target, noun = pool.tasks, pool.tasks_target, "task"
    if not target:
        done, target, noun = pool.episodes, pool.episodes_target, "episode"
    if target > 0:
        share = min(1.0, max(0.0, done / target))
        st.progress(share, text=f"Next batch: {done:,} of {formats.count(target, noun)}")
    shown = {name: policy[name] for name in POLICY if policy.get(name) is not None}
    elements.show_facts("Policy", _short(formats.settings(shown), 500))


def _show_clients(status: ShownStatus) -> None:
    if not status.clients:
        return
    rows = [
        {
            "Client": formats.shortened(formats.printable(client.client_id), 120),
            "Running": client.running,
            "Completed": client.completed,
            "Lost": client.lost,
            "Last call": f"{formats.duration(status.now - client.last_seen_at)} ago",
        }
        for client in status.clients
    ]
    elements.show_table(rows, alt="Clients of the server")
