"""The planner without a language model: a designed experiment from the factors of the charter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from experiments_db import Verdict
from prompts import load
from researcher.analysis import Analysis
from researcher.charter import (
    Budget,
    Charter,
    ComparedAt,
    DecisionRule,
    FrameRequest,
    JudgedBy,
    PolicyName,
    Question,
    SampleSizeGoal,
    SearchRules,
    StudyKind,
)
from researcher.claims import Claim, ClaimKind
from researcher.equal_amounts import (
    describe_inequality,
    hold_equal,
)
from researcher.errors import PlannerError, TopicInvalid
from researcher.execution.environments import name_environments
from researcher.execution.preflight import why_not_carried_out
from researcher.history import Action, Decision, History, Objection, Response
from researcher.plan import Arm, ArmProgram, Plan, ProgramProblem, Stage
from researcher.planner.designs import (
    DEFAULT_TASK,
    default_job,
    draw_up_charter,
    lay_out,
    lay_out_levels,
    refuse_equal_arms,
    repeat_inconclusive,
)
from researcher.planner.predictions import predict
from researcher.program_parts import find_varied_parts
from researcher.programs import load_program_code
from researcher.question.factors import PROGRAM, RESPONSE_LENGTH, TRAIN_ENV
from researcher.question.scopes import describe_scope, scope_of_factors
from researcher.question.wording import state_question, title_of, title_of_environment
from researcher.search.policies import build_policy
from researcher.search.proposers import PROPOSERS, Levels
from researcher.search.rounds import make_round
from researcher.search.rules import PLAIN_PROGRAM, default_space, programs_of
from researcher.study.settings import StudySettings
from researcher.tree import Expand, Move, Promote
from swarm.environments import has_own_worker, is_bundled, options_of, with_options
from swarm.errors import JobInvalid
from swarm.job import build_job
from swarm.tasks import TASK_FAMILIES

SHARES_OF_NAMED, SHARES_OF_REPEATED = (1.0,), (1 / 2, 1 / 2)
"""The shares of alpha by plan.

