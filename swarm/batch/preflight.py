"""Signs that a client does not do what its author meant, found in how it begins and ends its train episodes.

Place in the flow: the rollout shows it every train episode, the status shows its warnings. It only watches: nothing is
refused here. Memory is bounded whatever clients send.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.types import FinishedEpisode, TrainBatch

MAX_CLIENTS = 1_000
MAX_TASKS_PER_CLIENT = 1_000
"""The clients and tasks that were silent longest are forgotten first."""

MAX_CONSTANT = 32
"""So many equal rewards in a row, or four groups of them if that is more, are no coincidence."""
CONSTANT_GROUPS = 4
LEFT_BEHIND_EPISODES = 64
"""A task is left behind once its client has ended so many episodes, or eight groups, of other tasks since."""
LEFT_BEHIND_GROUPS = 8
MIN_MISMATCHES = 3
MIN_LOST = 3
LOST_SHARE = 0.2
SILENT_ENDS = frozenset({"lease_expired", "idle_timeout", "deadline"})
BLANK_IDS = frozenset({"", "none", "null", "nan", "undefined"})


@dataclass(frozen=True, slots=True)
class ClientWarning:
    """`count` is how often it was seen, `last_at` when it last was, in seconds since the epoch."""

    code: str
    client_id: str
    message: str
    count: int
    last_at: float


@dataclass(slots=True)
class _Task:
    """Episodes of one task that its client ended since the last batch took some, and how many it had ended by then."""

    episodes: int = 0
    seen_at_end: int = 0


@dataclass(slots=True)
class _Client:
    begun: int = 0
    ended: int = 0
    silent: int = 0
    last_reward: float | None = None
    equal_rewards: int = 0
    tasks: OrderedDict[str, _Task] = field(default_factory=OrderedDict[str, _Task])
    complete: int = 0
    mismatched: Counter[int] = field(default_factory=Counter[int])
    warnings: dict[str, ClientWarning] = field(default_factory=dict[str, ClientWarning])


class Preflight:
    """Used from one thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    def begun(self, client_id: str, task_id: str | None) -> None:
        """`task_id` is None where the client tells it only at the end."""
        self._client(client_id).begun += 1
        if task_id is not None:
            self._check_id(client_id, task_id)

    def ended(self, client_id: str, episode: FinishedEpisode, num_repeat: int) -> None:
        client = self._client(client_id)
        client.ended += 1
        self._check_id(client_id, episode.task_id)
        self._check_reward(client_id, client, episode, num_repeat)
        task = client.tasks.setdefault(episode.task_id, _Task())
        client.tasks.move_to_end(episode.task_id)
        task.episodes += 1
        task.seen_at_end = client.ended
        if task.episodes > 2 * num_repeat:
            self._warn(
                client_id,
                "repeated_task_id",
                f"task {episode.task_id!r} has {task.episodes} episodes in this batch, but num_repeat is {num_repeat}:"
                " do several tasks share one id?",
            )
        self._check_left_behind(client_id, client, num_repeat)

    def lost(self, client_id: str, reason: str) -> None:
        """An episode was given up."""
        client = self._client(client_id)
        if reason not in SILENT_ENDS:
            return
        client.silent += 1
        if client.silent >= MIN_LOST and client.silent >= LOST_SHARE * client.begun:
            self._warn(
                client_id,
                "episodes_never_ended",
                f"{client.silent} of {client.begun} episodes were neither ended nor aborted (last: {reason}):"
                " end or abort each one, also when the agent fails",
            )

    def sealed(self, batch: TrainBatch) -> None:
        """The tasks of a batch count from zero again: the next epoch may repeat them."""
        for group in batch.groups:
            for client_id in {episode.client_id for episode in group.episodes}:
                if (client := self._clients.get(client_id)) is not None:
                    client.tasks.pop(group.task_id, None)

    def warnings(self) -> tuple[ClientWarning, ...]:
        """By client and code."""
        found = [warning for client in self._clients.values() for warning in client.warnings.values()]
        return tuple(sorted(found, key=lambda warning: (warning.client_id, warning.code)))

    def _check_id(self, client_id: str, task_id: str) -> None:
        if task_id.strip().lower() in BLANK_IDS:
            self._warn(
                client_id,
                "empty_task_id",
                f"the task id is {task_id!r}: episodes of different tasks would be compared with one another",
            )

    def _check_reward(self, client_id: str, client: _Client, episode: FinishedEpisode, num_repeat: int) -> None:
        if episode.turn_rewards is not None or episode.reward != client.last_reward:
            client.equal_rewards = 0
            client.warnings.pop("constant_reward", None)
        client.equal_rewards += 1
        client.last_reward = episode.reward
        if client.equal_rewards >= max(MAX_CONSTANT, CONSTANT_GROUPS * num_repeat):
            self._warn(
                client_id,
                "constant_reward",
                f"the last {client.equal_rewards} rewards were all {episode.reward:g}: nothing is learned from them",
            )

    def _check_left_behind(self, client_id: str, client: _Client, num_repeat: int) -> None:
        """Tasks that the client has moved on from had their episodes: were they as many as the job asks for?"""
        patience = max(LEFT_BEHIND_EPISODES, LEFT_BEHIND_GROUPS * num_repeat)
        while client.tasks:
            task_id, oldest = next(iter(client.tasks.items()))
            if client.ended - oldest.seen_at_end < patience and len(client.tasks) <= MAX_TASKS_PER_CLIENT:
                break
            del client.tasks[task_id]
            if oldest.episodes >= num_repeat:
                client.complete += 1
            else:
                client.mismatched[oldest.episodes] += 1
        mismatches = client.mismatched.total()
        if mismatches >= MIN_MISMATCHES and mismatches > client.complete:
            usual = client.mismatched.most_common(1)[0][0]
            self._warn(
                client_id,
                "num_repeat_mismatch",
                f"{mismatches} tasks were left with too few episodes (mostly {usual}), but num_repeat is {num_repeat}:"
                " run every task num_repeat times",
            )

    def _client(self, client_id: str) -> _Client:
        client = self._clients.setdefault(client_id, _Client())
        self._clients.move_to_end(client_id)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        return client

    def _warn(self, client_id: str, code: str, message: str) -> None:
        warnings = self._client(client_id).warnings
        before = warnings.get(code)
        count = 1 if before is None else before.count + 1
        warnings[code] = ClientWarning(code, client_id, message, count, self._clock())
