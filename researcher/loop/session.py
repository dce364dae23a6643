"""One process's work on one study: puts the parts together, carries the study on, takes the parts down again.

Place in the flow: the CLI calls `work_on` from its main thread. graph.py decides what happens in between; this
module knows nothing of nodes.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from experiments_db import ExperimentStore, Severity, StoreError, Study, StudyStatus
from researcher.errors import ResearchError
from researcher.execution.background import BackgroundTasks, Drained
from researcher.execution.disk import GB, DiskGuard, free_bytes
from researcher.execution.early_stopping import Limits
from researcher.execution.orphaned_runs import leave, reconcile
from researcher.execution.server_files import unpack_ledgers
from researcher.execution.servers import ServerPool
from researcher.loop.deps import Deps
from researcher.loop.graph import carry_out
from researcher.loop.nodes.frame import frame
from researcher.loop.pruning import prune_finished
from researcher.loop.state import first_state
from researcher.planner.base import Planner
from researcher.study.budget import BudgetLedger
from researcher.study.continuation import budget_of
from researcher.study.lease import StudyLease
from researcher.study.log import StudyLog
from researcher.study.requests import find_study, resume_command
from researcher.study.settings import StudySettings, read_settings, rules_brain, sandbox_of
from researcher.study.webhook import FAILED as NOT_TOLD
from researcher.study.webhook import Webhook
from researcher.types import FrameRequest
from swarm.sandbox.sandbox import Sandbox

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the work of this process on a study ended. `signal` is the one that ended it, if any."""

    study: Study
    signal: int | None = None


def work_on(
    store: ExperimentStore,
    study_id: str,
    home: Path,
    *,
    limits: Limits | None = None,
    min_free_gb: float | None = None,
    measure_space: Callable[[Path], int] = free_bytes,
) -> Outcome:
    """Carry a study on to its end, or until a signal or a request drains it. Call from the main thread.

    A finished one is left as it is. `min_free_gb` stands in for what its settings say. Raises StudyBusy while another
    process works on it; whatever ends it early is stored as its status.
    """
    study = find_study(store, study_id)
    if study.status is StudyStatus.FINISHED:
        return Outcome(study)
    settings = read_settings({**study.settings, **({} if min_free_gb is None else {"min_free_gb": min_free_gb})})
    sandbox = sandbox_of(settings)
    folder = home / "studies" / study_id
    folder.mkdir(parents=True, exist_ok=True)
    resume = resume_command(study_id, home)
    worker = _Worker(store, study, settings, sandbox, folder, limits or Limits(), resume, measure_space)
    return worker.run()


