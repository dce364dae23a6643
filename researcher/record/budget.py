"""The budget of a study: what it has used, and the refusal of runs and calls that it cannot pay for."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from experiments_db import BudgetKind, ExperimentStore
from researcher.charter import Budget
from researcher.errors import BudgetExceeded
from swarm.prices import Prices

TOLERANCE = 1e-9
"""The rounding error of sums of parts of runs."""


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One kind of spending, as shown to people.

    `name` is its option without the `max`. The amount used and the `limit` are in `unit`; a limit of None is no limit.
    """

    name: str
    unit: str
    used: float
    limit: float | None

    @property
    def in_words(self) -> str:
        """The line as text, such as "3 of 8 runs"."""
        of_limit = "" if self.limit is None else f" of {self.limit:,g}"
        return f"{self.used:,.4g}{of_limit} {self.unit}"


@dataclass(frozen=True, slots=True)
class _Charge:
    kind: BudgetKind
    key: str
    amount: float
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class _RunningRun:
    started: float
    gpus: int


class BudgetLedger:
    """The account of one study, kept by the one process that works on it. Thread-safe.

    The amounts used are known without a query, so that every round of monitoring can ask for them.

    Time comes from a monotonic clock. Wall clock is the time in which a researcher process works on the study, waiting
    included. A run costs time and GPU-hours from its launch until it has a score or has ended without one. Time in
    which no process works on the study is charged to nobody. A limit of None is no limit.

    With `prices`, money is charged besides: the time of `machines` machines, the hours of GPUs, and the language model.
    """

    def __init__(
        self,
        store: ExperimentStore,
        study_id: str,
        budget: Budget,
        *,
        prices: Prices | None = None,
        machines: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self._prices, self._machines = prices, machines
        self._store = store
        self._study_id = study_id
        self._clock = clock
        self._session = f"session:{uuid.uuid4().hex}"
        self._started = clock()
        self._running: dict[str, _RunningRun] = {}
        self._charged: dict[tuple[BudgetKind, str], float] = {}
        self._total = store.sum_budget(study_id)
        self._lock = threading.RLock()

    def charge(self, kind: BudgetKind, amount: float, key: str, *, run_id: str | None = None) -> None:
        """Add `amount` under `key`; the same key again replaces its amount, so a repeated charge counts once."""
        with self._lock:
            self._store.charge_budget(self._study_id, kind, amount, key, run_id=run_id)
            before = self._charged.get((kind, key))
            if before is None:
                # An earlier process may have charged this key.
                self._total = self._store.sum_budget(self._study_id)
            else:
                self._total[kind] += amount - before
            self._charged[kind, key] = amount
            if kind is BudgetKind.COST_USD and self._prices is not None:
                self.charge(BudgetKind.MONEY, amount, key, run_id=run_id)

    def begin_run(self, run_id: str, gpus: int) -> None:
        """Start to charge the run's time, and that of its GPUs. Raise BudgetExceeded if these have no known price."""
        if gpus and self._prices is not None and self._prices.gpu_hour is None:
            raise BudgetExceeded("the prices of the study lack gpu_hour, and a run uses GPUs")
        with self._lock:
            self._running[run_id] = _RunningRun(self._clock(), gpus)

    def end_run(self, run_id: str) -> None:
        """Charge what the run has cost in this process, and stop charging it. Idempotent."""
        with self._lock:
            for charge in self._cost_of(run_id, self._clock()):
                self.charge(charge.kind, charge.amount, charge.key, run_id=charge.run_id)
            self._running.pop(run_id, None)

    def charge_time(self) -> None:
        """Charge the time of this process and of its runs up to now; called on every heartbeat of the study."""
        with self._lock:
            for charge in self._uncharged():
                self.charge(charge.kind, charge.amount, charge.key, run_id=charge.run_id)

    def used(self) -> dict[BudgetKind, float]:
        """Return all amounts used up to now, by kind; a kind without a charge is 0."""
        with self._lock:
            used = {kind: self._total.get(kind, 0.0) for kind in BudgetKind}
            for charge in self._uncharged():
                used[charge.kind] += charge.amount - self._charged.get((charge.kind, charge.key), 0.0)
            return used

    def find_exhausted(self) -> str | None:
        """Return why no run may go on or begin, if the time or the GPU-hours are used up; else None."""
        try:
            self._ensure_time(self.used())
        except BudgetExceeded as error:
            return str(error)
        return None

    def ensure_can_launch(self, runs: float = 1) -> None:
        """Raise BudgetExceeded if `runs` more runs, or any more time, would exceed the budget.

        A run that ends at a rung counts as a part of one.
        """
        used = self.used()
        self._ensure_time(used)
        limit = self.budget.max_runs
        if limit is not None and used[BudgetKind.RUNS] + runs > limit + TOLERANCE:
            raise BudgetExceeded(
                f"{runs:g} more run(s) would exceed the budget of {limit} runs ({used[BudgetKind.RUNS]:g} used):"
                " raise --max-runs to go on"
            )

    def ensure_can_call_llm(self, tokens: int = 0, usd: float = 0.0) -> None:
        """Raise BudgetExceeded if a call of up to `tokens` tokens and `usd` dollars would exceed the budget."""
        used = self.used()
        self._ensure_time(used)
        taken, limit = used[BudgetKind.LLM_TOKENS], self.budget.max_llm_tokens
        if limit is not None and taken + tokens > limit:
            raise BudgetExceeded(
                f"the next call may take {tokens} tokens and {taken:g} of {limit} are used: raise --max-llm-tokens to"
                " go on"
            )
        cost, most = used[BudgetKind.COST_USD], self.budget.max_llm_usd
        if most is not None and cost + usd > most:
            raise BudgetExceeded(
                f"the next call may cost ${usd:.4f} and ${cost:.4f} of ${most:.2f} are used: raise --max-llm-usd to"
                " go on"
            )
        spent, money = used[BudgetKind.MONEY], self.budget.max_money
        if money is not None and spent + usd > money:
            raise BudgetExceeded(
                f"the next call may cost {usd:.4f} and {spent:.4f} of {money:g} of money are used: raise --max-money to"
                " go on"
            )

    def _ensure_time(self, used: dict[BudgetKind, float]) -> None:
        limit = self.budget.max_wall_s
        if limit is not None and used[BudgetKind.WALL_CLOCK_S] >= limit:
            raise BudgetExceeded(
                f"{used[BudgetKind.WALL_CLOCK_S]:.0f} s of the {limit:g} s of wall clock are used: raise --max-hours"
                " to go on"
            )
        most = self.budget.max_gpu_hours
        if most is not None and used[BudgetKind.GPU_HOURS] >= most:
            raise BudgetExceeded(
                f"{used[BudgetKind.GPU_HOURS]:.4g} of {most:g} GPU-hours are used: raise --max-gpu-hours to go on"
            )
        money = self.budget.max_money
        if money is not None and used[BudgetKind.MONEY] >= money:
            raise BudgetExceeded(
                f"{used[BudgetKind.MONEY]:.4g} of {money:g} of money are used: raise --max-money to go on"
            )

    def _uncharged(self) -> Iterator[_Charge]:
        """Yield charges for the time of this process up to now; each replaces the earlier charge of its key."""
        now = self._clock()
        seconds = max(0.0, now - self._started)
        yield _Charge(BudgetKind.WALL_CLOCK_S, self._session, seconds)
        if self._prices is not None:
            price = self._machines * self._prices.of_hours(seconds / 3600, gpus=0)
            yield _Charge(BudgetKind.MONEY, self._session, price)
        for run_id in tuple(self._running):
            yield from self._cost_of(run_id, now)

    def _cost_of(self, run_id: str, now: float) -> Iterator[_Charge]:
        if (run := self._running.get(run_id)) is None:
            return
        # Another process that continues the run charges it under another key.
        key, seconds = f"{run_id}/{self._session}", max(0.0, now - run.started)
        yield _Charge(BudgetKind.WORKING_S, key, seconds, run_id)
        if run.gpus:
            hours = run.gpus * seconds / 3600
            yield _Charge(BudgetKind.GPU_HOURS, key, hours, run_id)
            if self._prices is not None and self._prices.gpu_hour is not None:
                yield _Charge(BudgetKind.MONEY, key, hours * self._prices.gpu_hour, run_id)


def present_budget(settings: Mapping[str, Any], frozen: Budget) -> Budget:
    """Return the budget in a study's settings; the charter's, if the study has no settings on record."""
    if "max_runs" not in settings:
        return frozen
    hours = settings.get("max_hours")
    return Budget(
        max_runs=settings.get("max_runs"),
        max_wall_s=None if hours is None else hours * 3600,
        max_gpu_hours=settings.get("max_gpu_hours"),
        max_llm_tokens=settings.get("max_llm_tokens"),
        max_llm_usd=settings.get("max_llm_usd"),
        max_money=settings.get("max_money"),
    )


def budget_lines(settings: Mapping[str, Any], used: Mapping[BudgetKind, float]) -> tuple[BudgetLine, ...]:
    """Return every kind of spending that has a limit in a study's settings, or an amount."""
    lines = (
        BudgetLine("runs", "runs", used[BudgetKind.RUNS], settings.get("max_runs")),
        BudgetLine("hours", "hours of work", used[BudgetKind.WALL_CLOCK_S] / 3600, settings.get("max_hours")),
        BudgetLine("gpu_hours", "GPU-hours", used[BudgetKind.GPU_HOURS], settings.get("max_gpu_hours")),
        BudgetLine("llm_tokens", "LLM tokens", used[BudgetKind.LLM_TOKENS], settings.get("max_llm_tokens")),
        BudgetLine("llm_usd", "US$ for the LLM", used[BudgetKind.COST_USD], settings.get("max_llm_usd")),
        BudgetLine("money", "of money", used[BudgetKind.MONEY], settings.get("max_money")),
    )
    return tuple(line for line in lines if line.used or line.limit is not None)
