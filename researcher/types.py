"""What flows through a study: frozen dataclasses between the nodes, the planners, the judge and the report.

    Topic -> frame -> plan -> write_program -> check -> launch -> monitor -> evaluate -> analyze -> decide -> report
             Charter  Plan    ArmProgram           Run rows          scores     Analysis   Decision -> plan again

Place in the flow: bottom of the package. Nodes store these through experiments_db and pass ids in the graph's
state. This module knows nothing of LangGraph, SQL, HTTP or language models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What the charter's rule says of an arm against the baseline; a planner never chooses it.

    KEEP: better, by enough to matter. WORSE: worse. NO_BETTER: an improvement that matters is ruled out. INCONCLUSIVE:
    not decided.
    """

    KEEP = "keep"
    WORSE = "worse"
    NO_BETTER = "no better"
    INCONCLUSIVE = "inconclusive"


class Outcome(StrEnum):
    """What the scores say of a hypothesis that states a contrast."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Relation(StrEnum):
    """What a contrast claims of its arms; `Contrast` says which arms each relation takes."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    INTERACTION = "interaction"
    BEST = "best"
    MATTERS_MORE = "matters_more"


class Action(StrEnum):
    """What happens after an analysis."""

    REFINE = "refine"
    STOP = "stop"


class JudgedBy(StrEnum):
    """The number of a run that arms are compared by.

    FINAL is its held-out score at the end. AREA is its mean score over all steps of training, and STEPS_TO the first
    step at which the score reaches a level. WORST is its lowest score once training has begun. SPREAD is how far its
    final score lies from the median of its arm (Brown & Forsythe 1974, JASA 69:364-367).
    """

    FINAL = "final"
    AREA = "area"
    STEPS_TO = "steps-to"
    WORST = "worst"
    SPREAD = "spread"

    @property
    def needs_curve(self) -> bool:
        """Whether it is made from scores in mid-training."""
        return self in (JudgedBy.AREA, JudgedBy.STEPS_TO, JudgedBy.WORST)

    @property
    def is_score(self) -> bool:
        """Whether it is a score, in the units and the range of the environment's grades."""
        return self in (JudgedBy.FINAL, JudgedBy.AREA, JudgedBy.WORST)


HALVING = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 128)
"""Shares of alpha for up to eight plans of which nobody knows beforehand how many there will be."""


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """When an arm counts as better: its corrected p value is below `alpha` and the mean difference is at least
    `min_effect`, in units of the metric.

    `correction` (holm or none) is over the comparisons of one plan. `shares` divides `alpha` among the plans, the first
    share for the first plan; a plan beyond the last share decides nothing, and where there are no shares every plan has
    all of `alpha`. The first `plans_of_parent` shares are those of the study that this one was forked from, whose
    verdicts those plans have; the rest add up to 1 at most.
    """

    alpha: float = 0.05
    min_effect: float = 0.02
    min_seeds: int = 3
    correction: str = "holm"
    shares: tuple[float, ...] = HALVING
    plans_of_parent: int = 0


@dataclass(frozen=True, slots=True)
class SampleSizeGoal:
    """What the number of runs per arm is chosen for: to keep an arm that is better by `target_effect` with probability
    `target_power`.

    `seeds` is the number where a person fixed it. Else the variance comes from earlier studies, or from the first
    `pilot_seeds` runs of the baseline, and the number is at most `max_seeds`; a study whose power is below `min_power`
    stops, unless `is_underpowered` accepts that.
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
    """The number of runs per arm and what is expected of it.

    `seed_variance` is the variance between runs of one arm beyond `noise_variance`, that of a score which stems from
    its finite number of episodes alone; `basis` says where both come from. `wanted` is the number that the goal needs,
    `power` the probability that the number chosen gives. `seconds` is the expected time of the whole plan; None where
    no run has been timed. `finds_worse` says that no arm can be better than the baseline by the target, so that the
    power is that to find a worse one.
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
    """Upper bounds; None means unbounded. `max_wall_s` is time in which a researcher process works on the study,
    waiting included; GPU-hours are those of runs, from launch to score."""

    max_runs: int | None = None
    max_wall_s: float | None = None
    max_gpu_hours: float | None = None
    max_llm_tokens: int | None = None
    max_llm_usd: float | None = None


