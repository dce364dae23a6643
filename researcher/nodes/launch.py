"""Launch: open cells of the plan go to free servers; the key of a run is stored before the server hears of it."""

from __future__ import annotations

from functools import partial

from experiments_db import BudgetKind, RunStatus, Severity
from researcher.deps import ActiveRun, Deps
from researcher.errors import BudgetExceeded
from researcher.nodes.write_client import is_trusted, planned_iteration
from researcher.runs import Cell, CellState, job_of, list_cells, run_key, total_steps
from researcher.servers import Slot
from researcher.state import ResearchState
from researcher.watchdog import Watchdog


def launch(deps: Deps, state: ResearchState) -> ResearchState:
    for cell in open_cells(deps, state):
        slot = deps.pool.take()
        if slot is None:
            break
        try:
            # Another attempt at a cell that was paid for is free.
            deps.ledger.ensure_can_launch(0 if cell.runs else 1)
        except BudgetExceeded as error:
            deps.pool.give_back(slot)
            deps.journal.note("budget.spent", f"No further run: {error}", severity=Severity.WARNING)
            return {**state, "is_spent": True}
        begin(deps, cell, slot, is_fresh=True)
    return state


def open_cells(deps: Deps, state: ResearchState) -> list[Cell]:
    planned = planned_iteration(deps.journal, state)
    return [cell for cell in list_cells(deps.store, deps.study_id, planned) if cell.state is CellState.OPEN]


def has_work(deps: Deps, state: ResearchState) -> bool:
    """Whether the plan has runs under way, or open ones that may still be launched."""
    return len(deps.roster) > 0 or (not state["is_spent"] and bool(open_cells(deps, state)))


def begin(deps: Deps, cell: Cell, slot: Slot, *, is_fresh: bool) -> None:
    """Claim the cell's next attempt and have it prepared; unless `is_fresh`, go on with the run that is under way."""
    assert slot.url is not None, "a slot that was taken has a server"
    if is_fresh:
        job = job_of(deps.study_id, cell.experiment, cell.seed, cell.attempt)
        key = run_key(deps.study_id, cell)
        run = deps.store.claim_run(cell.experiment.id, cell.seed, key, attempt=cell.attempt, job=job)
        run = deps.store.update_run(run.id, status=RunStatus.LAUNCHING, server_url=slot.url)
    else:
        run = cell.runs[-1]
    deps.ledger.charge(BudgetKind.RUNS, 1, f"{cell.experiment.name}/{cell.seed}", run_id=run.id)
    steps = total_steps(cell.experiment.job)
    name = cell.name if run.attempt == 1 else f"{cell.name} (attempt {run.attempt})"
    active = ActiveRun(run.id, name, cell.experiment, steps, slot, Watchdog(deps.limits))
    deps.roster.add(active)
    prepare = partial(
        deps.harness().prepare,
        run,
        cell.experiment,
        slot.url,
        is_trusted=is_trusted(deps, cell.experiment),
        is_fresh=is_fresh,
    )
    deps.crew.submit(run.id, prepare)
    verb = "launched" if is_fresh else "taken up again"
    deps.journal.note("run.launched", f"{active.name} {verb} on server {slot.url}", run_id=run.id)
