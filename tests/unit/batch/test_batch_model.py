"""The pool against a plain model: a list of episodes that is counted anew for every question."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from batch_support import Clock, make_episode, make_pool
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swarm.batch import BatchPolicy, ClosedBatch, DropReason, assemble
from swarm.job import TrainJob
from swarm.types import FinishedEpisode

SOURCES = ("math", "code")
POLICIES = st.builds(
    lambda rule, size, repeat, small, staleness, timeout, mixture: BatchPolicy.of(
        TrainJob(
            stop_rule=rule,
            batch_size=size,
            num_repeat=repeat,
            min_group=min(small, repeat),
            max_staleness=staleness,
            batch_timeout_s=timeout,
            mixture=mixture,
        )
    ),
    st.sampled_from(
        ["enough_episodes", "enough_tasks", "enough_non_constant_tasks", "any_client_agrees", "all_clients_agree"]
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from([None, 5.0]),
    st.sampled_from([None, {"math": 0.5, "code": 0.5}, {"math": 0.8, "code": 0.2}, {"math": 1.0}]),
)


@dataclass
class Model:
    """What waits, under a policy, for the step after `version`. `group_of` numbers the groups as they were opened,
    `spent` counts the dropped episodes of those that are still open."""

    policy: BatchPolicy
    version: int
    episodes: list[FinishedEpisode]
    group_of: dict[str, int] = field(default_factory=dict[str, int])
    opened: int = 0
    spent: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])

    @property
    def is_grouped(self) -> bool:
        return self.policy.stop_rule.endswith("tasks")

    def forget_given_up(self) -> None:
        """Nobody comes back to a group without members whose places are all spent."""
        groups = self.groups()
        for key in list(self.spent):
            if key not in groups and self.spent[key] >= self.policy.num_repeat:
                del self.spent[key]

    def review(self) -> None:
        """Put episodes that may be trained into groups, and take the others out."""
        for episode in self.episodes:
            if self.refusal(episode) is not None:
                self.group_of.pop(episode.episode_id, None)
            elif episode.episode_id not in self.group_of:
                groups = self.groups()
                taken = {
                    key[2]: len(groups.get(key, ())) + self.spent[key]
                    for key in {*groups, *self.spent}
                    if list(key[:2]) == key_of(episode)
                }
                limit = self.policy.num_repeat if self.is_grouped else 1_000
                self.opened += 1
                number = min((number for number, places in taken.items() if places < limit), default=self.opened)
                self.group_of[episode.episode_id] = number

    def refusal(self, episode: FinishedEpisode) -> DropReason | None:
        versions = [version for version in episode.samples[0].weight_versions_T if version >= 0]
        if not versions:
            return DropReason.NO_TOKENS
        ages = [self.version - version for version in versions]
        return None if all(0 <= age <= self.policy.max_staleness for age in ages) else DropReason.STALE

    def groups(self) -> dict[tuple[str, str, int], list[FinishedEpisode]]:
        groups: defaultdict[tuple[str, str, int], list[FinishedEpisode]] = defaultdict(list)
        for episode in self.episodes:
            if (number := self.group_of.get(episode.episode_id)) is not None:
                groups[episode.data_source, episode.task_id, number].append(episode)
        return groups

    def lacks_contrast(self, group: list[FinishedEpisode]) -> bool:
        return self.policy.stop_rule == "enough_non_constant_tasks" and len({each.reward for each in group}) == 1

    def tasks(self, source: str) -> int:
        return sum(
            key[0] == source
            and len(group) + self.spent[key] >= self.policy.num_repeat
            and len(group) >= self.policy.min_group
            and not self.lacks_contrast(group)
            for key, group in self.groups().items()
        )

    def count(self, source: str) -> int:
        return sum(len(group) for key, group in self.groups().items() if key[0] == source)

    def is_met(self, quotas: dict[str, int | None], agreed: set[str], live: set[str]) -> bool:
        unit, number = 1, self.tasks
        match self.policy.stop_rule:
            case "any_client_agrees":
                return bool(agreed)
            case "all_clients_agree":
                return bool(agreed) and live <= agreed
            case "enough_episodes":
                unit, number = self.policy.num_repeat, self.count
            case _:
                pass
        if self.policy.mixture is None:
            return sum(map(number, SOURCES)) >= self.policy.batch_size * unit
        return all(number(source) >= (quotas[source] or 0) * unit for source in self.policy.mixture)

    def is_any_trainable(self, quotas: dict[str, int | None]) -> bool:
        return any(
            len(group) >= self.policy.min_group
            and not self.lacks_contrast(group)
            and (self.policy.mixture is None or bool(quotas[source]))
            for (source, *_), group in self.groups().items()
        )


def key_of(episode: FinishedEpisode) -> list[str]:
    return [episode.data_source, episode.task_id]


class PoolAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.pool = make_pool(batch_size=2, num_repeat=2, clock=self.clock)
        self.model = Model(self.pool.policy, 0, [])
        self.ended: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.agreed: set[str] = set()
        self.step = 0

    @property
    def quotas(self) -> dict[str, int | None]:
        return {name: source.tasks_target for name, source in self.pool.progress().sources.items()}

    @rule(
        task=st.sampled_from("abc"),
        source=st.sampled_from(SOURCES),
        ages=st.lists(st.integers(-1, 3), max_size=2),
        reward=st.sampled_from([0.0, 1.0]),
        client=st.sampled_from(["one", "two"]),
    )
    def add(self, task: str, source: str, ages: list[int], reward: float, client: str) -> None:
        self.clock.now += 1
        episode_id = f"e{self.ended.total()}"
        versions = tuple(max(0, self.model.version - age) for age in ages)
        episode = make_episode(
            episode_id, task, versions, reward, source=source, client=client, ended_at=self.clock.now
        )
        assert self.pool.add(episode) is self.model.refusal(episode)
        self.model.episodes.append(episode)
        self.model.review()
        self.ended[episode_id] += 1

    @rule(tasks=st.integers(1, 3), source=st.sampled_from(SOURCES))
    def add_full_groups(self, tasks: int, source: str) -> None:
        for number in range(tasks):
            for repeat in range(self.model.policy.num_repeat):
                self.add("abc"[number], source, [0], float(repeat == 0), "one")

    @precondition(lambda self: self.model.episodes)
    @rule(data=st.data(), reward=st.sampled_from([0.0, 0.5]))
    def revise(self, data: st.DataObject, reward: float) -> None:
        place = data.draw(st.integers(0, len(self.model.episodes) - 1))
        revised = replace(self.model.episodes[place], reward=reward)
        self.model.episodes[place] = revised
        assert self.pool.replace(revised)

    @rule(client=st.sampled_from(["one", "two"]))
    def agree(self, client: str) -> None:
        self.pool.agree(client)
        self.agreed.add(client)

    @rule(policy=POLICIES)
    def propose(self, policy: BatchPolicy) -> None:
        self.pool.propose(policy)
        assert self.pool.policy == self.model.policy

    @rule(outcome=st.sampled_from(["trained", "trained", "failed"]))
    def close_batch(self, outcome: str) -> None:
        quotas, was_ready = self.quotas, self.pool.is_ready(set())
        by_time = not self.model.is_met(quotas, self.agreed, set())
        upcoming = self.pool.next_policy or self.pool.policy
        closed = self.pool.close_batch(f"b{self.step + 1}", self.step + 1)
        stayed = self._check(closed, quotas, upcoming)
        if was_ready and (by_time or self.model.policy.stop_rule.endswith("tasks")):
            assert closed.batch.groups
        self._take_out(closed, stayed)
        self.model.policy = upcoming
        self.model.forget_given_up()
        self.model.review()
        self.agreed = set()
        if not closed.batch.groups:
            assert not stayed
        elif outcome == "trained":
            self.left.update(episode.episode_id for episode in closed.batch.episodes)
            self.step += 1
            self.publish()
        else:
            self.pool.restore(closed.batch.episodes)
            self.model.episodes.extend(closed.batch.episodes)
            self.model.review()

    @rule()
    def publish(self) -> None:
        self.model.version += 1
        self.pool.publish(self.model.version)
        self.model.review()

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        progress = self.pool.progress()
        assert len(self.pool) == len(self.model.episodes)
        assert set(self.pool.clients) == {episode.client_id for episode in self.model.episodes}
        assert progress.episodes == sum(map(self.model.count, SOURCES))
        for name, source in progress.sources.items():
            assert (source.episodes, source.tasks) == (self.model.count(name), self.model.tasks(name))
        if self.model.policy.mixture is not None:
            assert sum(self.quotas[name] or 0 for name in self.model.policy.mixture) == self.model.policy.batch_size
        assert set(progress.agreed) == self.agreed

    @invariant()
    def it_is_ready_when_the_model_is(self) -> None:
        quotas, anything = self.quotas, any(map(self.model.count, SOURCES))
        for live in (set[str](), {"one"}, {"one", "two"}):
            expected = anything and self.model.is_met(quotas, self.agreed, live)
            timeless = self.pool.deadline is None or self.clock.now < self.pool.deadline
            expected |= not timeless and self.model.is_any_trainable(quotas)
            assert self.pool.is_ready(live) is expected

    @invariant()
    def every_episode_leaves_once(self) -> None:
        waiting = Counter(episode.episode_id for episode in self.model.episodes)
        assert self.left + waiting == self.ended

    def _take_out(self, closed: ClosedBatch, stayed: list[FinishedEpisode]) -> None:
        model = self.model
        group_keys = {
            each: key for key, group in model.groups().items() for each in (item.episode_id for item in group)
        }
        for episode in closed.batch.episodes:
            model.spent.pop(group_keys[episode.episode_id], None)
            del model.group_of[episode.episode_id]
        for drop in closed.dropped:
            if model.is_grouped and drop.episode_id in group_keys:
                model.spent[group_keys[drop.episode_id]] += 1
            model.group_of.pop(drop.episode_id, None)
        model.episodes = stayed
        model.forget_given_up()

    def _check(
        self, closed: ClosedBatch, quotas: dict[str, int | None], upcoming: BatchPolicy
    ) -> list[FinishedEpisode]:
        """What stays, after a look at what left and why."""
        by_id = {episode.episode_id: episode for episode in self.model.episodes}
        groups = self.model.groups()
        taken: Counter[str] = Counter()
        for group in closed.batch.groups:
            source = group.episodes[0].data_source
            whole = groups[source, group.task_id, self.model.group_of[group.episodes[0].episode_id]]
            assert sorted(each.episode_id for each in group.episodes) == sorted(each.episode_id for each in whole)
            assert len(whole) >= self.model.policy.min_group
            assert not self.model.lacks_contrast(whole)
            taken[source] += 1
        if self.model.policy.mixture is not None:
            assert all(number <= (quotas[source] or 0) for source, number in taken.items())
        if self.model.policy.stop_rule.endswith("tasks"):
            assert taken.total() <= self.model.policy.batch_size
        for drop in closed.dropped:
            episode = by_id[drop.episode_id]
            assert drop.trained_tokens == episode.trained_tokens
            assert drop.reason is self._reason(episode, groups)
        gone = [*(each.episode_id for each in closed.batch.episodes), *(each.episode_id for each in closed.dropped)]
        self.left.update(each.episode_id for each in closed.dropped)
        stayed = [episode for name, episode in by_id.items() if name not in set(gone)]
        assert len(gone) + len(stayed) == len(by_id)
        following = Model(upcoming, self.model.version + 1, [])
        assert all(following.refusal(episode) is None for episode in stayed)
        return stayed

    def _reason(
        self, episode: FinishedEpisode, groups: dict[tuple[str, str, int], list[FinishedEpisode]]
    ) -> DropReason:
        refusal = self.model.refusal(episode)
        if refusal is not None:
            return refusal
        group = groups[episode.data_source, episode.task_id, self.model.group_of[episode.episode_id]]
        if len(group) < self.model.policy.min_group:
            return DropReason.GROUP_TOO_SMALL
        return DropReason.CONSTANT_REWARD if self.model.lacks_contrast(group) else DropReason.OVER_QUOTA


PoolAgainstModel.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
test_the_pool_agrees_with_a_plain_model = PoolAgainstModel.TestCase


EPISODES = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from(SOURCES),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.integers(0, 2),
    ),
    max_size=24,
).map(
    lambda rows: [
        make_episode(f"{number:02d}", task, versions, reward, token, source=source)
        for number, (task, source, versions, reward, token) in enumerate(rows)
    ]
)


def closed_batch(episodes: Iterable[FinishedEpisode], policy: BatchPolicy) -> ClosedBatch:
    pool = make_pool(weight_version=2)
    pool.propose(policy)
    pool.close_batch("b0", 0)
    pool.restore(episodes)
    return pool.close_batch("b1", 1)


@settings(deadline=None)
@given(episodes=EPISODES, policy=POLICIES, data=st.data())
def test_a_batch_depends_neither_on_the_order_of_arrival_nor_on_that_of_its_groups(
    episodes: list[FinishedEpisode], policy: BatchPolicy, data: st.DataObject
) -> None:
    alone = one_group_each(episodes, policy.num_repeat)
    closed = closed_batch(alone, policy)
    assert closed_batch(data.draw(st.permutations(alone)), policy) == closed
    groups = [data.draw(st.permutations(group.members)) for group in data.draw(st.permutations(closed.batch.groups))]
    assert assemble("b1", 1, groups) == closed.batch


def one_group_each(episodes: Iterable[FinishedEpisode], num_repeat: int) -> list[FinishedEpisode]:
    """No more episodes of a task than one group holds: the others belong to the group that they happen to find."""
    seen: Counter[tuple[str, ...]] = Counter()
    kept: list[FinishedEpisode] = []
    for episode in episodes:
        seen[tuple(key_of(episode))] += 1
        if seen[tuple(key_of(episode))] <= num_repeat:
            kept.append(episode)
    return kept
