"""The charter of a study: its question, environment, metric, rule and budget, frozen before the first run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from experiments_db import IN_MEAN, IN_MEDIAN_PAIR
from researcher.scope import Scope


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


SHARES_OF_SEARCH = (3 / 4, 1 / 4)
"""The shares of alpha of an exploring study: for its confirmation, and for one more after further exploration."""


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """The rule by which an arm counts as better than the baseline.

    The arm's corrected p value must be below `alpha`. The mean difference must be at least `min_effect`, in units of
    the metric. `correction` is `holm` or `none`, and applies to the comparisons of one plan.

    `shares` divides `alpha` among the plans that make a claim: the first share belongs to the first of them. A plan
    beyond the last share decides nothing. If `shares` is empty, every plan uses all of `alpha`. The
    shares add up to 1 at most.
    """

    alpha: float = 0.05
    min_effect: float = 0.02
    min_seeds: int = 3
    correction: str = "holm"
    shares: tuple[float, ...] = HALVING


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
class Budget:
    """The upper bounds of a study; None means unbounded.

    `max_wall_s` counts the seconds in which a researcher process works on the study, waiting included. `max_gpu_hours`
    counts every run from launch to score. `max_money` is in the currency of the study's prices.
    """

    max_runs: int | None = None
    max_wall_s: float | None = None
    max_gpu_hours: float | None = None
    max_llm_tokens: int | None = None
    max_llm_usd: float | None = None
    max_money: float | None = None


class PolicyName(StrEnum):
    """The rule by which an exploring study chooses the arms that it expands or trains on.

    PLANNER leaves the choice to the planner. The other names are explained in researcher/search/policies.py.
    """

    PLANNER = "planner"
    POPULATION = "population"
    HALVING = "halving"


class ProposerName(StrEnum):
    """The method that proposes settings within a space; researcher/search/proposers.py explains them."""

    GRID = "grid"
    OPTUNA = "optuna"


@dataclass(frozen=True, slots=True)
class BudgetSplit:
    """The parts of every limited budget that belong to the stages of an exploring study; they add up to 1.

    `reserve` is for rounds after the first confirmation. `test` is time for the scores on the test split.
    """

    exploration: float = 0.5
    confirmation: float = 0.35
    test: float = 0.05
    reserve: float = 0.1


@dataclass(frozen=True, slots=True)
class SearchRules:
    """The rules of exploration, frozen with the charter.

    `rungs` are the parts of an arm's training after which it is scored, rising up to 1. `runs` is the number of full
    runs that exploration may use, where a run that ends at a rung counts as that part. `episodes` is the number of
    held-out tasks of an exploring score. These tasks are the first of the search split, and the scores that verdicts
    rest on use none of them.
    """

    policy: PolicyName = PolicyName.HALVING
    proposer: ProposerName = ProposerName.OPTUNA
    rungs: tuple[float, ...] = (0.25, 0.5, 1.0)
    runs: float = 12.0
    episodes: int = 200
    split: BudgetSplit = BudgetSplit()


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

    COMPARE answers a question about given arms. OPTIMIZE searches a space for the best arm: it explores without a
    claim, and fresh seeds on fresh tasks confirm the arm that it finds.
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
    settings without which its effect is too small to be seen; every arm has them. `compared_with` names the baseline's
    level where a person chose it.
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
    `margin` is that of a question for equality, where a person stated one. `scope` says what of an arm may differ.
    """

    kind: StudyKind = StudyKind.COMPARE
    asked: Asked = Asked.EFFECT
    factors: tuple[Factor, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    design: Design | None = None
    margin: float | None = None
    scope: Scope = field(default_factory=Scope)

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

    What is studied: `asks` is the question as data, and `question` is the same in words. `environment_name` is the name
    of the environment. `environment` is the reference that opens it. `environment_digest` changes with its tasks and
    its grader. Both are empty until the frame node has opened the environment. `assumptions` lists what the topic left
    open and the planner filled in, one sentence each. `not_studied` are parts of the topic that cannot be studied and
    that a person dropped with `--assume`. `job` are the settings that all arms share before their levels are set.

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

    `search` are the rules of exploration; None for a study without any.
    """

    topic: str
    question: str
    environment_name: str
    metric: str
    direction: str
    baseline: str
    search_split: str
    test_split: str
    eval_episodes: int
    rule: DecisionRule
    budget: Budget
    planner: str
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
    search: SearchRules | None = None

    @property
    def sign(self) -> float:
        """1 if the larger number of two runs is the better one, else -1."""
        return 1.0 if self.judged_by.is_score and self.direction == "maximize" else -1.0

    @property
    def margin(self) -> float | None:
        """The difference from which on two arms are not equal; None unless the question is for equality."""
        if self.asks.asked is not Asked.EQUAL:
            return None
        return self.rule.min_effect if self.asks.margin is None else self.asks.margin

    @property
    def confidence(self) -> float:
        """The confidence of the interval of a difference.

        Two one-sided tests at alpha call arms equal if this interval of 1 - 2 alpha lies within the margin.
        """
        return 1 - self.rule.alpha * (1 if self.margin is None else 2)

    @property
    def held_out(self) -> int:
        """The number of tasks of each held-out split that no run may train on."""
        return self.eval_episodes + (self.search.episodes if self.search else 0)

    def tasks_of(self, split: str, *, explores: bool) -> slice:
        """Return the tasks of a split that a score is taken on.

        Exploring scores use the first tasks of the search split, and the scores of claims the tasks after these.
        """
        if self.search is None or split != self.search_split:
            return slice(0, self.eval_episodes)
        first = self.search.episodes
        return slice(0, first) if explores else slice(first, first + self.eval_episodes)

    @property
    def of_scores(self) -> Charter:
        """Charter with final scores as its metric, by which base scores and the test split are compared."""
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
    def headroom_range(self) -> tuple[float, float] | None:
        """The range near whose ends the judged number varies less; None if there are no such ends, as for distances."""
        return None if self.judged_by is JudgedBy.SPREAD else self.judged_range

    @property
    def about(self) -> str:
        """The subject of a verdict in words: means, or the median pair of runs.

        Distances from an arm's own median have no pairs to compare, and equality is that of means.
        """
        is_of_means = self.judged_by is JudgedBy.SPREAD or self.margin is not None
        return IN_MEAN if is_of_means else IN_MEDIAN_PAIR

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
class FrameRequest:
    """The input from which a planner frames a study.

    A person fixed every value that is not None, and the planner must keep it. `assume` allows the study to go on
    without the parts of the topic that cannot be studied; otherwise the topic is refused. `not_studied` are the parts
    that were dropped before. `question` is what flags or the topic ask; if it has no factors, the planner chooses them.
    `equal` is the quantity of which every arm gets the same amount, and `amount` is that amount.

    `search` are the rules of exploration; None for a study that does not explore. `fixed` names those choices of a
    person that always have a value: `judged_by`, and fields of the rules of exploration. `earlier_findings` are those
    of earlier studies on the environment that a person named.
    """

    topic: str
    family: str | None = None
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
    search: SearchRules | None = None
    fixed: frozenset[str] = frozenset()
    earlier_findings: tuple[str, ...] = ()
