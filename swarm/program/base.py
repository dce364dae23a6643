"""What a program is: one Python file with an agent and, if it likes, a training reward and a curriculum.

Place in the flow: the CLI loads one and training.py drives it. This module knows nothing of servers or graders.

    agent(task, model, session)         the workflow: ends when it has replied to the session, or returns its answer
    reward(task, transcript, grade)     a number to train on instead of the grade's score, or one for each role
    schedule(tasks, progress)           which of the coming tasks to train on, in order; progress is from 0 to 1
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from swarm.environments import Grade, Transcript
from swarm.environments.user_code import import_file
from swarm.errors import EnvironmentInvalid, ProgramFailure
from swarm.program.attempts import AgentSession, Model
from swarm.types import Message, Task

Agent = Callable[[Task, Model, AgentSession], Message | str | None]
Reward = Callable[[Task, Transcript, Grade], float | Mapping[str, float]]
Schedule = Callable[[Sequence[Task], float], Sequence[Task]]


@dataclass(frozen=True, slots=True)
class Program:
    """`name` is shown to people."""

    name: str
    agent: Agent
    reward: Reward | None = None
    schedule: Schedule | None = None


def answer_in_turn(task: Task, model: Model, session: AgentSession) -> None:
    """The agent of a program that has none: it passes the session's messages to the model until the session is over."""
    following: tuple[Message, ...] | None = ()
    while following is not None:
        following = session.reply(model.chat(session.transcript, tools=session.tools))


def rewards_of(returned: Any, roles: Sequence[str], program: str) -> dict[str, float]:
    """What a reward function returned, by role: a number counts for all, a mapping names each role once.

    Raises ProgramFailure for anything else, and for what is no finite number.
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
        # What is no number is refused in the same words.
        pass
    raise ProgramFailure(f"{program}: reward returned {str(reward)[:40]}: it must be finite")


FUNCTIONS = frozenset({"agent", "reward", "schedule"})


def is_program(code: str) -> bool:
    """Whether a file defines or imports one of a program's functions. Raises SyntaxError or ValueError."""
    bound: set[str] = set()
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            bound.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            bound.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return bool(bound & FUNCTIONS)


PLAIN = Program("plain", answer_in_turn)


def load_program(path: Path) -> Program:
    """Raises EnvironmentInvalid for a file that cannot be imported or has none of the functions."""
    module = import_file(path)
    found: dict[str, Any] = {name: getattr(module, name, None) for name in ("agent", "reward", "schedule")}
    if not any(found.values()):
        raise EnvironmentInvalid(f"{path}: a program has a function agent, reward or schedule, and there is none in it")
    for name, function in found.items():
        if function is not None and not callable(function):
            raise EnvironmentInvalid(f"{path}: {name} is no function")
    return Program(path.stem, found["agent"] or answer_in_turn, found["reward"], found["schedule"])
