"""Model calls of episodes: find the prompt in the episode's tree, sample, record, and pass the reply on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from swarm.errors import BadRequest, Conflict, ContextLengthExceeded, UnknownParameter
from swarm.job import TrainJob
from swarm.ledger import Ledger
from swarm.rollout.deduplication import CallIdentity, Closed, Completion, LogicalCall, Opened, Piece
from swarm.rollout.episodes import Episodes, RunningEpisode
from swarm.rollout.fixed_sampling import RESHAPING, find_overruled, fix_sampling
from swarm.rollout.model_request import Conversation, ModelRequest, RawPrompt, SamplingDefaults
from swarm.rollout.usage import OpenCompletion, call_seed
from swarm.rollout.waiting_sampler import Crowded, Draft, WaitingSampler
from swarm.run.call_metrics import CallCounts, Oddity, TokenRate
from swarm.sampling_limits import NEUTRAL
from swarm.tracker.codec import Codec
from swarm.tracker.reply import ReplyStream
from swarm.tracker.tree import Prompt
from swarm.types import EpisodeType, FinishReason, ReplyPart, SamplingParams, TokenDelta, TokenLogprobs, ToolMode, Turn

logger = logging.getLogger(__name__)

MAX_COMPLETIONS = 128
"""The most completions of one call, prompts times choices."""

RAW_ROLE = "prompt"
"""The role of the one message that represents a prompt without a template."""


@dataclass(slots=True)
class Choice:
    """One completion in progress: its position in the tree, and the tokens sampled so far."""

    index: int
    asked: Conversation | RawPrompt
    params: SamplingParams
    prompt: Prompt
    use: OpenCompletion
    new_reply: Callable[[], ReplyStream]
    reply: ReplyStream = field(init=False)
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    weight_versions: list[int] = field(default_factory=list[int])
    top_logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.reply = self.new_reply()

    def restart(self) -> None:
        """Forget what was sampled."""
        self.reply = self.new_reply()
        for sampled in (self.token_ids, self.logprobs, self.weight_versions, self.top_logprobs):
            sampled.clear()
        self.finish_reason = None
        self.use.sampled = 0

    def parse(self) -> None:
        """Parse the reply from all tokens at once."""
        self.reply = self.new_reply()
        self.reply.push(self.token_ids)
        self.reply.finish()

    def take(self, delta: TokenDelta) -> None:
        self.token_ids.extend(delta.token_ids_T)
        self.use.sampled = len(self.token_ids)
        self.logprobs.extend(delta.logprobs_T)
        self.weight_versions.extend(delta.weight_versions_T)
        self.top_logprobs.extend(delta.top_logprobs_T or ())
        self.finish_reason = delta.finish_reason

    def turn(self, episode_id: str, call: LogicalCall, codec: Codec) -> Turn:
        conversation = self.asked if isinstance(self.asked, Conversation) else _standing_for(self.prompt, codec)
        return Turn(
            episode_id=episode_id,
            index=self.prompt.index,
            prompt_ids=self.prompt.prompt_ids,
            output_ids_T=tuple(self.token_ids),
            logprobs_T=tuple(self.logprobs),
            weight_versions_T=tuple(self.weight_versions),
            finish_reason=self.finish_reason or FinishReason.ABORT,
            params=self.params,
            messages=conversation.messages,
            reply=self.reply.message,
            tools=conversation.tools,
            parent=self.prompt.parent,
            fork_reason=self.prompt.fork_reason,
            started_at=call.created,
            ended_at=time.time(),
            call_id=call.call_id,
            choice=self.index,
            request_sha256=call.identity_on_record,
            attempt=call.attempt,
            withheld=None if self.reply.is_exact(self.token_ids) else Oddity.DECODE_MISMATCH.value,
            template_options=conversation.template_options,
        )


@dataclass(slots=True)
class ModelService:
    """The served model of one started job."""

    episodes: Episodes
    sampler: WaitingSampler
    rate: TokenRate
    codec: Codec
    ledger: Ledger
    counts: CallCounts = field(default_factory=CallCounts)
    _records: set[asyncio.Task[Sequence[Turn]]] = field(default_factory=set[asyncio.Task[Sequence[Turn]]])

    @property
    def model_name(self) -> str:
        return self.job.model

    @property
    def job(self) -> TrainJob:
        return self.episodes.job

    def tokens_per_second(self) -> float:
        return self.rate.per_second()

    @property
    def tokens_sampled(self) -> int:
        """Tokens sampled since this run started the engine."""
        return self.rate.total

    def defaults(self, episode: RunningEpisode) -> SamplingDefaults:
        """Return the sampling defaults for the fields that a request leaves out."""
        temperature = episode.row.temperature
        return SamplingDefaults(
            temperature=self.job.temperature if temperature is None else temperature,
            top_p=1.0,
            max_tokens=self.job.reply_tokens,
            stop_token_ids=self.codec.stop_token_ids,
        )

    def find_overruled(self, episode: RunningEpisode, request: ModelRequest) -> dict[str, str]:
        """Return the sampling settings of a call that have no effect, because the begin of its episode fixed them."""
        if not episode.row.fixed_sampling:
            return {}
        return find_overruled(request.params, self.defaults(episode).temperature)

    def call(
        self,
        episode: RunningEpisode,
        request: ModelRequest,
        identity: CallIdentity,
        *,
        is_streamed: bool,
        is_patient: bool = False,
    ) -> LogicalCall:
        """Return the call that this attempt belongs to: an earlier one, or a new one whose sampling begins.

        A patient call waits for its tokens without a limit. Raise BadRequest or UnknownParameter for what a train
        episode cannot do, or AttemptLimit.
        """
        call = episode.calls.claim(identity)
        if call is not None:
            self.counts.count(Oddity.REPLAYED if call.is_finished else Oddity.JOINED)
            episode.touch()
            return call
        number = episode.calls.next_number()
        choices = self._open(episode, request, number)
        call = LogicalCall(identity, time.time(), is_streamed=is_streamed, is_patient=is_patient, number=number)
        episode.calls.add(call)
        call.start(self._carry_out(episode, call, choices))
        return call

    def _open(self, episode: RunningEpisode, request: ModelRequest, number: int) -> list[Choice]:
        """Find the position of each completion in the episode's tree, and count the call as a sign of life."""
        count = len(request.prompts) * request.choices
        if count > MAX_COMPLETIONS:
            raise BadRequest(f"{count} completions were asked for: at most {MAX_COMPLETIONS} per call", param="n")
        if episode.row.is_greedy:
            request = replace(request, params=replace(request.params, temperature=0.0))
        if episode.episode_type is EpisodeType.TRAIN:
            _refuse_untrainable(request.params)
        overruled = self.find_overruled(episode, request)
        if episode.row.fixed_sampling:
            temperature = self.defaults(episode).temperature
            request = replace(request, params=fix_sampling(request.params, temperature))
        asked_tokens = request.params.max_tokens
        params = episode.meter.admit(request.params, count)
        if episode.row.sampling_seed is not None and params.seed is None:
            params = replace(params, seed=call_seed(episode.row.sampling_seed, number))
        request = replace(request, params=params)
        asked = [prompt for prompt in request.prompts for _ in range(request.choices)]
        choices = [self._choice(episode, request, index, prompt, asked_tokens) for index, prompt in enumerate(asked)]
        episode.meter.begin(choice.use for choice in choices)
        episode.meter.overrule(overruled.values(), count)
        episode.calls_in_flight += len(choices)
        episode.touch()
        return choices

    def _choice(
        self,
        episode: RunningEpisode,
        request: ModelRequest,
        index: int,
        asked: Conversation | RawPrompt,
        asked_tokens: int,
    ) -> Choice:
        params = request.params if index == 0 else _reseeded(request.params, index)
        if isinstance(asked, RawPrompt):
            prompt = episode.tree.locate_raw(asked.text, asked.token_ids, self.codec)
            new_reply = partial(self.codec.raw_reply_stream, turn_index=prompt.index, stop=params.stop)
            use = OpenCompletion(len(prompt.prompt_ids), params, asked_tokens)
            return Choice(index, asked, params, prompt, use, new_reply)
        self._refuse_unread(asked)
        self._refuse_endless(asked)
        is_forced = request.tool_choice.mode is ToolMode.REQUIRED
        if is_forced and params.grammar is not None:
            raise BadRequest(
                "an output format and a forced tool call exclude one another: send one of them", param="tool_choice"
            )
        prompt = episode.tree.locate(asked.messages, asked.tools, self.codec, asked.template_options)
        if is_forced:
            grammar = self.codec.forced_grammar(asked.tools, request.tool_choice, prompt.prompt_ids)
            params = replace(params, grammar=grammar)
        new_reply = partial(
            self.codec.reply_stream,
            asked.tools,
            choice=request.tool_choice,
            turn_index=prompt.index,
            stop=params.stop,
            prompt_ids=prompt.prompt_ids,
        )
        use = OpenCompletion(len(prompt.prompt_ids), params, asked_tokens)
        return Choice(index, asked, params, prompt, use, new_reply)

    def _refuse_endless(self, asked: Conversation) -> None:
        """Refuse a conversation that is too long before the template takes seconds to render it.

        While the engine boots, its limit is unknown and reads 0.
        """
        limit = self.episodes.info.context_length
        if limit and len(asked.messages) > limit:
            raise ContextLengthExceeded(
                f"the conversation has {len(asked.messages)} messages and the context holds {limit} tokens: shorten it"
            )

    def _refuse_unread(self, asked: Conversation) -> None:
        for name in asked.template_options:
            if not self.codec.reads_option(name):
                raise UnknownParameter(
                    f"{name} cannot be honoured: the chat template of {self.model_name} does not read it", param=name
                )

    async def _carry_out(
        self, episode: RunningEpisode, call: LogicalCall, choices: Sequence[Choice]
    ) -> tuple[Completion, ...]:
        try:
            await _all_of([self._sample(episode, call, choice) for choice in choices])
        except BaseException as error:
            episode.calls.drop(call)
            self._note_fault(episode, call, error)
            if call.is_abandoned:
                self.counts.count(Oddity.ORPHANED)
            for choice in choices:
                choice.finish_reason = None
            await self._record(episode, call, choices)
            raise
        # From here on the call finishes even without a reader: another attempt gets what this one sampled.
        call.is_sampled = True
        try:
            turns = await self._record(episode, call, choices)
        except BaseException as error:
            episode.calls.drop(call)
            self._note_fault(episode, call, error)
            raise
        completions = tuple(map(_completion, choices, turns))
        if call.is_streamed:
            for completion in completions:
                call.publish(Closed(completion))
        return completions

    def _note_fault(self, episode: RunningEpisode, call: LogicalCall, error: BaseException) -> None:
        """Count a call that failed although its request was sound.

        Its caller still waited, or gave up because the server is slow. Who has read a part of the reply may have given
        it up for what it says. A call that got no turn beside others does not count if an agent could have caused that.
        """
        if isinstance(error, Crowded):
            counts = self.episodes.asks_singly(episode.client_id)
        elif call.is_abandoned:
            counts = not call.has_left and self.episodes.is_kept_waiting(episode)
        else:
            counts = isinstance(error, Exception) and not isinstance(error, BadRequest | Conflict)
        episode.meter.system_failures += counts

    async def _sample(self, episode: RunningEpisode, call: LogicalCall, choice: Choice) -> None:
        def restart() -> None:
            call.forget(choice.index)
            choice.restart()

        draft = Draft(
            request_id=f"{call.call_id}-{choice.index}",
            asker=f"episode {episode.episode_id} of client {episode.row.client_id}",
            prompt_ids=choice.prompt.prompt_ids,
            params=choice.params,
            ended=lambda: episode.closed,
            has_left=lambda: call.has_left,
            is_patient=call.is_patient,
            restart=restart,
        )
        async with aclosing(self.sampler.sample(draft)) as deltas:
            async for delta in deltas:
                choice.take(delta)
                if call.is_streamed:
                    _publish(call, choice, delta)

    async def _record(self, episode: RunningEpisode, call: LogicalCall, choices: Sequence[Choice]) -> Sequence[Turn]:
        """Record the turns of a call, all or none.

        Turns without a finish reason are orphans: they are never trained, and recorded only if they hold tokens. Raise
        LedgerError.
        """
        kept = [choice for choice in choices if choice.finish_reason or choice.token_ids]
        turns = [self._turn(episode, call, choice) for choice in kept]
        uses = [choice.use for choice in choices], [choice.use for choice in kept]
        record = asyncio.create_task(self._write(episode, turns, *uses))
        self._records.add(record)
        record.add_done_callback(self._records.discard)
        # The write goes on even if the caller leaves meanwhile: the tree must hold exactly what the ledger holds.
        return await asyncio.shield(record)

    def _turn(self, episode: RunningEpisode, call: LogicalCall, choice: Choice) -> Turn:
        if not (call.is_streamed and choice.finish_reason):
            choice.parse()
        turn = choice.turn(episode.episode_id, call, self.codec)
        if turn.withheld is not None:
            self.counts.count(Oddity.DECODE_MISMATCH)
            logger.error("call %s: what was shown is not what was sampled; it is not trained", call.call_id)
        return turn

    async def _write(
        self,
        episode: RunningEpisode,
        turns: Sequence[Turn],
        over: Sequence[OpenCompletion],
        kept: Sequence[OpenCompletion],
    ) -> Sequence[Turn]:
        """Write the turns, and settle the use of all completions in `over`; those in `kept` have turns."""
        recorded: Sequence[OpenCompletion] = ()
        try:
            if turns and episode.closed is None:
                for each in kept:
                    each.handed_over = True
                await self.ledger.add_turns(turns)
                recorded = kept
                for turn in turns:
                    episode.tree.add(turn)
        finally:
            episode.meter.settle(over, recorded)
            episode.calls_in_flight -= len(over)
            episode.touch()
        return turns


