# Made of async_team.py by scripts/generate_sync_client.py: change that and run it.
"""One episode that uses several servers, each with a model of its own, and counts on all of them or on none.

Place in the flow: what a program with several models in one team of agents holds. The order of calls is that of
plans/team_calls.py; what keeps the promise when this program dies is the servers' (docs/transactions.md). sync_team.py
is made of async_team.py by scripts/generate_sync_client.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TypeVar, Unpack

from swarm.client.client import SwarmClient
from swarm.client.episode import DEFAULT_END_WAIT_S, DEFAULT_WAIT_S, Credentials, EpisodeSampling, abort_reason
from swarm.client.heartbeat import DEFAULT_LEASE_S
from swarm.client.plans.team_calls import Begun, TeamPlan
from swarm.client.teams.team import OpenEpisodes, Team, opened
from swarm.schemas import EndEpisodeResponse
from swarm.types import EpisodeType, Task, WorkflowOutput

T = TypeVar("T")


class SwarmTeam(Team[SwarmClient]):
    """Several clients as one, for any number of threads."""

    def begin_all(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
        **sampling: Unpack[EpisodeSampling],
    ) -> dict[str, tuple[str, Credentials]]:
        """Begin an episode on every server: ids and credentials by name. All or none; raises as begin_episode, whose
        `sampling` each of them gets."""
        plan = self._begin(task, episode_type, discard_episode_timeout, lease_s, wait_timeout, sampling)
        return self._run(plan)

    def end_all(
        self,
        task: Task,
        episodes: Begun,
        outputs: Mapping[str, WorkflowOutput],
        *,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> dict[str, EndEpisodeResponse]:
        """Report a result to every server: it counts on all of them or on none, also if this program dies meanwhile.

        Returns what became of each. One that is `prepared` could not be reached and counts once it is back. Raises what
        kept it from counting, after aborting the rest; or ServerUnreachable if it is not known whether it counts: the
        same call again is the same transaction, and without it the servers settle it among themselves.
        """
        return self._run(self._end(task, episodes, outputs, wait_timeout))

    def abort_all(self, episodes: Begun, reason: str = "client_abort") -> None:
        """Give all of them up. What cannot be told to a server, it finds out by itself."""
        self._run(self._abort(episodes, reason))

    @contextmanager
    def open_episodes(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
        **sampling: Unpack[EpisodeSampling],
    ) -> Generator[OpenEpisodes]:
        """Begin episodes for the length of a block; end them if it has set an output for each, else abort them.

        An exception inside the block aborts them and is raised again.
        """
        begun = self.begin_all(
            task, episode_type, discard_episode_timeout, lease_s=lease_s, wait_timeout=wait_timeout, **sampling
        )
        episodes = opened(task, begun)
        try:
            yield episodes
        except BaseException as error:
            self.abort_all(begun, abort_reason(error))
            raise
        if set(episodes.outputs) == set(begun):
            episodes.receipts = self.end_all(task, begun, episodes.outputs)
        else:
            self.abort_all(begun, "no_result")

    def _run(self, plan: TeamPlan[T]) -> T:
        try:
            step = next(plan)
            while True:
                try:
                    result = step.action(self.clients[step.name])
                    if inspect.isawaitable(result):
                        result = result
                except BaseException as error:  # noqa: BLE001 - the plan raises it again
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as finished:
            return finished.value
