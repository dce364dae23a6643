"""The tables of stop rules, and of the estimators and losses that each engine serves, for docs/algorithms.md."""

from __future__ import annotations

from typing import get_args

from swarm.estimators import ESTIMATORS, Engine
from swarm.job import PolicyLoss
from swarm.schemas import STOP_RULES


def tables() -> str:
    """Return the tables: every estimator and loss that verl has by name, in alphabetical order."""
    engines: tuple[Engine, ...] = get_args(Engine)
    head = f"| {' | '.join(engines)} | why not |\n|---{'|---' * len(engines)}|---|\n"
    rows = "".join(_row(name, engines) for name in sorted(ESTIMATORS))
    losses = "".join(f"| `{name}` |{' yes |' * len(engines)} |\n" for name in sorted(get_args(PolicyLoss)))
    return f"| `algorithm` {head}{rows}\n| `policy_loss` {head}{losses}"


def stop_rules() -> str:
    """Return the table of the rules that make a batch complete."""
    rows = "".join(f"| `{name}` | {traits.complete_when} |\n" for name, traits in STOP_RULES.items())
    return f"| `stop_rule` | the batch is complete when |\n|---|---|\n{rows}"


def _row(name: str, engines: tuple[Engine, ...]) -> str:
    reasons = {engine: ESTIMATORS[name].unserved.get(engine) for engine in engines}
    cells = " | ".join("no" if reasons[engine] else "yes" for engine in engines)
    why = "; ".join(dict.fromkeys(reason for reason in reasons.values() if reason))
    return f"| `{name}` | {cells} | {why} |\n"
