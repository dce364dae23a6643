"""The data that flows through a study, as frozen dataclasses.

    Topic -> frame -> plan -> write_program -> check -> launch -> monitor -> evaluate -> analyze -> decide -> report
             Charter  Plan    ArmProgram           Run rows          scores     Analysis   Decision -> plan again

Place in the flow: bottom of the package. Nodes, planners, the judge and the report exchange these types. Nodes store
them through experiments_db and pass ids in the graph's state. This module knows nothing of LangGraph, SQL, HTTP or
language models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """The result of the charter's rule for one arm against the baseline.

    KEEP: the arm is better, by enough to matter. WORSE: the arm is worse. NO_BETTER: an improvement that matters is
    ruled out. INCONCLUSIVE: the data decide nothing. A planner never chooses a verdict.
    """

    KEEP = "keep"
    WORSE = "worse"
    NO_BETTER = "no better"
    INCONCLUSIVE = "inconclusive"


class Outcome(StrEnum):
    """The result for a hypothesis that states a contrast."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Relation(StrEnum):
    """The claim that a contrast makes about its arms.

    `Contrast` lists the arms that each relation takes.
    """

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    INTERACTION = "interaction"
    BEST = "best"
    MATTERS_MORE = "matters_more"


class Action(StrEnum):
    """The step that follows an analysis."""

    REFINE = "refine"
    STOP = "stop"


class JudgedBy(StrEnum):
    """The number of a run by which arms are compared.

    FINAL is the held-out score at the end of the run. AREA is the mean score over all steps of training. STEPS_TO is
    the first step at which the score reaches a level. WORST is the lowest score after training has begun. SPREAD is the
    distance of the final score from the median of the arm (Brown & Forsythe 1974, JASA 69:364-367).
    """

    FINAL = "final"
    AREA = "area"
    STEPS_TO = "steps-to"
    WORST = "worst"
    SPREAD = "spread"

    @property
    def needs_curve(self) -> bool:
        """True if the number is computed from scores in mid-training."""
        return self in (JudgedBy.AREA, JudgedBy.STEPS_TO, JudgedBy.WORST)

    @property
    def is_score(self) -> bool:
        """True if the number is a score, in the units and the range of the environment's grades."""
        return self in (JudgedBy.FINAL, JudgedBy.AREA, JudgedBy.WORST)


HALVING = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 128)
"""The shares of alpha for up to eight plans, where the number of plans is not known in advance."""


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """The rule by which an arm counts as better than the baseline.

    The arm's corrected p value must be below `alpha`. The mean difference must be at least `min_effect`, in units of
    the metric. `correction` is `holm` or `none`, and applies to the comparisons of one plan.

    `shares` divides `alpha` among the plans: the first share belongs to the first plan. A plan beyond the last share
    decides nothing. If `shares` is empty, every plan uses all of `alpha`. The first `plans_of_parent` shares belong to
    the study that this study was forked from. The remaining shares add up to 1 at most.
    """

    alpha: float = 0.05
    min_effect: float = 0.02
    min_seeds: int = 3
    correction: str = "holm"
    shares: tuple[float, ...] = HALVING
    plans_of_parent: int = 0


