"""The settings of a study: from the flags of a command, from its topic, or from its record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from researcher.charter import (
    Asked,
    Budget,
    ComparedAt,
    Design,
    FrameRequest,
    JudgedBy,
    PolicyName,
    ProposerName,
    Question,
    SearchRules,
    StudyKind,
)
from researcher.errors import TopicInvalid
from researcher.execution.environments import look_at, name_environments
from researcher.program_parts import find_varied_parts
from researcher.question.asking import METRICS_OF, QuestionFlags, build_question
from researcher.question.flags import complete_model, read_factors, read_fixed
from researcher.question.scopes import read_scope
from researcher.record.budget import present_budget
from researcher.search.rules import LEAST_RUNS, SearchFlags, search_rules
from swarm.config import complete_address
from swarm.environments import agent_of
from swarm.errors import JobInvalid
from swarm.job import MODEL_OF_OWN_TASKS, TrainJob
from swarm.prices import Prices
from swarm.program import is_program
from swarm.sandbox import Sandbox, choose_sandbox

NO_PRICES = "--max-money needs prices: start the study with --prices FILE"
MAX_OF_ATTEMPT = 2**31 - 1
"""The largest limit of an episode that a server accepts."""


class KeptCheckpoints(StrEnum):
    """The checkpoints of its own servers that a study keeps once their scores are taken.

    ALL: all. BEST: the weights of the best arm. NONE: none.
    """

    ALL = "all"
    BEST = "best"
    NONE = "none"


class ReplicationOrigin(BaseModel):
    """The finding that a study repeats; `is_trusted` is false if a language model wrote a program of its arms."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    finding: str
    is_trusted: bool


