"""The work of one process on one study: it builds the parts, runs the study, and takes the parts down again."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from experiments_db import ExperimentStore, Severity, StoreError, Study, StudyStatus
from researcher.errors import (
    AnswerOverdue,
    BudgetExceeded,
    LanguageModelUnavailable,
    NothingToLearnFrom,
    ResearchError,
)
from researcher.execution.background import BackgroundTasks, Drained
from researcher.execution.early_stopping import StoppingLimits
from researcher.execution.environments import StudyEnvironments
from researcher.execution.storage import GB, DiskGuard, await_storage, free_bytes, is_storage_outage
from researcher.loop.deps import Deps, first_state
from researcher.loop.explore import propose_next
from researcher.loop.graph import carry_out
from researcher.loop.nodes.frame import frame
from researcher.loop.nodes.report import write_report
from researcher.loop.orphaned_runs import end_clients, leave, reconcile
from researcher.loop.outages import examine_environment
from researcher.loop.pruning import prune_finished
from researcher.memory.replication import read_replication
from researcher.planner.base import Planner
from researcher.planner.replication import ReplicationPlanner
from researcher.planner.rules import build_rules_planner
from researcher.planner.tools.base import Toolbox
from researcher.planner.tools.build import build_toolbox
from researcher.program_trials.study_trials import ProgramTrials
from researcher.record.budget import BudgetLedger
from researcher.record.lease import StudyLease
from researcher.record.log import StudyLog
from researcher.record.seal import seal
from researcher.reviewer.build import build_reviewer
from researcher.servers.server import LeaseHolder, name_database
from researcher.servers.server_pool import ServerPool
from researcher.study.continuation import change_budget, check_change, check_reopens, go_on_from_zero
from researcher.study.ending import is_cut_short, is_over, judge_ending, reopen
from researcher.study.requests import find_study, resume_command
from researcher.study.settings import StudySettings, sandbox_of
from researcher.webhook import FAILED as NOT_TOLD
from researcher.webhook import Webhook
from swarm.errors import SwarmError
from swarm.job import build_job
from swarm.sandbox import Sandbox

logger = logging.getLogger(__name__)

LEAST_SPACE = 10 * 2**20
"""Bytes that must be free before a study begins again on a disk that was full."""


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """The end of this process's work on a study; `signal` is the signal that ended it, if any."""

    study: Study
    signal: int | None = None


def work_on(
    store: ExperimentStore,
    study_id: str,
    home: Path,
    *,
    limits: StoppingLimits | None = None,
    budget: Mapping[str, float] | None = None,
    min_free_gb: float | None = None,
    go_on: bool = False,
    measure_space: Callable[[Path], int] = free_bytes,
) -> SessionOutcome:
    """Run a study to its end, or until a signal or a request drains it. Call from the main thread.

    `budget` holds new limits by name of the setting, such as max_runs. A study that is over stays as it is, unless they
    reopen it. `min_free_gb` replaces that of the settings. With `go_on`, a model that solves
    nothing is trained all the same, from now on. While nothing can be stored, because the disk is full or the
    database is locked, the work waits. It then begins anew, as after a crash.

    Raises StudyBusy while another process works on the study, TopicInvalid for impossible limits. Whatever ends the
    work early is stored as the study's status.
    """
    is_begun = False
    while True:
        worker = None
        try:
            study = find_study(store, study_id)
            was_ended = is_begun and study.status in (StudyStatus.PAUSED, StudyStatus.STOPPED)
            is_at_end = is_over(store, study)
            if was_ended or (is_at_end and (is_begun or not budget)):
                return SessionOutcome(study)
            if is_at_end:
                check_reopens(store, study)
            if go_on:
                study = go_on_from_zero(store, study)
            settings = check_change(store, study, budget or {})
            settings = settings if min_free_gb is None else settings.model_copy(update={"min_free_gb": min_free_gb})
            worker = _Worker(
                store, study, settings, home, limits or StoppingLimits(), budget or {}, measure_space, is_begun
            )
            return worker.run()
        except Exception as error:
            if not is_storage_outage(error) or (worker is not None and worker.received is not None):
                raise
            seconds = await_storage(partial(_note_wait, store, study_id, home, measure_space), error)
            logger.warning("the study can be stored again, after %.0f s", seconds)
            is_begun = is_begun or (worker is not None and worker.is_begun)


def _note_wait(store: ExperimentStore, study_id: str, home: Path, measure_space: Callable[[Path], int]) -> None:
    """Record that the study had to wait. Raises StoreUnavailable or OSError while that does not succeed."""
    if measure_space(home) < LEAST_SPACE:
        raise OSError(errno.ENOSPC, f"no space is left at {home}")
    store.append_event(study_id, "store.waiting", "The study could not be stored for a while; its work begins anew.")