@dataclass(frozen=True, slots=True)
class SampleSizeGoal:
    """The goal that determines the number of runs per arm.

    The study should keep an arm that is better by `target_effect` with probability `target_power`. `seeds` is the
    number of runs where a person fixed it. Otherwise the variance comes from earlier studies, or from the first
    `pilot_seeds` runs of the baseline, and the number is at most `max_seeds`. A study with a power below `min_power`
    stops, unless `is_underpowered` is true.
    """

    target_effect: float = 0.10
    target_power: float = 0.80
    min_power: float = 0.50
    pilot_seeds: int = 3
    max_seeds: int = 12
    seeds: int | None = None
    is_underpowered: bool = False


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The number of runs per arm, with the power it gives.

    `seed_variance` is the variance between runs of one arm beyond evaluation noise. `noise_variance` is evaluation
    noise: the variance of a score from its finite number of episodes. `basis` names the source of both. `wanted` is the
    number of runs that the goal needs. `power` is the probability that the chosen number gives. `seconds` is the
    expected time of the whole plan; None if no run has been timed. `finds_worse` is true if no arm can be better than
    the baseline by the target. The power is then that of finding a worse arm.
    """

    seeds: int
    wanted: int
    power: float
    comparisons: int
    seed_variance: float
    noise_variance: float
    basis: str
    runs: int
    seconds: float | None = None
    finds_worse: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """The upper bounds of a study; None means unbounded.

    `max_wall_s` counts the seconds in which a researcher process works on the study, waiting included. `max_gpu_hours`
    counts every run from launch to score.
    """

    max_runs: int | None = None
    max_wall_s: float | None = None
    max_gpu_hours: float | None = None
    max_llm_tokens: int | None = None
    max_llm_usd: float | None = None


@dataclass(frozen=True, slots=True)
class StudiedEnvironment:
    """An environment that a person named.

    `reference` opens the environment, and `name` is its name in texts. Two references with the same `digest` open the
    same tasks and grader.
    """

    reference: str
    name: str
    description: str
    digest: str


class StudyKind(StrEnum):
    """The kind of a study.

    COMPARE answers a question about given arms. OPTIMIZE searches a space for the best settings: its first plans make
    no claim, and fresh seeds confirm the arm that they find.
    """

    COMPARE = "compare"
    OPTIMIZE = "optimize"


class Design(StrEnum):
    """The way in which the levels of several factors are combined.

    ONE_AT_A_TIME combines each level with the baseline's levels of the other factors. FACTORIAL combines all levels
    with all others.
    """

    ONE_AT_A_TIME = "one-at-a-time"
    FACTORIAL = "factorial"


class Asked(StrEnum):
    """The relation that a study asks about.

    EFFECT asks whether the levels of a factor differ at all.
    """

    EFFECT = "effect"
    BEST = "best"
    BETTER = "better"
    MATTERS_MORE = "matters_more"
    INTERACTION = "interaction"
    EQUAL = "equal"
    SOONER = "sooner"
    MORE_STABLE = "more_stable"
    NEEDED = "needed"
    DIVERGES = "diverges"


class ComparedAt(StrEnum):
    """The quantity of which every arm gets the same amount."""

    EPISODES = "episodes"
    STEPS = "steps"
    TOKENS = "tokens"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Level:
    """One value of a factor.

    `factors` is what the study compares. `settings` go to the job, and `options` go to the environment that the arm
    trains on.
    """

    name: str
    factors: Mapping[str, Any]
    settings: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a study with its levels.

    `explicit` is true if a person gave the levels, and false if they come from the table of factors. `needs` are
    settings without which the factor has no effect; every arm has them. `compared_with` names the baseline's level
    where a person chose it.
    """

    name: str
    levels: tuple[Level, ...]
    explicit: bool = True
    needs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    compared_with: str | None = None

    @property
    def varied(self) -> tuple[str, ...]:
        """The settings of a job that the factor's levels set."""
        return tuple(dict.fromkeys(name for level in self.levels for name in level.settings))

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the environment that the factor's levels set."""
        return tuple(dict.fromkeys(name for level in self.levels for name in level.options))


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a study, as data.

    Plans, verdicts and reports read nothing else about the question. `fixed` are settings that a person fixed for every
    arm. `design` is None if there is one factor. An optimizing study without factors searches the default space.
    """

    kind: StudyKind = StudyKind.COMPARE
    asked: Asked = Asked.EFFECT
    factors: tuple[Factor, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    design: Design | None = None

    @property
    def varied(self) -> tuple[str, ...]:
        """The settings of a job that the question's factors vary."""
        return tuple(dict.fromkeys(name for factor in self.factors for name in factor.varied))

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the environment that the question's factors vary."""
        return tuple(dict.fromkeys(name for factor in self.factors for name in factor.options))

    def levels_of(self, factors: Mapping[str, Any]) -> tuple[Level, ...]:
        """Return the levels of an arm with these factors."""
        levels = (level for factor in self.factors for level in factor.levels)
        return tuple(level for level in levels if level.factors.items() <= factors.items())


