"""The clients of a swarm server: AsyncSwarmClient for the tasks of one asyncio loop, SwarmClient for threads."""

from __future__ import annotations

from typing import Self

import httpx

from swarm.client.episode import DEFAULT_TIMEOUT_S, default_client_id, describe
from swarm.client.episode_calls import ClientCalls
from swarm.client.io import Blocking, TaskIo, ThreadIo, blocking, blocking_block, blocking_iterator


class AsyncSwarmClient(ClientCalls):
    """A client of one swarm server, for the tasks of one loop.

    Every method raises the error that the server names (swarm.errors), or ServerUnreachable. `timeout` is in seconds,
    and bounds one call with its retries. Methods that wait for an event have a limit of their own.

    Close it, or use it as a context manager. While it has running episodes, a task of that loop sends heartbeats.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        client_id: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        lease: int | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Create a client; nothing is sent yet.

        `client_id` names this program in the server's status (default: host name and process id). `lease` is the
        fencing token of a lease on the server: every command carries it, and raises LeaseLost once the lease is over.
        Raises BadRequest for a malformed url.
        """
        server = describe(url, token, timeout, lease)
        super().__init__(server, client_id or default_client_id(), TaskIo(transport))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SwarmClient(Blocking[ClientCalls]):
    """A client of one swarm server, for any number of threads. It has the methods of AsyncSwarmClient, which block.

    Close it, or use it as a context manager. While it has running episodes, a daemon thread sends heartbeats.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        client_id: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        lease: int | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Create a client; nothing is sent yet.

        `client_id` names this program in the server's status (default: host name and process id). `lease` is the
        fencing token of a lease on the server: every command carries it, and raises LeaseLost once the lease is over.
        Raises BadRequest for a malformed url.
        """
        server = describe(url, token, timeout, lease)
        super().__init__(ClientCalls(server, client_id or default_client_id(), ThreadIo(transport)))

    @property
    def url(self) -> str:
        return self.calls.url

    @property
    def client_id(self) -> str:
        return self.calls.client_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def release_episode(self, episode_uuid: str) -> None:
        """Stop the heartbeats of an episode.

        Its server then aborts it. If the episode is prepared, the server asks the coordinator how it ended.
        """
        self.calls.release_episode(episode_uuid)

    close = blocking(ClientCalls.close)

    begin_episode = blocking(ClientCalls.begin_episode)
    end_episode = blocking(ClientCalls.end_episode)
    prepare_episode = blocking(ClientCalls.prepare_episode)
    commit_episode = blocking(ClientCalls.commit_episode)
    abort_episode = blocking(ClientCalls.abort_episode)
    revise_reward = blocking(ClientCalls.revise_reward)
    heartbeat = blocking(ClientCalls.heartbeat)
    open_episode = blocking_block(ClientCalls.open_episode)
    episode = blocking(ClientCalls.episode)
    episodes = blocking(ClientCalls.episodes)

    auto_sync_train_config_and_start_engine = blocking(ClientCalls.auto_sync_train_config_and_start_engine)
    status = blocking(ClientCalls.status)
    tell = blocking(ClientCalls.tell)
    job = blocking(ClientCalls.job)
    change_job = blocking(ClientCalls.change_job)
    task_counts = blocking(ClientCalls.task_counts)
    usage = blocking(ClientCalls.usage)
    metrics = blocking(ClientCalls.metrics)
    evaluations = blocking(ClientCalls.evaluations)
    claim_evaluation = blocking(ClientCalls.claim_evaluation)
    renew_evaluation = blocking(ClientCalls.renew_evaluation)
    end_evaluation = blocking(ClientCalls.end_evaluation)
    record_evaluation = blocking(ClientCalls.record_evaluation)
    batch_policy = blocking(ClientCalls.batch_policy)
    update_batch_policy = blocking(ClientCalls.update_batch_policy)
    set_mixture = blocking(ClientCalls.set_mixture)
    agree_to_train = blocking(ClientCalls.agree_to_train)
    launch = blocking(ClientCalls.launch)
    add_demonstrations = blocking(ClientCalls.add_demonstrations)
    find_launch = blocking(ClientCalls.find_launch)
    take_lease = blocking(ClientCalls.take_lease)
    release_lease = blocking(ClientCalls.release_lease)
    stop_engine = blocking(ClientCalls.stop_engine)
    shut_down = blocking(ClientCalls.shut_down)
    save_checkpoint = blocking(ClientCalls.save_checkpoint)
    load_checkpoint = blocking(ClientCalls.load_checkpoint)
    wait_until_step = blocking(ClientCalls.wait_until_step)
    past_events = blocking(ClientCalls.past_events)
    events = blocking_iterator(ClientCalls.events)
    audit = blocking(ClientCalls.audit)
