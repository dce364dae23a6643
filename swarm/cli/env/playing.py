"""The command `swarm env play`: an episode of one task, by hand or by a served model, with all messages and the grade.

Place in the flow: environments.py registers the command. Messages and the grade go to stdout and hints go to stderr.
With --json, all of these go to stderr, and one JSON object goes to stdout. The module does not know how an attempt is
graded.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.cli.env.by_hand import HINT, HINT_OF_SOLUTION, Hand, read_line, tool_signature
from swarm.cli.failures import failures_in_one_line
from swarm.cli.options import program_of, require_model, split_named
from swarm.cli.tokens import token_of
from swarm.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from swarm.environments import Environment, EnvironmentTask, Grade
    from swarm.program import Program, RecordedSession
    from swarm.tasks import Split
    from swarm.types import Message

COLUMN = 11
"""The column where text begins, to the right of the longest role."""
SEARCHED = 100_000
"""Tasks that the search for an id looks at. Some environments generate tasks without end."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def play(
    name: Annotated[str, typer.Argument(help="Environment: a bundled one, a path, or LIBRARY:NAME.")],
    url: Annotated[str | None, typer.Option(help="A server whose model plays; without one, you do.")] = None,
    program: Annotated[Path | None, typer.Option(help="A Python file with the agent, for the model.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    task: Annotated[int, typer.Option(min=0, max=1_000_000, help="Which task of the split, counted from 0.")] = 0,
    task_id: Annotated[str | None, typer.Option(help="The task of this id instead.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of tasks.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Play one task: what an agent is shown, and how its attempt is graded. Nothing is trained on it.

    By hand, each line of input is a reply, an empty one or Ctrl-D ends the attempt. `/call NAME {"argument": 1}` calls
    a tool, `/solution` shows a right reply, `/quit` ends the attempt. A reply of several lines, or one that begins with
    a slash, stands between a line `<<` and a line `.`.
    """
    with failures_in_one_line():
        from swarm.environments import DrivenEnvironment
        from swarm.environments.server import open_environment

        if program is not None and url is None:
            raise BadRequest("a program plays only with a model: add --url", param="program")
        chosen = program_of(program, name)
        with open_environment(name) as environment:
            if isinstance(environment, DrivenEnvironment):
                raise BadRequest(f"{environment.name} drives an agent of its own: use swarm eval --env {name} -n 1")
            item = _find(environment, split_named(split), task, task_id, seed)
            typer.echo(f"task {item.task.task_id} of {environment.name}, split {split}", err=True)
            table = _Table(err=as_json, hides_own=url is None and sys.stdin.isatty() and sys.stdout.isatty())
            if url is None:
                session, grade = _by_hand(environment, item, table)
            else:
                session, grade = _by_model(url, environment, item, chosen, table)
            table.grade(grade)
            if as_json:
                typer.echo(json.dumps(_figures(environment, item, session, grade), default=str))


def _find(environment: Environment, split: Split, number: int, task_id: str | None, seed: int) -> EnvironmentTask:
    """Return the task with this number or id. Raise NotFound if there is none."""
    tasks, count = environment.tasks(split, seed), 0
    for count, item in enumerate(tasks if task_id is None else islice(tasks, SEARCHED), 1):
        if (count > number) if task_id is None else (item.task.task_id == task_id):
            return item
    where = f"{environment.name}/{split}"
    if task_id is not None:
        raise NotFound(f"there is no task {task_id!r} among the {count} of {where} that were looked at")
    raise NotFound(f"there is no task {number} in {where}: it has {count}, counted from 0")


def _by_hand(environment: Environment, item: EnvironmentTask, table: _Table) -> tuple[RecordedSession, Grade]:
    from swarm.program.shown import open_shown

    typer.echo(HINT if environment.solution(item) is None else f"{HINT}; {HINT_OF_SOLUTION}", err=True)
    for tool in environment.tools:
        typer.echo(f"there is a tool: {tool_signature(tool)}", err=True)

    def tell(text: str) -> None:
        typer.echo(_row("", text), err=True)

    session = open_shown(environment, item, table.message)
    Hand(lambda label: read_line(_row(label, "")), tell, lambda: environment.solution(item)).play(session)
    return session, environment.grade(item, session.transcript)


def _by_model(
    url: str, environment: Environment, item: EnvironmentTask, program: Program, table: _Table
) -> tuple[RecordedSession, Grade]:
    from swarm.client import SwarmClient
    from swarm.environments import Grade
    from swarm.program.shown import open_shown
    from swarm.program.training import play

    with SwarmClient(url, token=token_of("rollout", "commander"), client_id="swarm-play") as client:
        require_model(client)
        session = open_shown(environment, item, table.message)
        output = play(client, environment, item, program, session)
    details = {name: value for name, value in output.metadata.items() if name != "score"}
    return session, Grade(output.reward, bool(output.is_success), details)


@dataclass(frozen=True, slots=True)
class _Table:
    """A printer of messages, one below the other. `hides_own` skips replies that the person has just typed."""

    err: bool
    hides_own: bool

    def message(self, message: Message) -> None:
        role = str(message.get("role", ""))
        if self.hides_own and role == "assistant":
            return
        content = message.get("content") or ""
        if content or not message.get("tool_calls"):
            typer.echo(_row(role, content if isinstance(content, str) else json.dumps(content)), err=self.err)
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            typer.echo(_row(role, f"calls {function.get('name')} {function.get('arguments')}"), err=self.err)

    def grade(self, grade: Grade) -> None:
        details = f" {json.dumps(dict(grade.details), default=str)}" if grade.details else ""
        solved = "solved" if grade.is_success else "not solved"
        typer.echo(_row("grade", f"{grade.score:g}, {solved}{details}"), err=self.err)


def _row(label: str, text: str) -> str:
    """Return the text beside a label. Show control characters as codes, so that the terminal does not obey them."""
    shown = CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return f"{label:{COLUMN}}" + shown.replace("\n", "\n" + " " * COLUMN)


def _figures(
    environment: Environment, item: EnvironmentTask, session: RecordedSession, grade: Grade
) -> dict[str, object]:
    task = {"task_id": item.task.task_id, "main_query": item.task.main_query, "metadata": dict(item.task.metadata)}
    graded = {"score": grade.score, "is_success": grade.is_success, "details": dict(grade.details)}
    return {
        "env": environment.name, "digest": environment.digest, "task": task,
        "transcript": [dict(message) for message in session.transcript], "grade": graded,
    }  # fmt: skip
