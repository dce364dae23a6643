"""The command `researcher start`, which begins a study."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from researcher.cli import options
from researcher.cli.options import DatabaseOption, HomeOption, JsonOption
from researcher.cli.parts import open_database, work
from researcher.cli.terminal import failures_in_one_line
from researcher.home import DEFAULT_HOME

if TYPE_CHECKING:
    from researcher.study.settings import StudySettings


def start(
    topic: options.TopicOption,
    vary: options.VaryOption = None,
    fix: options.FixOption = None,
    baseline: options.BaselineOption = None,
    design: options.DesignOption = None,
    equal: options.EqualOption = None,
    kind: options.KindOption = "compare",
    asked: options.AskedOption = "effect",
    policy: options.PolicyOption = None,
    proposer: options.ProposerOption = None,
    rungs: options.RungsOption = None,
    explore_runs: options.ExploreRunsOption = None,
    planner: options.PlannerOption = None,
    model: options.ModelOption = None,
    env: options.EnvOption = None,
    train_env: options.TrainEnvOption = None,
    program: options.ProgramOption = None,
    job: options.JobOption = None,
    train_model: options.TrainModelOption = None,
    n_gpu: options.NGpuOption = None,
    seeds: options.SeedsOption = None,
    underpowered: options.UnderpoweredOption = False,
    steps: options.StepsOption = None,
    eval_episodes: options.EvalEpisodesOption = None,
    eval_every: options.EvalEveryOption = None,
    metric: options.MetricOption = None,
    attempt_calls: options.AttemptCallsOption = None,
    attempt_tokens: options.AttemptTokensOption = None,
    servers: options.ServersOption = None,
    parallel: options.ParallelOption = 2,
    max_runs: options.MaxRunsOption = None,
    max_hours: options.MaxHoursOption = None,
    max_outage_hours: options.MaxOutageHoursOption = None,
    max_gpu_hours: options.MaxGpuHoursOption = None,
    max_llm_tokens: options.MaxLlmTokensOption = None,
    max_llm_usd: options.MaxLlmUsdOption = None,
    llm_price: options.LlmPriceOption = None,
    llm_patience: options.LlmPatienceOption = 60.0,
    llm_deadline: options.LlmDeadlineOption = 60.0,
    answer_deadline: options.AnswerDeadlineOption = None,
    assume: options.AssumeOption = False,
    unsafe_no_sandbox: options.UnsafeNoSandboxOption = False,
    engine: options.EngineOption = None,
    keep_checkpoints: options.KeepCheckpointsOption = "best",
    min_free_gb: options.MinFreeGbOption = 1.0,
    webhook: options.WebhookOption = None,
    log: options.LogOption = None,
    notes: options.NotesOption = None,
    afresh: options.AfreshOption = False,
    reviewer: options.ReviewerOption = None,
    detach: options.DetachOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a study and work on it until its report is written."""
    given = locals()
    with failures_in_one_line():
        from researcher.loop.settings_check import check_study
        from researcher.study.settings import complete_from_topic

        settings = complete_from_topic(topic, _read_flags(given))
        for line in check_study(topic, settings):
            typer.echo(line, err=True)
        with open_database(home, db) as store:
            from researcher.study.requests import create_study, resume_command

            study = create_study(store, topic, settings)
            go_on = resume_command(store, study.id, home)
            how_to_stop = "" if detach else "Ctrl-C stops; "
            typer.echo(f"study {study.id} ({how_to_stop}go on later with: {go_on})", err=True)
            work(store, study.id, home, db, as_json, detach=detach)


def _read_flags(given: Mapping[str, Any]) -> StudySettings:
    """Return the settings that the values of all options state. Raises TopicInvalid."""
    from researcher.study.settings import StudySettings, read_job, read_programs, read_settings

    # Most options have the same name as their setting.
    named = {name: value for name, value in given.items() if name in StudySettings.model_fields}
    job, env, price, notes = given["job"], given["env"], given["llm_price"], given["notes"]
    return read_settings(
        {
            **named,
            "planner": _choose_planner(given["planner"]),
            **{name: given[name] or () for name in ("vary", "fix", "baseline")},
            **_environment_settings(env),
            "train_envs": [_in_full(name) for name in given["train_env"] or ()],
            "programs": read_programs(given["program"] or (), env),
            "job": {} if job is None else read_job(job),
            "servers": [url.strip() for entry in given["servers"] or [] for url in entry.split(",") if url.strip()],
            "llm_price": None if price is None else price.split(","),
            "log": given["log"] or (),
            "notes": None if notes is None else str(notes.resolve()),
            "rungs": given["rungs"] and given["rungs"].split(","),
        }
    )


def _environment_settings(env: str | None) -> dict[str, Any]:
    """Return the settings for `--env`, with an absolute path, because the study may be resumed in another directory."""
    from swarm.environments import is_bundled

    if env is None or is_bundled(env):
        return {"family": env, "env": None}
    return {"env": _in_full(env)}


def _in_full(env: str) -> str:
    source, mark, options = env.partition("?")
    return f"{Path(source).resolve()}{mark}{options}" if Path(source).exists() else env


def _choose_planner(wanted: str | None) -> str:
    if wanted is not None:
        return wanted
    if os.environ.get("OPENAI_API_KEY"):
        typer.echo("planner: llm, because OPENAI_API_KEY is set (--planner rules works without a model)", err=True)
        return "llm"
    typer.echo("planner: rules, because OPENAI_API_KEY is not set (a designed experiment, no language model)", err=True)
    return "rules"
