"""The clients of a swarm server: SwarmClient for threads, AsyncSwarmClient for the tasks of one asyncio loop.

Place in the flow: a rollout program has one for each server. It does the I/O for the plans in plans/.
scripts/generate_sync_client.py writes client.py from async_client.py, so that the two cannot differ. Neither knows how
a model is served or trained.

Every method raises the error that the server names (swarm.errors), or ServerUnreachable. `timeout` is in seconds, and
bounds one call with its retries. Methods that wait for an event have a limit of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Self, TypeVar, Unpack

import httpx
from pydantic import BaseModel

from swarm.client.connections import AsyncConnectionStack
from swarm.client.episode import (
    DEFAULT_END_WAIT_S,
    DEFAULT_TIMEOUT_S,
    DEFAULT_WAIT_S,
    AsyncAttemptNotes,
    Credentials,
    EpisodeSampling,
    OpenEpisode,
    abort_reason,
    default_client_id,
    describe,
    log_failed_abort,
    name_task,
)
from swarm.client.events import EventFeed
from swarm.client.heartbeat import DEFAULT_LEASE_S, HeartbeatTask, Leases
from swarm.client.plans import calls, episode_calls, transaction_calls
from swarm.client.plans.exchange import Outcome, Pause, Plan
from swarm.errors import SwarmError
from swarm.schemas import (
    Acknowledged,
    AgreeResponse,
    AuditView,
    BatchPolicies,
    CheckpointResponse,
    ClaimedEvaluation,
    EndEpisodeResponse,
    EpisodeDetail,
    EpisodeView,
    EvaluationView,
    EventView,
    JobUsage,
    JobView,
    LaunchView,
    LeaseRequest,
    LeaseView,
    MetricPointView,
    Status,
    TaskCount,
)
from swarm.types import EpisodeType, Task, WorkflowOutput

T = TypeVar("T")


class AsyncSwarmClient:
    """A client of one swarm server, for the tasks of one loop.

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
        self._server = describe(url, token, timeout, lease)
        self.client_id = client_id or default_client_id()
        self._http = httpx.AsyncClient(transport=transport or AsyncConnectionStack())
        self._leases = Leases()
        self._heartbeat = HeartbeatTask(self._leases, self._beat)
        self._notes = AsyncAttemptNotes()

    @property
    def url(self) -> str:
        return self._server.url

    async def close(self) -> None:
        """Close the connections and stop the heartbeats.

        The server aborts the episodes that are still running as soon as their leases are over.
        """
        await self._heartbeat.close()
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def auto_sync_train_config_and_start_engine(
        self,
        job: BaseModel | Mapping[str, Any],
        force_restart: bool = False,
        *,
        resume: Literal["run", "weights"] = "run",
        boot_timeout: float = 300.0,
    ) -> Status:
        """Send this TrainJob to the server, start the engine, and wait until it serves.

        If the server already runs the same job, the client joins it. A stopped job continues from its newest
        checkpoint. `force_restart` stops the running job and starts this one from the base weights. With
        `resume="weights"`, a changed job replaces the running one as a new run. It starts from the weights that are
        there, with a new optimizer, and its steps count from 0.

        A client whose token has the role rollout cannot set a job. It waits until the server serves this one, and
        raises Forbidden if the server has another job.

        Raises JobInvalid for a job that is not valid, and IllegalTransition while another job runs. Raises
        EngineFailure if the engine does not boot, and Unavailable after `boot_timeout` seconds.
        """
        return await self._run(calls.sync_and_start(self._server, job, force_restart, boot_timeout, resume))

    async def begin_episode(
        self,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        task_id: str | None = None,
        data_source: str | None = None,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
        **sampling: Unpack[EpisodeSampling],
    ) -> tuple[str, Credentials]:
        """Begin an episode; return its id and the credentials for the agent.

        Give a `task_id`: the server then admits exactly as many episodes as the groups of a batch need. Inside
        run_episodes_until_all_complete it defaults to the id of the current Task.

        The server aborts the episode after `discard_episode_timeout` seconds without a model call and without a call
        of `heartbeat`. The client sends heartbeats of its own for all its episodes. Once these stop, the server aborts
        the episode within `lease_s` seconds. With `lease_s=None` there is no lease and the client sends none.

        The server takes no episode while weights change, while a batch has all its groups, and while the engine boots
        or is stopped. The call then waits up to `wait_timeout` seconds, also for a server that does not answer.
        Afterwards it raises RolloutPaused, EngineNotReady or ServerUnreachable. It raises TrainingComplete after the
        last step.

        `sampling` takes `sampling_seed`, `temperature`, `max_calls` and `max_tokens`; EpisodeSampling explains them.
        """
        task_id, data_source = name_task(task_id, data_source)
        episode_id, credentials = await self._run(
            episode_calls.begin_episode(
                self._server,
                self._leases,
                client_id=self.client_id,
                episode_type=episode_type,
                idle_timeout_s=discard_episode_timeout,
                task_id=task_id,
                data_source=data_source,
                lease_s=lease_s,
                wait_timeout_s=wait_timeout,
                sampling=sampling,
            )
        )
        if lease_s is not None:
            self._heartbeat.keep_alive(lease_s)
        self._notes.begun(self._leases, episode_id, self.abort_episode)
        return episode_id, credentials

    async def end_episode(
        self,
        task: Task,
        episode_uuid: str,
        workflow_output: WorkflowOutput,
        *,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> EndEpisodeResponse:
        """End an episode with its result; return the server's receipt.

        The result counts once, however often the call is repeated. On return it is durable: it survives a crash of the
        server. If the server does not answer, the call waits up to `wait_timeout` seconds, and at least `timeout`.

        Raises EpisodeEnded if the server has aborted the episode, and IdempotencyMismatch if it was ended with another
        result. Raises BadRequest for a reward that is not a finite number.
        """
        receipt = await self._run(
            episode_calls.end_episode(
                self._server,
                self._leases,
                client_id=self.client_id,
                task=task,
                episode_id=episode_uuid,
                output=workflow_output,
                wait_timeout_s=wait_timeout,
            )
        )
        self._notes.ended(self._leases)
        return receipt

    async def prepare_episode(
        self,
        task: Task,
        episode_uuid: str,
        workflow_output: WorkflowOutput,
        *,
        transaction_id: str,
        coordinator: str | None,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> EndEpisodeResponse:
        """Prepare the end of an episode: the first phase of a two-phase commit over several servers.

        Use SwarmTeam, which does both phases. `coordinator` is the address of the server whose commit decides, and
        None on that server itself. The episode keeps its lease until it is committed. Raises the errors of end_episode,
        and Conflict if another transaction has prepared the episode.
        """
        return await self._run(
            transaction_calls.prepare_episode(
                self._server,
                self._leases,
                client_id=self.client_id,
                task=task,
                episode_id=episode_uuid,
                output=workflow_output,
                transaction_id=transaction_id,
                coordinator=coordinator,
                wait_timeout_s=wait_timeout,
            )
        )

    async def commit_episode(
        self, episode_uuid: str, transaction_id: str, *, wait_timeout: float = DEFAULT_END_WAIT_S
    ) -> EndEpisodeResponse:
        """Commit a prepared episode, so that it counts. Raises EpisodeEnded if the server has aborted it."""
        plan = transaction_calls.commit_episode(self._server, self._leases, episode_uuid, transaction_id, wait_timeout)
        receipt = await self._run(plan)
        self._notes.ended(self._leases)
        return receipt

    def release_episode(self, episode_uuid: str) -> None:
        """Stop the heartbeats of an episode.

        Its server then aborts it. If the episode is prepared, the server asks the coordinator how it ended.
        """
        self._leases.release(episode_uuid)

    async def abort_episode(
        self, episode_uuid: str, reason: str = "client_abort", *, final: bool = False
    ) -> EpisodeView:
        """Abort an episode; the server counts it under `reason` and does not train it.

        With `final` no other attempt follows, and the group of its task waits for none.
        """
        return await self._run(episode_calls.abort_episode(self._server, self._leases, episode_uuid, reason, final))

    async def revise_reward(
        self,
        episode_uuid: str,
        reward: float,
        *,
        reason: str,
        is_success: bool | None = None,
        turn_rewards: Sequence[float] | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> EpisodeView:
        """Replace the reward of an ended episode.

        Values that are None stay as reported. The server keeps the former reward and the `reason`. Raises EpisodeEnded
        once the batch of the episode is closed.
        """
        plan = episode_calls.revise_reward(
            self._server,
            episode_uuid,
            reward=reward,
            reason=reason,
            is_success=is_success,
            turn_rewards=turn_rewards,
            rewards=rewards,
        )
        return await self._run(plan)

    async def heartbeat(self, episode_uuid: str) -> EpisodeView:
        """Restart the idle timeout of an episode whose agent works without a model call.

        The heartbeats that the client sends by itself renew only the lease. Raises EpisodeEnded if the episode is over.
        """
        return await self._run(episode_calls.heartbeat(self._server, self._leases, episode_uuid))

    @asynccontextmanager
    async def open_episode(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
        **sampling: Unpack[EpisodeSampling],
    ) -> AsyncGenerator[OpenEpisode]:
        """Begin an episode for a `with` block, and end it after the block with the `output` that the block has set.

        Without an output the episode is aborted. An exception inside the block aborts it too, and is raised again.
        `sampling` is that of `begin_episode`.
        """
        episode_id, credentials = await self.begin_episode(
            episode_type,
            discard_episode_timeout,
            task_id=task.task_id,
            data_source=task.data_source,
            lease_s=lease_s,
            wait_timeout=wait_timeout,
            **sampling,
        )
        episode = OpenEpisode(task, episode_id, credentials)
        try:
            yield episode
            if episode.output is not None:
                episode.receipt = await self.end_episode(task, episode_id, episode.output)
        except BaseException as error:
            try:
                await self.abort_episode(episode_id, abort_reason(error))
            except SwarmError as failure:
                log_failed_abort(episode_id, failure)
            raise
        if episode.output is None:
            await self.abort_episode(episode_id, "no_result")

    async def status(self) -> Status:
        return await self._run(calls.status(self._server))

    async def job(self) -> JobView:
        return await self._run(calls.job(self._server))

    async def change_job(
        self, settings: Mapping[str, Any], *, at_step: int | None = None, expected_revision: int | None = None
    ) -> JobView:
        """Change settings of the running job, from step `at_step` on.

        The default is the first step that can still take them. The last of the returned `changes` names the step. A
        change is durable on return, and is made once however often the call is repeated.

        Raises BadRequest for a setting that cannot change while a job runs. Raises RevisionConflict if another client
        has changed the job since `expected_revision`; without a revision, if one does so during this call.
        """
        return await self._run(calls.change_job(self._server, settings, at_step, expected_revision))

    async def task_counts(self) -> list[TaskCount]:
        """Return the tasks of the current job that have episodes on the server, trained or waiting.

        Each has the number of its groups in batches, and the number of its ended episodes that are in no batch yet. A
        restarted program continues with the other tasks.
        """
        return await self._run(calls.task_counts(self._server))

    async def usage(self, episode_type: EpisodeType | str = EpisodeType.TRAIN) -> JobUsage:
        """Return the calls and tokens that the ended episodes of this type have used in the current job."""
        return await self._run(calls.usage(self._server, episode_type))

    async def metrics(self, after_step: int = 0) -> list[MetricPointView]:
        """Return the metrics of every finished step after `after_step`, oldest first."""
        return await self._run(calls.metrics(self._server, after_step))

    async def evaluations(self, after_step: int = -1) -> list[EvaluationView]:
        """Return the evaluations of the current job, in the order of their steps.

        Those in state `done` are its curve of held-out scores. The others are due, running, abandoned or rewound.
        """
        return await self._run(calls.evaluations(self._server, after_step))

    async def claim_evaluation(self, *, lease_s: float = DEFAULT_LEASE_S, wait_s: float = 0.0) -> ClaimedEvaluation:
        """Claim the evaluation that is due, so that this client scores it.

        The call waits up to `wait_s` seconds (at most 60) for one. The claim lasts until `lease_s` seconds after its
        last renewal. Use `follow_evaluations`, which claims, renews and ends evaluations.
        """
        return await self._run(calls.claim_evaluation(self._server, self.client_id, lease_s, wait_s))

    async def renew_evaluation(self, step: int) -> EvaluationView:
        """Renew the claim on an evaluation. Raises Conflict if this client no longer has it."""
        return await self._run(calls.renew_evaluation(self._server, self.client_id, step))

    async def end_evaluation(
        self, step: int, episode_uuids: Sequence[str], *, failures: int = 0, reason: str | None = None
    ) -> EvaluationView:
        """End the evaluation of a step with its ended eval episodes, whose recorded rewards are the score.

        The score counts once, however often the call is repeated. Without episodes there is no score, and `reason`
        says why.

        Raises BadRequest for an episode that was sampled with other weights. Raises Conflict if the evaluation is over
        or no longer belongs to this client.
        """
        plan = calls.end_evaluation(self._server, self.client_id, step, episode_uuids, failures, reason)
        return await self._run(plan)

    async def record_evaluation(self, step: int, episode_uuids: Sequence[str], *, failures: int = 0) -> EvaluationView:
        """Record a score of the served weights, those of `step`, that was not due: the rewards of these eval episodes.

        The score counts once, however often the call is repeated. `failures` counts attempts without a score.

        Raises BadRequest for an episode that was sampled with other weights. Raises Conflict if other weights are
        served by now, or if these have an evaluation.
        """
        return await self._run(calls.record_evaluation(self._server, self.client_id, step, episode_uuids, failures))

    async def episode(self, episode_uuid: str) -> EpisodeDetail:
        """Return the full record of one episode, with its tokens. Raises NotFound."""
        return await self._run(episode_calls.episode(self._server, episode_uuid))

    async def episodes(self, *, limit: int = 1000, **filters: str | None) -> list[EpisodeView]:
        """Return episodes, newest first. Filters: state, episode_type, client_id, task_id, batch_id."""
        return await self._run(episode_calls.episodes(self._server, filters, limit))

    async def batch_policy(self) -> BatchPolicies:
        """Return the policy of the batch that is being filled, and that of the next batch if it differs."""
        return await self._run(calls.batch_policy(self._server))

    async def update_batch_policy(self, **settings: Any) -> BatchPolicies:
        """Change settings of schemas.UpdateBatchPolicyRequest from the next batch on.

        Raises BadRequest, which names the setting that is wrong.
        """
        return await self._run(calls.update_batch_policy(self._server, settings))

    async def set_mixture(self, mixture: Mapping[str, float]) -> BatchPolicies:
        """Set the share of each data source from the next batch on.

        The shares sum to 1. An empty mapping removes the mixture.
        """
        return await self.update_batch_policy(mixture=dict(mixture))

    async def agree_to_train(self) -> AgreeResponse:
        """Declare that this client has sent all its episodes for the current batch.

        The stop rules `any_client_agrees` and `all_clients_agree` use it. It is valid until that batch is closed.
        """
        return await self._run(calls.agree_to_train(self._server, self.client_id))

    async def launch(self, key: str, job: BaseModel | Mapping[str, Any]) -> LaunchView:
        """Start this TrainJob as a new run from the base weights, and return without waiting for it.

        A second call with the same key starts nothing, and returns the state of that run. Raises JobInvalid for a job
        that is not valid, and LaunchConflict while another run is active.
        """
        return await self._run(calls.launch(self._server, key, job))

    async def find_launch(self, key: str | None = None) -> LaunchView | None:
        """Return the state of the run that was launched with `key`, by default of the newest one.

        The result is None if this server never launched it.
        """
        return await self._run(calls.find_launch(self._server, key))

    async def take_lease(self, wanted: LeaseRequest) -> LeaseView:
        """Take or renew the lease that reserves the server for one study.

        Raises ServerLeased while another study has the lease.
        """
        return await self._run(calls.take_lease(self._server, wanted))

    async def release_lease(self) -> Acknowledged:
        """Release the lease on the server. Idempotent."""
        return await self._run(calls.release_lease(self._server))

    async def stop_engine(self) -> Acknowledged:
        """Abort the running episodes and unload the model; the server keeps the job. Idempotent."""
        return await self._run(calls.stop_engine(self._server))

    async def shut_down(self) -> Acknowledged:
        """Stop the engine, then the server process itself."""
        return await self._run(calls.shut_down(self._server))

    async def save_checkpoint(self, *, timeout: float = calls.SLOW_CALL_S) -> CheckpointResponse:
        """Write weights, optimizer and step to the server's disk.

        Raises IllegalTransition unless the engine is ROLLING.
        """
        return await self._run(calls.save_checkpoint(self._server, timeout))

    async def load_checkpoint(self, step: int, *, timeout: float = calls.SLOW_CALL_S) -> Acknowledged:
        """Return to the weights of an earlier `step`; running train episodes are aborted, later batches are rewound.

        Raises NotFound for a step that the run has not reached, IllegalTransition unless the engine is ROLLING, and
        CheckpointError if a checkpoint cannot be read or moved.
        """
        return await self._run(calls.load_checkpoint(self._server, step, timeout))

    async def wait_until_step(self, step: int, timeout: float) -> Status:
        """Wait until `step` steps are done.

        Raises EngineFailure or EngineNotReady if the engine fails or stops, TrainingComplete if the job ends earlier,
        and Unavailable after `timeout` seconds.
        """
        return await self._run(calls.wait_until_step(self._server, step, timeout))

    async def past_events(self, after_id: int = 0) -> list[EventView]:
        """Return every recorded event after `after_id`, oldest first."""
        return await self._run(calls.past_events(self._server, after_id))

    async def events(self, after_id: int = 0, *, patience: float = DEFAULT_WAIT_S) -> AsyncGenerator[EventView]:
        """Yield every event after `after_id`, then each new event as it happens, without end.

        No event is lost or repeated when the server restarts. Raises ServerUnreachable if the server does not answer
        for `patience` seconds.
        """
        feed = EventFeed(self._server, after_id, patience)
        while True:
            try:
                response = await self._http.send(feed.request(), stream=True)
                try:
                    if feed.opened(response):
                        async for line in response.aiter_lines():
                            if (event := feed.take(line)) is not None:
                                yield event
                        pause_s = feed.ended()
                    else:
                        await response.aread()
                        pause_s = feed.refused(response)
                finally:
                    await response.aclose()
            except httpx.TransportError as failure:
                pause_s = feed.lost(failure)
            await asyncio.sleep(pause_s)

    async def audit(self, after_id: int = 0) -> list[AuditView]:
        """Return every recorded control call after `after_id`, allowed or refused, oldest first.

        Needs a token with the role commander.
        """
        return await self._run(calls.audit(self._server, after_id))

    async def _beat(self, episode_ids: Sequence[str]) -> None:
        await self._run(episode_calls.heartbeat_all(self._server, self._leases, self.client_id, episode_ids))

    async def _run(self, plan: Plan[T]) -> T:
        try:
            step = next(plan)
            while True:
                step = plan.send(await self._carry_out(step))
        except StopIteration as finished:
            return finished.value

    async def _carry_out(self, step: httpx.Request | Pause) -> Outcome:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await self._http.send(step)
        except httpx.TransportError as error:
            return error