@dataclass(frozen=True, slots=True)
class Charter:
    """The question and the rules of a study, frozen before its first run.

    What is studied: `asks` is the question as data, and `question` is the same in words. `task` is the name of the
    environment. `environment` is the reference that opens it. `environment_digest` changes with its tasks and its
    grader. Both are empty until the frame node has opened the environment. `assumptions` lists what the topic left open
    and the planner filled in, one sentence each. `not_studied` are parts of the topic that cannot be studied and that a
    person dropped with `--assume`. `job` are the settings that all arms share before their levels are set.

    How runs are measured: `metric` is always the mean reward of eval episodes that the evaluator runs itself. Held-out
    scores are taken every `eval_every` steps of training; 0 means only at the end. `judged_by` is the number of a run
    by which arms are compared. `judged_level` is the score to reach where that number counts steps. `metric_range` is
    the lowest and the highest possible score; None if unknown. `failed_score` is what a run without a score counts as,
    if it failed by its own doing. It is `base` (the score before training) or `worst` (the end of the range, or the
    worst score of the study).

    What arms get: `compared_at` is the quantity of which every arm gets the same amount (`ComparedAt`); empty if a
    planner says nothing. `amount` is the amount of it that ends a run, for tokens or seconds; 0 if the job's steps end
    it. `sample_size` is None where nobody asked for power. `attempt_calls` and `attempt_tokens` bound the model calls
    and the sampled tokens of one attempt, equally for all arms; None means unbounded.
    """

    topic: str
    question: str
    task: str
    metric: str
    direction: str
    baseline: str
    search_split: str
    sealed_split: str
    eval_episodes: int
    rule: DecisionRule
    budget: Budget
    brain: str
    assumptions: tuple[str, ...] = ()
    environment: str = ""
    environment_digest: str = ""
    eval_every: int = 0
    judged_by: JudgedBy = JudgedBy.FINAL
    judged_level: float | None = None
    not_studied: tuple[str, ...] = ()
    compared_at: str = ""
    amount: float = 0.0
    metric_range: tuple[float, float] | None = None
    failed_score: str = "base"
    sample_size: SampleSizeGoal | None = None
    attempt_calls: int | None = None
    attempt_tokens: int | None = None
    asks: Question = Question()
    job: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def sign(self) -> float:
        """1 if the larger number of two runs is the better one, else -1."""
        return 1.0 if self.judged_by.is_score and self.direction == "maximize" else -1.0

    @property
    def of_scores(self) -> Charter:
        """The same charter judged by final scores, which is how base scores and the sealed split are compared."""
        return replace(self, judged_by=JudgedBy.FINAL)

    @property
    def judged_range(self) -> tuple[float, float] | None:
        """The lowest and the highest number by which a run can be judged; None if unknown."""
        if self.judged_by is JudgedBy.STEPS_TO:
            return 0.0, float(self.job["total_steps"])
        if self.judged_by is JudgedBy.SPREAD and self.metric_range is not None:
            return 0.0, self.metric_range[1] - self.metric_range[0]
        return self.metric_range

    @property
    def room_range(self) -> tuple[float, float] | None:
        """The range near whose ends the judged number varies less; None if there are no such ends, as for distances."""
        return None if self.judged_by is JudgedBy.SPREAD else self.judged_range

    @property
    def judged(self) -> str:
        """The number by which runs are judged, in words."""
        match self.judged_by:
            case JudgedBy.FINAL:
                return self.metric
            case JudgedBy.AREA:
                return f"{self.metric}, over all steps of training"
            case JudgedBy.STEPS_TO:
                return f"training steps until the {self.metric} is {self.judged_level:g}"
            case JudgedBy.WORST:
                return f"lowest {self.metric} during training"
            case JudgedBy.SPREAD:
                return f"distance of a run from the median run of its arm, in {self.metric}"


@dataclass(frozen=True, slots=True)
class Arm:
    """One treatment of a study.

    `name` is short and unique. `factors` is what the study compares. `job` is a complete set of TrainJob settings,
    except `seed` and `experiment_name`, which the evaluator sets per run. `environment` is the training environment if
    it differs from the charter's. All arms are judged on the charter's environment.
    """

    name: str
    factors: Mapping[str, Any]
    job: Mapping[str, Any]
    rationale: str
    is_baseline: bool = False
    parent: str | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True)
