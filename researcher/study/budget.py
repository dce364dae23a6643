"""The budget of a study: what it has spent, and the refusal to begin what it cannot pay.

Place in the flow: `launch` asks before every run and the `llm` planner before every call; both charge what they used.
The entries live in the database, so a resumed study goes on with the same account. This module knows nothing of servers
or models.

Wall clock is the time a researcher process has worked on the study; the hours between a crash and its resume are not
charged. A limit of None is no limit.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from experiments_db import BudgetKind, ExperimentStore
from researcher.errors import BudgetExceeded
from researcher.types import Budget


class BudgetLedger:
    """The account of one study. Every limit is checked before the spending it bounds, never after."""

    def __init__(
        self, store: ExperimentStore, study_id: str, budget: Budget, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.budget = budget
        self._store = store
        self._study_id = study_id
        self._clock = clock
        self._session = f"session:{uuid.uuid4().hex}"
        self._started = clock()

    def charge(self, kind: BudgetKind, amount: float, key: str, *, run_id: str | None = None) -> None:
        """Add `amount` under `key`; the same key again replaces its amount, so a repeated charge counts once."""
        self._store.charge_budget(self._study_id, kind, amount, key, run_id=run_id)

    def charge_wall_clock(self) -> None:
        """Bring the time of this process up to date; called on every heartbeat of the study."""
        self.charge(BudgetKind.WALL_CLOCK_S, max(0.0, self._clock() - self._started), self._session)

    def spent(self) -> dict[BudgetKind, float]:
        """All that was charged, by kind; a kind without a charge is 0."""
        self.charge_wall_clock()
        sums = self._store.sum_budget(self._study_id)
        return {kind: sums.get(kind, 0.0) for kind in BudgetKind}

    def ensure_can_launch(self, runs: int = 1) -> None:
        """Raises BudgetExceeded if `runs` more runs, or any more time, would go over the budget."""
        spent = self.spent()
        self._ensure_time(spent)
        limit = self.budget.max_runs
        if limit is not None and spent[BudgetKind.RUNS] + runs > limit:
            raise BudgetExceeded(
                f"{runs} more run(s) would exceed the budget of {limit} runs ({spent[BudgetKind.RUNS]:g} used):"
                " raise --max-runs to go on"
            )

    def ensure_can_call_llm(self, tokens: int = 0, usd: float = 0.0) -> None:
        """Raises BudgetExceeded if a call of up to `tokens` tokens and `usd` dollars would go over the budget."""
        spent = self.spent()
        self._ensure_time(spent)
        used, limit = spent[BudgetKind.LLM_TOKENS], self.budget.max_llm_tokens
        if limit is not None and used + tokens > limit:
            raise BudgetExceeded(
                f"the next call may take {tokens} tokens and {used:g} of {limit} are used: raise --max-llm-tokens to"
                " go on"
            )
        cost, most = spent[BudgetKind.COST_USD], self.budget.max_llm_usd
        if most is not None and cost + usd > most:
            raise BudgetExceeded(
                f"the next call may cost ${usd:.4f} and ${cost:.4f} of ${most:.2f} are used: raise --max-llm-usd to"
                " go on"
            )

    def _ensure_time(self, spent: dict[BudgetKind, float]) -> None:
        limit = self.budget.max_wall_s
        if limit is not None and spent[BudgetKind.WALL_CLOCK_S] >= limit:
            raise BudgetExceeded(
                f"{spent[BudgetKind.WALL_CLOCK_S]:.0f} s of the {limit:g} s of wall clock are used: raise --max-hours"
                " to go on"
            )