@dataclass(frozen=True, slots=True)
class StudiedEnvironment:
    """An environment that a person named: `reference` opens it, `name` is what people call it. Two references with the
    same `digest` open the same tasks and grader."""

    reference: str
    name: str
    description: str
    digest: str


class StudyKind(StrEnum):
    """COMPARE answers a question about given arms. OPTIMIZE looks for the best settings in a space: its first plans
    make no claim, and the arm that they find is confirmed on fresh seeds."""

    COMPARE = "compare"
    OPTIMIZE = "optimize"


class Design(StrEnum):
    """Which levels of several factors are combined: each beside the baseline's others, or all with all."""

    ONE_AT_A_TIME = "one-at-a-time"
    FACTORIAL = "factorial"


class Asked(StrEnum):
    """The relation that a study asks about. EFFECT is whether the levels of a factor differ at all."""

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
    """The amount that every arm gets the same of."""

    EPISODES = "episodes"
    STEPS = "steps"
    TOKENS = "tokens"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Level:
    """One value of a factor: `factors` is what the study compares, `settings` what the job is given, and `options` what
    the environment that the arm trains on is given."""

    name: str
    factors: Mapping[str, Any]
    settings: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a study with its levels.

    `explicit` says that a person gave the levels, and not the table of factors. `needs` are settings without which the
    factor has no effect; every arm has them. `compared_with` names the level of the baseline where a person said so.
    """

    name: str
    levels: tuple[Level, ...]
    explicit: bool = True
    needs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    compared_with: str | None = None

    @property
    def varied(self) -> tuple[str, ...]:
        """The settings of a job that its levels set."""
        return tuple(dict.fromkeys(name for level in self.levels for name in level.settings))

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the environment that its levels set."""
        return tuple(dict.fromkeys(name for level in self.levels for name in level.options))


