"""The options and arguments of the researcher's commands, each with its type, bounds and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HomeOption = Annotated[
    Path, typer.Option("--home", envvar="SWARM_HOME", help="Directory of studies, servers and logs.")
]
DatabaseOption = Annotated[
    str | None, typer.Option("--db", help="SQLite file or postgresql:// URL (default: research.db under the home).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON on stdout.")]
StudyArgument = Annotated[str, typer.Argument(help="Id of a study; `researcher list` shows them.")]
NewestStudyArgument = Annotated[str | None, typer.Argument(help="Id of a study (default: the newest).")]

TopicOption = Annotated[str, typer.Option(help="What to study, in plain words.")]
VaryOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A factor and its levels, as in lr=1e-3,3e-3 or env.difficulty=1,3 (an option of the environment), or "
        "levels that set several things, as in 'short: batch_size=8,total_steps=60; long: batch_size=16'. May be given "
        "again."
    ),
]
FixOption = Annotated[
    list[str] | None, typer.Option(help="A setting of every arm, as in batch_size=8. May be given again.")
]
BaselineOption = Annotated[
    list[str] | None,
    typer.Option(help="The level that the others are compared with, as in lr=0.001 (default: the usual one)."),
]
DesignOption = Annotated[
    str | None,
    typer.Option(help="Of several factors: factorial (all combinations; default up to 12 arms) or one-at-a-time."),
]
EqualOption = Annotated[
    str | None,
    typer.Option(help="What every arm gets the same of: episodes (default), steps, tokens[=N] or time[=SECONDS]."),
]
KindOption = Annotated[
    str, typer.Option(help="compare: given arms; optimize: search for the best settings, confirmed on fresh seeds.")
]
AskedOption = Annotated[
    str,
    typer.Option(
        "--ask",
        help="What is asked of the factors: effect, best, better, matters_more, interaction, equal, sooner, "
        "more_stable, needed, diverges.",
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        help="How a search chooses what to try: halving (default with rules), population, or planner (default "
        "with any other planner)."
    ),
]
ProposerOption = Annotated[
    str | None,
    typer.Option(help="What proposes the settings of a search's new arms: optuna (default) or grid."),
]
RungsOption = Annotated[
    str | None,
    typer.Option(help="Parts of its training after which a search scores an arm, as in 0.25,0.5,1 (the default)."),
]
ExploreRunsOption = Annotated[
    float | None,
    typer.Option(help="Full runs that a search explores with (default: its part of --max-runs, else 12)."),
]
PlannerOption = Annotated[
    str | None,
    typer.Option(
        help="rules, llm, hybrid: llm, and rules while it is down or over its budget, or external: a coding agent "
        "answers by `researcher answer` or MCP (default: llm if OPENAI_API_KEY is set, else rules)."
    ),
]
ModelOption = Annotated[str | None, typer.Option(help="Language model of the llm and hybrid planners.")]
EnvOption = Annotated[
    str | None,
    typer.Option(help="Environment: bundled, a path, LIBRARY:NAME (default: the topic's)."),
]
TrainEnvOption = Annotated[
    list[str] | None,
    typer.Option(help="Environment to train on (default: that of --env, which judges); several are compared."),
]
ProgramOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="A program to train with (default: the environment's); several are compared, the baseline first."
    ),
]
JobOption = Annotated[Path | None, typer.Option(help="A job.yaml that every arm starts from.")]
TrainModelOption = Annotated[str | None, typer.Option(help="Model to train: nano, micro, or a directory.")]
NGpuOption = Annotated[int | None, typer.Option(min=0, help="GPUs of each run.")]
SeedsOption = Annotated[
    int | None, typer.Option(min=1, help="Runs per arm (default: what a pilot shows to be enough).")
]
UnderpoweredOption = Annotated[
    bool, typer.Option("--underpowered", help="Go on where the power to find a difference is below one half.")
]
StepsOption = Annotated[int | None, typer.Option(min=1, help="Training steps per run.")]
EvalEpisodesOption = Annotated[int | None, typer.Option(min=1, help="Held-out episodes per score.")]
EvalEveryOption = Annotated[
    int | None, typer.Option(min=1, help="Score held-out tasks every so many steps of training as well.")
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        help="What runs are compared by: final (default), area (mean score over all steps), steps-to:SCORE, worst "
        "(lowest score in training), or spread (how far runs of an arm lie apart)."
    ),
]
AttemptCallsOption = Annotated[
    int | None, typer.Option(min=1, help="Model calls that one attempt of any arm may make (default: any number).")
]
AttemptTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Tokens that one attempt of any arm may sample (default: any number).")
]
ServersOption = Annotated[
    list[str] | None, typer.Option(help="Swarm servers to use, separated by commas (default: own local ones).")
]
ParallelOption = Annotated[int, typer.Option(min=1, max=64, help="How many local servers to start.")]
MaxRunsOption = Annotated[int | None, typer.Option(min=1, help="Budget: runs.")]
MaxHoursOption = Annotated[
    float | None, typer.Option(help="Budget: hours in which a process works on the study, waiting included.")
]
MaxOutageHoursOption = Annotated[
    float | None, typer.Option(help="Give up once no server has answered for so long (default: wait).")
]
MaxGpuHoursOption = Annotated[float | None, typer.Option(help="Budget: hours of the runs, times the GPUs of each.")]
MaxLlmTokensOption = Annotated[int | None, typer.Option(min=1, help="Budget: tokens of the language model.")]
MaxLlmUsdOption = Annotated[float | None, typer.Option(help="Budget: dollars for the language model.")]
LlmPriceOption = Annotated[
    str | None, typer.Option(help="INPUT,OUTPUT: the model's price in dollars per million tokens.")
]
LlmPatienceOption = Annotated[
    float,
    typer.Option(
        min=0, help="Minutes that the study waits for the language model before it pauses (hybrid: rules decide)."
    ),
]
LlmDeadlineOption = Annotated[
    float, typer.Option(help="Minutes that the language model may think about one question, while bytes come.")
]
AnswerDeadlineOption = Annotated[
    float | None,
    typer.Option(
        help="Minutes after which a study pauses that has no answer of the external planner (default: never)."
    ),
]
AssumeOption = Annotated[
    bool, typer.Option("--assume", help="Go on without those parts of the topic that cannot be studied.")
]
UnsafeNoSandboxOption = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="Run code of a language model without a sandbox.")
]
EngineOption = Annotated[
    str | None, typer.Option(help="local, verl, auto, or fake to try the loop without a model (default: local).")
]
DetachOption = Annotated[
    bool, typer.Option("--detach", help="Return once a process of its own works on it, which outlives the terminal.")
]
KeepCheckpointsOption = Annotated[
    str, typer.Option(help="Checkpoints to keep once they are scored: all, best (the best arm's weights) or none.")
]
MinFreeGbOption = Annotated[
    float, typer.Option(envvar="SWARM_MIN_FREE_GB", help="Launch nothing with less free disk space than this.")
]
ResumeMinFreeGbOption = Annotated[
    float | None,
    typer.Option(min=0, envvar="SWARM_MIN_FREE_GB", help="Least free disk space (default: what `start` was told)."),
]
NotesOption = Annotated[
    Path | None, typer.Option(help="Folder of Markdown and text files in which the language model may search.")
]
AfreshOption = Annotated[
    bool, typer.Option("--afresh", help="Study a question anew that an earlier study of the database has decided.")
]
ReviewerOption = Annotated[
    str | None,
    typer.Option(
        help="Who looks at the arm that leads before it is confirmed: rules, none, or a language model by name "
        "(default: rules with --kind optimize, else none)."
    ),
]
LogOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Record the runs of own servers in this tracker as well: mlflow, tensorboard, trackio, wandb; repeatable."
    ),
]
WebhookOption = Annotated[
    str | None,
    typer.Option(
        help="URL that gets a POST of JSON when the study begins, judges, stops or is in trouble; chats show "
        "its `text`."
    ),
]
