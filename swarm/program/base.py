"""A program: one Python file with an agent, and optionally a training reward and a curriculum."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from swarm.environments import Grade, Transcript
from swarm.environments.user_code import Hook, find_hooks
from swarm.errors import EnvironmentInvalid, ProgramFailure
from swarm.program.attempts import Model, RecordedSession
from swarm.types import Message, Task

Agent = Callable[[Task, Model, RecordedSession], Message | str | None]
Reward = Callable[[Task, Transcript, Grade], float | Mapping[str, float]]
Schedule = Callable[[Sequence[Task], float], Sequence[Task]]


@dataclass(frozen=True, slots=True)
class Program:
    """The functions of a program; `name` is for people.

    `agent` is the workflow: it replies to the session until that is over, or returns its answer. `reward` returns the
    number to train on instead of the grade's score, or one number for each role. `schedule` returns the tasks to train
    on, in order, chosen from those it gets. Its progress is from 0 to 1.
    """

    name: str
    agent: Agent
    reward: Reward | None = None
    schedule: Schedule | None = None


def answer_in_turn(task: Task, model: Model, session: RecordedSession) -> None:
    """Answer a session with the model's own messages until it is over: the agent of a program that has none."""
    following: tuple[Message, ...] | None = ()
    while following is not None:
        following = session.reply(model.chat(session.transcript, tools=session.tools))


@contextmanager
def named_exits(program: str, function: str) -> Generator[None]:
    """Raise ProgramFailure if a function of a program ends the process, which would end the training without a word."""
    try:
        yield
    except SystemExit as error:
        raise ProgramFailure(f"{program}: {function} ends the process (SystemExit: {error.code})") from error


def rewards_of(returned: Any, roles: Sequence[str], program: str) -> dict[str, float]:
    """Return the rewards by role from the return value of a reward function.

    A number applies to all roles; a mapping must have exactly the roles. Raises ProgramFailure for any other value, and
    for a number that is not finite.
    """
    if isinstance(returned, Mapping):
        by_role = dict(cast(Mapping[Any, Any], returned))
    else:
        by_role = dict.fromkeys(roles, returned)
    if set(by_role) != set(roles):
        wanted = f"the roles are {', '.join(roles)}" if any(roles) else "this run has one model and takes one number"
        named = ", ".join(map(str, by_role)) or "none"
        raise ProgramFailure(f"{program}: reward returned rewards for {named}: {wanted}")
    return {role: _finite(by_role[role], program) for role in roles}


def _finite(reward: Any, program: str) -> float:
    try:
        if math.isfinite(reward):
            return float(reward)
    except (TypeError, ValueError, OverflowError):
        # A value that is no number is refused with the same message.
        pass
    raise ProgramFailure(f"{program}: reward returned {str(reward)[:40]}: it must be finite")


HOOKS = (
    Hook("agent", ("task", "model", "session")),
    Hook("reward", ("task", "transcript", "grade")),
    Hook("schedule", ("tasks", "progress"), may_yield=True),
)
"""What a program may define."""


def is_program(code: str) -> bool:
    """Return whether the code defines or imports a function of a program. Raises SyntaxError or ValueError."""
    bound: set[str] = set()
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            bound.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            bound.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return not bound.isdisjoint(hook.name for hook in HOOKS)


PLAIN = Program("plain", answer_in_turn)


def load_program(path: Path) -> Program:
    """Import a program file. Raises EnvironmentInvalid as `find_hooks` does, or if it has none of the functions."""
    found = find_hooks(path, HOOKS)
    if not found:
        raise EnvironmentInvalid(f"{path}: it defines no function agent, reward or schedule")
    return Program(path.stem, found.get("agent", answer_in_turn), found.get("reward"), found.get("schedule"))
