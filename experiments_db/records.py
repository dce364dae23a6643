"""The records that the store returns: frozen, one per table.

All times are seconds since the Unix epoch (UTC) as float. Fields typed `Mapping` hold plain JSON values. NaN and
infinity are not JSON and are refused there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from experiments_db.kinds import (
    IN_MEDIAN_PAIR,
    TOOL,
    Author,
    BudgetKind,
    EpisodeOrder,
    ExperimentStatus,
    FindingKind,
    NoteKind,
    Operator,
    Outcome,
    QuestionStatus,
    RunStatus,
    Severity,
    StudyStatus,
    Verdict,
)

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Study:
    """One topic under research. `settings` is how it was started; `status_reason` says why it is in its status."""

    id: str
    topic: str
    planner: str
    status: StudyStatus
    status_reason: str | None
    settings: JsonObject
    created_at: float
    updated_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class StoredCharter:
    """The rules that a study has bound itself to before its first run. `content_hash` is `hash_json(document)`.

    `test_opened_at` and `test_opened_for` are set once, when the test split is first scored.
    """

    study_id: str
    document: JsonObject
    content_hash: str
    created_at: float
    test_opened_at: float | None
    test_opened_for: str | None


@dataclass(frozen=True, slots=True)
class StoredHypothesis:
    """A claim to be tested. `key` is the author's name for it, unique in the study; no `verdict` means it is open."""

    id: str
    study_id: str
    key: str
    iteration: int
    parent_id: str | None
    statement: str
    rationale: str
    verdict: Outcome | None
    verdict_reason: str | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Experiment:
    """One arm. `factors` are the values under study, `job` the whole training job, `program_code` the program that ran.

    `author` wrote that program; None where there is none yet, and then nobody vouches for it.
    `name` is unique in the study. `parent_id` is the arm this one was derived from, by `operator`; the operator is None
    for the baseline. `second_parent_id` is the other parent of a combination. `purpose` says what the arm is for.
    `manipulation` is what must be true of its transcripts if it is what it claims to be; None if nothing is checked.
    `note` says what changed, or why the arm is invalid.
    """

    id: str
    study_id: str
    hypothesis_id: str | None
    parent_id: str | None
    second_parent_id: str | None
    operator: Operator | None
    name: str
    iteration: int
    is_baseline: bool
    factors: JsonObject
    job: JsonObject
    program_code: str
    train_environment: str | None
    author: Author | None
    status: ExperimentStatus
    purpose: str
    manipulation: JsonObject | None
    note: str | None
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One arm trained with one seed, in short. A failed run is tried again as a new run with the next `attempt`.

    `rung` is the step at which the training of an exploring run ends. It is 0 for a run that verdicts rest on, which
    trains to the end of its job. `exit_reason` is one line.
    """

    id: str
    study_id: str
    experiment_id: str
    seed: int
    rung: int
    attempt: int
    status: RunStatus
    server_url: str | None
    exit_reason: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None

    @property
    def duration_s(self) -> float | None:
        """Seconds from start to end, 0 if the clock was put back meanwhile; None while either is missing."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0.0, self.finished_at - self.started_at)


