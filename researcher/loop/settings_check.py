"""Every check of the settings of a study that is possible before a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from researcher.charter import JudgedBy, StudiedEnvironment, StudyKind
from researcher.errors import ServerProblem, TopicInvalid
from researcher.execution.environments import look_at
from researcher.loop.nodes.frame import in_units_of_metric
from researcher.plan import Arm
from researcher.planner.rules import build_rules_planner
from researcher.program_parts import find_differing_parts
from researcher.question.asking import METRICS_OF
from researcher.question.wording import describe_question
from researcher.servers.server_pool import check_servers
from researcher.study.settings import NO_PRICES, StudySettings, sandbox_of
from swarm.config import cluster_from_environment
from swarm.doctor import Health, check_packages, check_sampler
from swarm.errors import JobInvalid, SwarmError
from swarm.job import build_job
from swarm.sinks import check_sinks
from swarm.tasks import TASK_FAMILIES

KEY = "OPENAI_API_KEY (any text if the server at OPENAI_BASE_URL asks for none)"
NO_PRICE = "--max-llm-usd needs the model's prices: give --llm-price INPUT,OUTPUT in $ per 1M tokens"
VLLM_LIMIT_S = 120.0
"""Seconds for an interpreter with many packages to answer on a busy machine."""


def check_study(topic: str, settings: StudySettings) -> tuple[str, ...]:
    """Check everything that can be checked without a run, and return lines that describe the understood question.

    Nothing is stored before. With a language model there are no lines, because it reads the topic later. Raises
    TopicInvalid, ServerProblem or SandboxUnavailable.
    """
    _raise_first(_object_to_question(topic, settings), _object_to_scores(settings), _object_to_parts(settings))
    _raise_first(_object_to_prices(settings))
    try:
        check_sinks(settings.log)
    except SwarmError as error:
        raise TopicInvalid(f"--log: {error.message}") from error
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
        arms = planner.list_arms(charter)
        for arm in () if settings.servers else arms:
            _check_model(arm.job, f"arm {arm.name}")
        _check_training(arms, train_envs)
        understood = tuple(describe_question(in_units_of_metric(charter)))
    else:
        _raise_first(_object_to_planner(settings))
        settings.request(topic)
    sandbox_of(settings)
    check_servers(settings.servers)
    return understood


def _raise_first(*objections: Iterable[str]) -> None:
    for objection in chain.from_iterable(objections):
        raise TopicInvalid(objection)


def _object_to_question(topic: str, settings: StudySettings) -> Iterator[str]:
    """Yield what is wrong with the topic, the environment and the programs."""
    if not topic.strip():
        yield "the topic is empty: say what to study, such as 'Does group size matter for word reversal?'"
    if settings.family is not None and settings.family not in TASK_FAMILIES:
        yield f"unknown environment {settings.family!r}; choose one of: {', '.join(TASK_FAMILIES)}"
    for program, other in combinations(settings.programs, 2):
        # The study would compare a thing with itself.
        if not find_differing_parts(program.code, other.code):
            yield f"--program: {program.name} and {other.name} are the same program but for texts and names: change one"


def _object_to_scores(settings: StudySettings) -> Iterator[str]:
    """Yield where metric, score settings and job do not fit together."""
    metric, judged_by = settings.metric or settings.judged_by, settings.judged_by
    known = METRICS_OF.get(settings.asked, tuple(JudgedBy))
    if judged_by.needs_curve and settings.eval_every is None:
        yield f"--metric {metric} needs scores in mid-training: give --eval-every N"
    if judged_by not in known:
        yield f"--metric {metric} does not say what is {settings.asked}: use {' or '.join(known)}, or leave it out"
    if judged_by is JudgedBy.STEPS_TO and settings.planner != "rules":
        yield (
            f"--metric {metric} needs arms of equally many steps, which a language model may change: use --metric area"
        )
    if settings.eval_every is not None and (settings.equal or "").startswith(("tokens", "time")):
        yield f"--eval-every needs runs of known steps, and --equal {settings.equal} ends them: leave one of both out"
    if settings.eval_every is not None and "save_freq" in settings.job:
        yield "--eval-every says which checkpoints are kept: leave save_freq out of the job"
    for name in ("eval_every", "eval_env"):
        if settings.job.get(name):
            yield f"a study scores its runs itself, in mid-training by --eval-every: leave {name} out of the job"


def _object_to_parts(settings: StudySettings) -> Iterator[str]:
    """Yield options that belong to a planner, a reviewer or servers which the study does not have."""
    by_rules = settings.planner == "rules"
    if settings.notes is not None and by_rules:
        yield "--notes is for a planner that reads: give --planner llm, or leave it out"
    if settings.notes is not None and not Path(settings.notes).is_dir():
        yield f"--notes: {settings.notes} is no folder: give one with Markdown or text files"
    if settings.log and settings.servers:
        yield "--log is for servers that the study starts: give --log to `swarm start` for others"
    if settings.planner != "external" and settings.answer_deadline is not None:
        yield "--answer-deadline is for the answers of --planner external: leave it out"
    if settings.reviewer in (None, "none"):
        return
    if by_rules and settings.kind is not StudyKind.OPTIMIZE:
        yield "--reviewer looks at the arm that a search finds: leave it out, or search with --kind optimize"
    if settings.reviewer != "rules" and not os.environ.get("OPENAI_API_KEY"):
        yield f"--reviewer {settings.reviewer} needs {KEY}, or use --reviewer rules"
    if settings.reviewer != "rules" and settings.max_llm_usd is not None and settings.price_of_tokens is None:
        yield NO_PRICE


def _object_to_prices(settings: StudySettings) -> Iterator[str]:
    """Yield what the prices lack, so that no amount of money is less than what was used."""
    prices, gpus = settings.prices, settings.base_job().get("n_gpu", 0)
    if prices is None:
        if settings.max_money is not None:
            yield NO_PRICES
        return
    if prices.cpu_hour is None:
        yield "--prices: the file lacks cpu_hour: add the price of a machine for an hour"
    if gpus and prices.gpu_hour is None:
        yield f"--prices: the file lacks gpu_hour, and runs use {gpus} GPUs: add its price"
    asks_model = settings.planner in ("llm", "hybrid") or settings.reviewer not in (None, "none", "rules")
    if asks_model and settings.price_of_tokens is None:
        yield "--prices: the file lacks input_tokens and output_tokens, and a language model is asked: add its prices"
    if settings.llm_price is not None and prices.of_tokens is not None:
        yield "--llm-price and the tokens of --prices both give the model's prices: leave one of them out"


def _object_to_planner(settings: StudySettings) -> Iterator[str]:
    """Yield what a planner other than `rules` lacks, or cannot study."""
    planner = settings.planner
    if planner == "external":
        given = {"--model": settings.model, "--max-llm-tokens": settings.max_llm_tokens}
        given |= {"--llm-price": settings.llm_price, "--max-llm-usd": settings.max_llm_usd}
        yield from (
            f"--planner external asks no language model: leave {name} out"
            for name, value in given.items()
            if value is not None
        )
    if settings.train_envs:
        yield "--train-env names what --planner rules compares: leave it out, or use --planner rules"
    if settings.question().options:
        yield "--vary: --planner rules alone varies options of the environment: add --planner rules"
    if len(settings.programs) > 1:
        yield f"--program: with --planner {planner} name one program, which those that it writes start from"
    if planner == "external":
        return
    if not settings.model:
        yield f"--planner {planner} needs the name of a model: give --model NAME, or use --planner rules"
    if not os.environ.get("OPENAI_API_KEY"):
        yield f"--planner {planner} needs {KEY}"
    if settings.max_llm_usd is not None and settings.price_of_tokens is None:
        yield NO_PRICE


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
    for finding in (check_packages("verl", is_optional=True), check_sampler(vllm_python, VLLM_LIMIT_S)):
        if finding.verdict is not Health.OK:
            raise ServerProblem(f"--engine verl cannot be used here: {finding.message}: {finding.remedy}")