@dataclass(frozen=True, slots=True)
class Question:
    """What a study asks, as data: the only thing about it that plans, verdicts and reports read.

    `fixed` are the settings of every arm that a person fixed. `design` is None where there is one factor. An optimizing
    study without factors searches the default space.
    """

    kind: StudyKind = StudyKind.COMPARE
    asked: Asked = Asked.EFFECT
    factors: tuple[Factor, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    design: Design | None = None

    @property
    def varied(self) -> tuple[str, ...]:
        """The settings of a job that its factors vary."""
        return tuple(dict.fromkeys(name for factor in self.factors for name in factor.varied))

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the environment that its factors vary."""
        return tuple(dict.fromkeys(name for factor in self.factors for name in factor.options))

    def levels_of(self, factors: Mapping[str, Any]) -> tuple[Level, ...]:
        """Return the levels that an arm with these factors has."""
        levels = (level for factor in self.factors for level in factor.levels)
        return tuple(level for level in levels if level.factors.items() <= factors.items())


@dataclass(frozen=True, slots=True)
class Charter:
    """The frozen question. `metric` is always the mean reward of eval episodes that the evaluator runs itself.

    `task` is the name of the environment. `environment` is what opens it and `environment_digest` changes with its
    tasks and its grader; both are empty until the frame node has opened it. `assumptions` lists, one sentence each,
    what the topic did not say and was filled in. `not_studied` are the parts of the topic that nothing stands for and
    that a person let go with `--assume`. Held-out scores are taken every `eval_every` steps of training, or at its end
    alone if that is 0. `judged_by` says which number of a run arms are compared by, and `judged_level` the score that
    it looks for where it counts steps to one. `compared_at` is what every arm gets the same amount of (`ComparedAt`),
    empty where a planner says nothing. `amount` is how much of it ends a run, where that is tokens or seconds; 0 where
    the job's steps do. `metric_range` are the lowest and the highest score there can be; None if unknown.
    `failed_score` says what a run counts as that gave no score by its own doing: `base` (the score before training),
    `worst` (the end of the range, or the worst score of the study). `sample_size` is None where nobody asked for
    power. `attempt_calls` and `attempt_tokens` bound the model calls and the sampled tokens of one attempt, for all
    arms alike; None means unbounded. `asks` is the question as data, `question` the same in words. `job` are the
    settings that all arms share before their levels are set.
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
        """1 where the larger number of two runs is the better one, else -1."""
        return 1.0 if self.judged_by.is_score and self.direction == "maximize" else -1.0

    @property
    def of_scores(self) -> Charter:
        """The same charter by final scores, which base scores and the sealed split are compared by."""
        return replace(self, judged_by=JudgedBy.FINAL)

    @property
    def judged_range(self) -> tuple[float, float] | None:
        """The lowest and the highest number that a run can be judged by; None if unknown."""
        if self.judged_by is JudgedBy.STEPS_TO:
            return 0.0, float(self.job["total_steps"])
        if self.judged_by is JudgedBy.SPREAD and self.metric_range is not None:
            return 0.0, self.metric_range[1] - self.metric_range[0]
        return self.metric_range

    @property
    def room_range(self) -> tuple[float, float] | None:
        """The range near whose ends the number varies less; None where it has no such ends, as distances have none."""
        return None if self.judged_by is JudgedBy.SPREAD else self.judged_range

    @property
    def judged(self) -> str:
        """What runs are judged by, in words."""
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
    """One treatment: a short unique `name`, the `factors` it sets (what the study compares) and its whole `job`.

    `job` is a complete set of TrainJob settings without `seed` and `experiment_name`, which the evaluator sets per run.
    `environment` is what it trains on where that is another than the charter's, on which all arms are judged.
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
    """What a hypothesis predicts, so that code can judge it.

    better, worse: one of `arms` at least is better (worse) than the one arm of `against` by more than `margin`.
    equivalent: each of `arms` is within `margin` of the one arm of `against`.
    interaction: `arms` are four: neither change, the first, the second, both; together the changes do more or less than
    the sum of each, and more than `margin` would be worth telling.
    best: one of `arms` is better than all others; with `against`, it is the one arm of `arms` that beats those.
    matters_more: some arm of `arms` is further from the baseline, in either direction, than every arm of `against`.
    """

    relation: Relation
    arms: tuple[str, ...]
    against: tuple[str, ...] = ()
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A statement that the arms named can support or refute; without a `contrast` it stays undecided."""

    statement: str
    prediction: str
    arms: tuple[str, ...]
    contrast: Contrast | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One iteration: every arm is run once per seed. Seeds are repetitions, never tunables.

    An arm that has run before is judged by the runs of this plan alone, or by all its runs if the plan `pools_runs`,
    for which the number of seeds must not depend on any score. `sample_size` is set once the seeds have been chosen.
    `author` is the planner that made it, empty until the plan node knows.
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
    """The program of an arm: an agent, a training reward or an order of tasks, as one file. `trusted` code runs without
    a sandbox."""

    arm: str
    code: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why `check` rejects a program: `stage` is parse, lint, imports, job, functions,
    preflight, twin, promise or environment."""

    stage: str
    message: str


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """One run as the judge sees it.

    `score` is the final held-out metric, or what the charter gives for a run that failed by its own doing; `failure`
    then says how, and it is also set where a run was ended early and scored. `noise` is the variance of the score from
    its finite number of episodes. `base_noise` is that of `base`. `retries` are the reasons, oldest first, of earlier
    attempts at this run that ended after their training had begun.
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
    """One part of the difference between an arm and the baseline: its value, interval and two-sided p value.

    All are NaN where too few runs have a base score. `p` is not corrected for the family.
    """

    value: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    p: float = math.nan


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """The inference of one arm's attempts, per attempt, from the ledgers of its servers and never from its program.

    `calls`, `prompt_tokens`, `sampled_tokens` and `seconds` are means over `attempts`. `temperatures` are the distinct
    sampling temperatures in rising order, and `other_sampling` further settings that changed what could be drawn, as in
    `top_k=1`. `model_share` is the mean share, from 0 to 1, of the characters of the graded
    replies that the model wrote; None where it was not measured. `broken` counts attempts that the program broke,
    `repeated` those that the system broke and that were made again, and `bounded` those that met a limit on calls or
    tokens.
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
    """The cost of one arm's attempts in training and in final evaluation; None where nothing is on record."""

    training: AttemptCost | None = None
    evaluation: AttemptCost | None = None


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """Scores of one arm over all its runs. `scores` maps seed to the final held-out metric; the interval is Student's t
    over seeds, cut to the range of the metric, and `half_width` is half of it before it was cut. `failures` maps seeds
    to how the run failed."""

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
    """Arm minus baseline, as one plan judged it for good; `iteration` is that plan's.

    `p` is two-sided. `p_adjusted` is corrected over the plan's comparisons and for the plan's share of alpha, so that
    it is compared with alpha itself. `basis` is seeds, or evaluation where one run per arm allows no more than
    evaluation noise, or none. `correlation` is measured between runs of the same seed; NaN if it cannot be.
    `failures` counts failed runs of the arm, `baseline_failures` those of the baseline. `missing` and
    `baseline_missing` give the reason of each planned seed without a score, `retries` those of repeated trainings.
    `agent_gain` is the difference of the base scores: the arm's agent on the base weights. `training_gain` is the
    difference of what training added to them. `unseen_failures` is the largest share of the arm's runs that may fail or
    collapse, given what was seen. `note` is what the verdict is about and what it leaves out.
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
    """A hypothesis' contrast with its outcome. `key` is that of the hypothesis in the database; `reason` is one
    sentence with the numbers; `winner` is the arm that a `best` contrast found."""

    key: str
    contrast: Contrast
    outcome: Outcome
    reason: str
    winner: str = ""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The judge's result: `ranking` orders arms best first; `failed` maps arm to the reasons of runs without score.

    `comparisons` holds each arm's latest one, `contrasts` those of the plan that was analyzed.
    """

    arms: tuple[ArmSummary, ...]
    comparisons: tuple[Comparison, ...]
    ranking: tuple[str, ...]
    failed: Mapping[str, tuple[str, ...]]
    contrasts: tuple[JudgedContrast, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do next, with the reason that is shown to people. `author` is who decided, where that is not the study's
    planner; `is_budget_spent` says that there was nothing to choose, so that a raised budget reopens the matter.
    `disqualified` maps arms that the planner rules out, for good, to its reasons; no decision takes an arm back in."""

    action: Action
    reason: str
    author: str = ""
    is_budget_spent: bool = False
    disqualified: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class History:
    """What a planner may look at when it plans: earlier plans and analyses of this study, diagnoses of failed runs, and
    findings (negative ones too) of earlier studies on the same task. `runs_used` is what the budget was charged for;
    None where there is no record to ask."""

    plans: tuple[Plan, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    diagnoses: tuple[str, ...] = ()
    earlier_findings: tuple[str, ...] = ()
    runs_used: int | None = None

    @property
    def planned_runs(self) -> int:
        """A later plan names again what an earlier one has run: each arm counts once with each seed."""
        return len({(arm.name, seed) for plan in self.plans for arm in plan.arms for seed in plan.seeds})


@dataclass(frozen=True, slots=True)
class FrameRequest:
    """What a planner gets to frame a study. Values a person fixed by flags are not None and must be kept.

    `assume` says to go on without the parts of the topic that cannot be studied, which are refused otherwise.
    `not_studied` are those that were left out before. `question` is what flags or the topic ask; without factors the
    planner chooses them. `equal` is what every arm gets the same amount of, and `amount` how much of it.
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
    """What a planner may claim of a study; `researcher/report/claims.py` says what makes each of them true."""

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
    """Which score of an arm: on the search split before or after training, or on the sealed split."""

    BEFORE = "before"
    AFTER = "after"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of a planner about the results, in a form that code can check; it is shown in words of our own.

    `arm` and `other` are names of arms. `number` is a mean (MEAN), the size of a difference, never negative (BETTER,
    WORSE), a margin (EQUAL), half the width of an interval, a corrected p value, or a number of runs (FAILED); None
    claims no size. `significant` None claims nothing of that. `arms` is a ranking, best first. `of` is out of how many
    runs. `text` is an OPINION.
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