@dataclass(frozen=True, slots=True)
class Run(RunSummary):
    """A `RunSummary` with all that is on record of the run.

    `job` is the job as the server resolved it; `external_ids` names the run on other systems; `environment` holds
    software versions. Weight versions are those served before the first and after the last training step.
    `diagnosis` is what the monitor found. `training_cost` is what its training episodes have spent on the model, from
    the ledger of its server.
    """

    idempotency_key: str
    external_ids: JsonObject
    job: JsonObject
    environment: JsonObject
    base_weight_version: int | None
    final_weight_version: int | None
    pid: int | None
    log_path: str | None
    diagnosis: JsonObject | None
    training_cost: JsonObject | None
    updated_at: float


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of one curve. `value` is None where the measured value was NaN or infinite."""

    run_id: str
    name: str
    step: int
    value: float | None
    recorded_at: float


@dataclass(frozen=True, slots=True)
class MetricSpan:
    """A stretch of one curve, from `first_step` to `last_step`.

    It has the mean, the lowest and the highest of its finite values, or None if there are none. `missing` counts the
    values that were not finite. `recorded_at` is the time at which its last point was recorded.
    """

    run_id: str
    name: str
    first_step: int
    last_step: int
    mean: float | None
    low: float | None
    high: float | None
    missing: int
    recorded_at: float


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """A score that the evaluator measured on one split, without its single episodes.

    There is one per run, `phase` and `split`. `phase` is "base" before training, "final" after it, or a name of the
    caller's. `mean` is the mean of `metric` over `episodes` episodes and `stderr` its standard error.
    """

    id: int
    run_id: str
    phase: str
    split: str
    metric: str
    weight_version: int
    episodes: int
    successes: int
    mean: float
    stderr: float
    evaluator_hash: str
    created_at: float


@dataclass(frozen=True, slots=True)
class DetailedEvaluation(EvaluationSummary):
    """An `EvaluationSummary` with its `details`, such as the reward of each episode."""

    details: JsonObject


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """An episode without its text and tokens, for lists. `kind` is "train" or "eval"."""

    run_id: str
    episode_id: str
    kind: str
    split: str
    step: int
    task_id: str
    reward: float | None
    is_success: bool | None
    advantage: float | None
    weight_version: int | None
    created_at: float


@dataclass(frozen=True, slots=True)
class EpisodeSample:
    """An episode with its conversation and its training samples, token by token.

    `messages` is the conversation in the OpenAI shape. Each entry of `samples` is a JSON object of aligned columns
    (token ids, text, mask, logprob, weight version, ...), as the swarm server reports them.
    """

    summary: EpisodeSummary
    messages: tuple[JsonObject, ...]
    samples: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """The conditions of a search. None, or an empty text, is no condition. Both ends of a range belong to it.

    `text` is a part of the conversation as it is stored. That is JSON, so it also finds names of roles and tools. For
    ASCII letters, case does not matter.
    """

    kind: str | None = None
    reward_from: float | None = None
    reward_to: float | None = None
    step_from: int | None = None
    step_to: int | None = None
    text: str = ""
    order: EpisodeOrder = EpisodeOrder.NEWEST


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement that a study has on record, of one `kind`; most compare an arm with the baseline.

    A comparison is of `experiment_id` against `baseline_id`, on `metric` of `split`. `effect` is the difference of the
    means (experiment minus baseline) and `ci_low`..`ci_high` its interval at `confidence`. `p_adjusted` is corrected
    over the comparisons of its plan and for the plan's share of alpha. `run_ids` are the runs behind the numbers. Where
    there was nothing to estimate (no finished run of one of them), the numbers are None.

    `recipe` is what another study needs to ask the same again: digests of environment, program and metric, the model,
    and the factors of both arms. A finding is retracted at `retracted_at` for the reason in `retraction`.
    `retracted_by` is the later finding that contradicts it.

    Other kinds say in `summary` what they say, and have the numbers that they can have. Their verdict decides nothing.
    `experiment_id` is None for those that are about no single arm.

    `key` is unique in the study. `environment_name`, `environment_digest`, `model` and `scope` say what the study was
    about; `scope` has the parts in which its arms could differ. `question` is the digest of what was compared, equal
    for findings on the same question, and empty for other kinds.
    """

    id: str
    study_id: str
    hypothesis_id: str | None
    iteration: int
    experiment_id: str | None
    baseline_id: str | None
    metric: str
    split: str
    effect: float | None
    ci_low: float | None
    ci_high: float | None
    confidence: float
    p_value: float | None
    p_adjusted: float | None
    verdict: Verdict
    method: str
    run_ids: tuple[str, ...]
    summary: str
    details: JsonObject
    recipe: JsonObject
    created_at: float
    retracted_at: float | None = None
    retraction: str | None = None
    retracted_by: str | None = None
    kind: FindingKind = FindingKind.COMPARISON
    key: str = ""
    environment_name: str = ""
    environment_digest: str = ""
    model: str = ""
    scope: str = ""
    question: str = ""

    @property
    def about(self) -> str:
        """The subject of the verdict in words: means, or the median pair of runs."""
        return str(self.details.get("about", IN_MEDIAN_PAIR))


@dataclass(frozen=True, slots=True)
class NotebookEntry:
    """An entry of a study's notebook, which is only ever appended to.

    `key` is unique in the study, so that a repeat adds nothing. `author` is a planner, a reviewer, or `study` for what
    code has written.
    """

    id: int
    study_id: str
    key: str
    iteration: int
    kind: NoteKind
    author: str
    text: str
    created_at: float


@dataclass(frozen=True, slots=True)
class ProgramTrial:
    """A few attempts of a program with the base weights on train tasks, before any training.

    `experiment_id` is the arm that has the program, None for a draft of a planner. `mean` is the mean grade, and
    `mean_reward` the mean of the program's own reward. `calls` and `tokens` are means of an attempt, and `seconds` is
    the time of the whole trial. `passed` counts the attempts that pass the arm's manipulation check; None without one.
    `blank_gain` compares the program with the plain agent where the model writes random letters: its mean grade less
    that of the plain agent. It is None for a program without an agent, and if an attempt was broken. `error` is the
    first error of a broken attempt. Each of `transcripts` has task, messages, score and error.
    """

    id: int
    study_id: str
    experiment_id: str | None
    code_digest: str
    attempts: int
    broken: int
    mean: float | None
    mean_reward: float | None
    calls: float | None
    tokens: float | None
    seconds: float
    passed: int | None
    blank_gain: float | None
    error: str | None
    transcripts: tuple[JsonObject, ...]
    created_at: float


