"""The data that flows through the service, as frozen dataclasses without behaviour.

Fields named `*_T` have one entry per token of the same sequence, so that they are aligned with one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from swarm.digest import digest_of

Message = Mapping[str, Any]
"""One chat message in the OpenAI shape: role, content, tool_calls, tool_call_id, name."""

ToolSpec = Mapping[str, Any]
"""One tool in the OpenAI shape: {"type": "function", "function": {name, description, parameters}}."""


DEFAULT_DATA_SOURCE = "default"
"""The data source of tasks that name none."""

KEEP_ALIVE_HEADER = "x-swarm-keep-alive"
"""The header in which a model call asks for a sign of life every so many seconds, and is waited on without a limit."""


class EpisodeType(StrEnum):
    """`train` episodes fill batches; `eval` episodes never train."""

    TRAIN = "train"
    EVAL = "eval"


class FinishReason(StrEnum):
    """The reason why sampling stopped: a stop token or string, the token limit, or an abort."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class ForkReason(StrEnum):
    """The reason why a turn does not extend an earlier turn of its episode token by token."""

    NEW_CONVERSATION = "new_conversation"
    EDITED_HISTORY = "edited_history"
    TEMPLATE_REWRITE = "template_rewrite"
    TOOLS_CHANGED = "tools_changed"


@dataclass(frozen=True, slots=True)
class Task:
    """A problem to attempt. Episodes with the same `task_id` form a group, whose rewards are compared.

    Without a `task_id`, the id is a digest of query, metadata and data source. So equal tasks form one group, in every
    process. `dataclasses.replace` keeps the id; pass `task_id=""` for an id of the new content. `data_source` names the
    kind of task, to which a mixture assigns a share of each batch.
    """

    main_query: str
    task_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    data_source: str = DEFAULT_DATA_SOURCE

    def __post_init__(self) -> None:
        if not self.task_id:
            content = (self.main_query, self.metadata, self.data_source)
            object.__setattr__(self, "task_id", f"task-{digest_of(content)}")


@dataclass(frozen=True, slots=True)
class WorkflowOutput:
    """The result of an episode: a finite reward, and whether the agent solved the task.

    `turn_rewards` are additional rewards, one per recorded turn in order. The return of turn t is `reward` plus the
    turn rewards from t on. `rewards` are named rewards; algorithm gdpo learns from them instead of from `reward`.
    `replies` are the texts of the graded assistant messages. The server reports how much of them the model wrote.
    """

    reward: float
    is_success: bool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    turn_rewards: tuple[float, ...] | None = None
    rewards: Mapping[str, float] | None = None
    replies: tuple[str, ...] | None = None


class GrammarKind(StrEnum):
    """The kind of a grammar: any JSON object, a JSON schema, a regular expression, or llguidance's variant of Lark.

    `JSON_OBJECT` needs no text. By default, whitespace is allowed between the tokens of JSON. A schema can restrict it
    with llguidance's option
    `"x-guidance": {"whitespace_flexible": false, "item_separator": ",", "key_separator": ":"}`.
    """

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the text of a completion must match. The end token is not part of the text."""

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The parameters for sampling one completion. `top_k` 0 means off; `seed` None means unseeded.

    A token of `stop_token_ids` ends the completion and is part of it. A `stop` string ends the completion when the
    decoded text contains it. Neither applies before `min_tokens`. With `ignore_eos`, the model's own end tokens do not
    end the completion.

    Logits are changed in this order:

    1. `grammar` forbids tokens.
    2. `logit_bias` is added to the logit of a token.
    3. `repetition_penalty` applies to tokens in prompt or completion. It divides a positive logit, and multiplies any
       other.
    4. `frequency_penalty` is subtracted once per occurrence of the token in the completion.
    5. `presence_penalty` is subtracted once if the token occurs in the completion.
    6. `temperature` divides the logits.
    7. `min_p` drops tokens whose probability is below this share of the highest one. Then `top_k` and `top_p` apply.

    `top_logprobs` is the number of most likely tokens to report for each sampled token.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    grammar: Grammar | None = None
    top_logprobs: int = 0


TokenLogprobs = tuple[tuple[int, float], ...]
"""Token ids with their natural log-probabilities, the most likely first."""


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """A piece of a completion, in sampling order. `finish_reason` is set on the last piece only.

    `logprobs_T` are natural log-probabilities under the actual sampling distribution. This is the distribution after
    all changes of the logits, temperature, min-p, top-k and top-p. At temperature 0 they are the values at temperature
    1, before any token is dropped. `top_logprobs_T` is from the same distribution, without tokens of probability 0. It
    is None unless it was requested.
    """

    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    weight_versions_T: tuple[int, ...]
    finish_reason: FinishReason | None = None
    top_logprobs_T: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the text of a reply."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A piece of the model's reasoning before its reply, without the marks that enclose the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A complete tool call. `arguments` is a JSON object as text, exactly as the model wrote it."""

    call_id: str
    name: str
    arguments: str


ReplyPart = TextPart | ReasoningPart | ToolCallPart


