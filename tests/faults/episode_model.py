"""What the contract says of episodes and batches, as plain as can be: a real server is held against it."""

from __future__ import annotations

from dataclasses import dataclass, field

BATCH_SIZE = 2
NUM_REPEAT = 2


@dataclass
class Episode:
    """`versions` are those of its sampled tokens. `brief` ones end by their idle timeout, never otherwise."""

    episode_id: str
    key: str
    kind: str
    brief: bool
    state: str = "running"
    versions: set[int] = field(default_factory=set[int])
    turns: int = 0
    task: str | None = None
    reward: float | None = None
    outcome: str | None = None
    in_pool: bool = False
    ended: int = 0


class Contract:
    """One rule only: enough tasks, on policy, nobody waits for running episodes. Clients name the task at the end."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.version = 0
        self.ends = 0

    def call(self, episode: Episode) -> str | None:
        """The error code, or None."""
        if episode.state != "running":
            return "episode_ended"
        episode.turns += 1
        episode.versions.add(self.version)
        return None

    def end(self, episode: Episode, task: str, reward: float) -> str | None:
        """The error code; "replayed" for a repetition; None if this call ended it."""
        if episode.reward is not None and episode.state != "running":
            return "replayed" if (task, reward) == (episode.task, episode.reward) else "idempotency_mismatch"
        if episode.state != "running":
            return "episode_ended"
        episode.state, episode.task, episode.reward = "completed", task, reward
        episode.in_pool = episode.kind == "train"
        self.ends += 1
        episode.ended = self.ends
        self._train_if_complete()
        return None

    def abort(self, episode: Episode) -> str | None:
        if episode.state not in {"running", "aborted"}:
            return "episode_ended"
        if episode.state == "running":
            episode.state, episode.outcome = "aborted", "on purpose"
        return None

    def revise(self, episode: Episode, reward: float) -> str | None:
        if episode.kind == "eval" or episode.state == "running":
            return "conflict"
        if episode.state != "completed":
            return "episode_ended"
        episode.reward = reward
        return None

    def expire(self) -> list[Episode]:
        brief = [episode for episode in self.episodes if episode.brief and episode.state == "running"]
        for episode in brief:
            episode.state, episode.outcome = "expired", "idle_timeout"
        return brief

    def groups(self) -> list[list[Episode]]:
        """What the batch being filled may train: a task's episodes in groups, in the order they ended."""
        tasks: dict[str, list[Episode]] = {}
        for episode in sorted(self.episodes, key=lambda episode: episode.ended):
            if episode.in_pool and episode.versions == {self.version}:
                tasks.setdefault(episode.task or "", []).append(episode)
        return [
            episodes[start : start + NUM_REPEAT]
            for episodes in tasks.values()
            for start in range(0, len(episodes), NUM_REPEAT)
        ]

    def places(self) -> int:
        """How many episodes whose task is not known may run: what makes the fullest groups full."""
        sizes = sorted((len(group) for group in self.groups()), reverse=True)
        lacking = BATCH_SIZE - sizes.count(NUM_REPEAT)
        unfinished = [size for size in sizes if size < NUM_REPEAT][:lacking]
        return lacking * NUM_REPEAT - sum(unfinished)

    def running(self, kind: str) -> int:
        return sum(episode.state == "running" and episode.kind == kind for episode in self.episodes)

    def _train_if_complete(self) -> None:
        groups = self.groups()
        if sum(len(group) == NUM_REPEAT for group in groups) < BATCH_SIZE:
            return
        for episode in self.episodes:
            if not episode.in_pool:
                continue
            size = next((len(group) for group in groups if any(each is episode for each in group)), 0)
            episode.in_pool = False
            if not size:
                episode.state, episode.outcome = "dropped", "stale" if episode.versions else "no_tokens"
            elif size < NUM_REPEAT:
                episode.state, episode.outcome = "dropped", "group_too_small"
            else:
                episode.state = "trained"
        self.version += 1
