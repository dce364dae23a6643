"""The plan of one iteration of a study: its arms, their programs, and the hypotheses about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from experiments_db import Operator


class Relation(StrEnum):
    """The claim that a contrast makes about its arms.

    `Contrast` lists the arms that each relation takes.
    """

    BETTER = "better"
    WORSE = "worse"
    NO_BETTER = "no_better"
    EQUIVALENT = "equivalent"
    INTERACTION = "interaction"
    BEST = "best"
    MATTERS_MORE = "matters_more"


class Stage(StrEnum):
    """The part of a study that a plan belongs to.

    EXPLORE tries ideas with short runs of one seed and claims nothing. CLAIM runs every arm with all seeds of the plan,
    and the judge decides on them.
    """

    EXPLORE = "explore"
    CLAIM = "claim"


class Speaker(StrEnum):
    """The messages of a transcript that a manipulation check looks at."""

    MODEL = "model"
    ENVIRONMENT = "environment"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class ManipulationCheck:
    """A condition on the transcripts of an arm that must hold if the arm is what it claims to be.

    `statement` is the condition in words. A transcript passes if `pattern`, a regular expression, occurs in the
    messages of `speaker` at least `at_least` and at most `at_most` times. An empty pattern counts the messages
    themselves. With `code` a transcript passes if the function `check(transcript)` in it returns true. The arm passes
    if at least the part `share` of its transcripts does, from 0 to 1.

    MODEL are the replies of the model to every request of the agent. AGENT are the agent's answers to the session, and
    ENVIRONMENT the messages of the session.
    """

    statement: str
    pattern: str = ""
    speaker: Speaker = Speaker.AGENT
    at_least: int = 1
    at_most: int | None = None
    code: str = ""
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Arm:
    """One treatment of a study.

    `name` is short and unique. `factors` is what the study compares. `job` is a complete set of TrainJob settings,
    except `seed` and `experiment_name`, which the evaluator sets per run. `environment` is the training environment if
    it differs from the charter's. All arms are judged on the charter's environment.

    `rationale` says what the arm is for. `parent` is the arm that it was derived from, by `operator`, and
    `second_parent` the other parent of a combination. `manipulation` must be true of its transcripts.

    `program_of` is the arm whose program it has; None if the planner writes one for it.
    """

    name: str
    factors: Mapping[str, Any]
    job: Mapping[str, Any]
    rationale: str
    is_baseline: bool = False
    parent: str | None = None
    environment: str | None = None
    operator: Operator | None = None
    second_parent: str | None = None
    manipulation: ManipulationCheck | None = None
    program_of: str | None = None


@dataclass(frozen=True, slots=True)
class Contrast:
    """The prediction of a hypothesis in a form that code can judge.

    better, worse: at least one of `arms` is better (worse) than the one arm of `against` by more than `margin`.
    no_better: each of `arms` gains less than `margin` over the one arm of `against`.
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

    @property
    def rules_out_a_gain(self) -> bool:
        """True if the contrast claims that no arm gains as much as the margin."""
        return self.relation in (Relation.NO_BETTER, Relation.EQUIVALENT)


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
class SampleSize:
    """The number of runs per arm, with the power it gives.

    `seed_variance` is the variance between runs of one arm beyond evaluation noise. `noise_variance` is evaluation
    noise: the variance of a score from its finite number of episodes. `basis` names the source of both. `wanted` is the
    number of runs that the goal needs. `power` is the probability that the chosen number gives. `seconds` is the
    expected time of the whole plan; None if no run has been timed. `finds_worse` is true if no arm can be better than
    the baseline by the target. The power is then that of finding a worse arm. `confirms` says what earlier studies
    found, if the plan confirms it with fewer runs; the power is then that of finding it again. `margin` is that of a
    question for equality; the power is then that of calling an arm of the same mean equal.
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
    confirms: str = ""
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One iteration of a study: every arm is run once per seed.

    Seeds are repetitions, never tunables. An arm that has run before is judged by the runs of this plan alone. If
    `pools_runs` is true, it is judged by all its runs; the number of seeds must then not depend on any score.
    `sample_size` is set once the seeds are chosen. `author` is the planner that made the plan; the plan node fills it
    in.

    A plan of the stage EXPLORE has one seed, which no other stage uses. `rungs` maps each of its arms to the step at
    which the arm's training ends. A plan of the stage CLAIM has no rungs. `claim` counts the plans of the stage CLAIM
    before it, which says whose share of alpha it has. If there are `primary` arms, the other arms are tested only where
    all primary ones are kept. `lessons` are what the planner wants to remember.
    """

    iteration: int
    hypotheses: tuple[Hypothesis, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    rationale: str
    pools_runs: bool = False
    sample_size: SampleSize | None = None
    author: str = ""
    stage: Stage = Stage.CLAIM
    rungs: Mapping[str, int] = field(default_factory=dict[str, int])
    claim: int = 0
    primary: tuple[str, ...] = ()
    lessons: tuple[str, ...] = ()


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
    """One reason why `check` rejects a program, or a warning that it does not reject it for.

    `stage` is parse, lint, imports, job, functions, scope, preflight, trial, twin, promise or environment; that of a
    warning is style.
    """

    stage: str
    message: str
