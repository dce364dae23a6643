"""What flows through the service: frozen dataclasses, no behaviour beyond derived values.

Place in the flow: bottom of the package. The gateway makes a `Turn` of every model call, the tracker makes `Sample`s of
an episode's turns, the batch makes a `TrainBatch` of finished episodes, the trainer answers with a `StepReport` and the
engine serves the next `weight_version`. This module knows nothing of HTTP, storage, tensors or tokenizers.

Array suffixes: fields named `*_T` are aligned with one another, one entry per token of the same sequence.
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
"""The source of tasks whose client names none."""


class EpisodeType(StrEnum):
    """`train` episodes fill batches; `eval` episodes never train."""

    TRAIN = "train"
    EVAL = "eval"


class FinishReason(StrEnum):
    """Why the engine stopped sampling: a stop token or string, the token limit, or an abort."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class ForkReason(StrEnum):
    """Why a turn does not extend an earlier turn of its episode token by token."""

    NEW_CONVERSATION = "new_conversation"
    EDITED_HISTORY = "edited_history"
    TEMPLATE_REWRITE = "template_rewrite"
    TOOLS_CHANGED = "tools_changed"


@dataclass(frozen=True, slots=True)
class Task:
    """One problem to attempt. Episodes of the same `task_id` form the group whose rewards are compared.

    Without a `task_id` a task is named by its content (query, metadata, data source): equal tasks are one group, in
    every process. `dataclasses.replace` keeps the name; pass `task_id=""` for that of the new content. `data_source`
    names the kind of task, the unit of a mixture's quotas.
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
    """What an agent reports at the end of an episode: a finite scalar reward, and whether it solved the task.

    `turn_rewards` are extra rewards of single turns, one per recorded turn in order. The return of turn t is `reward`
    plus the turn rewards from t on. `rewards` are by name what a job of algorithm gdpo learns from, instead of
    `reward`. `replies` are the texts of the graded assistant messages, of which the server says how much the model
    wrote.
    """

    reward: float
    is_success: bool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    turn_rewards: tuple[float, ...] | None = None
    rewards: Mapping[str, float] | None = None
    replies: tuple[str, ...] | None = None


class GrammarKind(StrEnum):
    """What `Grammar.text` is: a JSON schema, a regular expression, or a grammar in llguidance's Lark.

    Without text, `JSON_OBJECT` is any object. A schema says what stands between the tokens of JSON in llguidance's
    options, as `"x-guidance": {"whitespace_flexible": false, "item_separator": ",", "key_separator": ":"}`; one that
    does not lets blanks come there.
    """

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language that the text of a completion must be a sentence of, its end token left aside."""

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one completion. `top_k` 0 means off; `seed` None means unseeded.

    `stop_token_ids` end the completion and are part of it; a `stop` string ends it when the decoded text contains it.
    Neither does so before `min_tokens`. With `ignore_eos` the model's own end tokens are tokens like any other.

    Logits are changed in this order: `grammar` forbids tokens; `logit_bias` adds to a token's logit; the logit of a
    token that prompt or completion holds is divided by `repetition_penalty` where positive, multiplied elsewhere;
    `frequency_penalty` is subtracted as often as the completion holds the token, `presence_penalty` once. Then come
    `temperature`, `min_p` (tokens less likely than this share of the likeliest are dropped), `top_k` and `top_p`.
    `top_logprobs` asks for so many of the likeliest tokens beside each sampled one.
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
"""Tokens with their natural log-probabilities, likeliest first."""


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """A piece of a completion, in sampling order. `finish_reason` is set on the last piece only.

    `logprobs_T` are natural logs under the actual sampling distribution: of the changed logits, after temperature,
    min-p, top-k and top-p. At temperature 0 they are those at temperature 1, nothing dropped. `top_logprobs_T` is None
    unless it was asked for; it is of the same distribution and leaves out tokens of probability 0.
    """

    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    weight_versions_T: tuple[int, ...]
    finish_reason: FinishReason | None = None
    top_logprobs_T: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of what the model says to the caller."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A piece of what the model says to itself, without the marks around it."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A whole tool call. `arguments` is the JSON text of an object, as the model wrote it."""

    call_id: str
    name: str
    arguments: str


ReplyPart = TextPart | ReasoningPart | ToolCallPart


class ToolMode(StrEnum):
    """Whether a reply may call tools: not at all, as the model likes, or at least once."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`names` are the tools that may be called, all if empty; they bind only where the mode is `REQUIRED`.

    Without `parallel` a reply holds one call at most.
    """

    mode: ToolMode = ToolMode.AUTO
    names: tuple[str, ...] = ()
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion of a model call, exactly as sampled. Produced by the gateway, kept by tracker and ledger.

    `parent` is the index of the earlier turn whose prompt and completion this prompt extends exactly; without one,
    `fork_reason` says why. `prompt_ids` holds the whole prompt.

    `call_id` is shared by the choices of one logical call, `choice` tells them apart; `request_sha256` identifies what
    was asked, and `attempt` is how often the client had asked before. `withheld` says why the turn is not trained
    although it was finished; None otherwise.
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


@dataclass(frozen=True, slots=True)
class ConstrainedTurn:
    """What a turn was sampled under. `stop_token_ids` could end it, besides the end tokens that the model itself names.

    Together with the turn's tokens this says which tokens could have stood in the place of each.
    """

    index: int
    grammar: Grammar
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sequence cut from an episode's token tree. All `*_T` fields have the length of `token_ids_T`.

    `loss_mask_T` is True on tokens that this sample trains; each sampled token of an episode is True in exactly one
    sample. Where it is False, `logprobs_T` is 0.0 and `weight_versions_T` and `turn_indices_T` are -1.
    `temperatures_T` is what a token's logits were divided by: 1.0 for greedy tokens, as for their logprobs, and for
    tokens that are not trained.

    A turn's tokens stand in one piece, all trained by the same sample. `constrained_turns` are those of the trained
    turns whose tokens were drawn under a grammar: their probabilities are among the tokens it allowed.
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
    """An ended train episode with its samples, ready for admission to a batch. Times are seconds since the epoch.

    One that `is_greedy` was sampled at temperature 0: it is what others are compared with, and is not trained itself.
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
    """The surviving episodes of one task in one batch. `greedy` is the one that algorithm remax compares them with; it
    belongs to the batch and is not trained."""

    task_id: str
    episodes: tuple[FinishedEpisode, ...]
    greedy: FinishedEpisode | None = None

    @property
    def members(self) -> tuple[FinishedEpisode, ...]:
        """All of them, the greedy one last."""
        return self.episodes if self.greedy is None else (*self.episodes, self.greedy)


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """A sealed batch: what one optimizer step (of one or more minibatches) learns from.

    `settings` is what it is trained with where that differs from the job as the run was given it.
    """

    batch_id: str
    step: int
    groups: tuple[Group, ...]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def episodes(self) -> tuple[FinishedEpisode, ...]:
        """Those that are trained."""
        return tuple(episode for group in self.groups for episode in group.episodes)

    @property
    def members(self) -> tuple[FinishedEpisode, ...]:
        """All that belong to the batch, group by group."""
        return tuple(episode for group in self.groups for episode in group.members)


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """A published set of weights. Version 0 is the base model; every finished step publishes the next."""

    version: int
    step: int
    published_at: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """What the trainer learned in one step. `advantages` maps episode id to the mean advantage of its tokens."""

    batch_id: str
    step: int
    weight_version: WeightVersion
    metrics: Mapping[str, float]
    advantages: Mapping[str, float]
