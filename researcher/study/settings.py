"""The settings of a study, and every check of them that is possible before a run.

Place in the flow: the CLI asks here first, and session.py carries out settings that passed. This module loads neither
the graph nor the database, so that a wrong setting is answered at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    Question,
    StudiedEnvironment,
    StudyKind,
)
from researcher.errors import ServerProblem, TopicInvalid
from researcher.execution.environments import look_at, name_environments
from researcher.plan import Arm
from researcher.planner.base import History
from researcher.planner.rules import RulesPlanner
from researcher.question.asking import (
    METRICS_OF,
    QuestionFlags,
    build_question,
    check_environment,
    check_title,
    flags_of,
    refuse,
)
from researcher.question.flags import complete_model
from researcher.question.reader import Reading, read_topic
from researcher.question.wording import describe_question
from researcher.servers.server_pool import check_servers
from researcher.study.budget import present_budget
from swarm.config import cluster_from_environment, complete_address
from swarm.doctor.examination import Health
from swarm.doctor.verl import check_sampler, check_trainer
from swarm.environments.registry import agent_of
from swarm.errors import JobInvalid, SwarmError
from swarm.job import TrainJob, build_job
from swarm.program import is_program
from swarm.sandbox.sandbox import Sandbox, choose_sandbox
from swarm.tasks import TASK_FAMILIES

MAX_OF_ATTEMPT = 2**31 - 1
"""The largest limit of an episode that a server accepts."""
VLLM_LIMIT_S = 120.0
"""Seconds for an interpreter with many packages to answer on a busy machine."""


class KeptCheckpoints(StrEnum):
    """The checkpoints of its own servers that a study keeps once their scores are taken.

    ALL: all. BEST: the weights of the best arm. NONE: none.
    """

    ALL = "all"
    BEST = "best"
    NONE = "none"


class ForkOrigin(BaseModel):
    """The study that another one was forked from, and the decision after which it was forked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: str
    decision: int


class ProgramSetting(BaseModel):
    """A program as it was when the study began; later changes of its file have no effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,59}$")
    code: str


class StudySettings(BaseModel):
    """The settings that a study was started with; stored with it, so that `resume` needs only its id.

    Question: the fields from `kind` to `equal` are the question, from flags or from the topic. `not_studied` are the
    words of the topic that `assume` left out.

    Environment: `task` is a bundled environment, `env` any other one. `train_envs` are environments to train on, if
    these differ.

    Job and attempts: `job` has the settings that every arm starts from. `attempt_calls` and `attempt_tokens` limit the
    inference of each attempt, for all arms alike; None means no limit. In other fields None leaves the choice to the
    topic and the planner.

    Servers: if `servers` is empty, the study starts `parallel` own servers. With less than `min_free_gb` (10^9 bytes)
    of free space nothing is launched.

    Language model: `llm_price` is in dollars per million tokens, for input and output. After `llm_patience` minutes
    without an answer of the language model, `on_llm_outage` chooses what happens to the study.

    News: `webhook` is a URL that gets the news of the study.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    planner: Literal["rules", "llm", "hybrid"] = "rules"
    model: str | None = None
    kind: StudyKind = StudyKind.COMPARE
    asked: Asked = Asked.EFFECT
    vary: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    design: Design | None = None
    equal: str | None = Field(default=None, pattern=r"^(episodes|steps|(tokens|time)(=\d+(\.\d+)?)?)$")
    not_studied: tuple[str, ...] = ()
    task: str | None = None
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
    llm_price: tuple[float, float] | None = None
    on_llm_outage: Literal["rules", "pause"] | None = None
    llm_patience: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    assume: bool = False
    unsafe_no_sandbox: bool = False
    engine: Literal["auto", "local", "verl", "fake"] | None = None
    keep_checkpoints: KeptCheckpoints = KeptCheckpoints.BEST
    min_free_gb: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    webhook: str | None = None
    parent: ForkOrigin | None = None

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
            if not (place.hostname if place.scheme in ("http", "https") else _is_a_service(webhook)):
                raise ValueError("a webhook is an http:// or https:// URL, or the URL of a service that Apprise knows")
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

    def budget(self) -> Budget:
        return present_budget(self.model_dump(), Budget())

    @property
    def rules_answer_outages(self) -> bool:
        return (self.on_llm_outage or ("rules" if self.planner == "hybrid" else "pause")) == "rules"

    @model_validator(mode="after")
    def _one_environment(self) -> Self:
        if self.task is not None and self.env is not None:
            raise ValueError("task and env both name the environment: give one of them")
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
        return QuestionFlags(
            kind=self.kind,
            asked=self.asked,
            vary=self.vary,
            fix=self.fix,
            design=self.design,
            baseline=self.baseline,
            programs=[program.name for program in self.programs],
            train_envs=list(name_environments(self.train_envs)),
            env=self.task or self.env,
            job=job if self.steps is None else {**job, "total_steps": self.steps},
        )

    @property
    def is_asked(self) -> bool:
        """True if the settings state the question, so that the topic has been read already or is only a title."""
        return self.flags().name_factors or self.kind is StudyKind.OPTIMIZE

    def question(self) -> Question:
        """Return the question as data. Raises TopicInvalid.

        With a language model the factors may still be unnamed.
        """
        return build_question(self.flags(), needs_factors=self.planner == "rules")

    def request(self, topic: str) -> FrameRequest:
        unit, _, amount = (self.equal or "").partition("=")
        return FrameRequest(
            topic=topic,
            task=self.task,
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
        )


