"""The commands `researcher findings`, `findings retract` and `replicate`: what the studies of a database know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from researcher.cli.options import DatabaseOption, HomeOption, JsonOption, WorkOptions, command_with
from researcher.cli.parts import open_database, print_values, work
from researcher.cli.terminal import failures_in_one_line
from researcher.home import DEFAULT_HOME

if TYPE_CHECKING:
    from researcher.memory.standing import Standing

FindingArgument = Annotated[
    str, typer.Argument(metavar="FINDING", help="Id of a finding; `researcher findings` shows them.")
]

app = typer.Typer(help="Show what the studies of a database have found.", invoke_without_command=True)


@app.callback()
def findings(
    context: typer.Context,
    env: Annotated[str | None, typer.Option(help="Only findings on this environment, by name.")] = None,
    model: Annotated[str | None, typer.Option(help="Only findings on this model.")] = None,
    factor: Annotated[str | None, typer.Option(help="Only findings on arms that differ in this factor.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show inconclusive comparisons as well.")] = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the studies of a database have found, and what later studies say about it; oldest first."""
    if context.invoked_subcommand is not None:
        return
    with failures_in_one_line(), open_database(home, db, read_only=True) as store:
        from researcher.memory.standing import list_known, weigh

        shown = [
            item
            for item in weigh(list_known(store))
            if (everything or item.known.is_decided)
            and env in (None, item.known.recipe.environment_name)
            and model in (None, item.known.recipe.model)
            and (factor is None or factor in item.known.recipe.factors or factor in item.known.recipe.differences)
        ]
        if as_json:
            typer.echo(json.dumps([_as_json(item) for item in shown], indent=2))
        else:
            Console().print(_as_table(shown))


@app.command()
def retract(
    finding_id: FindingArgument,
    reason: Annotated[str, typer.Option(help="Why it is not true, in one sentence.")],
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retract a finding: later studies do not rely on it any more, and are told why."""
    with failures_in_one_line(), open_database(home, db, must_exist=True) as store:
        from researcher.memory.settlement import retract_by_hand

        finding = retract_by_hand(store, finding_id, reason)
        print_values({"finding": finding.id, "retracted": finding.retraction or ""}, as_json)


@dataclass(frozen=True, kw_only=True)
class ReplicateOptions(WorkOptions):
    """The options of `researcher replicate`."""

    finding_id: FindingArgument
    seeds: Annotated[
        int | None, typer.Option(min=1, max=100, help="Runs per arm (default: as many as the finding rests on).")
    ] = None


def _replicate(options: ReplicateOptions) -> None:
    """Begin a study that repeats the two arms of a finding on fresh seeds; the finding is retracted if it fails."""
    with failures_in_one_line(), open_database(options.home, options.db, must_exist=True) as store:
        from researcher.memory.replication import read_replication, settings_of, title_of_replication
        from researcher.memory.settlement import set_out_to_check
        from researcher.servers.server_pool import check_servers
        from researcher.study.requests import create_study
        from researcher.study.settings import StudySettings, sandbox_of

        replication = read_replication(store, options.finding_id, options.seeds)
        given = {name: value for name, value in vars(options).items() if name in StudySettings.model_fields}
        settings = settings_of(replication, given | {"servers": options.addresses})
        sandbox_of(settings)
        check_servers(settings.servers)
        study = create_study(store, title_of_replication(replication), settings)
        set_out_to_check(store, study.id, [options.finding_id])
        typer.echo(f"study {study.id} repeats finding {options.finding_id}. {replication.sentence}", err=True)
        work(store, study.id, options.home, options.db, options.as_json, detach=options.detach)


replicate = command_with(ReplicateOptions, _replicate, "replicate")


def _as_table(shown: list[Standing]) -> Table:
    from researcher.memory.standing import describe_comparison, describe_effect

    # An id that is cut cannot be copied.
    table = Table(Column("finding", no_wrap=True), box=None)
    for title in ("what", "effect", "verdict", "found again", "contradicted by", "retracted"):
        table.add_column(title, overflow="fold")
    for item in shown:
        finding, recipe = item.known.finding, item.known.recipe
        table.add_row(
            finding.id,
            f"{describe_comparison(recipe)} on {recipe.environment_name} with {recipe.model}",
            describe_effect(item.known),
            finding.verdict.about(finding.about),
            str(len(item.replications)),
            ", ".join(item.contradicted_by),
            finding.retraction or "",
        )
    return table


def _as_json(item: Standing) -> dict[str, Any]:
    finding = item.known.finding
    return {
        "finding": finding.id,
        "study": finding.study_id,
        "recipe": dict(finding.recipe),
        "effect": finding.effect,
        "interval": [finding.ci_low, finding.ci_high],
        "confidence": finding.confidence,
        "p_adjusted": finding.p_adjusted,
        "verdict": finding.verdict.value,
        "about": finding.about,
        "replications": list(item.replications),
        "contradicted_by": list(item.contradicted_by),
        "retracted": finding.retraction,
        "retracted_by": finding.retracted_by,
    }
