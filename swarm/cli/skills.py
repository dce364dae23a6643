"""The commands `swarm skills list | show | install`: the skill files that the package ships for coding agents."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm.cli.failures import failures_in_one_line
from swarm.cli.options import JsonOption
from swarm.errors import BadRequest

if TYPE_CHECKING:
    from swarm.skills import InstalledSkill

app = typer.Typer(help="Skills for coding agents: how to do what this package does.", no_args_is_help=True)


@app.command(name="list")
def list_names(as_json: JsonOption = False) -> None:
    """List the skills that come with the package, and when each is of use."""
    from swarm.skills import list_skills

    if as_json:
        shown = [{"name": each.name, "description": each.description, "files": each.files} for each in list_skills()]
        typer.echo(json.dumps(shown))
        return
    for skill in list_skills():
        typer.echo(f"{skill.name:18}{skill.description}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of a skill.", show_default=False)],
    file: Annotated[str, typer.Argument(help="A file of it, as its instructions name it.")] = "SKILL.md",
    as_json: JsonOption = False,
) -> None:
    """Print the instructions of a skill, or another file of it."""
    from swarm.skills import read_skill

    with failures_in_one_line():
        skill = read_skill(name)
        text = skill.read(file)
        if as_json:
            typer.echo(json.dumps({"name": skill.name, "file": file, "text": text, "files": skill.files}))
            return
        typer.echo(text, nl=False)
        if file == "SKILL.md" and len(skill.files) > 1:
            typer.echo(f"further files: {', '.join(skill.files[1:])} (swarm skills show {name} FILE)", err=True)


@app.command()
def install(
    names: Annotated[list[str] | None, typer.Argument(help="Which skills (default: all).", show_default=False)] = None,
    claude: Annotated[bool, typer.Option("--claude", help="For Claude Code: .claude/skills.")] = False,
    codex: Annotated[bool, typer.Option("--codex", help="For Codex and others that read .agents/skills.")] = False,
    directory: Annotated[
        list[Path] | None, typer.Option("--dir", help="Into this directory, a folder for each skill.")
    ] = None,
    user: Annotated[
        bool, typer.Option("--user/--project", help="For all your projects, or for the one in this directory.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that you changed as well.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy skills to where a coding agent looks for them. Run again, it brings the copies up to date.

    A skill in which you changed a file is left as it is, unless --force is given: the exit code is 1 then.
    """
    from swarm.skills import State, install_skill, list_skills, read_skill

    with failures_in_one_line():
        directories = _directories(claude=claude, codex=codex, named=directory or [], user=user)
        chosen = [read_skill(name) for name in dict.fromkeys(names)] if names else list_skills()
        results = [install_skill(skill, each, force=force) for each in directories for skill in chosen]
        if as_json:
            typer.echo(json.dumps([_figures(result) for result in results]))
        for result in results:
            if not as_json:
                typer.echo(f"{result.state:11}{result.folder}")
            if result.state is State.KEPT:
                typer.echo(f"swarm: {_reason(result)}", err=True)
        if any(result.state is State.KEPT for result in results):
            raise typer.Exit(1)


def _directories(*, claude: bool, codex: bool, named: list[Path], user: bool) -> list[Path]:
    """Return the directories to install into. Raise BadRequest without one, or if --user and --dir are combined."""
    if not (claude or codex or named):
        raise BadRequest("no target: give --claude, --codex or --dir DIRECTORY")
    if user and named:
        raise BadRequest("--dir names a directory itself: leave --user out", param="user")
    found = list(named)
    if claude:
        own = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
        found.append((own if user else Path(".claude")) / "skills")
    if codex:
        found.append((Path.home() if user else Path()) / ".agents" / "skills")
    return found


def _reason(result: InstalledSkill) -> str:
    if result.changed == (".",):
        return f"{result.folder} is no folder of its own and was left as it is; --force replaces it"
    return f"{result.folder} was left as it is, since you changed {', '.join(result.changed)}; --force replaces that"


def _figures(result: InstalledSkill) -> dict[str, Any]:
    return {
        "name": result.name,
        "folder": str(result.folder),
        "state": result.state.value,
        "changed": list(result.changed),
    }
