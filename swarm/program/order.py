"""Which tasks a run attempts next, and how often: the order of its seed, less what its server holds already.

Place in the flow: training.py asks for one chunk after the other. A run that is started again goes on exactly where it
was: groups that a batch holds are passed over, groups that were cut off get the episodes that they lack. This module
knows nothing of how an attempt is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, islice

from swarm.client import SwarmClient
from swarm.environments import Environment, EnvironmentTask
from swarm.errors import Conflict, EnvironmentInvalid, Forbidden, ProgramFailure
from swarm.job import TrainJob
from swarm.processes.child import is_dead
from swarm.program.base import Program
from swarm.schemas import HeldTask
from swarm.tasks.base import Split
from swarm.types import Task

BATCHES_AHEAD = 2
CHOICE = 4
"""A curriculum chooses from so many times the tasks that it needs."""
DEAD_CLIENT = "client_died"
"""Why the episodes of a program that is gone are given up."""
RUN_MARK = "/"
"""Stands between the name of a run and that of the process that works on it, in what a server knows clients by."""


def stream(environment: Environment, split: Split, seed: int) -> Iterator[EnvironmentTask]:
    """Tasks without end: one pass after the other, each in an order of its own. Raises EnvironmentInvalid if the split
    is empty."""
    for number in count():
        task = None
        # The first pass has the seed itself, so that it is the one that a user sees elsewhere.
        for task in environment.tasks(split, seed + number * 1_000_003):
            yield task
        if task is None:
            raise EnvironmentInvalid(f"{environment.name}: there is no task in the split {split}")


def give_up_dead(client: SwarmClient) -> None:
    """Abort the episodes of programs of this host that are gone, which would hold their places until their leases end.

    Nothing that such a program has sent can count afterwards. A token that may not read what runs leaves it at that.
    """
    with suppress(Forbidden):
        for state in ("running", "prepared"):
            for episode in client.episodes(state=state, episode_type="train"):
                if is_dead(episode.client_id.rpartition(RUN_MARK)[2]):
                    # It has ended meanwhile, or another server decides on it, which both settle among themselves.
                    with suppress(Conflict):
                        client.abort_episode(episode.episode_id, DEAD_CLIENT)


class TaskOrder:
    """The train tasks of one run. `chunk` is how many of them keep the server busy."""

    def __init__(self, program: Program, environment: Environment, job: TrainJob, held: Sequence[HeldTask]) -> None:
        """`held` is what the server has of the job when the run begins. Raises EnvironmentInvalid if there is no task
        to train on."""
        self.chunk = job.batch_size * (BATCHES_AHEAD + job.max_staleness)
        self._program = program
        self._num_repeat = job.num_repeat
        self._groups = Counter({(each.data_source, each.task_id): each.groups for each in held})
        self._waiting = Counter({(each.data_source, each.task_id): each.waiting for each in held})
        self._tasks = stream(environment, Split.TRAIN, job.seed)
        if program.schedule is not None:
            groups = sum(each.groups + each.waiting // job.num_repeat for each in held)
            # What the curriculum passed over before stays passed over, but for the chunk that was cut off.
            for item in islice(self._tasks, CHOICE * max(0, groups - self.chunk)):
                self._missing(item.task)

    def take(self, number: int, progress: float) -> list[EnvironmentTask]:
        """The next `number` tasks, each as often as its group lacks episodes. `progress` is told to the curriculum.

        Groups that were cut off come first: a batch has room for them alone until they are whole. Raises
        ProgramFailure if the curriculum chooses none, and what else it raises.
        """
        if self._program.schedule is None:
            found = sorted(islice(self._open(), number), key=lambda pair: pair[1] == self._num_repeat)
            return [item for item, missing in found for _ in range(missing)]
        offered = {item.task.task_id: (item, missing) for item, missing in islice(self._open(), CHOICE * number)}
        wanted = self._program.schedule([item.task for item, _ in offered.values()], progress)
        begun = [name for name, (_, missing) in offered.items() if missing < self._num_repeat]
        chosen = dict.fromkeys([*begun, *(task.task_id for task in wanted if task.task_id in offered)])
        if not chosen:
            raise ProgramFailure(f"{self._program.name}: schedule chose none of {len(offered)} tasks")
        return [item for name in list(chosen)[:number] for item, missing in [offered[name]] for _ in range(missing)]

    def _open(self) -> Iterator[tuple[EnvironmentTask, int]]:
        """The tasks from here on of which episodes are missing, and how many."""
        for item in self._tasks:
            if missing := self._missing(item.task):
                yield item, missing

    def _missing(self, task: Task) -> int:
        """How many episodes the next group of a task lacks. The task has one group for each time it is its turn."""
        key = task.data_source, task.task_id
        if self._groups[key] > 0:
            self._groups[key] -= 1
            return 0
        waiting = min(self._waiting[key], self._num_repeat)
        self._waiting[key] -= waiting
        return self._num_repeat - waiting
