"""The command `swarm env play`: an episode of one task, by hand or by a served model, and its grade."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm.cli import options
from swarm.cli.failures import failures_in_one_line
from swarm.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from swarm.environments import Environment, EnvironmentTask, Grade
    from swarm.program import Program, RecordedSession
    from swarm.tasks import Split
    from swarm.types import Message, ToolSpec

COLUMN = 11
"""The column where text begins, to the right of the longest role."""
SEARCHED = 100_000
"""Tasks that the search for an id looks at. Some environments generate tasks without end."""
BEGIN, END = "<<", "."
HINT = f"each line is a reply, an empty one ends the attempt; several lines stand between {BEGIN} and {END}"
HINT_OF_SOLUTION = "/solution shows a right one"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def play(
    name: options.EnvArgument,
    url: Annotated[str | None, typer.Option(help="A server whose model plays; without one, you do.")] = None,
    program: options.ProgramOption = None,
    split: options.SplitOption = "train",
    task: Annotated[int, typer.Option(min=0, max=1_000_000, help="Which task of the split, counted from 0.")] = 0,
    task_id: Annotated[str | None, typer.Option(help="The task of this id instead.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of tasks.")] = 0,
    as_json: options.JsonOption = False,
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
        chosen = options.program_of(program, name)
        with open_environment(name) as environment:
            if isinstance(environment, DrivenEnvironment):
                raise BadRequest(f"{environment.name} drives an agent of its own: use swarm eval --env {name} -n 1")
            item = _find(environment, options.split_named(split), task, task_id, seed)
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
    from swarm.program.attempts import open_shown

    solution = environment.solution(item)
    typer.echo(HINT if solution is None else f"{HINT}; {HINT_OF_SOLUTION}", err=True)
    for tool in environment.tools:
        typer.echo(f"there is a tool: {tool_signature(tool)}", err=True)
    session = open_shown(environment, item, table.message)
    while not session.is_over and (message := _next_reply(session, solution)) is not None:
        session.reply(message)
    return session, environment.grade(item, session.transcript)


def _by_model(
    url: str, environment: Environment, item: EnvironmentTask, program: Program, table: _Table
) -> tuple[RecordedSession, Grade]:
    from swarm.client import SwarmClient
    from swarm.environments import Grade
    from swarm.program.attempts import open_shown
    from swarm.program.training import play

    with SwarmClient(url, token=options.token_of("rollout", "commander"), client_id="swarm-play") as client:
        options.require_model(client)
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


def _next_reply(session: RecordedSession, solution: str | None) -> Message | None:
    """Return the next reply of the person, or None at the end.

    a line             a reply
    << ... .           a reply of several lines, or one that begins with a slash
    /call NAME {...}   a reply that calls a tool
    /solution          shows a right reply
    an empty line      ends the attempt, as do the end of input and /quit
    """
    while True:
        line = read_line(_row("assistant", ""))
        if line is None or line.strip() in {"", "/quit"}:
            return None
        if line.strip() == BEGIN:
            return {"content": _several_lines()}
        if not line.startswith("/"):
            return {"content": line}
        command, _, rest = line.strip().partition(" ")
        if command == "/call":
            if (message := _tool_call(session, rest)) is not None:
                return message
        elif command == "/solution":
            _tell("no right reply is known" if solution is None else solution)
        else:
            _tell(f"no command {command}; a reply that begins with / stands between {BEGIN} and {END}")


def _several_lines() -> str:
    lines: list[str] = []
    while (line := read_line(_row("", ""))) is not None and line.strip() != END:
        lines.append(line)
    return "\n".join(lines)


def _tool_call(session: RecordedSession, text: str) -> Message | None:
    name, _, written = text.strip().partition(" ")
    names = [tool_name(tool) for tool in session.tools]
    if name not in names:
        _tell(f"there is no tool {name!r}: there is {', '.join(names) or 'none'}")
        return None
    arguments: Any = None
    with suppress(ValueError, RecursionError):
        arguments = json.loads(written or "{}")
    if not isinstance(arguments, dict):
        _tell(f'the arguments of a call are a JSON object: /call {name} {{"argument": "value"}}')
        return None
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": f"call-{session.turns}", "type": "function", "function": function}]}


def _tell(text: str) -> None:
    """Show a text to the person only."""
    typer.echo(_row("", text), err=True)


def tool_name(tool: ToolSpec) -> str:
    return str(tool.get("function", {}).get("name", ""))


def tool_signature(tool: ToolSpec) -> str:
    """Return the line that calls the tool, such as `/call NAME {"argument": ...}`."""
    properties: dict[str, Any] = tool.get("function", {}).get("parameters", {}).get("properties", {})
    arguments = ", ".join(f"{json.dumps(name)}: ..." for name in properties)
    return f"/call {tool_name(tool)} {{{arguments}}}"


def read_line(prompt: str) -> str | None:
    """Return the next line of standard input, or None at its end. On a terminal, show the prompt and allow editing.

    Raise BadRequest if the input is not text.
    """
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            # The import alone makes the arrow keys edit the line. Some platforms lack the module.
            with suppress(ImportError):
                __import__("readline")
            return input(prompt)
        line = sys.stdin.readline()
    except EOFError:
        sys.stdout.write("\n")
        return None
    except UnicodeDecodeError as error:
        raise BadRequest(f"the input is not text: {error.reason}") from error
    return line.rstrip("\r\n") if line else None