async def _all_of(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines at once, and cancel the others if one fails."""
    if len(work) == 1:
        await work[0]
        return
    tasks = [asyncio.ensure_future(each) for each in work[1:]]
    try:
        await work[0]
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _completion(choice: Choice, turn: Turn) -> Completion:
    # An engine without a model has no other tokens to name.
    return Completion(choice.index, turn, tuple(choice.top_logprobs) or None)


def _publish(call: LogicalCall, choice: Choice, delta: TokenDelta) -> None:
    if len(choice.token_ids) == len(delta.token_ids_T):
        call.publish(Opened(choice.index, choice.prompt.index, choice.prompt.prompt_ids))
    parts: list[ReplyPart] = choice.reply.push(delta.token_ids_T)
    if delta.finish_reason is not None:
        parts += choice.reply.finish()
    call.publish(Piece(choice.index, tuple(parts), delta))


def _reseeded(params: SamplingParams, index: int) -> SamplingParams:
    """Return parameters with a seed of its own for each choice, since all choices of a call share one seed."""
    return params if params.seed is None else replace(params, seed=(params.seed + index) % 2**63)


def _standing_for(prompt: Prompt, codec: Codec) -> Conversation:
    return Conversation(({"role": RAW_ROLE, "content": codec.raw_text(prompt.prompt_ids)},))


def _refuse_untrainable(params: SamplingParams) -> None:
    """Refuse parameters that the loss cannot handle.

    The loss assumes tokens drawn from the tempered distribution, restricted by a grammar at most.
    """
    for name in RESHAPING:
        if getattr(params, name) != getattr(NEUTRAL, name):
            raise UnknownParameter(f"{name} is not supported in train episodes: use an eval episode", param=name)
