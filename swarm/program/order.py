"""The order of train tasks in a run, and how many episodes of each the server still needs."""

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
from swarm.program.base import Program, named_exits
from swarm.schemas import TaskCount
from swarm.tasks.base import Split
from swarm.types import Task

BATCHES_AHEAD = 2
CHOICE = 4
"""A curriculum is offered this many times the tasks that it is to choose."""
DEAD_CLIENT = "client_died"
"""The abort reason for the episodes of a dead program."""
RUN_MARK = "/"
"""The separator in a client id between the name of a run and the name of its process."""


def stream(environment: Environment, split: Split, seed: int) -> Iterator[EnvironmentTask]:
    """Yield tasks without end, in one pass after the other, each in its own order.

    Raises EnvironmentInvalid if the split is empty.
    """
    for number in count():
        task = None
        # The first pass uses the seed itself, so that its order is the one that a user sees elsewhere.
        for task in environment.tasks(split, seed + number * 1_000_003):
            yield task
        if task is None:
            raise EnvironmentInvalid(f"{environment.name}: there is no task in the split {split}: add at least one")


def give_up_dead(client: SwarmClient) -> None:
    """Abort the episodes of dead programs of this host, which would keep their places until their leases end.

    Late calls of such a program then have no effect. A token that may not list episodes skips this.
    """
    with suppress(Forbidden):
        for state in ("running", "prepared"):
            for episode in client.episodes(state=state, episode_type="train"):
                if is_dead(episode.client_id.rpartition(RUN_MARK)[2]):
                    # The episode has ended meanwhile, or it is part of a transaction that the servers decide.
                    with suppress(Conflict):
                        client.abort_episode(episode.episode_id, DEAD_CLIENT)


class TaskOrder:
    """The order of the train tasks of one run. `chunk` is the number of tasks that keeps the server busy."""

    def __init__(
        self,
        program: Program,
        environment: Environment,
        job: TrainJob,
        counts: Sequence[TaskCount],
        *,
        initial_step: int = 0,
    ) -> None:
        """Create the order of a run. `counts` are the tasks that have episodes on the server when the order begins.

        A run that begins at the checkpoint of `initial_step` leaves out the tasks that the steps before have taken.

        Raises EnvironmentInvalid if there is no task to train on.
        """
        self.chunk = job.batch_size * (BATCHES_AHEAD + job.max_staleness)
        self._program = program
        self._num_repeat = job.num_repeat
        self._groups = Counter({(each.data_source, each.task_id): each.groups for each in counts})
        self._waiting = Counter({(each.data_source, each.task_id): each.waiting for each in counts})
        taken = initial_step * job.batch_size * (1 if program.schedule is None else CHOICE)
        self._tasks = islice(stream(environment, Split.TRAIN, job.seed), taken, None)
        if program.schedule is not None:
            groups = sum(each.groups + each.waiting // job.num_repeat for each in counts)
            # Skip the tasks that an earlier process offered to the curriculum, except those of its last chunk.
            for item in islice(self._tasks, CHOICE * max(0, groups - self.chunk)):
                self._missing(item.task)

    def take(self, number: int, progress: float) -> list[EnvironmentTask]:
        """Return the next `number` tasks, each as often as its group lacks episodes.

        `progress` is passed to the curriculum. Incomplete groups come first, because the batch takes only them until
        they are complete. Raises ProgramFailure if the curriculum chooses no task, and any error of the curriculum.
        """
        if self._program.schedule is None:
            found = sorted(islice(self._open(), number), key=lambda pair: pair[1] == self._num_repeat)
            return [item for item, missing in found for _ in range(missing)]
        offered = {item.task.task_id: (item, missing) for item, missing in islice(self._open(), CHOICE * number)}
        with named_exits(self._program.name, "schedule"):
            wanted = self._program.schedule([item.task for item, _ in offered.values()], progress)
        begun = [name for name, (_, missing) in offered.items() if missing < self._num_repeat]
        chosen = dict.fromkeys([*begun, *(task.task_id for task in wanted if task.task_id in offered)])
        if not chosen:
            raise ProgramFailure(
                f"{self._program.name}: schedule chose none of {len(offered)} tasks: it must return at least one"
            )
        return [item for name in list(chosen)[:number] for item, missing in [offered[name]] for _ in range(missing)]

    def _open(self) -> Iterator[tuple[EnvironmentTask, int]]:
        """Yield the following tasks that lack episodes, each with the number of them."""
        for item in self._tasks:
            if missing := self._missing(item.task):
                yield item, missing

    def _missing(self, task: Task) -> int:
        """Return how many episodes the next group of a task lacks. A task has one group in each pass."""
        key = task.data_source, task.task_id
        if self._groups[key] > 0:
            self._groups[key] -= 1
            return 0
        waiting = min(self._waiting[key], self._num_repeat)
        self._waiting[key] -= waiting
        return self._num_repeat - waiting
