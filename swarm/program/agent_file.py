"""An agent file: a user's own agent with its tasks and its reward, for a score without an environment."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from swarm.client import Credentials, Evaluation, SwarmClient, evaluate
from swarm.client.episode import EpisodeSampling
from swarm.environments.user_code import Hook, find_hooks
from swarm.errors import EnvironmentInvalid
from swarm.program.base import named_exits, rewards_of
from swarm.program.roles import ONE_ROLE
from swarm.program.training import EVAL_TEMPERATURE
from swarm.types import Task, WorkflowOutput

HOOKS = (
    Hook("my_agent", ("question", "credentials")),
    Hook("tasks", (), may_yield=True),
    Hook("reward", ("task", "answer")),
)
"""What an agent file must define."""


@dataclass(frozen=True, slots=True)
class AgentFile:
    """The functions of an agent file; `name` is for people.

    `my_agent` answers a question with the model of an episode. `tasks` returns the tasks of the score, and `reward` the
    reward of an answer, which is 1 for a perfect one.
    """

    name: str
    my_agent: Callable[[str, Credentials], Any]
    tasks: Callable[[], Iterable[Task]]
    reward: Callable[[Task, Any], float]

    def first_tasks(self, number: int) -> list[Task]:
        """Return the first tasks, at most `number`. Raises EnvironmentInvalid if there are none, or for bad ones."""
        with named_exits(self.name, "tasks"):
            # A user's file may return anything.
            found = list[Any](islice(self.tasks(), number))
        if not found:
            raise EnvironmentInvalid(f"{self.name}: tasks returned no task: nothing can be scored", param="agent")
        if other := next((each for each in found if not isinstance(each, Task)), None):
            kind = type(other).__name__
            raise EnvironmentInvalid(f"{self.name}: tasks returned a {kind}: use swarm.Task", param="agent")
        task_id, times = Counter(each.task_id for each in found).most_common(1)[0]
        if times > 1:
            raise EnvironmentInvalid(
                f"{self.name}: tasks returned the task {task_id} {times} times: return each once", param="agent"
            )
        return found

    def attempt(self, task: Task, credentials: Credentials) -> WorkflowOutput:
        """Make one attempt. Raises ProgramFailure for a reward that is no finite number."""
        with named_exits(self.name, "my_agent"):
            answer = self.my_agent(task.main_query, credentials)
        with named_exits(self.name, "reward"):
            reward = rewards_of(self.reward(task, answer), (ONE_ROLE,), self.name)[ONE_ROLE]
        return WorkflowOutput(reward, reward >= 1)


def load_agent_file(path: Path) -> AgentFile:
    """Import an agent file, which finds the modules beside it. They hide no module of a library.

    Raises EnvironmentInvalid as `find_hooks` does, or if it lacks one of the functions.
    """
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    found = find_hooks(path, HOOKS)
    if missing := [hook.call for hook in HOOKS if hook.name not in found]:
        raise EnvironmentInvalid(
            f"{path}: an agent file lacks {' and '.join(missing)}: it defines {', '.join(hook.call for hook in HOOKS)}",
            param="agent",
        )
    return AgentFile(path.stem, **found)


def measure_agent(
    client: SwarmClient, agent: AgentFile, *, episodes: int, attempts: int = 1, max_workers: int = 16
) -> Evaluation:
    """Return the score of an agent with the served weights, at the temperature of every score.

    An attempt that the agent or its reward breaks scores 0. One that fails because of the system is repeated.
    """
    tasks = [task for task in agent.first_tasks(episodes) for _ in range(attempts)]
    sampling = EpisodeSampling(temperature=EVAL_TEMPERATURE)
    return evaluate(client, tasks, agent.attempt, max_workers, worst=0.0, sampling=sampling)