class ToolMode(StrEnum):
    """True if a reply may call tools: never, if the model decides so, or at least once."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that a reply may call.

    `names` lists the allowed tools, and an empty tuple allows all. The list applies only in mode `REQUIRED`. Without
    `parallel`, a reply has at most one call.
    """

    mode: ToolMode = ToolMode.AUTO
    names: tuple[str, ...] = ()
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion of a model call, exactly as sampled. The tracker and the ledger record it.

    `prompt_ids` is the whole prompt. `parent` is the index of an earlier turn: the prompt begins with exactly its
    prompt and completion. Without such a turn, `parent` is None and `fork_reason` gives the reason.

    The choices of one call share a `call_id` and differ in `choice`. `request_sha256` identifies the content of the
    request. `attempt` counts earlier requests for the same call. `withheld` is the reason why a finished turn is not
    trained, or None. `template_options` went to the chat template.
    """

    episode_id: str
    index: int
    prompt_ids: tuple[int, ...]
    output_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    weight_versions_T: tuple[int, ...]
    finish_reason: FinishReason
    params: SamplingParams
    messages: tuple[Message, ...]
    reply: Message
    tools: tuple[ToolSpec, ...]
    parent: int | None
    fork_reason: ForkReason | None
    started_at: float
    ended_at: float
    call_id: str = ""
    choice: int = 0
    request_sha256: str = ""
    attempt: int = 0
    withheld: str | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ConstrainedTurn:
    """The constraints under which a turn was sampled.

    `stop_token_ids` could end the turn, in addition to the model's own end tokens. From the constraints and the turn's
    tokens follows the set of allowed tokens at each position.
    """

    index: int
    grammar: Grammar
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sequence from an episode's token tree. All `*_T` fields have the length of `token_ids_T`.

    `loss_mask_T` is True for the tokens that this sample trains. Each sampled token of an episode is True in exactly
    one sample. Where the mask is False, `logprobs_T` is 0.0, and `weight_versions_T` and `turn_indices_T` are -1.
    `temperatures_T` is the temperature of each token. It is 1.0 for greedy tokens, as in their logprobs, and for tokens
    that are not trained.

    The tokens of a turn are contiguous, and one sample trains all of them. `constrained_turns` lists the trained turns
    that were sampled under a grammar. Their logprobs are normalised over the tokens that the grammar allowed.
    """

    episode_id: str
    token_ids_T: tuple[int, ...]
    loss_mask_T: tuple[bool, ...]
    logprobs_T: tuple[float, ...]
    weight_versions_T: tuple[int, ...]
    turn_indices_T: tuple[int, ...]
    temperatures_T: tuple[float, ...]
    constrained_turns: tuple[ConstrainedTurn, ...] = ()

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask_T)


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A finished train episode with its samples, ready for a batch. `ended_at` is in seconds since the epoch.

    A greedy episode (`is_greedy`) was sampled at temperature 0. It is the baseline of its group and is not trained.
    """

    episode_id: str
    task_id: str
    client_id: str
    reward: float
    is_success: bool | None
    samples: tuple[Sample, ...]
    ended_at: float
    data_source: str = DEFAULT_DATA_SOURCE
    turn_rewards: tuple[float, ...] | None = None
    rewards: Mapping[str, float] | None = None
    is_greedy: bool = False

    @property
    def trained_tokens(self) -> int:
        return sum(sample.trained_tokens for sample in self.samples)


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task in one batch, without the failed ones.

    `greedy` is the baseline episode of the others, if the algorithm asks for one. It belongs to the batch but is not
    trained.
    """

    task_id: str
    episodes: tuple[FinishedEpisode, ...]
    greedy: FinishedEpisode | None = None

    @property
    def members(self) -> tuple[FinishedEpisode, ...]:
        """All episodes of the group, with the greedy one last."""
        return self.episodes if self.greedy is None else (*self.episodes, self.greedy)


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """A complete batch, from which one training step of one or more minibatches learns.

    `settings` are the settings of this step that differ from the job as the run was given it. `demonstrations` are
    trained beside the groups, or alone. The loss of `held_out` ones is measured after the step.
    """

    batch_id: str
    step: int
    groups: tuple[Group, ...]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    demonstrations: tuple[FinishedEpisode, ...] = ()
    held_out: tuple[FinishedEpisode, ...] = ()

    @property
    def episodes(self) -> tuple[FinishedEpisode, ...]:
        """The trained episodes, group by group."""
        return tuple(episode for group in self.groups for episode in group.episodes)

    @property
    def members(self) -> tuple[FinishedEpisode, ...]:
        """All episodes of the batch, including the greedy ones, group by group."""
        return tuple(episode for group in self.groups for episode in group.members)


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """A published set of weights. Version 0 is the base model, and each finished step publishes the next version."""

    version: int
    step: int
    published_at: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """The result of one training step. `advantages` maps each episode id to the mean advantage of its tokens."""

    batch_id: str
    step: int
    weight_version: WeightVersion
    metrics: Mapping[str, float]
    advantages: Mapping[str, float]
