"""Signs that a client's program is wrong, found in how it begins and ends its train episodes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.types import FinishedEpisode, TrainBatch

MAX_CLIENTS = 1_000
MAX_TASKS_PER_CLIENT = 256
"""The most clients and tasks that are remembered; those silent longest are forgotten first. Task ids are remembered as
hashes, so both bounds together keep memory below 100 MB whatever clients send."""

MIN_CONSTANT = 32
CONSTANT_GROUPS = 4
"""A row of equal rewards of this length is no coincidence: the larger of 32 and four groups."""
_FAILED = (
    "no attempt succeeds: look at the replies, reward parts of an answer, or begin with a model that does it now and"
    " then"
)
_SUCCEEDED = "no attempt does better than another: the task is done, or the reward does not tell answers apart"

REPEATS = 2
"""A task with more than twice `num_repeat` episodes of one client in one batch is more than retries."""

LEFT_BEHIND_EPISODES = 128
LEFT_BEHIND_GROUPS = 16
"""A task is left behind once its client has since ended the larger of 128 episodes and sixteen groups of other tasks.
That is more than a client usually runs at once."""

MIN_MISMATCHES = 3
"""Tasks that must be left behind with too few episodes before a warning, since a few may be lost to errors. They must
outnumber the complete ones as well."""

MIN_UNCALLED = 3
"""Episodes in a row without a sampled token before a warning: one alone may have failed before its first call."""

MIN_LOST = 3
LOST_SHARE = 0.2
"""Silent episodes before a warning, and their least share of all begun: leases absorb a crash now and then."""

SILENT_ENDS = frozenset({"lease_expired", "idle_timeout", "deadline"})
BLANK_IDS = frozenset({"", "none", "null", "nan", "undefined"})


@dataclass(frozen=True, slots=True)
class ClientWarning:
    """A warning about one client. `count` is how often it occurred, `last_at` when last, in seconds since the epoch."""

    code: str
    client_id: str
    message: str
    count: int
    last_at: float


@dataclass(slots=True)
class _Task:
    """The episodes of one task that its client ended, in all and since batch number `batch`.

    `last_end` is how many episodes of any task the client had ended when the last of these ended.
    """

    episodes: int = 0
    in_batch: int = 0
    batch: int = 0
    last_end: int = 0


@dataclass(slots=True)
class _Client:
    begun: int = 0
    ended: int = 0
    silent: int = 0
    uncalled: int = 0
    last_reward: float | None = None
    equal_rewards: int = 0
    tasks: OrderedDict[int, _Task] = field(default_factory=OrderedDict[int, _Task])
    complete: int = 0
    mismatched: int = 0
    warnings: dict[str, ClientWarning] = field(default_factory=dict[str, ClientWarning])


class Diagnostics:
    """Checks of the train episodes of every client. Use it from one thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._batches = 0

    def begun(self, client_id: str, task_id: str | None) -> None:
        """Note the begin of an episode; `task_id` is None where the client names the task only at the end."""
        self._client(client_id).begun += 1
        if task_id is not None:
            self._check_id(client_id, task_id)

    def ended(self, client_id: str, episode: FinishedEpisode, num_repeat: int) -> None:
        client = self._client(client_id)
        client.ended += 1
        self._check_id(client_id, episode.task_id)
        self._check_calls(client_id, client, episode)
        self._check_reward(client_id, client, episode, num_repeat)
        self._check_repeats(client_id, client, episode.task_id, num_repeat)
        self._check_left_behind(client_id, client, num_repeat)

    def lost(self, client_id: str, reason: str) -> None:
        """Note an episode that was given up."""
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

    def batch_closed(self, batch: TrainBatch) -> None:
        """Note a complete batch. Its tasks count from zero again, since the next epoch may repeat them."""
        self._batches += 1
        for group in batch.groups:
            for client_id in {episode.client_id for episode in group.episodes}:
                if (client := self._clients.get(client_id)) is not None:
                    client.tasks.pop(hash(group.task_id), None)

    def warnings(self) -> tuple[ClientWarning, ...]:
        """All warnings, by client and code."""
        found = [warning for client in self._clients.values() for warning in client.warnings.values()]
        return tuple(sorted(found, key=lambda warning: (warning.client_id, warning.code)))

    def _check_id(self, client_id: str, task_id: str) -> None:
        if task_id.strip().lower() in BLANK_IDS:
            self._warn(
                client_id,
                "empty_task_id",
                f"the task id is {task_id!r}: episodes of different tasks would be compared with one another",
            )

    def _check_calls(self, client_id: str, client: _Client, episode: FinishedEpisode) -> None:
        client.uncalled = 0 if episode.samples else client.uncalled + 1
        if client.uncalled == 0:
            client.warnings.pop("no_model_call", None)
        elif client.uncalled >= MIN_UNCALLED:
            self._warn(
                client_id,
                "no_model_call",
                f"the last {client.uncalled} episodes ended without an answered call of the model, so no batch gets"
                " them: give the agent the base URL and the key of its episode",
            )

    def _check_reward(self, client_id: str, client: _Client, episode: FinishedEpisode, num_repeat: int) -> None:
        has_parts = episode.turn_rewards is not None or episode.rewards is not None
        if not episode.samples or has_parts or episode.reward != client.last_reward:
            client.equal_rewards = 0
            client.warnings.pop("constant_reward", None)
        client.equal_rewards += 1
        client.last_reward = episode.reward
        if client.equal_rewards >= max(MIN_CONSTANT, CONSTANT_GROUPS * num_repeat):
            self._warn(
                client_id,
                "constant_reward",
                f"the last {client.equal_rewards} rewards were all {episode.reward:g}: nothing is learned from them"
                f" ({_SUCCEEDED if episode.reward > 0 else _FAILED})",
            )

    def _check_repeats(self, client_id: str, client: _Client, task_id: str, num_repeat: int) -> None:
        key = hash(task_id)
        task = client.tasks.setdefault(key, _Task())
        client.tasks.move_to_end(key)
        if task.batch != self._batches:
            task.batch, task.in_batch = self._batches, 0
        task.episodes += 1
        task.in_batch += 1
        task.last_end = client.ended
        if task.in_batch > REPEATS * num_repeat:
            self._warn(
                client_id,
                "repeated_task_id",
                f"task {task_id!r} has {task.in_batch} episodes in this batch, but num_repeat is {num_repeat}:"
                " do several tasks share one id?",
            )

    def _check_left_behind(self, client_id: str, client: _Client, num_repeat: int) -> None:
        """Warn if the client ended fewer episodes than the job asks for of tasks that it has left behind."""
        patience = max(LEFT_BEHIND_EPISODES, LEFT_BEHIND_GROUPS * num_repeat)
        while client.tasks:
            key, oldest = next(iter(client.tasks.items()))
            if client.ended - oldest.last_end < patience and len(client.tasks) <= MAX_TASKS_PER_CLIENT:
                break
            del client.tasks[key]
            if oldest.episodes >= num_repeat:
                client.complete += 1
                continue
            client.mismatched += 1
            if client.mismatched >= MIN_MISMATCHES and client.mismatched > client.complete:
                self._warn(
                    client_id,
                    "num_repeat_mismatch",
                    f"{client.mismatched} tasks were left with too few episodes (the last one with {oldest.episodes}),"
                    f" but num_repeat is {num_repeat}: run every task num_repeat times",
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
