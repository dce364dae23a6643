"""The commands `researcher findings`, `findings retract` and `replicate`: what the studies of a database know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from experiments_db import FindingKind
from researcher.cli.options import DatabaseOption, HomeOption, JsonOption, WorkOptions, command_with
from researcher.cli.parts import open_database, print_values, work
from researcher.cli.terminal import failures_in_one_line
from researcher.home import DEFAULT_HOME

if TYPE_CHECKING:
    from researcher.memory.listing import ListedFinding

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
    kind: Annotated[FindingKind | None, typer.Option(help="Only findings of this kind.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show what decided nothing as well, and arms that were only explored.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the studies of a database have found, and what later studies say about it; oldest first."""
    if context.invoked_subcommand is not None:
        return
    with failures_in_one_line(), open_database(home, db, read_only=True) as store:
        from researcher.memory.listing import list_all

        shown = [
            item
            for item in list_all(store)
            if kind in (None, item.finding.kind)
            and (everything or item.is_telling or (kind is FindingKind.EXPLORED))
            and env in (None, item.finding.environment_name)
            and model in (None, item.finding.model)
            and (factor is None or factor in item.changes)
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


def _as_table(shown: list[ListedFinding]) -> Table:
    from researcher.memory.listing import in_one_line
    from researcher.memory.standing import describe_effect

    # An id that is cut cannot be copied.
    table = Table(Column("finding", no_wrap=True), box=None)
    for title in ("kind", "on", "what", "effect", "verdict", "found again", "contradicted by", "retracted"):
        table.add_column(title, overflow="fold")
    for item in shown:
        finding, standing = item.finding, item.standing
        compared = ("", "", "", "")
        if standing is not None:
            compared = (
                describe_effect(finding),
                f"{finding.verdict.about(finding.about)}{', suspect' if standing.known.is_suspect else ''}",
                str(len(standing.replications)),
                ", ".join(standing.contradicted_by),
            )
        place = f"{finding.environment_name}, {finding.model}"
        cells = (finding.id, finding.kind.value, place, item.what, *compared, finding.retraction or "")
        # The words are those of planners: they are neither markup nor commands of a terminal.
        table.add_row(*(Text(in_one_line(cell)) for cell in cells))
    return table


def _as_json(item: ListedFinding) -> dict[str, Any]:
    finding, standing = item.finding, item.standing
    return {
        "finding": finding.id,
        "kind": finding.kind.value,
        "study": finding.study_id,
        "environment": finding.environment_name,
        "model": finding.model,
        "scope": finding.scope,
        "summary": finding.summary,
        "recipe": dict(finding.recipe),
        "effect": finding.effect,
        "interval": [finding.ci_low, finding.ci_high],
        "confidence": finding.confidence,
        "p_adjusted": finding.p_adjusted,
        "verdict": finding.verdict.value,
        "about": finding.about,
        "is_suspect": standing is not None and standing.known.is_suspect,
        "replications": [] if standing is None else list(standing.replications),
        "contradicted_by": [] if standing is None else list(standing.contradicted_by),
        "retracted": finding.retraction,
        "retracted_by": finding.retracted_by,
    }