class ProgramSetting(BaseModel):
    """A program as it was when the study began; later changes of its file have no effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,59}$")
    code: str


class StudySettings(BaseModel):
    """The settings that a study was started with; stored with it, so that `resume` needs only its id.

    Question: the fields from `kind` to `scope` are the question, from flags or from the topic. `not_studied` are the
    words of the topic that `assume` left out.

    Search: `policy`, `proposer`, `rungs` and `explore_runs` are rules of a search, and belong to no other kind of
    study.

    Environment: `family` is a bundled environment, `env` any other one. `train_envs` are environments to train on, if
    these differ.

    Job and attempts: `job` has the settings that every arm starts from. `attempt_calls` and `attempt_tokens` limit the
    inference of each attempt, for all arms alike; None means no limit. In other fields None leaves the choice to the
    topic and the planner.

    Servers: if `servers` is empty, the study starts `parallel` own servers. With less than `min_free_gb` (10^9 bytes)
    of free space nothing is launched.

    Money: `prices` are counted from the first minute on, and `max_money` is in their currency.

    Language model: `llm_price` is in dollars per million tokens, for input and output. After `llm_patience` minutes
    without an answer of the language model, the study pauses, or rules decide if the planner is `hybrid`. The model may
    think about one question for `llm_deadline` minutes.

    External planner: the study pauses after `answer_deadline` minutes without an answer to a question. None waits for
    ever.

    Memory and review: with `afresh`, a question that was asked before is studied anew. With `go_on`, a model that
    solves nothing is trained all the same. `accept` names arms that a person keeps in, although their code does a part
    of the model's work. `replicates` is the finding that
    the study repeats. `reviewer` is `rules`, `none`, or the name of a language model.

    News: `webhook` is a URL that gets the news of the study. `log` are trackers that own servers record their runs in.

    Notes: `notes` is the absolute path of a folder of Markdown and text files, in which the planner may search.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    planner: Literal["rules", "llm", "hybrid", "external"] = "rules"
    model: str | None = None
    kind: StudyKind = StudyKind.COMPARE
    asked: Asked = Asked.EFFECT
    margin: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    vary: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    design: Design | None = None
    equal: str | None = Field(default=None, pattern=r"^(episodes|steps|(tokens|time)(=\d+(\.\d+)?)?)$")
    scope: str | None = None
    not_studied: tuple[str, ...] = ()
    policy: PolicyName | None = None
    proposer: ProposerName | None = None
    rungs: tuple[float, ...] | None = None
    explore_runs: float | None = Field(default=None, ge=LEAST_RUNS, allow_inf_nan=False)
    family: str | None = None
    env: str | None = None
    train_envs: tuple[str, ...] = ()
    programs: tuple[ProgramSetting, ...] = ()
    job: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    train_model: str | None = None
    n_gpu: int | None = Field(default=None, ge=0)
    seeds: int | None = Field(default=None, ge=1, le=100)
    underpowered: bool = False
    steps: int | None = Field(default=None, ge=1, le=1_000_000)
    eval_episodes: int | None = Field(default=None, ge=1, le=100_000)
    eval_every: int | None = Field(default=None, ge=1, le=1_000_000)
    metric: str | None = None
    attempt_calls: int | None = Field(default=None, ge=1, le=MAX_OF_ATTEMPT)
    attempt_tokens: int | None = Field(default=None, ge=1, le=MAX_OF_ATTEMPT)
    servers: tuple[str, ...] = ()
    parallel: int = Field(default=2, ge=1, le=64)
    max_runs: int | None = Field(default=None, ge=1)
    max_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_outage_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_gpu_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_llm_tokens: int | None = Field(default=None, ge=1)
    max_llm_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_money: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    prices: Prices | None = None
    llm_price: tuple[float, float] | None = None
    llm_patience: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    llm_deadline: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    answer_deadline: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    assume: bool = False
    unsafe_no_sandbox: bool = False
    engine: Literal["auto", "local", "verl", "fake"] | None = None
    keep_checkpoints: KeptCheckpoints = KeptCheckpoints.BEST
    min_free_gb: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    webhook: str | None = None
    log: tuple[str, ...] = ()
    notes: str | None = None
    afresh: bool = False
    go_on: bool = False
    accept: tuple[str, ...] = ()
    reviewer: str | None = Field(default=None, min_length=1)
    replicates: ReplicationOrigin | None = None

    @field_validator("servers")
    @classmethod
    def _addresses_in_full(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        """Return one spelling per server, because leases compare addresses."""
        return tuple(complete_address(url) for url in servers)

    @field_validator("webhook")
    @classmethod
    def _url_that_can_be_called(cls, webhook: str | None) -> str | None:
        if webhook is not None:
            place = urlsplit(webhook)
            if place.scheme not in ("http", "https") or not place.hostname:
                raise ValueError("a webhook is an http:// or https:// URL")
        return webhook

    @field_validator("metric")
    @classmethod
    def _metric_that_exists(cls, metric: str | None) -> str | None:
        if metric is not None:
            read_metric(metric)
        return metric

    @property
    def judged_by(self) -> JudgedBy:
        """The number that runs are compared by: the metric given by a person, else that of the question."""
        if self.metric is not None:
            return read_metric(self.metric)[0]
        return METRICS_OF.get(self.asked, (JudgedBy.FINAL,))[0]

    @property
    def price_of_tokens(self) -> tuple[float, float] | None:
        """The prices of a million tokens of the language model, for input and output, from either option."""
        return self.llm_price or (None if self.prices is None else self.prices.of_tokens)

    def budget(self) -> Budget:
        return present_budget(self.model_dump(), Budget())

    @model_validator(mode="after")
    def _one_environment(self) -> Self:
        if self.family is not None and self.env is not None:
            raise ValueError("family and env both name the environment: give one of them")
        names = [program.name for program in self.programs]
        if len(set(names)) < len(names):
            raise ValueError(f"two programs have the same name: {', '.join(names)}")
        return self

    def base_job(self) -> dict[str, Any]:
        """Return the settings that a person fixed for every arm's job; the planner chooses the others."""
        given = {"engine": self.engine, "model": self.train_model, "n_gpu": self.n_gpu}
        job = {**self.job, **{name: value for name, value in given.items() if value is not None}}
        return {**job, "model": complete_model(job["model"])} if "model" in job else job

    def flags(self) -> QuestionFlags:
        """Return the question in the form of flags."""
        job = self.base_job()
        if self.env is not None and not self.names_model:
            job["model"] = MODEL_OF_OWN_TASKS
        return QuestionFlags(
            kind=self.kind,
            asked=self.asked,
            margin=self.margin,
            vary=self.vary,
            fix=self.fix,
            design=self.design,
            baseline=self.baseline,
            programs=[program.name for program in self.programs],
            train_envs=list(name_environments(self.train_envs)),
            env=self.family or self.env,
            job=job if self.steps is None else {**job, "total_steps": self.steps},
            scope=None if self.scope is None else read_scope(self.scope),
            program_parts=find_varied_parts([program.code for program in self.programs]),
        )

    @property
    def names_model(self) -> bool:
        """True if flags fix or vary the model. Raises TopicInvalid."""
        varied = {name for factor in read_factors(self.vary) for name in factor.varied}
        return "model" in {*self.base_job(), *read_fixed(self.fix), *varied}

    @property
    def is_asked(self) -> bool:
        """True if the settings state the question, so that the topic has been read already or is only a title."""
        return self.flags().name_factors or self.kind is StudyKind.OPTIMIZE or self.replicates is not None

    def question(self) -> Question:
        """Return the question as data. Raises TopicInvalid.

        With a language model the factors may still be unnamed. Those of a replication are in its finding.
        """
        return build_question(self.flags(), needs_factors=self.planner == "rules" and self.replicates is None)

    def search(self) -> SearchRules | None:
        """Return the rules of a search; None for another kind of study. Raises TopicInvalid for impossible ones."""
        flags, by_rules = self.search_flags, self.planner == "rules"
        return search_rules(self.kind, self.budget(), flags, by_rules=by_rules, eval_episodes=self.eval_episodes)

    @property
    def search_flags(self) -> SearchFlags:
        return SearchFlags(self.policy, self.proposer, self.rungs, self.explore_runs)

    def request(self, topic: str) -> FrameRequest:
        unit, _, amount = (self.equal or "").partition("=")
        return FrameRequest(
            topic=topic,
            family=self.family,
            environment=None if self.env is None else look_at(self.env),
            seeds=self.seeds,
            steps=self.steps,
            eval_episodes=self.eval_episodes,
            eval_every=self.eval_every,
            judged_by=self.judged_by,
            judged_level=None if self.metric is None else read_metric(self.metric)[1],
            budget=self.budget(),
            assume=self.assume,
            is_underpowered=self.underpowered,
            attempt_calls=self.attempt_calls,
            attempt_tokens=self.attempt_tokens,
            question=self.question(),
            equal=ComparedAt(unit) if unit else None,
            amount=float(amount) if amount else None,
            not_studied=self.not_studied,
            search=self.search(),
            fixed=self.search_flags.fixed | ({"judged_by"} if self.metric is not None else set()),
        )


def read_metric(text: str) -> tuple[JudgedBy, float | None]:
    """Return the metric that `--metric` names, and the score that steps are counted to, if any. Raises ValueError."""
    name, mark, level = text.partition(":")
    if (name == JudgedBy.STEPS_TO) != bool(mark) or name not in list(JudgedBy):
        raise ValueError("choose final, area, steps-to:SCORE, worst or spread")
    if not mark:
        return JudgedBy(name), None
    try:
        score = float(level)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise ValueError("steps-to takes a score, as in steps-to:0.9")
    return JudgedBy(name), score


def read_settings(values: Mapping[str, Any]) -> StudySettings:
    """Return validated settings. Raises TopicInvalid, naming the first invalid setting."""
    try:
        return StudySettings.model_validate(dict(values))
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        what = first["msg"].removeprefix("Value error, ")
        raise TopicInvalid(f"--{name.replace('_', '-')}: {what} (got {first['input']!r})") from error


def read_programs(paths: Sequence[Path], env: str | None) -> list[dict[str, str]]:
    """Return programs as settings; without paths, that of the environment's folder. Raises TopicInvalid."""
    own = agent_of(env) if env is not None and not paths else None
    return [read_program(path) for path in ([own] if own else paths)]


def read_program(path: Path) -> dict[str, str]:
    """Return a program's file as a setting. Raises TopicInvalid if it cannot be read or is not a program."""
    try:
        code = path.read_text(encoding="utf-8")
        has_functions = is_program(code)
    except (OSError, ValueError, SyntaxError) as error:
        raise TopicInvalid(f"--program: {path} cannot be read as Python: {' '.join(str(error).split())}") from error
    if not has_functions:
        raise TopicInvalid(f"--program: {path} has no function agent, reward or schedule")
    return {"name": path.stem, "code": code}


def read_job(path: Path) -> dict[str, Any]:
    """Return the settings that a job file states, without any defaults. Raises TopicInvalid."""
    try:
        job = TrainJob.build_job_from_yaml(path)
    except JobInvalid as error:
        raise TopicInvalid(f"--job: {error.message}") from error
    own = {"seed", "experiment_name", "project_name"}
    return {name: job.model_dump(mode="json")[name] for name in job.model_fields_set - own}


def sandbox_of(settings: StudySettings) -> Sandbox | None:
    """Return the sandbox for code that a planner or a stranger wrote; None if no such code runs.

    Raises SandboxUnavailable.
    """
    is_trusted = settings.replicates is None or settings.replicates.is_trusted
    return None if settings.planner == "rules" and is_trusted else choose_sandbox(settings.unsafe_no_sandbox)