@dataclass(frozen=True, slots=True)
class PlannerQuestion:
    """A question to an external planner, with its answer once there is one; or a call of a tool, with its result.

    `node` is the kind of question. `objection` is why the last answer was refused. `deadline` is when the study stops
    waiting, in seconds since the epoch; None waits for ever.
    """

    id: int
    study_id: str
    node: str
    prompt: str
    status: QuestionStatus
    answer: str | None
    objection: str | None
    deadline: float | None
    created_at: float
    answered_at: float | None

    @property
    def tool(self) -> str:
        """The name of the tool that is called; empty for a question."""
        return self.node.removeprefix(TOOL) if self.node.startswith(TOOL) else ""


@dataclass(frozen=True, slots=True)
class Review:
    """A reviewer's look at an arm that leads, before it is confirmed.

    Each of `objections` has `kind`, `sentence` and `is_grave`. Without any, the reviewer found nothing. `response` is
    the planner's answer to them, and `is_withdrawn` is true if it withdrew the arm.
    """

    id: int
    study_id: str
    iteration: int
    experiment_id: str
    reviewer: str
    objections: tuple[JsonObject, ...]
    response: str | None
    is_withdrawn: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """The end of one iteration of a study: the next action, its reason, and the findings behind it."""

    id: int
    study_id: str
    iteration: int
    action: str
    reason: str
    finding_ids: tuple[str, ...]
    details: JsonObject
    created_at: float


@dataclass(frozen=True, slots=True)
class IterationDocument:
    """The plan or the analysis of one iteration of a study, as the researcher wrote it."""

    study_id: str
    iteration: int
    document: JsonObject
    created_at: float


@dataclass(frozen=True, slots=True)
class RunMean:
    """The mean score of a run in one phase on one split."""

    run_id: str
    phase: str
    split: str
    mean: float


@dataclass(frozen=True, slots=True)
class StudyRuns:
    """The arms of one or several studies, with their runs in short and all mean scores of these."""

    experiments: tuple[Experiment, ...]
    runs: tuple[RunSummary, ...]
    means: tuple[RunMean, ...]


@dataclass(frozen=True, slots=True)
class LLMCall:
    """One request to a language model, whether it was answered or not; a retry is a call with the next `attempt`.

    `prompt_hash` is the SHA-256 of the template that the question was made from; None where there is none.
    """

    id: int
    study_id: str
    node: str
    model: str
    attempt: int
    prompt: str
    response: str | None
    error: str | None
    input_tokens: int
    output_tokens: int
    cost_usd: float
    latency_s: float
    prompt_hash: str | None
    created_at: float


@dataclass(frozen=True, slots=True)
class LLMUsage:
    """Sums over the LLM calls of a study."""

    calls: int
    failed_calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for a person to read. `kind` is a stable name such as "run.launched"."""

    id: int
    study_id: str
    run_id: str | None
    severity: Severity
    kind: str
    message: str
    payload: JsonObject
    created_at: float


@dataclass(frozen=True, slots=True)
class BudgetEntry:
    """One charge. `key` names what was charged for, so that a repeated charge counts once."""

    id: int
    study_id: str
    kind: BudgetKind
    key: str
    amount: float
    run_id: str | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that belongs to a study; `path` is unique in it."""

    id: str
    study_id: str
    run_id: str | None
    kind: str
    path: str
    sha256: str
    size_bytes: int
    created_at: float


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on `resource` (a study id, a server's URL) while heartbeats keep coming.

    `token` grows with every change of owner: a writer that shows an old one has been replaced.
    """

    resource: str
    owner: str
    token: int
    ttl_s: float
    acquired_at: float
    heartbeat_at: float


@dataclass(frozen=True, slots=True)
class TableDigest:
    """The number of rows that a study has in one table, and the SHA-256 over all of them."""

    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StudyDigest:
    """The digests of a study's rows, by the name of the table."""

    tables: Mapping[str, TableDigest]

    @property
    def sha256(self) -> str:
        """One digest over the digests of all tables."""
        return hash_json({name: table.sha256 for name, table in self.tables.items()})

    def compare(self, now: StudyDigest) -> dict[str, str]:
        """Return the differences between this digest and `now`, in words, by the name of the table."""
        return {
            name: _describe_difference(table, now.tables[name])
            for name, table in self.tables.items()
            if table != now.tables[name]
        }


@dataclass(frozen=True, slots=True)
class StudySeal:
    """The digests that were taken once nothing worked on a study any more.

    `files` describes each file by its path below the folder of the study: `bytes`, `sha256` and, for a ledger, `rows`,
    the digest of what a compaction leaves. `rows` are those that no earlier digest covers.
    """

    files: Mapping[str, JsonObject]
    rows: StudyDigest


def _describe_difference(then: TableDigest, now: TableDigest) -> str:
    if then.rows == now.rows:
        return f"some of the {now.rows} rows were changed since the study ended"
    return f"there are {now.rows} rows, and there were {then.rows} when the study ended"


def canonical_json(document: JsonObject) -> str:
    """Return the one JSON of a document: sorted keys, no spaces. Raises ValueError on what is not JSON."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def hash_json(document: JsonObject) -> str:
    """Return the SHA-256 of the canonical JSON in UTF-8. Raises ValueError on what is not JSON."""
    return sha256(canonical_json(document).encode()).hexdigest()
