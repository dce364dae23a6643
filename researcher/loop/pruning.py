"""The checkpoints that a study still needs, and the removal of the others."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from experiments_db import Run, RunStatus, Verdict
from researcher.charter import Charter
from researcher.history import History
from researcher.loop.deps import Deps
from researcher.phases import AT_STEP, CHECKPOINTS, PRUNED, TEST
from researcher.plan import Stage
from researcher.record.runs import PROJECT
from researcher.search.record import find_explored_runs, read_tree
from researcher.study.settings import KeptCheckpoints

logger = logging.getLogger(__name__)

MB = 10**6


def prune(deps: Deps) -> int:
    """Remove the checkpoints that nothing needs any more while the study goes on; return the bytes freed."""
    needed = _kept_for_scores(deps)
    if deps.kept_checkpoints is KeptCheckpoints.BEST:
        needed |= {checkpoint for run in _runs_of_best(deps) if (checkpoint := checkpoint_of(run))}
    removed = remove_checkpoints(_servers(deps), needed | _all_if_asked(deps), are_stopped=False)
    _record(deps, removed, "Nothing needs them any more.")
    return removed.freed


def has_space(deps: Deps, *, every_s: float = 0.0) -> bool:
    """Return whether the disk has space for another run, looked at no more often than `every_s`.

    If it has none, checkpoints are pruned. If that is not enough, the study records once that it waits.
    """
    disk = deps.disk
    if disk is None or not disk.limit:
        return True
    now = time.monotonic()
    if now - disk.looked_at < every_s:
        return not disk.is_waiting
    disk.looked_at = now
    space = disk.look()
    if space.is_low and prune(deps):
        space = disk.look()
    if space.is_low and not disk.is_waiting:
        what = "Runs under way go on and no other is launched until there is: free some, or go on with --min-free-gb."
        deps.log.warn("disk.low", f"Too little space: {space}. {what}")
    elif disk.is_waiting and not space.is_low:
        deps.log.note("disk.free", f"There is space again: {space}.")
    disk.is_waiting = space.is_low
    return not space.is_low


def prune_finished(deps: Deps) -> None:
    """Remove the checkpoints of a finished study that its settings do not keep; its own servers must be stopped."""
    best = _runs_of_best(deps)
    kept = {checkpoint for run in best if (checkpoint := checkpoint_of(run))}
    needed = kept if deps.kept_checkpoints is KeptCheckpoints.BEST else set[Path]()
    removed = remove_checkpoints(_servers(deps), needed | _all_if_asked(deps), are_stopped=True)
    freed = removed.freed
    if deps.kept_checkpoints is not KeptCheckpoints.ALL:
        own = _servers(deps)
        freed += sum(remove_optimizer_state(checkpoint) for checkpoint in needed if checkpoint.is_relative_to(own))
    what = {
        KeptCheckpoints.ALL: "all checkpoints are kept",
        KeptCheckpoints.BEST: f"the weights of the best arm are kept ({len(needed)} runs)",
        KeptCheckpoints.NONE: "no checkpoint is kept",
    }
    _record(deps, Removed(removed.checkpoints, freed), f"The study is over: {what[deps.kept_checkpoints]}.")


def checkpoint_of(run: Run) -> Path | None:
    """Return the path of a run's final weights, even if they were removed since; None for a run without any."""
    path = run.external_ids.get("checkpoint")
    return Path(path).resolve() if path else None


def _kept_for_scores(deps: Deps) -> set[Path]:
    """Return the checkpoints that scores are still taken from: those of earlier steps, and that of the final test.

    Any arm that is not clearly worse than the baseline may reach the final test. A repeat of a run is trained from the
    base model and needs no checkpoint.
    """
    charter, history = deps.log.charter(), deps.log.history()
    worse: set[str] = set()
    if history.analyses:
        worse = {item.arm for item in history.analyses[-1].comparisons if item.verdict is Verdict.WORSE}
    arms = {item.id: item.name for item in deps.store.list_experiments(deps.study_id)}
    scored = _scores_from_checkpoints(deps, has_steps=bool(charter.eval_every))
    needed = _kept_for_rungs(deps, charter, history)
    for run in deps.store.list_runs(study_id=deps.study_id):
        if (run.status.is_over and run.status is not RunStatus.FINISHED) or (run.status.is_over and run.rung):
            continue
        final = checkpoint_of(run)
        if final is not None and (run.id, TEST) not in scored and arms[run.experiment_id] not in worse:
            needed.add(final)
        by_step = run.external_ids.get(CHECKPOINTS, {}) if charter.eval_every else {}
        needed |= {Path(path).resolve() for step, path in by_step.items() if (run.id, f"{AT_STEP}{step}") not in scored}
        if not run.status.is_over and final is not None:
            needed.add(final)
    return needed


def _kept_for_rungs(deps: Deps, charter: Charter, history: History) -> set[Path]:
    """Return the checkpoints that arms may be trained on from; none once the exploration is over."""
    if charter.search is None or not history.plans or history.plans[-1].stage is not Stage.EXPLORE:
        return set()
    nodes = {node.name: node for node in read_tree(deps.store, deps.study_id, charter).nodes}
    kept: set[Path] = set()
    for arm in deps.store.list_experiments(deps.study_id):
        node, runs = nodes.get(arm.name), find_explored_runs(deps.store, deps.study_id, arm)
        if node is None or node.failure or node.last is None or node.last.share >= charter.search.rungs[-1] or not runs:
            continue
        if (checkpoint := checkpoint_of(runs[-1])) is not None:
            kept.add(checkpoint)
    return kept