Arms that a topic names use all of alpha, or half of it if the budget allows a second plan for inconclusive arms."""
WIDTH = 2
"""The number of arms in a round that no policy has chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesPlanner:
    """A planner that follows fixed rules.

    `programs` maps the name of each program level to its code. A single program runs in every arm, unless a search has
    programs of the library beside it. `train_envs` likewise maps names to references of the environments to train on.
    The charter has everything else.
    """

    name = "rules"

    programs: Mapping[str, str] = field(default_factory=dict[str, str])
    train_envs: Mapping[str, str] = field(default_factory=dict[str, str])

    def frame(self, request: FrameRequest) -> Charter:
        name = request.environment.name if request.environment else _choose_family(request.family)
        reference = request.environment.reference if request.environment else name
        question = self._fill(request.question, name, reference, request.steps)
        charter = replace(
            draw_up_charter(request, question, name),
            question=state_question(question, name),
            planner=self.name,
            not_studied=request.not_studied,
            environment=reference,
        )
        if question.kind is StudyKind.COMPARE:
            shares = SHARES_OF_NAMED if request.budget.max_runs is None else SHARES_OF_REPEATED
            charter = replace(charter, rule=DecisionRule(shares=shares))
        arms = self.list_arms(charter)
        for arm in arms:
            _check_job(arm)
        refuse_equal_arms(arms, charter)
        _check_metric(request, arms)
        baseline = next(arm.name for arm in arms if arm.is_baseline)
        assumptions = (*_assumptions(charter, request), *describe_inequality(arms, ComparedAt(charter.compared_at)))
        return replace(charter, baseline=baseline, assumptions=assumptions)

    def plan(self, charter: Charter, history: History) -> Plan:
        question = charter.asks
        if question.kind is StudyKind.OPTIMIZE:
            raise PlannerError("a search is explored in rounds: it has no plan beforehand")
        if not history.plans:
            goal = charter.sample_size or SampleSizeGoal()
            seeds = tuple(range(goal.seeds or goal.pilot_seeds))
            arms = self.list_arms(charter)
            return Plan(0, predict(arms, charter), arms, seeds, "The arms that the question names.")
        arms, first = repeat_inconclusive(history), history.next_seed
        seeds = tuple(range(first, first + len(history.plans[-1].seeds)))
        why = "Inconclusive arms get as many runs again, on fresh seeds."
        return Plan(len(history.plans), predict(arms, charter), arms, seeds, why, pools_runs=True)

    def explore(self, charter: Charter, history: History, moves: Sequence[Move]) -> Plan:
        rules = charter.search
        if rules is None:
            raise PlannerError("a study without rules of a search explores nothing")
        if not moves:
            # The charter leaves the moves to a language model, in whose place the usual policy answers.
            choose = build_policy(charter, replace(rules, policy=PolicyName.HALVING))
            moves = () if choose is None else choose(history.tree, rules.rungs, history.runs_left, WIDTH)
        baseline = next(arm for arm in self.list_arms(charter) if arm.is_baseline)
        known = {baseline.name: baseline, **history.arms}
        if charter.baseline not in known:
            raise PlannerError(f"the charter's baseline, {charter.baseline}, is not that of the rules, {baseline.name}")
        added = self._add_arms(charter, rules, history, moves, baseline)
        promoted = {move.arm: move.share for move in moves if isinstance(move, Promote)}
        arms = {} if history.plans else {baseline.name: baseline}
        arms |= {arm.name: arm for arm in added} | {name: known[name] for name in promoted}
        shares = {**dict.fromkeys(arms, rules.rungs[0]), **promoted}
        return make_round(history, tuple(arms.values()), shares, _describe_round(added, promoted))

    def _add_arms(
        self, charter: Charter, rules: SearchRules, history: History, moves: Sequence[Move], baseline: Arm
    ) -> list[Arm]:
        """Return the arms that the moves add, as far as the space has levels for them."""
        options = options_of(self._only_train_env or charter.environment)
        propose, taken, added = PROPOSERS[rules.proposer], list[Levels](), list[Arm]()
        for move in moves:
            if not isinstance(move, Expand):
                continue
            levels = propose(history.tree, charter.asks.factors, move, taken)
            if levels is None:
                continue
            taken.append(levels)
            laid_out = lay_out_levels(charter.asks, charter.job, levels, options)
            _, arm = hold_equal((baseline, laid_out), ComparedAt(charter.compared_at), charter.amount)
            parent, second = (*move.parents, None, None)[:2]
            added.append(
                replace(
                    arm,
                    environment=self._environment_of(arm, charter),
                    parent=parent or charter.baseline,
                    second_parent=second,
                    operator=move.operator,
                    rationale=f"{move.operator} by {rules.proposer}",
                )
            )
        return added

    def respond(self, charter: Charter, arm: str, objections: Sequence[Objection], history: History) -> Response:
        """Withdraw an arm to which there is a grave objection, because no rule can refute one."""
        grave = [item.sentence for item in objections if item.is_grave]
        if grave:
            return Response(f"a grave objection stands: {'; '.join(grave)}", is_withdrawn=True)
        return Response("No objection is grave, so the confirmation decides.", is_withdrawn=False)

    def list_arms(self, charter: Charter) -> tuple[Arm, ...]:
        """Return the arms that the question names; for a search, each level by itself beside the baseline.

        Raises TopicInvalid if a level sets another number of steps than the equal quantity.
        """
        laid_out = lay_out(charter.asks, charter.job, options_of(self._only_train_env or charter.environment))
        arms = hold_equal(laid_out, ComparedAt(charter.compared_at), charter.amount)
        _check_steps(charter, laid_out, arms)
        return tuple(replace(arm, environment=self._environment_of(arm, charter)) for arm in arms)

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        alone = next(iter(self.programs)) if len(self.programs) == 1 else None
        name = arm.factors.get(PROGRAM, alone)
        code = self._code_of(None if name is None else str(name))
        if name is None and RESPONSE_LENGTH in arm.factors:
            code = load("program_with_limit", limit=str(arm.factors[RESPONSE_LENGTH]))
        return ArmProgram(arm=arm.name, code=code, trusted=True)

    def _code_of(self, name: str | None) -> str:
        if name is None:
            return load("program")
        if name in self.programs:
            return self.programs[name]
        return load("program") if name == PLAIN_PROGRAM else load_program_code(name)

    def repair_program(
        self, charter: Charter, arm: Arm, program: ArmProgram, problems: tuple[ProgramProblem, ...]
    ) -> ArmProgram:
        """Raise PlannerError, because no rule repairs a program."""
        first = problems[0].message if problems else "no reason given"
        raise PlannerError(f"the program of arm {arm.name} was rejected: {first}")

    def interpret(self, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
        if not analysis.ranking or analysis.stage is Stage.EXPLORE:
            return ()
        compared = sorted(analysis.comparisons, key=lambda item: -abs(item.difference) if item.seeds else 0.0)
        sign = charter.sign
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
        if charter.asks.kind is StudyKind.COMPARE:
            return _decide_named(charter, analysis, history)
        last = history.plans[-1]
        if last.stage is Stage.EXPLORE:
            return Decision(Action.REFINE, "The policy of the search says how it goes on.")
        kept = {item.arm for item in analysis.comparisons if item.verdict is Verdict.KEEP}
        found = [f"{arm} {'was confirmed' if arm in kept else 'was not confirmed'} as better" for arm in last.primary]
        return Decision(Action.STOP, f"On fresh seeds and fresh tasks, {' and '.join(found)}.")

    def _fill(self, question: Question, name: str, reference: str, steps: int | None) -> Question:
        """Return the question, with the default search space if it is a search without factors.

        Raises TopicInvalid if nothing is compared, or if programs of a person make the response length ineffective.
        """
        if question.kind is StudyKind.COMPARE and not question.factors:
            raise TopicInvalid("nothing is compared: name a setting with its values, as in --vary lr=1e-3,3e-3")
        if self.programs and any(factor.name == RESPONSE_LENGTH for factor in question.factors):
            raise TopicInvalid(
                f"--vary: programs of your own say how long a reply may be, so {RESPONSE_LENGTH} changes nothing: "
                "compare two of them with --program"
            )
        if question.factors:
            return question
        job = default_job(name, steps=steps, base=question.fixed)
        programs = programs_of(self.programs, question.scope, runs_own_agent=has_own_worker(reference))
        factors = default_space(job, tuple(programs), question.fixed, question.scope)
        if not factors:
            raise TopicInvalid(
                f"--scope: rules have nothing to try in {describe_scope(question.scope)}: name arms by --program or "
                "--vary, or use --planner llm"
            )
        scope = scope_of_factors(factors, find_varied_parts([*programs.values()]))
        return replace(question, factors=factors, scope=scope)

    @property
    def _only_train_env(self) -> str | None:
        return next(iter(self.train_envs.values())) if len(self.train_envs) == 1 else None

    def _environment_of(self, arm: Arm, charter: Charter) -> str | None:
        """Return the training environment of an arm; None stands for the environment that judges it."""
        named = arm.factors.get(TRAIN_ENV)
        trained = self._only_train_env if named is None else self.train_envs[str(named)]
        levels = charter.asks.levels_of(arm.factors)
        options = {name: value for level in levels for name, value in level.options.items()}
        return with_options(trained or charter.environment, options) if options else trained


def _choose_family(fixed: str | None) -> str:
    if fixed is not None and fixed not in TASK_FAMILIES:
        raise TopicInvalid(f"unknown environment {fixed!r}; choose one of: {', '.join(TASK_FAMILIES)}")
    return fixed or DEFAULT_TASK


def _assumptions(charter: Charter, request: FrameRequest) -> tuple[str, ...]:
    sentences: list[str] = []
    if request.family is None and request.environment is None:
        place = title_of_environment(charter.environment_name)
        sentences.append(f"No environment is named: {place} is used (others: {', '.join(TASK_FAMILIES)}).")
    for factor in charter.asks.factors:
        if not factor.explicit:
            names = ", ".join(level.name for level in factor.levels)
            sentences.append(f"{title_of(factor.name)}: no values are given, so these are compared: {names}.")
        if factor.needs:
            needs = ", ".join(f"{name}={charter.job.get(name)}" for name in factor.needs)
            sentences.append(f"{title_of(factor.name)}: every arm has {needs}, without which its effect is too small.")
    sentences += charter.assumptions
    if request.seeds is not None and request.seeds < DecisionRule().min_seeds:
        sentences.append(f"With {request.seeds} seed(s) every verdict is inconclusive: the rule asks for 3.")
    if charter.asks.kind is StudyKind.COMPARE and request.budget.max_runs is None:
        sentences.append("One iteration: inconclusive arms get more seeds only where --max-runs leaves room for them.")
    return tuple(sentences)


def _decide_named(charter: Charter, analysis: Analysis, history: History) -> Decision:
    """Decide to stop after the arms that the question names, or to add seeds once if the budget of runs allows it."""
    open_arms = [item.arm for item in analysis.comparisons if item.is_open]
    if not open_arms or len(history.plans) > 1:
        return Decision(Action.STOP, "The arms that the question names have been compared.")
    planned = history.planned_runs
    more = len(next(reversed(history.plans)).seeds)
    wanted = (len(open_arms) + 1) * more
    if not _is_within_budget(charter.budget, planned + wanted):
        most = charter.budget.max_runs
        why = f"Another plan takes {wanted} runs"
        why += (
            f": start the study with --max-runs {planned + wanted} to have it."
            if most is None
            else f", for which --max-runs {most} leaves no room."
        )
        return Decision(Action.STOP, f"Not decided: {', '.join(open_arms)}. {why}")
    return Decision(Action.REFINE, f"Not decided: {', '.join(open_arms)}. They get {more} more seeds.")


def _describe_round(added: Sequence[Arm], promoted: Mapping[str, float]) -> str:
    """Return the round in one sentence."""
    trained = [f"{name} to {share:.0%}" for name, share in promoted.items()]
    parts = [f"new: {', '.join(arm.name for arm in added)}"] if added else []
    return "; ".join([*parts, *([f"trained on: {', '.join(trained)}"] if trained else [])]) or "the baseline alone"


def _is_within_budget(budget: Budget, runs: int) -> bool:
    return budget.max_runs is not None and runs <= budget.max_runs


def _check_metric(request: FrameRequest, arms: Sequence[Arm]) -> None:
    """Raise TopicInvalid if the metric counts steps that are not comparable, or to a score that cannot be."""
    steps = sorted({int(arm.job["total_steps"]) for arm in arms})
    if request.judged_by is JudgedBy.STEPS_TO and len(steps) > 1:
        raise TopicInvalid(
            f"--metric steps-to: arms train for {' and '.join(map(str, steps))} steps, so steps are not comparable: "
            "add --equal steps, or use --metric area"
        )
    reference = request.environment.reference if request.environment else request.family or DEFAULT_TASK
    level = request.judged_level
    # Scores of a grader that a person wrote may lie anywhere.
    if level is not None and is_bundled(reference) and not 0 < level <= 1:
        raise TopicInvalid(f"--metric steps-to:{level:g}: scores on {reference} lie from 0 to 1: give a score of these")


def _check_steps(charter: Charter, laid_out: Sequence[Arm], arms: Sequence[Arm]) -> None:
    """Raise TopicInvalid if a level sets a number of steps and the equal quantity requires another."""
    for asked, held in zip(laid_out, arms, strict=True):
        fixes_steps = any("total_steps" in level.settings for level in charter.asks.levels_of(asked.factors))
        if fixes_steps and held.job != asked.job:
            raise TopicInvalid(
                f"arm {asked.name}: at equal {charter.compared_at} its total_steps is {held.job['total_steps']}, not "
                f"{asked.job['total_steps']}: say --equal steps, or vary no number of steps"
            )


def _check_job(arm: Arm) -> None:
    """Raise TopicInvalid, naming the setting with an invalid value or one that no study can carry out."""
    if reason := why_not_carried_out(arm.job):
        raise TopicInvalid(f"arm {arm.name}: {reason}")
    try:
        build_job(dict(arm.job))
    except JobInvalid as error:
        raise TopicInvalid(f"arm {arm.name}: {error.message}") from error


def build_rules_planner(settings: StudySettings) -> RulesPlanner:
    """Return the planner with the programs and the environments of a study."""
    programs = {program.name: program.code for program in settings.programs}
    return RulesPlanner(programs=programs, train_envs=name_environments(settings.train_envs))
