"""The command `swarm job`, which shows the job of a server and changes it while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm.cli.failures import failures_in_one_line
from swarm.cli.options import DEFAULT_URL, JsonOption, token_of
from swarm.errors import BadRequest

if TYPE_CHECKING:
    from swarm.schemas import JobView


def show_or_change(
    url: Annotated[str, typer.Option("--url", envvar="SWARM_URL", help="The server's address.")] = DEFAULT_URL,
    changed: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting, in YAML; repeatable.")
    ] = None,
    at_step: Annotated[
        int | None, typer.Option(min=1, help="From which step on; by default the first that can have it.")
    ] = None,
    expected_revision: Annotated[
        int | None, typer.Option(min=0, help="Change it only if it is at this revision.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the job of a server, or change the one that runs with --set.

    Changes hold from a step on, and outlive the server. docs/http-api.md says what can change while a job runs.
    """
    with failures_in_one_line():
        from swarm.client import SwarmClient

        settings = parse_settings(changed or [])
        if not settings and (at_step is not None or expected_revision is not None):
            raise BadRequest("nothing to change: give --set NAME=VALUE", param="set")
        roles = ("commander",) if settings else ("observer", "commander", "rollout")
        with SwarmClient(url, token=token_of(*roles)) as client:
            if settings:
                view = client.change_job(settings, at_step=at_step, expected_revision=expected_revision)
            else:
                view = client.job()
        typer.echo(view.model_dump_json(indent=2) if as_json else describe(view))


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings by name. Raise BadRequest for a word that is not NAME=VALUE.

    Values are read as in a job.yaml. In addition, words like 3e-4 are numbers.
    """
    import yaml

    settings: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise BadRequest(f"--set {word}: must be NAME=VALUE, such as lr=3e-4", param="set")
        try:
            number = _number(text)
            settings[name] = yaml.safe_load(text) if number is None else number
        except yaml.YAMLError as error:
            raise BadRequest(f"--set {word}: the value is not valid YAML", param="set") from error
    return settings


def describe(view: JobView) -> str:
    """Return the job as it was given and its later changes, one setting or change per line."""
    if view.job is None:
        return "no job: a client sends one, or `swarm start --job job.yaml`"
    lines = [f"{name}: {value}" for name, value in view.job.items()] or ["every setting is at its default"]
    if view.filling is not None:
        lines.append(f"collecting the batch of step {view.filling}, revision {view.revision}")
    lines += [f"from step {change.at_step} on: {_listed(change.settings)}" for change in view.changes]
    return "\n".join(lines)


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _number(text: str) -> float | None:
    """Return a number like 3e-4, which YAML reads as a string because it has no dot. Return None for other text."""
    if "e" not in text.lower():
        return None
    try:
        return float(text)
    except ValueError:
        return None
