"""The options and arguments of the researcher's commands, each with its type, bounds and help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from researcher.home import DEFAULT_HOME
from swarm.models import MODEL_DESCRIPTION

HomeOption = Annotated[
    Path, typer.Option("--home", envvar="SWARM_HOME", help="Directory of studies, servers and logs.")
]
DatabaseOption = Annotated[
    str | None, typer.Option("--db", help="SQLite file or postgresql:// URL (default: research.db under the home).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON on stdout.")]
StudyArgument = Annotated[str, typer.Argument(help="Id of a study; `researcher list` shows them.")]
NewestStudyArgument = Annotated[str | None, typer.Argument(help="Id of a study (default: the newest).")]
MaxRunsOption = Annotated[int | None, typer.Option(min=1, help="Budget: runs.")]
MaxHoursOption = Annotated[
    float | None, typer.Option(help="Budget: hours in which a process works on the study, waiting included.")
]
MaxGpuHoursOption = Annotated[float | None, typer.Option(help="Budget: hours of the runs, times the GPUs of each.")]
MaxLlmTokensOption = Annotated[int | None, typer.Option(min=1, help="Budget: tokens of the language model.")]
MaxLlmUsdOption = Annotated[float | None, typer.Option(help="Budget: dollars for the language model.")]
MaxMoneyOption = Annotated[
    float | None, typer.Option(help="Budget: money for machines, GPUs and language model, by the study's prices.")
]
UnsafeNoSandboxOption = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="Run code of a language model without a sandbox.")
]
DetachOption = Annotated[
    bool, typer.Option("--detach", help="Return once a process of its own works on it, which outlives the terminal.")
]
GoOnOption = Annotated[
    bool, typer.Option("--go-on", help="Train all the same if the model solves nothing before training.")
]
AcceptOption = Annotated[
    list[str] | None,
    typer.Option(help="An arm that stays in although its code does a part of the model's work. May be given again."),
]
ResumeMinFreeGbOption = Annotated[
    float | None,
    typer.Option(min=0, envvar="SWARM_MIN_FREE_GB", help="Least free disk space (default: what `start` was told)."),
]


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """The options of every command that begins a study."""

    servers: Annotated[
        list[str] | None, typer.Option(help="Swarm servers to use, separated by commas (default: own local ones).")
    ] = None
    parallel: Annotated[int, typer.Option(min=1, max=64, help="How many local servers to start.")] = 2
    max_runs: MaxRunsOption = None
    max_hours: MaxHoursOption = None
    max_outage_hours: Annotated[
        float | None, typer.Option(help="Give up once no server has answered for so long (default: wait).")
    ] = None
    max_gpu_hours: MaxGpuHoursOption = None
    unsafe_no_sandbox: UnsafeNoSandboxOption = False
    keep_checkpoints: Annotated[
        str, typer.Option(help="Checkpoints to keep once they are scored: all, best (the best arm's weights) or none.")
    ] = "best"
    min_free_gb: Annotated[
        float, typer.Option(envvar="SWARM_MIN_FREE_GB", help="Launch nothing with less free disk space than this.")
    ] = 1.0
    webhook: Annotated[
        str | None,
        typer.Option(
            help="URL that gets a POST of JSON when the study begins, judges, stops or is in trouble; chats show "
            "its `text`."
        ),
    ] = None
    detach: DetachOption = False
    home: HomeOption = DEFAULT_HOME
    db: DatabaseOption = None
    as_json: JsonOption = False

    @property
    def addresses(self) -> list[str]:
        return [url.strip() for entry in self.servers or [] for url in entry.split(",") if url.strip()]


@dataclass(frozen=True, kw_only=True)
class StartOptions(WorkOptions):
    """The options of `researcher start`, most of them with the names of the settings of a study."""

    topic: Annotated[str, typer.Option(help="What to study, in plain words.")]
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="A factor and its levels, as in lr=1e-3,3e-3 or env.difficulty=1,3 (an option of the environment), or "
            "levels that set several things, as in 'short: batch_size=8,total_steps=60; long: batch_size=16'. May be "
            "given again."
        ),
    ] = None
    fix: Annotated[
        list[str] | None, typer.Option(help="A setting of every arm, as in batch_size=8. May be given again.")
    ] = None
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="The level that the others are compared with, as in lr=0.001 (default: the usual one)."),
    ] = None
    design: Annotated[
        str | None,
        typer.Option(help="Of several factors: factorial (all combinations; default up to 12 arms) or one-at-a-time."),
    ] = None
    scope: Annotated[
        str | None,
        typer.Option(
            help="The parts in which arms may differ: settings (or some, as in lr), reward, schedule, agent, "
            "train-environment, model, with commas (default: what the topic and other flags name)."
        ),
    ] = None
    equal: Annotated[
        str | None,
        typer.Option(help="What every arm gets the same of: episodes (default), steps, tokens[=N] or time[=SECONDS]."),
    ] = None
    kind: Annotated[
        str, typer.Option(help="compare: given arms; optimize: search for the best settings, confirmed on fresh seeds.")
    ] = "compare"
    asked: Annotated[
        str,
        typer.Option(
            "--ask",
            help="What is asked of the factors: effect, best, better, matters_more, interaction, equal, sooner, "
            "more_stable, needed, diverges.",
        ),
    ] = "effect"
    margin: Annotated[
        float | None,
        typer.Option(help="With --ask equal: arms are equal if they differ by less (default: 0.02 of a score)."),
    ] = None
    policy: Annotated[
        str | None,
        typer.Option(
            help="How a search chooses what to try: halving (default with rules), population, or planner (default "
            "with any other planner)."
        ),
    ] = None
    proposer: Annotated[
        str | None,
        typer.Option(help="What proposes the settings of a search's new arms: optuna (default) or grid."),
    ] = None
    rungs: Annotated[
        str | None,
        typer.Option(help="Parts of its training after which a search scores an arm, as in 0.25,0.5,1 (the default)."),
    ] = None
    explore_runs: Annotated[
        float | None,
        typer.Option(help="Full runs that a search explores with (default: its part of --max-runs, else 12)."),
    ] = None
    planner: Annotated[
        str | None,
        typer.Option(
            help="rules, llm, hybrid: llm, and rules while it is down or over its budget, or external: a coding agent "
            "answers by `researcher answer` or MCP (default: llm if OPENAI_API_KEY is set, else rules)."
        ),
    ] = None
    model: Annotated[str | None, typer.Option(help="Language model of the llm and hybrid planners.")] = None
    env: Annotated[
        str | None,
        typer.Option(help="Environment: bundled, a path, LIBRARY:NAME (default: the topic's)."),
    ] = None
    train_env: Annotated[
        list[str] | None,
        typer.Option(help="Environment to train on (default: that of --env, which judges); several are compared."),
    ] = None
    program: Annotated[
        list[Path] | None,
        typer.Option(
            help="A program to train with (default: the environment's); several are compared, the baseline first."
        ),
    ] = None
    job: Annotated[Path | None, typer.Option(help="A job.yaml that every arm starts from.")] = None
    train_model: Annotated[str | None, typer.Option(help=f"Model to train: {MODEL_DESCRIPTION}.")] = None
    n_gpu: Annotated[int | None, typer.Option(min=0, help="GPUs of each run.")] = None
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs per arm (default: what a pilot shows to be enough).")
    ] = None
    underpowered: Annotated[
        bool, typer.Option("--underpowered", help="Go on where the power to find a difference is below one half.")
    ] = False
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps per run.")] = None
    eval_episodes: Annotated[int | None, typer.Option(min=1, help="Held-out episodes per score.")] = None
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Score held-out tasks every so many steps of training as well.")
    ] = None
    metric: Annotated[
        str | None,
        typer.Option(
            help="What runs are compared by: final (default), area (mean score over all steps), steps-to:SCORE, worst "
            "(lowest score in training), or spread (how far runs of an arm lie apart)."
        ),
    ] = None
    attempt_calls: Annotated[
        int | None, typer.Option(min=1, help="Model calls that one attempt of any arm may make (default: any number).")
    ] = None
    attempt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that one attempt of any arm may sample (default: any number).")
    ] = None
    max_llm_tokens: MaxLlmTokensOption = None
    max_llm_usd: MaxLlmUsdOption = None
    max_money: MaxMoneyOption = None
    prices: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with cpu_hour, gpu_hour and, per million, input_tokens and output_tokens, so that the "
            "study counts its money."
        ),
    ] = None
    llm_price: Annotated[
        str | None, typer.Option(help="INPUT,OUTPUT: the model's price in dollars per million tokens.")
    ] = None
    llm_patience: Annotated[
        float,
        typer.Option(
            min=0, help="Minutes that the study waits for the language model before it pauses (hybrid: rules decide)."
        ),
    ] = 60.0
    llm_deadline: Annotated[
        float, typer.Option(help="Minutes that the language model may think about one question, while bytes come.")
    ] = 60.0
    answer_deadline: Annotated[
        float | None,
        typer.Option(
            help="Minutes after which a study pauses that has no answer of the external planner (default: never)."
        ),
    ] = None
    assume: Annotated[
        bool, typer.Option("--assume", help="Go on without those parts of the topic that cannot be studied.")
    ] = False
    engine: Annotated[
        str | None, typer.Option(help="local, verl, auto, or fake to try the loop without a model (default: local).")
    ] = None
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Record the runs of own servers in this tracker as well: mlflow, tensorboard, trackio, wandb; "
            "repeatable."
        ),
    ] = None
    notes: Annotated[
        Path | None, typer.Option(help="Folder of Markdown and text files in which the language model may search.")
    ] = None
    go_on: GoOnOption = False
    afresh: Annotated[
        bool, typer.Option("--afresh", help="Study a question anew that an earlier study of the database has decided.")
    ] = False
    accept: AcceptOption = None
    reviewer: Annotated[
        str | None,
        typer.Option(
            help="Who looks at the arm that leads before it is confirmed: rules, none, or a language model by name "
            "(default: rules with --kind optimize, else none)."
        ),
    ] = None


Options = TypeVar("Options", bound=WorkOptions)


def command_with(options: type[Options], run: Callable[[Options], None], name: str) -> Callable[..., None]:
    """Return a function as a command with the fields of its options as parameters, its own before inherited ones."""

    def command(**given: Any) -> None:
        run(options(**given))

    types = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, annotation=types[each.name])
        if each.default is MISSING
        else Parameter(each.name, Parameter.KEYWORD_ONLY, annotation=types[each.name], default=each.default)
        for each in sorted(fields(options), key=lambda each: each.name not in options.__annotations__)
    ]
    command.__name__, command.__doc__ = name, run.__doc__
    vars(command)["__signature__"] = Signature(parameters)
    return command
