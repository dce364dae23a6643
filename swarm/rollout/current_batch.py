"""The batch being filled, as clients see and change it: progress, agreement, policy, revised rewards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from swarm.batch import BatchPool
from swarm.batch.policy import BatchPolicy
from swarm.ledger import EpisodeRow, Ledger
from swarm.rollout.clients import Clients
from swarm.rollout.results import (
    align_turn_rewards,
    check_rewards,
    closed_already,
    finished_episode,
    require_revisable,
)
from swarm.run.running_job import RunningJob
from swarm.schemas import (
    BatchPolicies,
    BatchPolicyView,
    PoolView,
    ReviseRewardRequest,
    SourceView,
    UpdateBatchPolicyRequest,
)


class CurrentBatch:
    """View and control of the batch being filled. Use it from one event loop."""

    def __init__(self, job: RunningJob, pool: BatchPool, ledger: Ledger, clients: Clients) -> None:
        self._job = job
        self._pool = pool
        self._ledger = ledger
        self._clients = clients
        self._revising = asyncio.Lock()

    def is_ready(self) -> bool:
        """Return whether the batch is complete, by the stop rule in force or because its time is over."""
        return self._pool.is_ready(self._awaited(time.monotonic()))

    def next_due(self, now: float) -> float | None:
        """Return when time alone may complete the batch or admit an episode; None if it never does.

        The time is in seconds of the monotonic clock.
        """
        dues: list[float] = []
        if (due := self._pool.next_due()) is not None:
            dues.append(now + max(0.0, due - time.time()))
        dues.extend(until for name, until in self._awaited(now).items() if name not in self._pool.agreed)
        return min(dues, default=None)

    def policies(self) -> BatchPolicies:
        upcoming = self._pool.next_policy
        return BatchPolicies(
            active=view_policy(self._pool.policy), next=None if upcoming is None else view_policy(upcoming)
        )

    async def propose_policy(self, request: UpdateBatchPolicyRequest) -> BatchPolicies:
        """Change the policy from the next batch on; durable on return. An empty mixture ends the mixture.

        Raise BadRequest if the resulting policy is not valid.
        """
        settings = request.model_dump(exclude_none=True)
        if request.mixture == {}:
            settings["mixture"] = None
        await self._job.change(settings)
        return self.policies()

    async def revise(self, episode_id: str, request: ReviseRewardRequest) -> EpisodeRow:
        """Change the reward of an ended train episode; fields that the request leaves out stay as reported.

        Raise BadRequest for turn rewards of the wrong length, or for named rewards that lack one the job asks for.
        Raise NotFound, Conflict for an episode that is running or of type eval, and EpisodeEnded once its batch is
        closed.
        """
        async with self._revising:
            row = await self._ledger.episode(episode_id)
            require_revisable(row)
            turns = await self._ledger.turns(episode_id)
            given = align_turn_rewards(request.turn_rewards, turns)
            revised = replace(
                row,
                reward=request.reward,
                is_success=row.is_success if request.is_success is None else request.is_success,
                turn_rewards=row.turn_rewards if given is None else given,
                rewards=row.rewards if request.rewards is None else request.rewards,
            )
            check_rewards(self._job.at(self._job.filling), revised.rewards, revised.turn_rewards)
            # Nothing is awaited between this and the submission of the write. The ledger writes in order, so a batch
            # closed from here on finds in the ledger the same reward that the pool has.
            if not self._pool.replace(finished_episode(revised, turns)):
                raise closed_already(episode_id)
            try:
                return await self._ledger.revise_reward(
                    episode_id,
                    reward=request.reward,
                    is_success=revised.is_success,
                    turn_rewards=revised.turn_rewards,
                    rewards=revised.rewards,
                    reason=request.reason,
                )
            except BaseException:
                self._pool.replace(finished_episode(row, turns))
                raise

    def view(self, running_by_source: Mapping[str, int], running_eval: int, waiting_begins: int) -> PoolView:
        """Return the state of the batch; `running_by_source` counts the running train episodes."""
        progress = self._pool.progress()
        sources = {
            name: SourceView(
                episodes=source.episodes,
                tasks=source.tasks,
                tasks_target=source.tasks_target,
                running=running_by_source.get(name, 0),
            )
            for name, source in progress.sources.items()
        }
        for name, running in running_by_source.items():
            sources.setdefault(name, SourceView(episodes=0, tasks=0, tasks_target=None, running=running))
        return PoolView(
            stop_rule=progress.stop_rule,
            episodes=progress.episodes,
            episodes_target=progress.episodes_target,
            tasks=progress.tasks,
            tasks_target=progress.tasks_target,
            running_train=sum(running_by_source.values()),
            running_eval=running_eval,
            waiting_begins=waiting_begins,
            sources=sources,
            agreed=list(progress.agreed),
        )

    def _awaited(self, now: float) -> Mapping[str, float]:
        """Return the clients whose agreement the batch needs, each with the end of the wait for it.

        Before the first client has agreed, the answer does not matter.
        """
        if self._pool.policy.rule.agreeing != "all" or not self._pool.agreed:
            return {}
        return self._clients.awaited(now, self._pool.clients)


def view_policy(policy: BatchPolicy) -> BatchPolicyView:
    return BatchPolicyView.model_validate(policy, from_attributes=True)