def _is_a_service(url: str) -> bool:
    # Apprise imports slowly, and most webhooks do without.
    from apprise import Apprise

    return Apprise.instantiate(url) is not None


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


def without_question(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings without the fields of the question."""
    asked = {"kind", "asked", "vary", "fix", "baseline", "design", "equal", "not_studied"}
    return {name: value for name, value in values.items() if name not in asked}


def read_settings(values: Mapping[str, Any]) -> StudySettings:
    """Return validated settings. Raises TopicInvalid, naming the first invalid setting."""
    try:
        return StudySettings.model_validate(dict(values))
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise TopicInvalid(f"--{name.replace('_', '-')}: {first['msg']} (got {first['input']!r})") from error


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


def complete_from_topic(topic: str, settings: StudySettings) -> StudySettings:
    """Return the settings, completed from the topic where no flag decides otherwise.

    Only the `rules` planner reads topics this way; a language model reads the topic later. If flags name what is
    compared, the topic is a title. A title may use any words, but it may name no setting that flags neither vary nor
    fix.

    Raises TopicNotUnderstood for a topic with words that match nothing, TopicInvalid for one that contradicts a flag.
    """
    if settings.planner != "rules" or not topic.strip():
        return settings
    reading = read_topic(topic, has_environment=settings.task is not None or settings.env is not None)
    given = settings.model_dump(exclude_defaults=True)
    if settings.is_asked:
        check_title(reading, settings.question(), settings.fix, settings.task or settings.env)
        return settings
    check_environment(reading, settings.task or settings.env)
    unread = reading.unread + _too_many_gpus(reading, settings)
    if unread and not settings.assume:
        raise refuse(replace(reading, unread=unread), given)
    said = flags_of(reading)
    if "task" in given or "env" in given:
        said = {name: value for name, value in said.items() if name not in ("task", "env")}
    if "env" in said:
        source, mark, options = str(said["env"]).partition("?")
        path = Path(source).expanduser()
        said["env"] = f"{path.resolve()}{mark}{options}" if path.exists() else said["env"]
    if "n_gpu" in said and settings.engine is None and "engine" not in settings.job:
        said["engine"] = "auto"
    # Flags win over the topic, but fixed settings are added up from both.
    fix = (*settings.fix, *said.pop("fix", ()))
    return read_settings({**settings.model_dump(), **said, **given, "fix": fix, "not_studied": unread})


def read_request(topic: str, settings: StudySettings) -> FrameRequest:
    """Return the request that the `rules` planner frames, from the topic and the flags. Raises TopicInvalid."""
    return complete_from_topic(topic, settings).request(topic)


def _too_many_gpus(reading: Reading, settings: StudySettings) -> tuple[str, ...]:
    wanted, here = reading.counts.get("n_gpu"), _count_gpus(settings)
    is_here = wanted is None or here is None or wanted <= here or "n_gpu" in settings.job
    return () if is_here else (f"{wanted:g} GPUs",)


def _count_gpus(settings: StudySettings) -> int | None:
    """Return how many GPUs own servers would find; None if runs are on other machines, or use no GPU."""
    on_ray, _ = cluster_from_environment()
    if settings.servers or on_ray is not None or settings.base_job().get("engine") == "fake":
        return None
    return sum(1 for device in Path("/dev").glob("nvidia*") if device.name.removeprefix("nvidia").isdigit())


def check_study(topic: str, settings: StudySettings) -> tuple[str, ...]:
    """Check everything that can be checked without a run, and return lines that describe the understood question.

    Nothing is stored before. With a language model there are no lines, because it reads the topic later. Raises
    TopicInvalid, ServerProblem or SandboxUnavailable.
    """
    if not topic.strip():
        raise TopicInvalid("the topic is empty: say what to study, such as 'Does group size matter for word reversal?'")
    if settings.task is not None and settings.task not in TASK_FAMILIES:
        raise TopicInvalid(f"unknown task {settings.task!r}; choose one of: {', '.join(TASK_FAMILIES)}")
    _check_scores(settings)
    try:
        build_job({"engine": "local", **settings.base_job()})
    except JobInvalid as error:
        raise TopicInvalid(f"--job: {error.message}") from error
    if not settings.servers:
        _check_model(settings.base_job(), "--train-model")
        _check_engine(settings.base_job())
    train_envs = [look_at(name, "--train-env") for name in settings.train_envs]
    understood: tuple[str, ...] = ()
    if settings.planner == "rules":
        planner = build_rules_planner(settings)
        charter = planner.frame(settings.request(topic))
        arms = planner.plan(charter, History()).arms
        for arm in () if settings.servers else arms:
            _check_model(arm.job, f"arm {arm.name}")
        _check_training(arms, train_envs)
        understood = tuple(describe_question(charter))
    else:
        _check_language_model(settings)
        settings.request(topic)
    sandbox_of(settings)
    _check_programs(settings)
    check_servers(settings.servers)
    return understood


def _check_scores(settings: StudySettings) -> None:
    """Check that metric, score settings and job fit together. Raises TopicInvalid."""
    metric = settings.metric or settings.judged_by
    if settings.judged_by.needs_curve and settings.eval_every is None:
        raise TopicInvalid(f"--metric {metric} needs scores in mid-training: give --eval-every N")
    if settings.judged_by not in METRICS_OF.get(settings.asked, tuple(JudgedBy)):
        known = " or ".join(METRICS_OF[settings.asked])
        raise TopicInvalid(f"--metric {metric} does not say what is {settings.asked}: use {known}, or leave it out")
    if settings.judged_by is JudgedBy.STEPS_TO and settings.planner != "rules":
        raise TopicInvalid(
            f"--metric {metric} needs arms of equally many steps, which a language model may change: use --metric area"
        )
    if settings.eval_every is not None and (settings.equal or "").startswith(("tokens", "time")):
        raise TopicInvalid(
            f"--eval-every needs runs of known steps, and --equal {settings.equal} ends them: leave one of both out"
        )
    if settings.eval_every is not None and "save_freq" in settings.job:
        raise TopicInvalid("--eval-every says which checkpoints are kept: leave save_freq out of the job")
    for name in ("eval_every", "eval_env"):
        if settings.job.get(name):
            raise TopicInvalid(
                f"a study scores its runs itself, in mid-training by --eval-every: leave {name} out of the job"
            )


def _check_training(arms: Sequence[Arm], named: Sequence[StudiedEnvironment]) -> None:
    """Open the environments that arms train on, except those opened for a flag. Raises TopicInvalid.

    Two equal environments are refused, because the study would compare a thing with itself.
    """
    known = {environment.reference: environment for environment in named}
    names: dict[str, str] = {}
    for reference in dict.fromkeys(arm.environment for arm in arms if arm.environment is not None):
        digest = (known.get(reference) or look_at(reference, "--vary")).digest
        if digest in names:
            flag = "--train-env" if reference in known else "--vary"
            raise TopicInvalid(f"{flag}: {names[digest]} and {reference} are the same environment: change one")
        names[digest] = reference


def _check_programs(settings: StudySettings) -> None:
    """Raise TopicInvalid for two equal programs, because the study would compare a thing with itself."""
    names: dict[str, str] = {}
    for program in settings.programs:
        if program.code in names:
            raise TopicInvalid(f"--program: {names[program.code]} and {program.name} are the same program: change one")
        names[program.code] = program.name


def _check_model(job: Mapping[str, Any], where: str) -> None:
    """Raise TopicInvalid if the model is not on this machine, where own servers run."""
    if job.get("engine") == "fake" or "model" not in job:
        return
    # Imported here because it loads a tokenizer library.
    from swarm.model_path import resolve_model

    try:
        resolve_model(str(job["model"]))
    except SwarmError as error:
        raise TopicInvalid(f"{where}: {error.message}") from error


def _check_engine(job: Mapping[str, Any]) -> None:
    """Raise ServerProblem if the job needs verl and this machine, where own servers run, lacks a part of it."""
    if build_job(dict(job)).chosen_engine != "verl":
        return
    _, vllm_python = cluster_from_environment()
    for finding in (check_trainer(), check_sampler(vllm_python, VLLM_LIMIT_S)):
        if finding.verdict is not Health.OK:
            raise ServerProblem(f"--engine verl cannot be used here: {finding.message}: {finding.remedy}")


def sandbox_of(settings: StudySettings) -> Sandbox | None:
    """Return the sandbox for code of a language model; None for the `rules` planner. Raises SandboxUnavailable."""
    return None if settings.planner == "rules" else choose_sandbox(settings.unsafe_no_sandbox)


def build_rules_planner(settings: StudySettings) -> RulesPlanner:
    programs = {program.name: program.code for program in settings.programs}
    return RulesPlanner(programs=programs, train_envs=name_environments(settings.train_envs))


def _check_language_model(settings: StudySettings) -> None:
    """Raise TopicInvalid for settings that a planner with a language model lacks or cannot use."""
    if settings.train_envs:
        raise TopicInvalid("--train-env names what --planner rules compares: leave it out, or use --planner rules")
    if settings.question().options:
        raise TopicInvalid("--vary: --planner rules alone varies options of the environment: add --planner rules")
    if len(settings.programs) > 1:
        raise TopicInvalid("--program: with a language model name one program, which those that it writes start from")
    if not settings.model:
        raise TopicInvalid(
            f"--planner {settings.planner} needs the name of a model: give --model NAME, or use --planner rules"
        )
    if not os.environ.get("OPENAI_API_KEY"):
        raise TopicInvalid(
            f"--planner {settings.planner} needs OPENAI_API_KEY "
            "(any text if the server at OPENAI_BASE_URL asks for none)"
        )
    if settings.max_llm_usd is not None and settings.llm_price is None:
        raise TopicInvalid("--max-llm-usd needs the model's prices: give --llm-price INPUT,OUTPUT in $ per 1M tokens")
