"""The planner without a language model: a designed experiment from what the topic says, and from defaults elsewhere.

Place in the flow: one of the planners of base.py, the default where no language model is configured. topic.py reads the
topic, designs.py lays out the arms; this module decides in which order that happens and says what it assumed.

A topic that names values or a factor gets one iteration with exactly those arms. A topic that names nothing at all gets
three: one factor at a time, then the kept changes combined, then the best arm confirmed on fresh seeds. A topic with
parts that nothing stands for is refused by name, unless a person says to go on without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from prompts import load
from researcher.errors import PlannerError, TopicInvalid
from researcher.planner.designs import (
    combine_kept,
    confirm_best,
    default_arms,
    default_job,
    is_confirmation,
    lay_out,
    repeat_inconclusive,
)
from researcher.planner.equal_amounts import (
    hold_equal,
    say_inequality,
    say_what_is_equal,
    usual_amount,
    usual_comparison,
)
from researcher.planner.factors import DEFAULT_MAX_TOKENS, Factor, Level
from researcher.planner.predictions import predict
from researcher.planner.reading.asked import fit_levels, needs_combinations, state_question
from researcher.planner.reading.flags import RESPONSE_LENGTH, TOTAL_STEPS, Flags
from researcher.planner.reading.goals import ComparedAt
from researcher.planner.reading.refusal import nearest_topic, refuse
from researcher.planner.topic import ParsedTopic, parse_topic
from researcher.types import (
    Action,
    Analysis,
    Arm,
    ArmProgram,
    Budget,
    Charter,
    Claim,
    ClaimKind,
    Decision,
    DecisionRule,
    FrameRequest,
    History,
    Plan,
    Problem,
    SampleSizeGoal,
    Verdict,
)
from swarm import TrainJob
from swarm.tasks import TASK_FAMILIES

DEFAULT_TASK = "reverse"
PROGRAM, ENVIRONMENT = "program", "train_env"
"""Names of the factors whose levels are programs, and environments to train on."""
EVAL_EPISODES = 400
"""Standard error at most 0.025 per run; on the bundled model they take two seconds, where a run takes thirty."""

SHARES_OF_NAMED, SHARES_OF_REPEATED, SHARES_OF_DEFAULT = (1.0,), (1 / 2, 1 / 2), (1 / 2, 1 / 4, 1 / 4)
"""How alpha is divided: all of it for arms that a topic names, halved where a budget lets open ones have more runs; in
the default design half of it finds changes, the rest is for their combination and its confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesPlanner:
    """`seeds` and `steps` are what a person fixed by flags; None leaves them to the topic, then to the defaults.

    `base_job` are settings of every job: engine `fake` tries the whole loop without a model. `programs` are compared
    by name with the first of them as the baseline; one alone is what every arm runs. `train_envs` likewise, by what
    they are called: the environments to train on. `gpus` is how many there are; None where that cannot be told here.
    """

    name = "rules"

    seeds: int | None = None
    steps: int | None = None
    base_job: Mapping[str, Any] = field(default_factory=dict[str, Any])
    programs: Mapping[str, str] = field(default_factory=dict[str, str])
    train_envs: Mapping[str, str] = field(default_factory=dict[str, str])
    gpus: int | None = None

    def frame(self, request: FrameRequest) -> Charter:
        topic = self._read(request.topic)
        task = request.environment.name if request.environment else self._choose_task(topic, request.task)
        flags = Flags(self.base_job, self.steps, len(self.programs), len(self.train_envs), self.gpus)
        flags.refuse_contradictions(topic, request)
        missing = flags.find_missing(topic, request)
        if missing and not request.assume:
            parts = [(part.text, part.remedy) for part in missing]
            raise refuse(parts, nearest_topic(topic, topic.factors, task), request)
        topic = self._restrict(topic, task)
        compared_at, amount = self._share(topic, task)
        arms = self._first_arms(topic, task, compared_at, amount)
        for arm in arms:
            _check_job(arm)
        baseline = next(arm.name for arm in arms if arm.is_baseline)
        seeds = self._count_seeds(topic)
        return Charter(
            topic=topic.text,
            question=state_question(topic.factors, topic.goals, task),
            task=task,
            metric="mean reward of held-out episodes",
            direction="maximize",
            baseline=baseline,
            search_split="validation",
            sealed_split="test",
            eval_episodes=request.eval_episodes or topic.eval_episodes or EVAL_EPISODES,
            rule=DecisionRule(shares=_shares(topic, request.budget)),
            budget=request.budget,
            brain=self.name,
            assumptions=(*self._assumptions(topic, task, request, seeds), *say_inequality(arms, compared_at)),
            sample_size=SampleSizeGoal(seeds=seeds, is_underpowered=request.is_underpowered),
            not_studied=tuple(dict.fromkeys(part.text for part in missing)),
            compared_at=compared_at.value,
            amount=amount,
        )

    def plan(self, charter: Charter, history: History) -> Plan:
        topic = self._restrict(self._read(charter.topic), charter.task)
        if not history.plans:
            seeds = tuple(range(self._count_seeds(topic) or SampleSizeGoal().pilot_seeds))
            # Studies of older versions trained every arm for the same number of steps.
            compared_at = ComparedAt(charter.compared_at or ComparedAt.STEPS)
            arms = self._first_arms(topic, charter.task, compared_at, charter.amount)
            return Plan(0, predict(arms, charter), arms, seeds, _rationale(topic))
        iteration, seeds = len(history.plans), _fresh_seeds(history)
        if topic.factors and (arms := self._unseen_arms(topic, charter, history)):
            why = "The arms that the topic names and no plan has compared yet, beside the baseline on fresh seeds."
            return Plan(iteration, predict(arms, charter), arms, seeds, why)
        if topic.factors:
            arms = repeat_inconclusive(history)
            why = "Inconclusive arms get as many runs again, on fresh seeds."
            return Plan(iteration, predict(arms, charter), arms, seeds, why, pools_runs=True)
        combined = combine_kept(history) if iteration == 1 else None
        if combined is not None:
            _check_job(combined[-1])
            why = "The changes that were kept one at a time are tried together."
            return Plan(iteration, predict(combined, charter), combined, seeds, why)
        arms = confirm_best(history)
        why = "The best arm is repeated on fresh seeds, which alone confirm it."
        return Plan(iteration, predict(arms, charter), arms, seeds, why)

    def _unseen_arms(self, topic: ParsedTopic, charter: Charter, history: History) -> tuple[Arm, ...]:
        """The baseline and those arms that no plan has had, as in a study that was forked to ask for more; empty if
        there are none."""
        known = {arm.name for plan in history.plans for arm in plan.arms}
        compared_at = ComparedAt(charter.compared_at or ComparedAt.STEPS)
        arms = self._first_arms(topic, charter.task, compared_at, charter.amount)
        unseen = tuple(arm for arm in arms if arm.name not in known)
        return (*(arm for arm in arms if arm.name == charter.baseline), *unseen) if unseen else ()

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        alone = next(iter(self.programs)) if len(self.programs) == 1 else None
        name = arm.factors.get(PROGRAM, alone)
        code = load("program") if name is None else self.programs[str(name)]
        if name is None and RESPONSE_LENGTH in arm.factors:
            code = load("program_with_limit", limit=str(arm.factors[RESPONSE_LENGTH]))
        return ArmProgram(arm=arm.name, code=code, trusted=True)

    def repair_program(
        self, charter: Charter, arm: Arm, program: ArmProgram, problems: tuple[Problem, ...]
    ) -> ArmProgram:
        """No rule mends a program. Raises PlannerError."""
        first = problems[0].message if problems else "no reason given"
        raise PlannerError(f"the program of arm {arm.name} was rejected: {first}")

    def interpret(self, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
        if not analysis.ranking:
            return ()
        compared = sorted(analysis.comparisons, key=lambda item: -abs(item.difference) if item.seeds else 0.0)
        sign = -1.0 if charter.direction == "minimize" else 1.0
        return (
            Claim(ClaimKind.BEST, arm=analysis.ranking[0]),
            *(
                Claim(
                    ClaimKind.BETTER if sign * item.difference > 0 else ClaimKind.WORSE,
                    arm=item.arm,
                    other=item.baseline,
                    number=abs(item.difference),
                )
                for item in compared
                if item.seeds and item.difference != 0
            ),
        )

    def decide(self, charter: Charter, analysis: Analysis, history: History) -> Decision:
        topic = self._restrict(self._read(charter.topic), charter.task)
        iteration = len(history.plans) - 1
        kept = [comparison.arm for comparison in analysis.comparisons if comparison.verdict is Verdict.KEEP]
        if topic.factors:
            return _decide_named(charter, analysis, history)
        if is_confirmation(history):
            (arm,) = (item.name for item in history.plans[-1].arms if item.name != charter.baseline)
            word = "was confirmed" if arm in kept else "was not confirmed"
            return Decision(Action.STOP, f"{arm} {word} on fresh seeds.")
        if not kept:
            return Decision(Action.STOP, f"No change beats {charter.baseline}: there is nothing to combine or confirm.")
        if iteration == 0 and len(kept) > 1:
            return Decision(Action.REFINE, f"Kept one at a time: {', '.join(kept)}. Next they are combined.")
        best = next(arm for arm in analysis.ranking if arm in kept)
        return Decision(Action.REFINE, f"{best} is the best that was kept: it is confirmed on fresh seeds.")

    def _read(self, text: str) -> ParsedTopic:
        """The topic, with programs and environments to train on as its first factors where there are several."""
        topic = parse_topic(text)
        named = {PROGRAM: self.programs, ENVIRONMENT: self.train_envs}
        factors = tuple(
            Factor(factor, tuple(Level(name, {factor: name}, {}) for name in names), explicit=True)
            for factor, names in named.items()
            if len(names) > 1
        )
        factors = fit_levels((*factors, *_apart(topic.factors)), topic.goals)
        return replace(topic, factors=factors)

    def _restrict(self, topic: ParsedTopic, task: str) -> ParsedTopic:
        """The topic with what can be studied of it on this environment with these programs."""
        factors = (factor for factor in topic.factors if not (self.programs and factor.name == RESPONSE_LENGTH))
        return replace(topic, factors=tuple(_fit_to_replies(factor, task) for factor in factors))

    def _choose_task(self, topic: ParsedTopic, fixed: str | None) -> str:
        if fixed is not None and fixed not in TASK_FAMILIES:
            raise TopicInvalid(f"unknown task {fixed!r}; choose one of: {', '.join(TASK_FAMILIES)}")
        return fixed or topic.task or DEFAULT_TASK

    def _share(self, topic: ParsedTopic, task: str) -> tuple[ComparedAt, float]:
        """At what the arms are compared, and how much of it ends a run, if not its steps."""
        names = [factor.name for factor in topic.factors]
        compared_at = usual_comparison(names)
        if topic.compared_at is not None and TOTAL_STEPS not in names:
            compared_at = topic.compared_at
        usual = usual_amount(compared_at, self._job(topic, task), _longest_reply(task))
        return compared_at, topic.amount or usual if usual else 0.0

    def _job(self, topic: ParsedTopic, task: str) -> dict[str, Any]:
        base = self.base_job if topic.model is None else {"model": topic.model, **self.base_job}
        return default_job(task, steps=self.steps or topic.steps, base=base)

    def _first_arms(self, topic: ParsedTopic, task: str, compared_at: ComparedAt, amount: float) -> tuple[Arm, ...]:
        job = self._job(topic, task)
        if topic.algorithm is not None:
            job |= topic.algorithm.settings
        is_crossed = needs_combinations(topic.factors, topic.goals)
        arms = lay_out(topic.factors, job, is_crossed=is_crossed) if topic.factors else default_arms(job)
        arms = hold_equal(arms, compared_at, amount)
        return tuple(replace(arm, environment=self._environment_of(arm)) for arm in arms)

    def _environment_of(self, arm: Arm) -> str | None:
        """What an arm trains on; None for what it is judged on."""
        alone = next(iter(self.train_envs)) if len(self.train_envs) == 1 else None
        name = arm.factors.get(ENVIRONMENT, alone)
        return None if name is None else self.train_envs[str(name)]

    def _count_seeds(self, topic: ParsedTopic) -> int | None:
        """What a person said; None leaves it to the design."""
        return self.seeds or topic.seeds

    def _assumptions(self, topic: ParsedTopic, task: str, request: FrameRequest, seeds: int | None) -> tuple[str, ...]:
        said: list[str] = []
        is_free = request.task is None and request.environment is None
        if is_free and topic.task is None:
            said.append(f"The topic names no known task: {task} is used (others: {', '.join(TASK_FAMILIES)}).")
        if not is_free and topic.task not in (None, task):
            said.append(f"The topic names {topic.task}, a flag names {task}: this study is on {task}.")
        if not topic.factors:
            said.append(
                "The topic names no setting: the default design is used, which varies learning rate, group size "
                "and KL one at a time, then combines what helped, then confirms it."
            )
        said.extend(f"{factor.name}: {factor.note}." for factor in topic.factors if factor.note)
        said.extend(
            f"{factor.name}: the topic gives no values, so these are compared: "
            f"{', '.join(level.name for level in factor.levels)}."
            for factor in topic.factors
            if not factor.explicit
        )
        said.append(say_what_is_equal(*self._share(topic, task)))
        if seeds is not None and seeds < DecisionRule().min_seeds:
            said.append(f"With {seeds} seed(s) every verdict is inconclusive: the rule asks for 3.")
        if topic.factors and request.budget.max_runs is None:
            said.append("One iteration: inconclusive arms get more seeds only where --max-runs leaves room for them.")
        return tuple(said)


def _decide_named(charter: Charter, analysis: Analysis, history: History) -> Decision:
    """Stop after the arms a topic named, or add seeds once, where the budget of runs has room for them."""
    open_arms = [item.arm for item in analysis.comparisons if item.verdict is Verdict.INCONCLUSIVE]
    if not open_arms or len(history.plans) > 1:
        return Decision(Action.STOP, "The arms that the topic names have been compared.")
    spent = history.planned_runs
    more = len(_fresh_seeds(history))
    wanted = (len(open_arms) + 1) * more
    if not _has_room(charter.budget, spent + wanted):
        why = f"Another plan takes {wanted} runs, for which --max-runs leaves no room."
        return Decision(Action.STOP, f"Not decided: {', '.join(open_arms)}. {why}")
    return Decision(Action.REFINE, f"Not decided: {', '.join(open_arms)}. They get {more} more seeds.")


def _has_room(budget: Budget, runs: int) -> bool:
    return budget.max_runs is not None and runs <= budget.max_runs


def _longest_reply(task: str) -> int:
    """Tokens that a reply may have on an environment, as far as that is known before it is opened."""
    return TASK_FAMILIES[task].max_tokens if task in TASK_FAMILIES else DEFAULT_MAX_TOKENS


def _fit_to_replies(factor: Factor, task: str) -> Factor:
    """Limits on a reply that the topic does not give: half of what the environment allows, that, and twice that."""
    if factor.name != RESPONSE_LENGTH or factor.explicit:
        return factor
    usual = _longest_reply(task)
    setting = {RESPONSE_LENGTH: usual}
    levels = [
        Level(f"{factor.name}={limit}", {factor.name: limit}, {factor.name: limit})
        for limit in (max(1, usual // 2), usual, 2 * usual)
    ]
    return replace(factor, levels=tuple(levels), base={**factor.base, **setting})


def _apart(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """Where the batch size is compared as well, a group size says nothing of it."""
    if not any(factor.name == "batch_size" for factor in factors):
        return factors
    return tuple(
        factor
        if factor.name != "num_repeat"
        else replace(
            factor, levels=tuple(replace(level, settings=dict(level.factors)) for level in factor.levels), note=""
        )
        for factor in factors
    )


def _rationale(topic: ParsedTopic) -> str:
    if not topic.factors:
        return "Default design: the baseline, and one change at a time."
    notes = [factor.note for factor in topic.factors if factor.note]
    return "; ".join(["The arms that the topic names", *notes]) + "."


def _shares(topic: ParsedTopic, budget: Budget) -> tuple[float, ...]:
    if not topic.factors:
        return SHARES_OF_DEFAULT
    return SHARES_OF_NAMED if budget.max_runs is None else SHARES_OF_REPEATED


def _fresh_seeds(history: History) -> tuple[int, ...]:
    """As many as the last plan had, beginning after all that were used."""
    *_, last = history.plans
    first = max(seed for plan in history.plans for seed in plan.seeds) + 1
    return tuple(range(first, first + len(last.seeds)))


def _check_job(arm: Arm) -> None:
    """Raises TopicInvalid naming the setting that cannot take its value."""
    try:
        TrainJob.model_validate(dict(arm.job))
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the settings"
        reason = first["msg"].removeprefix("Value error, ")
        value = f" (got {first['input']!r})" if first["loc"] else ""
        raise TopicInvalid(f"arm {arm.name}: {where} {reason[:1].lower()}{reason[1:]}{value}") from error