@dataclass(slots=True)
class _Worker:
    """The life of one process's work on one study."""

    store: ExperimentStore
    study: Study
    settings: StudySettings
    sandbox: Sandbox | None
    folder: Path
    limits: Limits
    resume: str
    measure_space: Callable[[Path], int]
    control: RunControl = field(default_factory=RunControl)
    background: BackgroundTasks = field(init=False)
    received: int | None = None
    ledger: BudgetLedger | None = None

    def run(self) -> Outcome:
        self.background = BackgroundTasks(2 * max(self.settings.parallel, len(self.settings.servers)))
        with StudyLease(
            self.store,
            self.study.id,
            servers=self.settings.servers,
            on_beat=self._on_beat,
            on_lost=self._on_lost,
        ) as study_lease:
            study_lease.store.set_study_status(self.study.id, StudyStatus.RUNNING)
            with self._drain_on_signals(), self._log(study_lease.store) as log:
                self._work(study_lease.store, log)
        return Outcome(self.store.get_study(self.study.id), self.received)

    @contextmanager
    def _log(self, store: ExperimentStore) -> Generator[StudyLog]:
        """The study's events, which a webhook is told if there is one."""
        if self.settings.webhook is None:
            yield StudyLog(store, self.study.id)
            return
        quiet = StudyLog(store, self.study.id)
        webhook = Webhook(
            self.settings.webhook, store, self.study.id, on_failure=lambda line: quiet.warn(NOT_TOLD, line)
        )
        with webhook:
            yield StudyLog(store, self.study.id, on_note=webhook.tell)

    def _work(self, store: ExperimentStore, log: StudyLog) -> None:
        try:
            self._carry_out(store, log)
        except (GraphDrained, Drained):
            self._record_drain(store, log)
        except (ResearchError, StoreError) as error:
            _record_failure(store, log, self.study.id, str(error))
            raise
        except Exception as error:
            _record_failure(store, log, self.study.id, f"{type(error).__name__}: {error}")
            raise
        else:
            # The report node has said so already, unless it ran in an earlier process.
            store.set_study_status(self.study.id, StudyStatus.FINISHED, "the report is written")
            log.note("study.finished", "The study is finished.")

    def _carry_out(self, store: ExperimentStore, log: StudyLog) -> None:
        pool = ServerPool(
            urls=self.settings.servers,
            local=self.settings.parallel,
            home=(self.folder / "servers").resolve(),
            own_token=self._own_token(),
        )
        self.ledger = BudgetLedger(store, self.study.id, budget_of(self.settings.budget(), store, self.study.id))
        request = self.settings.request(self.study.topic)
        deps = Deps(
            study_id=self.study.id,
            store=store,
            log=log,
            planner=_build_planner(self.settings, request, store, self.study.id, self.ledger),
            pool=pool,
            background=self.background,
            ledger=self.ledger,
            sandbox=self.sandbox,
            home=self.folder,
            given_job=self.settings.base_job(),
            limits=self.limits,
            kept_checkpoints=self.settings.keep_checkpoints,
            disk=DiskGuard([self.folder], int(self.settings.min_free_gb * GB), self.measure_space),
        )
        unpack_ledgers(deps.home / "servers")
        try:
            if self.settings.brain == "llm":
                # What a language model finds that cannot be studied is said before any server is started.
                frame(deps, first_state(self.study.id), request)
            pool.start()
            urls = ", ".join(str(slot.url) for slot in pool.slots)
            log.note("study.working", f"Process {os.getpid()} works on the study; servers: {urls}")
            reconcile(deps)
            carry_out(deps, request, self.control)
        finally:
            self._take_down(deps)
        prune_finished(deps)

    def _own_token(self) -> str | None:
        """Foreign programs reach the address of their server: without a token they could command it."""
        if self.sandbox is None:
            return None
        token, path = secrets.token_urlsafe(32), self.folder / "servers.token"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(token, encoding="utf-8")
        return token

    def _take_down(self, deps: Deps) -> None:
        """Servers first: work in the background then ends by itself. Rows last: nothing writes any more."""
        self.background.request_stop()
        deps.pool.stop()
        self.background.join()
        deps.environments.close()
        leave(deps, self.control.drain_reason or "the study ended early")

    def _record_drain(self, store: ExperimentStore, log: StudyLog) -> None:
        reason = self.control.drain_reason or "asked to stop"
        if store.get_study(self.study.id).status is StudyStatus.RUNNING:
            store.set_study_status(self.study.id, StudyStatus.PAUSED, reason)
        log.warn("study.drained", f"Stopped working ({reason}); go on with `{self.resume}`.")

    def _drain(self, reason: str) -> None:
        self.control.request_drain(reason)
        self.background.request_stop()

    def _on_beat(self) -> None:
        if self.ledger is not None:
            self.ledger.charge_wall_clock()
        status = self.store.get_study(self.study.id).status
        if status in (StudyStatus.PAUSED, StudyStatus.STOPPED) and not self.control.drain_requested:
            self._drain(f"{status} on request")

    def _on_lost(self) -> None:
        self._drain("another process has taken over")

    @contextmanager
    def _drain_on_signals(self) -> Generator[None]:
        """The first signal drains, the second ends the process at once; its children end with it."""
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


def _record_failure(store: ExperimentStore, log: StudyLog, study_id: str, reason: str) -> None:
    reason = " ".join(reason.split())[:1000]
    try:
        store.set_study_status(study_id, StudyStatus.FAILED, reason)
        log.note("study.failed", f"The study failed: {reason}", severity=Severity.ERROR)
    except StoreError:
        logger.exception("the failure of study %s could not be stored", study_id)


def _build_planner(
    settings: StudySettings, request: FrameRequest, store: ExperimentStore, study_id: str, ledger: BudgetLedger
) -> Planner:
    """Raises PlannerError where the language model is not named or has no key."""
    if settings.brain == "rules":
        return rules_brain(settings)
    # Imported when needed: most studies have no language model, and its SDK takes a second to load.
    from researcher.planner.chat import Chat, Price
    from researcher.planner.llm import LLMPlanner

    price = settings.llm_price
    chat = Chat(
        model=settings.model or "",
        base_url=os.environ.get("OPENAI_BASE_URL"),
        api_key=os.environ.get("OPENAI_API_KEY", ""),
        store=store,
        study_id=study_id,
        ledger=ledger,
        price=None if price is None else Price(*price),
    )
    return LLMPlanner(
        chat,
        seeds=settings.seeds,
        steps=settings.steps,
        base_job=settings.base_job(),
        environment=request.environment,
        program=settings.programs[0].code if settings.programs else None,
    )
