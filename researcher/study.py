"""A study from outside: begin one, go on with one, ask one to stop. Puts the parts together and takes them down again.

Place in the flow: the CLI calls these. What happens in between is the graph's; this module knows nothing of nodes.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiments_db import ExperimentStore, NotFound, StoreError, Study, StudyStatus
from researcher.brain.base import Brain
from researcher.brain.rules import RulesBrain
from researcher.budget import BudgetLedger
from researcher.crew import Crew, Drained
from researcher.deps import Deps
from researcher.errors import ResearchError, StudyNotFound, TopicInvalid
from researcher.graph import carry_out
from researcher.journal import Journal
from researcher.recovery import leave, reconcile
from researcher.sandbox import Sandbox, choose_sandbox
from researcher.servers import ServerPool, check_servers
from researcher.tenure import Tenure
from researcher.types import Budget, FrameRequest
from researcher.watchdog import Limits
from swarm.tasks import TASK_FAMILIES

logger = logging.getLogger(__name__)


class StudySettings(BaseModel):
    """How a study was started; stored with it, so that `resume` needs nothing but its id.

    None leaves a choice to the topic and the brain. `servers` empty means `parallel` own servers. `llm_price` is in
    dollars per million tokens, asked and answered.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    brain: Literal["rules", "llm"] = "rules"
    model: str | None = None
    task: str | None = None
    seeds: int | None = Field(default=None, ge=1, le=100)
    steps: int | None = Field(default=None, ge=1, le=1_000_000)
    eval_episodes: int | None = Field(default=None, ge=1, le=100_000)
    servers: tuple[str, ...] = ()
    parallel: int = Field(default=2, ge=1, le=64)
    max_runs: int | None = Field(default=None, ge=1)
    max_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_llm_tokens: int | None = Field(default=None, ge=1)
    max_llm_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    llm_price: tuple[float, float] | None = None
    unsafe_no_sandbox: bool = False
    engine: Literal["local", "fake"] = "local"

    def budget(self) -> Budget:
        return Budget(
            max_runs=self.max_runs,
            max_wall_s=None if self.max_hours is None else self.max_hours * 3600,
            max_llm_tokens=self.max_llm_tokens,
            max_llm_usd=self.max_llm_usd,
        )

    def request(self, topic: str) -> FrameRequest:
        return FrameRequest(
            topic=topic,
            task=self.task,
            seeds=self.seeds,
            steps=self.steps,
            eval_episodes=self.eval_episodes,
            budget=self.budget(),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the work of this process on a study ended. `signal` is the one that ended it, if any."""

    study: Study
    signal: int | None = None


def read_settings(values: Mapping[str, Any]) -> StudySettings:
    """Raises TopicInvalid naming the first setting that cannot be."""
    try:
        return StudySettings.model_validate(dict(values))
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise TopicInvalid(f"--{name.replace('_', '-')}: {first['msg']} (got {first['input']!r})") from error


def check_study(topic: str, settings: StudySettings) -> None:
    """Everything that can be checked without a run, before anything is stored.

    Raises TopicInvalid, ServerProblem or SandboxUnavailable.
    """
    if not topic.strip():
        raise TopicInvalid("the topic is empty: say what to study, such as 'Does group size matter for word reversal?'")
    if settings.task is not None and settings.task not in TASK_FAMILIES:
        raise TopicInvalid(f"unknown task {settings.task!r}; choose one of: {', '.join(TASK_FAMILIES)}")
    if settings.brain == "rules":
        _rules_brain(settings).frame(settings.request(topic))
    else:
        _check_language_model(settings)
    _choose_sandbox(settings)
    check_servers(settings.servers)


def create_study(store: ExperimentStore, topic: str, settings: StudySettings) -> Study:
    """Store a study that `check_study` has passed."""
    return store.create_study(topic.strip(), brain=settings.brain, settings=settings.model_dump(mode="json"))


def find_study(store: ExperimentStore, study_id: str) -> Study:
    """Raises StudyNotFound."""
    try:
        return store.get_study(study_id)
    except NotFound as error:
        raise StudyNotFound(f"there is no study {study_id}: `researcher list` shows them all") from error


def ask_to_end(store: ExperimentStore, study_id: str, status: StudyStatus) -> Study:
    """Pause or stop a study. A process that works on it sees this at its next heartbeat and drains."""
    study = find_study(store, study_id)
    if study.status not in (StudyStatus.RUNNING, StudyStatus.PAUSED):
        raise ResearchError(f"study {study_id} is {study.status} already")
    return store.set_study_status(study_id, status, f"{status} on request")


def work_on(store: ExperimentStore, study_id: str, home: Path, *, limits: Limits | None = None) -> Outcome:
    """Carry a study on to its end, or until a signal or a request drains it. Call from the main thread.

    Raises StudyBusy while another process works on it; whatever ends it early is stored as its status.
    """
    study = find_study(store, study_id)
    settings = read_settings(study.settings)
    sandbox = _choose_sandbox(settings)
    folder = home / "studies" / study_id
    folder.mkdir(parents=True, exist_ok=True)
    worker = _Worker(store, study, settings, sandbox, folder, limits or Limits())
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
    control: RunControl = field(default_factory=RunControl)
    crew: Crew = field(init=False)
    received: int | None = None
    ledger: BudgetLedger | None = None

    def run(self) -> Outcome:
        self.crew = Crew(2 * max(self.settings.parallel, len(self.settings.servers)))
        with Tenure(
            self.store,
            self.study.id,
            servers=self.settings.servers,
            on_beat=self._on_beat,
            on_lost=self._on_lost,
        ) as tenure:
            tenure.store.set_study_status(self.study.id, StudyStatus.RUNNING)
            with self._drain_on_signals():
                self._work(tenure.store)
        return Outcome(self.store.get_study(self.study.id), self.received)

    def _work(self, store: ExperimentStore) -> None:
        journal = Journal(store, self.study.id)
        try:
            self._carry_out(store, journal)
        except (GraphDrained, Drained):
            self._record_drain(store, journal)
        except (ResearchError, StoreError) as error:
            _record_failure(store, self.study.id, str(error))
            raise
        except Exception as error:
            _record_failure(store, self.study.id, f"{type(error).__name__}: {error}")
            raise
        else:
            # The report node has said so already, unless it ran in an earlier process.
            store.set_study_status(self.study.id, StudyStatus.FINISHED, "the report is written")
            journal.note("study.finished", "The study is finished.")

    def _carry_out(self, store: ExperimentStore, journal: Journal) -> None:
        pool = ServerPool(
            urls=self.settings.servers, local=self.settings.parallel, home=(self.folder / "servers").resolve()
        )
        self.ledger = BudgetLedger(store, self.study.id, self.settings.budget())
        deps = Deps(
            study_id=self.study.id,
            store=store,
            journal=journal,
            brain=_build_brain(self.settings, store, self.study.id, self.ledger),
            pool=pool,
            crew=self.crew,
            ledger=self.ledger,
            sandbox=self.sandbox,
            home=self.folder,
            limits=self.limits,
        )
        try:
            pool.start()
            urls = ", ".join(str(slot.url) for slot in pool.slots)
            journal.note("study.working", f"Process {os.getpid()} works on the study; servers: {urls}")
            reconcile(deps)
            carry_out(deps, self.settings.request(self.study.topic), self.control)
        finally:
            self._take_down(deps)

    def _take_down(self, deps: Deps) -> None:
        """Servers first: work in the background then ends by itself. Rows last: nothing writes any more."""
        self.crew.request_stop()
        deps.pool.stop()
        self.crew.join()
        leave(deps, self.control.drain_reason or "the study ended early")

    def _record_drain(self, store: ExperimentStore, journal: Journal) -> None:
        reason = self.control.drain_reason or "asked to stop"
        if store.get_study(self.study.id).status is StudyStatus.RUNNING:
            store.set_study_status(self.study.id, StudyStatus.PAUSED, reason)
        journal.warn("study.drained", f"Stopped working ({reason}); go on with `researcher resume {self.study.id}`.")

    def _drain(self, reason: str) -> None:
        self.control.request_drain(reason)
        self.crew.request_stop()

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


def _record_failure(store: ExperimentStore, study_id: str, reason: str) -> None:
    try:
        store.set_study_status(study_id, StudyStatus.FAILED, " ".join(reason.split())[:1000])
    except StoreError:
        logger.exception("the failure of study %s could not be stored", study_id)


def _choose_sandbox(settings: StudySettings) -> Sandbox | None:
    """Only code of a language model needs one. Raises SandboxUnavailable."""
    return None if settings.brain == "rules" else choose_sandbox(settings.unsafe_no_sandbox)


def _rules_brain(settings: StudySettings) -> RulesBrain:
    return RulesBrain(seeds=settings.seeds, steps=settings.steps, engine=settings.engine)


def _build_brain(settings: StudySettings, store: ExperimentStore, study_id: str, ledger: BudgetLedger) -> Brain:
    """Raises BrainError where the language model is not named or has no key."""
    if settings.brain == "rules":
        return _rules_brain(settings)
    # Imported when needed: most studies have no language model, and its SDK takes a second to load.
    from researcher.brain.chat import Chat, Price
    from researcher.brain.llm import LLMBrain

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
    return LLMBrain(chat, seeds=settings.seeds, steps=settings.steps, engine=settings.engine)


def _check_language_model(settings: StudySettings) -> None:
    if not settings.model:
        raise TopicInvalid("--brain llm needs the name of a model: give --model NAME, or use --brain rules")
    if not os.environ.get("OPENAI_API_KEY"):
        raise TopicInvalid("--brain llm needs OPENAI_API_KEY (any text if the server at OPENAI_BASE_URL asks for none)")
    if settings.max_llm_usd is not None and settings.llm_price is None:
        raise TopicInvalid("--max-llm-usd needs the model's prices: give --llm-price INPUT,OUTPUT in $ per 1M tokens")