@dataclass(slots=True)
class _Worker:
    """The work of one process on one study.

    `is_begun` is set once this process has set the study running. From then on any other status is a request to end.
    """

    store: ExperimentStore
    study: Study
    settings: StudySettings
    home: Path
    limits: StoppingLimits
    budget: Mapping[str, float]
    measure_space: Callable[[Path], int]
    is_begun: bool
    control: RunControl = field(default_factory=RunControl)
    background: BackgroundTasks = field(init=False)
    received: int | None = None
    ledger: BudgetLedger | None = None

    def __post_init__(self) -> None:
        self.background = BackgroundTasks(2 * max(self.settings.parallel, len(self.settings.servers)))

    @property
    def folder(self) -> Path:
        return self.home / "studies" / self.study.id

    @property
    def resume(self) -> str:
        """The command that resumes the study."""
        return resume_command(self.store, self.study.id, self.home)

    def run(self) -> SessionOutcome:
        sandbox = sandbox_of(self.settings)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with StudyLease(self.store, self.study.id, on_beat=self._on_beat, on_lost=self._on_lost) as lease:
                if not self.is_begun:
                    reopen(lease.store, self.study.id, self.folder)
                    self.is_begun = True
                change_budget(lease.store, self.study, self.budget)
                with self._drain_on_signals(), self._log(lease.store) as log:
                    self._work(log, sandbox)
        finally:
            self._seal()
        return SessionOutcome(self.store.get_study(self.study.id), self.received)

    def _seal(self) -> None:
        """Store the digests of the study's files if it has ended; nothing writes them any more."""
        try:
            if self.store.get_study(self.study.id).status.is_end:
                seal(self.store, self.study.id, self.folder)
        except (StoreError, OSError, ResearchError):
            logger.exception("the files of study %s have no digests: `researcher verify` says so", self.study.id)

    @contextmanager
    def _log(self, store: ExperimentStore) -> Generator[StudyLog]:
        """Yield the study's log, connected to the webhook if there is one."""
        quiet = StudyLog(store, self.study.id)
        if self.settings.webhook is None:
            yield quiet
            return
        with Webhook(
            self.settings.webhook, store, self.study.id, on_failure=lambda line: quiet.warn(NOT_TOLD, line)
        ) as webhook:
            yield StudyLog(store, self.study.id, on_note=webhook.tell)

    def _work(self, log: StudyLog, sandbox: Sandbox | None) -> None:
        try:
            self._carry_out(self._build(log, sandbox))
        except (GraphDrained, Drained):
            self._record_drain(log)
        except (LanguageModelUnavailable, AnswerOverdue, BudgetExceeded, NothingToLearnFrom) as error:
            reason = " ".join(str(error).split())
            log.store.set_study_status(self.study.id, StudyStatus.PAUSED, reason[:1000])
            go_on = f"{self.resume} --go-on" if isinstance(error, NothingToLearnFrom) else self.resume
            log.warn("study.paused", f"The study is paused: {reason}; go on with `{go_on}`.")
            raise
        except Exception as error:
            if not is_storage_outage(error):
                is_named = isinstance(error, ResearchError | StoreError | SwarmError)
                reason = str(error) if is_named else f"{type(error).__name__}: {error}"
                _record_failure(log, reason, self.folder)
            raise
        else:
            self._record_end(log)

    def _build(self, log: StudyLog, sandbox: Sandbox | None) -> Deps:
        """Return the parts of the study, each built from those before it; no server is started yet."""
        settings, store = self.settings, log.store
        pool = ServerPool(
            urls=settings.servers,
            local=settings.parallel,
            home=(self.folder / "servers").resolve(),
            holder=LeaseHolder(self.study.id, name_database(store.location)),
            own_token=None if sandbox is None else self._own_token(),
            max_out_s=None if settings.max_outage_hours is None else settings.max_outage_hours * 3600,
            start_options=[*self._trackers(), *self._warm_up()],
            on_change=self.background.wake,
        )
        ledger = self.ledger = BudgetLedger(
            store,
            self.study.id,
            settings.budget(),
            prices=settings.prices,
            machines=max(1, len(settings.servers)),
        )
        environments = StudyEnvironments()
        trials = ProgramTrials(
            store=store,
            log=log,
            pool=pool,
            background=self.background,
            environments=environments,
            sandbox=sandbox,
            home=self.folder,
        )
        sources = trials.tool_sources(notes=settings.notes, propose=partial(propose_next, log))
        toolbox = build_toolbox(sources)
        reviewer = build_reviewer(
            settings,
            log,
            ledger,
            self.background,
            open_environment=environments.open,
            folder=self.folder / "review",
            sandbox=sandbox,
            toolbox=toolbox,
        )
        return Deps(
            log=log,
            planner=_build_planner(settings, self.study.topic, log, ledger, self.background, toolbox),
            pool=pool,
            background=self.background,
            ledger=ledger,
            sandbox=sandbox,
            home=self.folder,
            limits=self.limits,
            kept_checkpoints=settings.keep_checkpoints,
            disk=DiskGuard([self.folder], int(settings.min_free_gb * GB), self.measure_space),
            environments=environments,
            is_afresh=settings.afresh,
            goes_on_from_zero=settings.go_on,
            reviewer=reviewer,
        )

    def _carry_out(self, deps: Deps) -> None:
        request = self.settings.request(self.study.topic)
        try:
            # These checks come first, so that an impossible study is refused before any server is started.
            frame(deps, first_state(self.study.id), request)
            examine_environment(deps)
            deps.pool.start()
            urls = ", ".join(slot.name for slot in deps.pool.slots)
            deps.log.note("study.working", f"Process {os.getpid()} works on the study; servers: {urls}")
            reconcile(deps)
            carry_out(deps, request, self.control)
        finally:
            self._take_down(deps)
        if not is_cut_short(deps.store, self.study.id):
            prune_finished(deps)

    def _record_end(self, log: StudyLog) -> None:
        """Record the end of the study.

        The report node has stored status and reason, unless it ran in an earlier process.
        """
        study = log.store.get_study(self.study.id)
        if study.status is StudyStatus.RUNNING:
            ending = judge_ending(log.store, study.id, is_budget_used_up=is_cut_short(log.store, study.id))
            study = log.store.set_study_status(study.id, ending.status, ending.reason)
        if study.status is StudyStatus.FAILED:
            log.note("study.failed", f"The study failed: {study.status_reason}", severity=Severity.ERROR)
        else:
            log.note("study.finished", "The study is finished.")

    def _trackers(self) -> list[str]:
        """Return the options of `swarm start` by which own servers record their runs in the study's trackers."""
        words = [word for name in self.settings.log for word in ("--log", name)]
        return ["--record", str(self.home.resolve()), *words] if words else []

    def _warm_up(self) -> list[str]:
        """Return the option of `swarm start` by which own servers load their libraries while the study still plans."""
        job = build_job({"engine": "local", **self.settings.base_job()})
        return ["--warm-up"] if job.chosen_engine == "local" else []

    def _own_token(self) -> str:
        """Write and return a token for the own servers: foreign programs reach them, and could command them."""
        token, path = secrets.token_urlsafe(32), self.folder / "servers.token"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(token, encoding="utf-8")
        return token

    def _take_down(self, deps: Deps) -> None:
        """Take the parts down in order, servers first and rows last.

        Background work ends by itself once the servers are gone. After that nothing else writes rows.
        """
        self.background.request_stop()
        deps.pool.stop()
        self.background.join()
        deps.environments.close()
        end_clients(deps)
        deps.ledger.charge_time()
        is_stopped = self.store.get_study(self.study.id).status is StudyStatus.STOPPED
        leave(deps, self.control.drain_reason or "the study ended early", is_for_good=is_stopped)

    def _record_drain(self, log: StudyLog) -> None:
        reason = self.control.drain_reason or "asked to stop"
        if log.store.get_study(self.study.id).status is StudyStatus.RUNNING:
            log.store.set_study_status(self.study.id, StudyStatus.PAUSED, reason)
        log.warn("study.drained", f"Stopped working ({reason}); go on with `{self.resume}`.")

    def _drain(self, reason: str) -> None:
        self.control.request_drain(reason)
        self.background.request_stop()

    def _on_beat(self) -> None:
        if self.ledger is not None:
            self.ledger.charge_time()
        status = self.store.get_study(self.study.id).status
        if status in (StudyStatus.PAUSED, StudyStatus.STOPPED) and not self.control.drain_requested:
            self._drain(f"{status} on request")

    def _on_lost(self) -> None:
        self._drain("another process has taken over")

    @contextmanager
    def _drain_on_signals(self) -> Generator[None]:
        """Drain at the first signal; end the process at once at the second, its children with it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _frame: FrameType | None) -> None:
            if self.received is not None:
                os._exit(128 + number)
            self.received = number
            self._drain(signal.Signals(number).name)

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _record_failure(log: StudyLog, reason: str, folder: Path) -> None:
    """Store status, event and report of a study that failed early; without a charter there is no report."""
    reason = " ".join(reason.split())[:1000]
    try:
        log.store.set_study_status(log.study_id, StudyStatus.FAILED, reason)
        log.note("study.failed", f"The study failed: {reason}", severity=Severity.ERROR)
        if log.store.find_charter(log.study_id) is not None:
            write_report(log, folder)
    except (StoreError, OSError):
        logger.exception("the failure of study %s could not be stored", log.study_id)


def _build_planner(
    settings: StudySettings,
    topic: str,
    log: StudyLog,
    ledger: BudgetLedger,
    background: BackgroundTasks,
    toolbox: Toolbox,
) -> Planner:
    """Return the planner of the settings. Raises PlannerError if the language model has no name or no key."""
    if settings.replicates is not None:
        return ReplicationPlanner(replication=read_replication(log.store, settings.replicates.finding, settings.seeds))
    if settings.planner == "rules":
        return build_rules_planner(settings)
    request = settings.request(topic)
    # Imported here because most studies have no language model, and its SDK takes a second to load.
    from researcher.planner.build import build_planner_in_words

    return build_planner_in_words(settings, request, log, ledger, background, toolbox)