def _scores_from_checkpoints(deps: Deps, *, has_steps: bool) -> set[tuple[str, str]]:
    """Return the run and the phase of each stored score that is taken from a checkpoint.

    Scores hold the rewards of their episodes, so no more of them are read than necessary.
    """
    stored = deps.store.find_charter(deps.study_id)
    if has_steps:
        found = deps.store.list_evaluations(study_id=deps.study_id)
    elif stored is not None and stored.test_opened_at is not None:
        found = deps.store.list_evaluations(study_id=deps.study_id, phase=TEST)
    else:
        found = []
    return {(item.run_id, item.phase) for item in found}


def _runs_of_best(deps: Deps) -> list[Run]:
    """Return the finished runs of the leading arm, among the arms that were kept if there are any."""
    analyses = deps.log.history().analyses
    if not analyses or not analyses[-1].ranking:
        return []
    last = analyses[-1]
    kept = {item.arm for item in last.comparisons if item.verdict is Verdict.KEEP}
    best = next((arm for arm in last.ranking if arm in kept), last.ranking[0])
    experiment = deps.store.find_experiment(deps.study_id, best)
    runs = [] if experiment is None else deps.store.list_runs(experiment_id=experiment.id)
    finished = [run for run in runs if run.status is RunStatus.FINISHED]
    # Of an arm that was only explored, the weights of the highest rung are its best.
    return [run for run in finished if not run.rung] or sorted(finished, key=lambda run: run.rung)[-1:]


def _all_if_asked(deps: Deps) -> set[Path]:
    """Return all checkpoints if the settings say to keep them, else none."""
    if deps.kept_checkpoints is not KeptCheckpoints.ALL:
        return set()
    return {path.resolve() for path in _servers(deps).glob("*/*/*/run-*/checkpoints/step-*")}


def _servers(deps: Deps) -> Path:
    return (deps.home / "servers").resolve()


def _record(deps: Deps, removed: Removed, why: str) -> None:
    """Record in each run which of its checkpoints were removed; recovery files are not recorded."""
    if removed.freed:
        logger.info("%.1f MB of the files of servers are removed", removed.freed / MB)
    gone = {str(path) for path in removed.checkpoints}
    runs: list[str] = []
    for run in deps.store.list_runs(study_id=deps.study_id):
        known = [run.external_ids.get("checkpoint"), *run.external_ids.get(CHECKPOINTS, {}).values()]
        paths = sorted({str(Path(path).resolve()) for path in known if path} & gone)
        if paths:
            before = run.external_ids.get(PRUNED, [])
            deps.store.update_run(run.id, external_ids={**run.external_ids, PRUNED: sorted({*before, *paths})})
            runs.append(run.id)
    if runs:
        deps.log.note("checkpoints.pruned", f"Checkpoints of {len(runs)} runs are removed. {why}")


OPTIMIZER_STATE = "trainer_state.pt"
"""The part of a checkpoint that is needed to resume training but not to serve; two thirds of its size."""

_RUN = re.compile(r"run-(\d+)")
_CHECKPOINT = re.compile(r"step-\d+")


@dataclass(frozen=True, slots=True)
class Removed:
    """The checkpoints that were removed, and the bytes freed, including those of recovery files."""

    checkpoints: tuple[Path, ...]
    freed: int


def remove_checkpoints(servers: Path, needed: Set[Path], *, are_stopped: bool) -> Removed:
    """Remove recovery files and checkpoints below `servers`, except the checkpoints `needed`.

    A server keeps its runs in PROJECT/NAME/run-NNNN of its home. There `checkpoints/` holds the checkpoints that were
    asked for, and `recovery/` those for a restart after a crash.

    Unless the servers are stopped, the newest run of each stays as it is: its engine may have to restart from there.
    """
    removed: list[Path] = []
    freed = 0
    for run in _past_runs(servers, with_newest=are_stopped):
        freed += _remove(run / "recovery")
        kept = run / "checkpoints"
        for checkpoint in sorted(kept.iterdir()) if kept.is_dir() else ():
            if _CHECKPOINT.fullmatch(checkpoint.name) and checkpoint.resolve() not in needed:
                freed += _remove(checkpoint)
                removed.append(checkpoint.resolve())
    return Removed(tuple(removed), freed)


def remove_optimizer_state(checkpoint: Path) -> int:
    """Remove the optimizer state of a checkpoint and return the bytes freed; the weights stay."""
    state = checkpoint / OPTIMIZER_STATE
    size = _size(state)
    state.unlink(missing_ok=True)
    return size


def _past_runs(servers: Path, *, with_newest: bool) -> Iterator[Path]:
    for server in sorted(path for path in servers.glob("*") if path.is_dir()):
        runs = [path for path in server.glob(f"{PROJECT}/*/run-*") if _RUN.fullmatch(path.name)]
        runs.sort(key=lambda path: int(path.name.partition("-")[2]))
        yield from runs if with_newest else runs[:-1]


def _remove(folder: Path) -> int:
    size = sum(_size(path) for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder, ignore_errors=True)
    return size


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