class Contrast:
    """The prediction of a hypothesis in a form that code can judge.

    better, worse: at least one of `arms` is better (worse) than the one arm of `against` by more than `margin`.
    equivalent: each of `arms` is within `margin` of the one arm of `against`.
    interaction: `arms` are four: neither change, the first, the second, both. The two changes together do more or
    less than the sum of each. The contrast is refuted if that excess is within `margin`.
    best: one of `arms` is better than all others. With `against`, `arms` has one arm, and it beats all of `against`.
    matters_more: some arm of `arms` is further from the baseline, in either direction, than every arm of `against`.
    """

    relation: Relation
    arms: tuple[str, ...]
    against: tuple[str, ...] = ()
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A statement that the named arms can support or refute.

    Without a `contrast`, the statement stays undecided.
    """

    statement: str
    prediction: str
    arms: tuple[str, ...]
    contrast: Contrast | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One iteration of a study: every arm is run once per seed.

    Seeds are repetitions, never tunables. An arm that has run before is judged by the runs of this plan alone. If
    `pools_runs` is true, it is judged by all its runs; the number of seeds must then not depend on any score.
    `sample_size` is set once the seeds are chosen. `author` is the planner that made the plan; the plan node fills it
    in.
    """

    iteration: int
    hypotheses: tuple[Hypothesis, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    rationale: str
    pools_runs: bool = False
    sample_size: SampleSize | None = None
    author: str = ""


@dataclass(frozen=True, slots=True)
class ArmProgram:
    """The program of an arm as one file: an agent, a training reward or an order of tasks.

    Code that is `trusted` runs without a sandbox.
    """

    arm: str
    code: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class ProgramProblem:
    """One reason why `check` rejects a program.

    `stage` is parse, lint, imports, job, functions, preflight, twin, promise or environment.
    """

    stage: str
    message: str


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """One run as the judge sees it.

    `score` is the number that the run is judged by. For a run that failed by its own doing, it is what the charter
    prescribes. `failure` says how the run failed; it is also set if a run was ended early and scored. `noise` is the
    variance of `score` from its finite number of episodes, and `base_noise` is that of `base`. `retries` are the
    reasons, oldest first, of earlier attempts at this run that ended after their training had begun.
    """

    run_id: str
    score: float
    noise: float
    base: float | None = None
    failure: str = ""
    base_noise: float | None = None
    retries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GainPart:
    """One part of the difference between an arm and the baseline.

    A part has a value, an interval and a two-sided p value. All are NaN if too few runs have a base score. `p` is not
    corrected for the family.
    """

    value: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    p: float = math.nan


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """The inference cost of one arm, per attempt.

    The numbers come from the ledgers of the arm's servers, never from its program. `calls`, `prompt_tokens`,
    `sampled_tokens` and `seconds` are means over `attempts`. `temperatures` are the distinct sampling temperatures in
    rising order. `other_sampling` are further settings that restrict sampling, such as `top_k=1`. `model_share` is the
    mean share, from 0 to 1, of the characters of the graded replies that the model wrote; None if it was not measured.
    `broken` counts attempts that the program broke. `repeated` counts attempts that the system broke and that were made
    again. `bounded` counts attempts that met a limit on calls or tokens.
    """

    attempts: int
    calls: float
    prompt_tokens: float
    sampled_tokens: float
    seconds: float
    temperatures: tuple[float, ...] = ()
    other_sampling: tuple[str, ...] = ()
    model_share: float | None = None
    broken: int = 0
    repeated: int = 0
    bounded: int = 0


@dataclass(frozen=True, slots=True)
class ArmCost:
    """The cost of one arm's attempts in training and in final evaluation; None if it is not on record."""

    training: AttemptCost | None = None
    evaluation: AttemptCost | None = None


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """The scores of one arm over all its runs.

    `scores` maps each seed to the number that its run is judged by. The interval is Student's t over seeds, cut to the
    range of the metric. `half_width` is half the width of the interval before the cut. `failures` maps seeds to how the
    run failed.
    """

    arm: str
    scores: Mapping[int, float]
    base_scores: Mapping[int, float]
    mean: float
    ci_low: float
    ci_high: float
    run_ids: tuple[str, ...]
    failures: Mapping[int, str] = field(default_factory=dict[int, str])
    half_width: float = math.nan


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of an arm from the baseline (arm minus baseline), as the plan of `iteration` judged it.

    `p` is two-sided. `p_adjusted` is corrected over the plan's comparisons and for the plan's share of alpha, so it is
    compared with alpha itself. `basis` is `seeds`, `evaluation` or `none`. It is `evaluation` if an arm has one run, so
    that only evaluation noise is known. `correlation` is measured between runs of the same seed; NaN if that is
    impossible. `failures` counts failed runs of the arm, and `baseline_failures` those of the baseline. `missing` and
    `baseline_missing` give the reason for each planned seed without a score. `retries` gives the reasons for repeated
    trainings.

    `agent_gain` is the difference of the base scores: the effect of the arm's agent on the base weights.
    `training_gain` is the difference in what training added. `unseen_failures` is an upper bound on the share of the
    arm's runs that fail or collapse. `note` explains the verdict and its limits.
    """

    arm: str
    baseline: str
    difference: float
    ci_low: float
    ci_high: float
    p: float
    p_adjusted: float
    seeds: tuple[int, ...]
    verdict: Verdict
    run_ids: tuple[str, ...]
    iteration: int = 0
    basis: str = "seeds"
    correlation: float = math.nan
    failures: int = 0
    baseline_failures: int = 0
    note: str = ""
    missing: Mapping[int, str] = field(default_factory=dict[int, str])
    baseline_missing: Mapping[int, str] = field(default_factory=dict[int, str])
    retries: Mapping[int, str] = field(default_factory=dict[int, str])
    agent_gain: GainPart = GainPart()
    training_gain: GainPart = GainPart()
    unseen_failures: float = math.nan


@dataclass(frozen=True, slots=True)
class JudgedContrast:
    """A hypothesis' contrast with its outcome.

    `key` is the key of the hypothesis in the database. `reason` is one sentence with the numbers. `winner` is the arm
    that a `best` contrast found.
    """

    key: str
    contrast: Contrast
    outcome: Outcome
    reason: str
    winner: str = ""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of the judge.

    `ranking` lists the arms, best first. `failed` maps each arm to the reasons for its runs without a score.
    `comparisons` contains the latest comparison of each arm. `contrasts` contains those of the analyzed plan.
    """

    arms: tuple[ArmSummary, ...]
    comparisons: tuple[Comparison, ...]
    ranking: tuple[str, ...]
    failed: Mapping[str, tuple[str, ...]]
    contrasts: tuple[JudgedContrast, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The next action of a study, with the reason that people see.

    `author` is who decided, if it is not the study's planner. `is_budget_spent` means that nothing was left to choose,
    so a raised budget reopens the matter. `disqualified` maps the arms that the planner rules out to its reasons. An
    arm stays disqualified: no later decision reverses it.
    """

    action: Action
    reason: str
    author: str = ""
    is_budget_spent: bool = False
    disqualified: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class History:
    """The information that a planner may use for its next plan.

    It has earlier plans and analyses of this study, and diagnoses of failed runs. `earlier_findings` are findings of
    earlier studies on the same task, negative ones included. `runs_used` counts the runs charged to the budget; None if
    there is no record.
    """

    plans: tuple[Plan, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    diagnoses: tuple[str, ...] = ()
    earlier_findings: tuple[str, ...] = ()
    runs_used: int | None = None

    @property
    def planned_runs(self) -> int:
        """The number of distinct runs in all plans: an arm that later plans repeat counts once per seed."""
        return len({(arm.name, seed) for plan in self.plans for arm in plan.arms for seed in plan.seeds})


@dataclass(frozen=True, slots=True)
class FrameRequest:
    """The input from which a planner frames a study.

    A person fixed every value that is not None, and the planner must keep it. `assume` allows the study to go on
    without the parts of the topic that cannot be studied; otherwise the topic is refused. `not_studied` are the parts
    that were dropped before. `question` is what flags or the topic ask; if it has no factors, the planner chooses them.
    `equal` is the quantity of which every arm gets the same amount, and `amount` is that amount.
    """

    topic: str
    task: str | None = None
    environment: StudiedEnvironment | None = None
    seeds: int | None = None
    steps: int | None = None
    eval_episodes: int | None = None
    eval_every: int | None = None
    judged_by: JudgedBy = JudgedBy.FINAL
    judged_level: float | None = None
    budget: Budget = field(default_factory=Budget)
    assume: bool = False
    is_underpowered: bool = False
    attempt_calls: int | None = None
    attempt_tokens: int | None = None
    question: Question = Question()
    equal: ComparedAt | None = None
    amount: float | None = None
    not_studied: tuple[str, ...] = ()


class ClaimKind(StrEnum):
    """The kinds of claim that a planner may make about a study.

    `researcher/report/claims.py` defines when each kind is true.
    """

    MEAN = "mean"
    BETTER = "better"
    WORSE = "worse"
    EQUAL = "equal"
    HALF_WIDTH = "half_width"
    P_VALUE = "p_value"
    BEST = "best"
    RANKING = "ranking"
    FAILED = "failed"
    OPINION = "opinion"


class Measured(StrEnum):
    """The score of an arm that a claim is about.

    BEFORE and AFTER are the scores on the search split before and after training. TEST is the score on the sealed
    split.
    """

    BEFORE = "before"
    AFTER = "after"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of a planner about the results, in a form that code can check.

    Readers see it in the report's own words. `arm` and `other` are names of arms. `number` depends on the kind. MEAN
    has a mean, BETTER and WORSE the absolute size of a difference, EQUAL a margin, HALF_WIDTH half the width of an
    interval, P_VALUE a corrected p value, FAILED a number of runs. None claims no size. `significant` is
    None if the claim says nothing about significance. `arms` is a ranking, best first. `of` is the total number of runs
    that `number` refers to. `text` is an OPINION.
    """

    kind: ClaimKind
    arm: str | None = None
    other: str | None = None
    measured: Measured = Measured.AFTER
    number: float | None = None
    significant: bool | None = None
    arms: tuple[str, ...] = ()
    of: int | None = None
    text: str = ""
