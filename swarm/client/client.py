# Made of async_client.py by scripts/generate_sync_client.py: change that and run it.
"""A swarm server as an object: SwarmClient for threads, AsyncSwarmClient for the tasks of one asyncio loop.

Place in the flow: what a rollout program holds. It only carries out the plans of plans/. client.py is made of
async_client.py by scripts/generate_sync_client.py, so that the two cannot differ. Neither knows how a model is served
or trained.

Every method raises the domain error that the server names (swarm.errors), or ServerUnreachable. `timeout` bounds one
call with its retries; methods that wait for something take a limit of their own.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Self, TypeVar, Unpack

import httpx
from pydantic import BaseModel

from swarm.client.coalescing import ThreadCoalescer
from swarm.client.connections import ConnectionStack
from swarm.client.episode import (
    DEFAULT_END_WAIT_S,
    DEFAULT_TIMEOUT_S,
    DEFAULT_WAIT_S,
    AttemptNotes,
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
from swarm.client.heartbeat import DEFAULT_LEASE_S, HeartbeatThread, Leases
from swarm.client.plans import calls, episode_calls, transaction_calls
from swarm.client.plans.exchange import Joinable, Outcome, Pause, Plan
from swarm.errors import SwarmError
from swarm.schemas import (
    Acknowledged,
    AgreeResponse,
    AnswerOfMany,
    AuditView,
    BatchPolicies,
    CheckpointResponse,
    ClaimedEvaluation,
    EndEpisodeResponse,
    EpisodeDetail,
    EpisodeView,
    EvaluationView,
    EventView,
    HeldTask,
    JobUsage,
    JobView,
    LaunchView,
    LeaseRequest,
    LeaseView,
    MetricPointView,
    Status,
)
from swarm.types import EpisodeType, Task, WorkflowOutput

T = TypeVar("T")


class SwarmClient:
    """A swarm server, for any number of threads. Close it, or use it as a context manager.

    While it holds episodes, a daemon thread tells the server that it lives.
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
        """`client_id` names this program in the server's status (default: host and process). `lease` is the fence of
        the lease that commands are given under: once it is over they raise LeaseLost. Raises BadRequest for a malformed
        url."""
        self._server = describe(url, token, timeout, lease)
        self.client_id = client_id or default_client_id()
        self._http = httpx.Client(transport=transport or ConnectionStack())
        self._coalescer = ThreadCoalescer(self._http, self._abort_unclaimed)
        self._leases = Leases()
        self._heartbeat = HeartbeatThread(self._leases, self._beat)
        self._notes = AttemptNotes()

    @property
    def url(self) -> str:
        return self._server.url

    def close(self) -> None:
        """Ends the heartbeat as well: the server gives up what is still running once its lease is over."""
        self._heartbeat.close()
        self._coalescer.close()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def auto_sync_train_config_and_start_engine(
        self,
        job: BaseModel | Mapping[str, Any],
        force_restart: bool = False,
        *,
        resume: Literal["run", "weights"] = "run",
        boot_timeout: float = 300.0,
    ) -> Status:
        """Give the server this TrainJob and wait until it serves. Joins a server that runs the same job already.

        `force_restart` stops whatever runs and starts the job anew, from the base weights; otherwise a stopped job
        goes on from its newest checkpoint. With `resume="weights"` a job that was changed takes the place of the one
        that runs, as a new run from the weights it has: steps count from 0, and the optimizer begins anew.

        A token that may only roll out waits for the job to be served; if another one is set it raises Forbidden. Raises
        JobInvalid, IllegalTransition while another job runs, EngineFailure if the engine does not boot, Unavailable
        after `boot_timeout` seconds.
        """
        return self._run(calls.sync_and_start(self._server, job, force_restart, boot_timeout, resume))

    def begin_episode(
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
        """Begin an episode; returns its id and the credentials to give to the agent.

        Name its task, so that the server lets in what the groups of a batch need and no more. Inside
        run_episodes_until_all_complete it is that of the Task at hand.

        The server gives the episode up after `discard_episode_timeout` seconds without a model call or heartbeat of
        its own; and `lease_s` seconds after this client's death, for until then it sends heartbeats by itself (None:
        neither). While the server cannot take an episode (weights are changing, a batch has all its groups, the engine
        boots or is off, the server is away) this waits up to `wait_timeout` seconds, then
        raises RolloutPaused, EngineNotReady or ServerUnreachable. Raises TrainingComplete after the last step.

        `sampling` may hold `sampling_seed`, `temperature`, `max_calls` and `max_tokens`: EpisodeSampling says how they
        bear on the calls of the episode.
        """
        task_id, data_source = name_task(task_id, data_source)
        episode_id, credentials = self._run(
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

    def end_episode(
        self,
        task: Task,
        episode_uuid: str,
        workflow_output: WorkflowOutput,
        *,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> EndEpisodeResponse:
        """Report the result, exactly once however often it is called. On return it survives a crash of the server.

        A server that is away is waited for up to `wait_timeout` seconds, at least `timeout`. Raises EpisodeEnded if the
        episode was given up before, IdempotencyMismatch if it was ended with another result, BadRequest for a reward
        that is not a finite number.
        """
        receipt = self._run(
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

    def prepare_episode(
        self,
        task: Task,
        episode_uuid: str,
        workflow_output: WorkflowOutput,
        *,
        transaction_id: str,
        coordinator: str | None,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> EndEpisodeResponse:
        """First phase of an end that counts on several servers or on none: see SwarmTeam, which does all of it.

        `coordinator` is the address of the server whose commit decides, None on that server itself. Until it is
        committed the episode keeps its lease. Raises as end_episode, and Conflict for another transaction.
        """
        return self._run(
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

    def commit_episode(
        self, episode_uuid: str, transaction_id: str, *, wait_timeout: float = DEFAULT_END_WAIT_S
    ) -> EndEpisodeResponse:
        """Second phase: the prepared episode counts. Raises EpisodeEnded if the server had given it up."""
        plan = transaction_calls.commit_episode(self._server, self._leases, episode_uuid, transaction_id, wait_timeout)
        receipt = self._run(plan)
        self._notes.ended(self._leases)
        return receipt

    def release_episode(self, episode_uuid: str) -> None:
        """Send no more heartbeats for an episode: its server gives it up, or finds out by itself how it ended."""
        self._leases.release(episode_uuid)

    def abort_episode(self, episode_uuid: str, reason: str = "client_abort", *, final: bool = False) -> EpisodeView:
        """Give an episode up: a system error, never a reward. The server counts it under `reason`.

        With `final` no other attempt follows, and the group of its task does not wait for one.
        """
        return self._run(episode_calls.abort_episode(self._server, self._leases, episode_uuid, reason, final))

    def revise_reward(
        self,
        episode_uuid: str,
        reward: float,
        *,
        reason: str,
        is_success: bool | None = None,
        turn_rewards: Sequence[float] | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> EpisodeView:
        """Replace the reward of an ended episode until its batch is sealed, then raises EpisodeEnded. The former reward
        and the `reason` stay on record; what is left out stays as reported."""
        plan = episode_calls.revise_reward(
            self._server,
            episode_uuid,
            reward=reward,
            reason=reason,
            is_success=is_success,
            turn_rewards=turn_rewards,
            rewards=rewards,
        )
        return self._run(plan)

    def heartbeat(self, episode_uuid: str) -> EpisodeView:
        """Keep an episode alive while its agent works without calling the model: this restarts its idle timeout, which
        the heartbeats that the client sends by itself do not. Raises EpisodeEnded."""
        return self._run(episode_calls.heartbeat(self._server, self._leases, episode_uuid))

    @contextmanager
    def open_episode(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
        **sampling: Unpack[EpisodeSampling],
    ) -> Generator[OpenEpisode]:
        """Begin an episode for the length of a block; end it with the `output` set inside, or abort it.

        An exception inside the block aborts the episode and is raised again. `sampling` is as in `begin_episode`.
        """
        episode_id, credentials = self.begin_episode(
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
                episode.receipt = self.end_episode(task, episode_id, episode.output)
        except BaseException as error:
            try:
                self.abort_episode(episode_id, abort_reason(error))
            except SwarmError as failure:
                log_failed_abort(episode_id, failure)
            raise
        if episode.output is None:
            self.abort_episode(episode_id, "no_result")

    def status(self) -> Status:
        return self._run(calls.status(self._server))

    def job(self) -> JobView:
        return self._run(calls.job(self._server))

    def change_job(
        self, settings: Mapping[str, Any], *, at_step: int | None = None, expected_revision: int | None = None
    ) -> JobView:
        """Other settings of the job that runs, from step `at_step` on; by default from the first step that can have
        them, which the last of the `changes` returned names. Durable, and made once however often it is sent.

        Raises BadRequest by name for what cannot change while a job runs; RevisionConflict if somebody else has changed
        the job, since `expected_revision` or, without one, during this call.
        """
        return self._run(calls.change_job(self._server, settings, at_step, expected_revision))

    def held_tasks(self) -> list[HeldTask]:
        """The tasks of the present job of which something is trained or waits to be: how many groups, and how many
        episodes beside them. A program that was started again goes on with the others."""
        return self._run(calls.held_tasks(self._server))

    def usage(self, episode_type: EpisodeType | str = EpisodeType.TRAIN) -> JobUsage:
        """What the episodes of this kind of the present job have spent in all, by the server's own count."""
        return self._run(calls.usage(self._server, episode_type))

    def metrics(self, after_step: int = 0) -> list[MetricPointView]:
        """The metrics of every finished step beyond `after_step`, oldest first."""
        return self._run(calls.metrics(self._server, after_step))

    def evaluations(self, after_step: int = -1) -> list[EvaluationView]:
        """The held-out scores of the present job, by step: those that are done are its curve. Also those that are due,
        and those that were abandoned or rewound."""
        return self._run(calls.evaluations(self._server, after_step))

    def claim_evaluation(self, *, lease_s: float = DEFAULT_LEASE_S, wait_s: float = 0.0) -> ClaimedEvaluation:
        """The evaluation that is due, for this client to score, held up to `wait_s` seconds (60 at most) until there is
        one. It is this client's until `lease_s` seconds after its last renewal. See `follow_evaluations`, which does
        all of it."""
        return self._run(calls.claim_evaluation(self._server, self.client_id, lease_s, wait_s))

    def renew_evaluation(self, step: int) -> EvaluationView:
        """Keep a claimed evaluation. Raises Conflict if this client does not hold it any more."""
        return self._run(calls.renew_evaluation(self._server, self.client_id, step))

    def end_evaluation(
        self, step: int, episode_uuids: Sequence[str], *, failures: int = 0, reason: str | None = None
    ) -> EvaluationView:
        """Score the weights of a step by these ended eval episodes, whose rewards the server has on record; once,
        however often it is called. Without episodes there is no score, for the `reason`.

        Raises BadRequest for an episode that other weights sampled, Conflict if the evaluation is over or not this
        client's any more.
        """
        plan = calls.end_evaluation(self._server, self.client_id, step, episode_uuids, failures, reason)
        return self._run(plan)

    def episode(self, episode_uuid: str) -> EpisodeDetail:
        """Everything recorded of one episode, token by token. Raises NotFound."""
        return self._run(episode_calls.episode(self._server, episode_uuid))

    def episodes(self, *, limit: int = 1000, **filters: str | None) -> list[EpisodeView]:
        """The newest episodes first. Filters: state, episode_type, client_id, task_id, batch_id."""
        return self._run(episode_calls.episodes(self._server, filters, limit))

    def batch_policy(self) -> BatchPolicies:
        """When a batch is complete and what it may hold: the one being filled, and the next one if it differs."""
        return self._run(calls.batch_policy(self._server))

    def update_batch_policy(self, **settings: Any) -> BatchPolicies:
        """Change settings of schemas.UpdateBatchPolicyRequest from the next batch on. Raises BadRequest by name."""
        return self._run(calls.update_batch_policy(self._server, settings))

    def set_mixture(self, mixture: Mapping[str, float]) -> BatchPolicies:
        """Shares of the data sources, from the next batch on; they sum to 1. An empty mapping ends the mixture."""
        return self.update_batch_policy(mixture=dict(mixture))

    def agree_to_train(self) -> AgreeResponse:
        """Say that this client has sent what it has for the present batch (stop rules `any_client_agrees` and
        `all_clients_agree`). Holds until that batch is sealed."""
        return self._run(calls.agree_to_train(self._server, self.client_id))

    def launch(self, key: str, job: BaseModel | Mapping[str, Any]) -> LaunchView:
        """Start this TrainJob as a new run, from the base weights, once: the same key again starts nothing and tells
        what became of the run. Returns at once. Raises JobInvalid, LaunchConflict while something else runs."""
        return self._run(calls.launch(self._server, key, job))

    def find_launch(self, key: str | None = None) -> LaunchView | None:
        """What became of the run that was launched under `key`, or of the newest one; None if this server never
        launched it."""
        return self._run(calls.find_launch(self._server, key))

    def take_lease(self, wanted: LeaseRequest) -> LeaseView:
        """The sole use of the server by one study, or its renewal. Raises ServerLeased while another study has it."""
        return self._run(calls.take_lease(self._server, wanted))

    def release_lease(self) -> Acknowledged:
        """Give the server back. Idempotent."""
        return self._run(calls.release_lease(self._server))

    def stop_engine(self) -> Acknowledged:
        """Abort what runs and free the model; the job stays known. Idempotent."""
        return self._run(calls.stop_engine(self._server))

    def shut_down(self) -> Acknowledged:
        """Stop the engine, then the server process itself."""
        return self._run(calls.shut_down(self._server))

    def save_checkpoint(self, *, timeout: float = calls.SLOW_CALL_S) -> CheckpointResponse:
        """Write weights, optimizer and step to the server's disk. Raises IllegalTransition unless it is ROLLING."""
        return self._run(calls.save_checkpoint(self._server, timeout))

    def load_checkpoint(self, step: int, *, timeout: float = calls.SLOW_CALL_S) -> Acknowledged:
        """Go back (or on) to the checkpoint of `step`; later batches count as rewound. Raises CheckpointError."""
        return self._run(calls.load_checkpoint(self._server, step, timeout))

    def wait_until_step(self, step: int, timeout: float) -> Status:
        """Wait until `step` steps are done. Raises EngineFailure, EngineNotReady, or Unavailable after `timeout` s."""
        return self._run(calls.wait_until_step(self._server, step, timeout))

    def past_events(self, after_id: int = 0) -> list[EventView]:
        """Every event on record beyond `after_id`, oldest first."""
        return self._run(calls.past_events(self._server, after_id))

    def events(self, after_id: int = 0, *, patience: float = DEFAULT_WAIT_S) -> Generator[EventView]:
        """Every event beyond `after_id`, then each as it happens, without end; none is lost or repeated when the server
        is started anew. Raises ServerUnreachable once it was away for `patience` seconds."""
        feed = EventFeed(self._server, after_id, patience)
        while True:
            try:
                response = self._http.send(feed.request(), stream=True)
                try:
                    if feed.opened(response):
                        for line in response.iter_lines():
                            if (event := feed.take(line)) is not None:
                                yield event
                        pause_s = feed.ended()
                    else:
                        response.read()
                        pause_s = feed.refused(response)
                finally:
                    response.close()
            except httpx.TransportError as failure:
                pause_s = feed.lost(failure)
            time.sleep(pause_s)

    def audit(self, after_id: int = 0) -> list[AuditView]:
        """Every control call on record beyond `after_id`, allowed or refused, oldest first. For commanders."""
        return self._run(calls.audit(self._server, after_id))

    def _beat(self, episode_ids: Sequence[str]) -> None:
        self._run(episode_calls.heartbeat_all(self._server, self._leases, self.client_id, episode_ids))

    def _abort_unclaimed(self, step: Joinable, line: AnswerOfMany) -> None:
        # A server that is not told gives it up when its lease is over.
        with suppress(SwarmError):
            self._run(episode_calls.abort_unclaimed(self._server, self._leases, step, line))

    def _run(self, plan: Plan[T]) -> T:
        try:
            step = next(plan)
            while True:
                step = plan.send(self._carry_out(step))
        except StopIteration as finished:
            return finished.value

    def _carry_out(self, step: httpx.Request | Joinable | Pause) -> Outcome:
        if isinstance(step, Joinable):
            return self._coalescer.carry_out(step)
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self._http.send(step)
        except httpx.TransportError as error:
            return error
