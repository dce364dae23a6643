"""Teams of clients: one episode on several servers, each with its own model, that counts on all of them or on none.

Place in the flow: a program with several models uses one team instead of one client. plans/team_calls.py decides the
order of the calls. If the program dies, the servers keep the promise by themselves (docs/architecture.md).
scripts/generate_sync_client.py writes sync_team.py from async_team.py. Neither knows how agents work together.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar, Unpack

from swarm.client.async_client import AsyncSwarmClient
from swarm.client.episode import DEFAULT_END_WAIT_S, DEFAULT_WAIT_S, Credentials, EpisodeSampling, abort_reason
from swarm.client.heartbeat import DEFAULT_LEASE_S
from swarm.client.plans.team_calls import Begun, TeamPlan
from swarm.client.teams.team import OpenEpisodes, Team, opened
from swarm.schemas import EndEpisodeResponse
from swarm.types import EpisodeType, Task, WorkflowOutput

T = TypeVar("T")


class AsyncSwarmTeam(Team[AsyncSwarmClient]):
    """Several clients used as one, for the tasks of one loop."""

    async def begin_all(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
        **sampling: Unpack[EpisodeSampling],
    ) -> dict[str, tuple[str, Credentials]]:
        """Begin an episode on every server; return ids and credentials by the name of the client.

        If one cannot begin, the others are aborted. `sampling` applies to each of them. Raises the errors of
        begin_episode.
        """
        plan = self._begin(task, episode_type, discard_episode_timeout, lease_s, wait_timeout, sampling)
        return await self._run(plan)

    async def end_all(
        self,
        task: Task,
        episodes: Begun,
        outputs: Mapping[str, WorkflowOutput],
        *,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> dict[str, EndEpisodeResponse]:
        """End the episodes, so that they count on all servers or on none, also if this program dies meanwhile.

        Returns the receipt of each server. A receipt in state `prepared` is of a server that did not answer; its
        episode counts once the server is back. If an episode cannot count, the others are aborted and its error is
        raised. ServerUnreachable means that the outcome is not known. A repeated call then continues the same
        transaction; without it the servers decide among themselves.
        """
        return await self._run(self._end(task, episodes, outputs, wait_timeout))

    async def abort_all(self, episodes: Begun, reason: str = "client_abort") -> None:
        """Abort all episodes. A server that does not answer aborts its episode by itself later."""
        await self._run(self._abort(episodes, reason))

    @asynccontextmanager
    async def open_episodes(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
        **sampling: Unpack[EpisodeSampling],
    ) -> AsyncGenerator[OpenEpisodes]:
        """Begin episodes for a `with` block, and end them after it if it has set an output for each client.

        Otherwise they are aborted. An exception inside the block aborts them too, and is raised again.
        """
        begun = await self.begin_all(
            task, episode_type, discard_episode_timeout, lease_s=lease_s, wait_timeout=wait_timeout, **sampling
        )
        episodes = opened(task, begun)
        try:
            yield episodes
        except BaseException as error:
            await self.abort_all(begun, abort_reason(error))
            raise
        if set(episodes.outputs) == set(begun):
            episodes.receipts = await self.end_all(task, begun, episodes.outputs)
        else:
            await self.abort_all(begun, "no_result")

    async def _run(self, plan: TeamPlan[T]) -> T:
        try:
            step = next(plan)
            while True:
                try:
                    result = step.action(self.clients[step.name])
                    if inspect.isawaitable(result):
                        result = await result
                except BaseException as error:  # noqa: BLE001 - the plan raises it again
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as finished:
            return finished.value
