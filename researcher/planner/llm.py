"""The planner that asks a language model: it frames, plans, writes and repairs clients, interprets and decides.

Place in the flow: one of the planners of base.py. Prompts come from prompts/, the calls go through chat.py. A model
only chooses among what exists: task families, settings of a training job, a number of seeds; metric, splits, rule,
steps and budget are set here. Whatever it answers is checked before it becomes part of a study.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from prompts import load
from researcher.errors import TopicInvalid
from researcher.execution.job_check import contradict_name
from researcher.judge.contrasts import ARMS_OF_RELATION, is_complete
from researcher.planner.designs import default_job
from researcher.planner.equal_amounts import give_episodes_of, say_what_is_equal
from researcher.planner.language_model.answers import (
    MAX_ARMS,
    ArmAnswer,
    DecideAnswer,
    FrameAnswer,
    HypothesisAnswer,
    PlanAnswer,
    Unusable,
    parse_answer,
    parse_claims,
    parse_program,
)
from researcher.planner.language_model.briefing import (
    TUNABLE,
    list_fixed,
    list_settings,
    list_tasks,
    quote_text,
    show_budget,
    show_history,
    show_job,
    show_results,
)
from researcher.planner.language_model.chat import Chat
from researcher.planner.rules import EVAL_EPISODES
from researcher.question.asking import refuse_by_name
from researcher.question.factors import PROGRAM
from researcher.types import (
    Action,
    Analysis,
    Arm,
    ArmProgram,
    Charter,
    Claim,
    ComparedAt,
    Contrast,
    Decision,
    DecisionRule,
    FrameRequest,
    History,
    Hypothesis,
    Plan,
    Problem,
    Question,
    Relation,
    SampleSizeGoal,
    StudiedEnvironment,
)
from swarm import TrainJob
from swarm.errors import JobInvalid
from swarm.job import build_job
from swarm.tasks import TASK_FAMILIES, task_family

METRIC = "mean reward of held-out episodes"
MAX_TOPIC_CHARS = 4_000
MAX_SEEDS = 10
MAX_EPISODES_PER_STEP = 2_048
"""Tasks times repeats: sixteen times the usual, beyond which an arm would simply buy its score with data."""

UNCHANGED = "UNCHANGED"
REFUSED = (
    "Then give no question: the person is told what cannot be studied, and nothing is run. Never put another task or "
    "setting in its place."
)
LEFT_OUT = (
    "The person has agreed to go on without it: give question, task family and baseline for the rest of the topic as "
    "well. The report says first what was left out."
)
"""What the prompt of frame says of a topic that cannot be studied as asked."""
DEFAULT_TOPIC = "Which settings train reverse best?"
PLAIN_PROGRAM = "nothing"
"""What an arm's program does differently where an arm changes settings alone."""


class LLMPlanner:
    """`seeds` and `steps` are what a person fixed by flags; `base_job` are settings of every job. `environment` is the
    one that a person named; without it the model chooses a bundled one. `program` is what those of the arms start
    from, the plain one unless a person named another.
    """

    def __init__(
        self,
        chat: Chat,
        *,
        seeds: int | None = None,
        steps: int | None = None,
        base_job: Mapping[str, Any] = MappingProxyType({}),
        environment: StudiedEnvironment | None = None,
        program: str | None = None,
    ) -> None:
        self._chat = chat
        self._seeds = seeds
        self._steps = steps
        self._base = base_job
        self._environment = environment
        self._contract = load("program_contract", example=program or load("program"))
        # Arms mostly share one program: what was mended for the first needs no second call for the next.
        self._mended: dict[str, str] = {}

    @property
    def name(self) -> str:
        return f"llm:{self._chat.model}"

    def frame(self, request: FrameRequest) -> Charter:
        topic = " ".join(request.topic.split())
        _check_request(topic, request.task)
        question = load(
            "frame",
            topic=topic,
            tasks=list_tasks(self._environment),
            settings=list_settings(request.question),
            fixed=list_fixed(request),
            left_out=LEFT_OUT if request.assume else REFUSED,
        )
        task = request.task if self._environment is None else self._environment.name
        parse = partial(_parse_frame, task=task, assume=request.assume)
        answer = self._chat.ask("frame", question, parse)
        if answer.infeasible and not request.assume:
            parts = [(item.what, item.why) for item in answer.infeasible]
            raise refuse_by_name(parts, answer.nearest or DEFAULT_TOPIC, request)
        assert answer.question and answer.task and answer.baseline, "_parse_frame asks for all three"
        return Charter(
            topic=topic,
            question=answer.question,
            task=answer.task,
            metric=METRIC,
            direction="maximize",
            baseline=answer.baseline,
            search_split="validation",
            sealed_split="test",
            eval_episodes=request.eval_episodes or EVAL_EPISODES,
            rule=DecisionRule(),
            budget=request.budget,
            brain=self.name,
            assumptions=(*answer.assumptions, say_what_is_equal(ComparedAt(answer.compared_at), 0)),
            not_studied=tuple(item.what for item in answer.infeasible),
            compared_at=answer.compared_at,
            sample_size=SampleSizeGoal(seeds=self._seeds or request.seeds, is_underpowered=request.is_underpowered),
            asks=request.question,
        )

    def plan(self, charter: Charter, history: History) -> Plan:
        least = self._seeds or DecisionRule().min_seeds
        question = load(
            "plan",
            question=charter.question,
            topic=charter.topic,
            task=charter.task,
            description=self._describe(charter),
            baseline=charter.baseline,
            iteration=str(len(history.plans) + 1),
            base_job=show_job(self._base_job(charter)),
            settings=list_settings(charter.asks),
            history=show_history(history),
            budget=show_budget(charter.budget, history),
            seeds=str(self._seeds or SampleSizeGoal().pilot_seeds),
            min_seeds=str(least),
            max_seeds=str(self._seeds or MAX_SEEDS),
            max_arms=str(MAX_ARMS),
            max_episodes=str(MAX_EPISODES_PER_STEP),
        )
        return self._chat.ask("plan", question, lambda text: self._parse_plan(text, charter, history))

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        question = load(
            "write_program",
            arm=arm.name,
            task=charter.task,
            description=self._describe(charter),
            program=str(arm.factors.get(PROGRAM, PLAIN_PROGRAM)),
            job=show_job(arm.job),
            contract=self._contract,
            parent=_show_parent(parent),
        )

        def parse(text: str) -> str:
            if parent is not None and text.strip().strip("`.\"'*").upper() == UNCHANGED:
                return parent.code
            return parse_program(text)

        return ArmProgram(arm.name, self._chat.ask("write_program", question, parse), trusted=False)

    def repair_program(
        self, charter: Charter, arm: Arm, program: ArmProgram, problems: tuple[Problem, ...]
    ) -> ArmProgram:
        if program.code not in self._mended:
            question = load(
                "repair_program",
                arm=arm.name,
                task=charter.task,
                problems=quote_text("\n".join(f"{problem.stage}: {problem.message}" for problem in problems)),
                code=quote_text(program.code),
                contract=self._contract,
            )
            self._mended[program.code] = self._chat.ask("repair_program", question, parse_program)
        return ArmProgram(arm.name, self._mended[program.code], trusted=False)

    def interpret(self, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
        question = load(
            "interpret",
            question=charter.question,
            results=show_results(analysis),
            history=show_history(_without_analyses(history)),
        )
        return self._chat.ask("interpret", question, parse_claims)

    def decide(self, charter: Charter, analysis: Analysis, history: History) -> Decision:
        question = load(
            "decide",
            question=charter.question,
            iterations=str(len(history.plans)),
            results=show_results(analysis),
            history=show_history(_without_analyses(history)),
            budget=show_budget(charter.budget, history),
        )
        others = {arm.arm for arm in analysis.arms} - {charter.baseline}
        answer = self._chat.ask("decide", question, partial(_parse_decision, arms=others))
        return Decision(
            Action(answer.action), answer.reason, disqualified={item.arm: item.reason for item in answer.disqualified}
        )

    def _describe(self, charter: Charter) -> str:
        return task_family(charter.task).description if self._environment is None else self._environment.description

    def _base_job(self, charter: Charter) -> dict[str, Any]:
        fixed = charter.asks.fixed
        needs = {name: value for factor in charter.asks.factors for name, value in factor.needs.items()}
        job = default_job(charter.task, steps=self._steps, base={**self._base, **fixed})
        return {**job, **{name: value for name, value in needs.items() if name not in fixed}}

    def _parse_plan(self, text: str, charter: Charter, history: History) -> Plan:
        answer = parse_answer(text, PlanAnswer)
        seeds = self._parse_seeds(answer.seeds)
        earlier = {arm.name: arm for plan in history.plans for arm in plan.arms}
        if len({item.name for item in answer.arms}) < len(answer.arms):
            raise Unusable("two arms have the same name")
        jobs = {item.name: self._parse_job(item, charter) for item in answer.arms}
        if charter.baseline in earlier:
            jobs = {charter.baseline: {}} | jobs | {charter.baseline: dict(earlier[charter.baseline].job)}
        if charter.compared_at == ComparedAt.EPISODES and charter.baseline in jobs:
            jobs = {name: give_episodes_of(jobs[charter.baseline], job) for name, job in jobs.items()}
        programs = {item.name: item.program or PLAIN_PROGRAM for item in answer.arms}
        programs = {name: programs.get(name, _program_of(earlier.get(name))) for name in jobs}
        _check_arms(jobs, programs, earlier, charter.baseline)
        _check_question(charter.asks, {**{name: arm.job for name, arm in earlier.items()}, **jobs})
        is_compared = len({*programs.values(), *map(_program_of, earlier.values())}) > 1
        factors = _find_factors(jobs, earlier)
        reasons = {item.name: item.rationale for item in answer.arms}
        arms = tuple(
            Arm(
                name=name,
                factors={factor: _setting(job, factor) for factor in factors}
                | ({PROGRAM: programs[name]} if is_compared else {}),
                job=job,
                rationale=reasons.get(name, "the baseline"),
                is_baseline=name == charter.baseline,
                parent=None if name == charter.baseline else charter.baseline,
            )
            for name, job in jobs.items()
        )
        hypotheses = tuple(
            Hypothesis(
                item.statement,
                item.prediction,
                tuple(name for name in item.arms if name in jobs),
                _parse_contrast(item, {*jobs, *earlier}, charter.baseline),
            )
            for item in answer.hypotheses
        )
        _check_cost(len(jobs) * seeds, charter, history)
        # Later plans go on fresh seeds, the baseline too: no score that led to them judges them.
        first = max((seed for plan in history.plans for seed in plan.seeds), default=-1) + 1
        return Plan(len(history.plans), hypotheses, arms, tuple(range(first, first + seeds)), answer.rationale)

    def _parse_seeds(self, asked: int) -> int:
        if self._seeds is not None:
            return self._seeds
        least = DecisionRule().min_seeds
        if not least <= asked <= MAX_SEEDS:
            raise Unusable(f"seeds must be from {least} to {MAX_SEEDS}, got {asked}")
        return asked

    def _parse_job(self, item: ArmAnswer, charter: Charter) -> dict[str, Any]:
        known = _settable(charter.asks)
        if foreign := sorted(item.settings.keys() - set(known)):
            raise Unusable(f"arm {item.name}: {', '.join(foreign)} cannot be set; choose from {', '.join(known)}")
        job = self._base_job(charter) | item.settings
        try:
            checked = build_job(job)
        except JobInvalid as error:
            raise Unusable(f"arm {item.name}: {error.message}") from error
        if checked.batch_size * checked.num_repeat > MAX_EPISODES_PER_STEP:
            raise Unusable(f"arm {item.name}: batch_size * num_repeat is above {MAX_EPISODES_PER_STEP}")
        # As the job understood them: "1e-3" in quotes becomes a number, a list a tuple of numbers.
        return {**job, **{name: checked.model_dump(mode="json")[name] for name in item.settings}}


def _check_request(topic: str, task: str | None) -> None:
    if not topic:
        raise TopicInvalid("the topic is empty: say what to study, such as 'Does group size matter for word reversal?'")
    if len(topic) > MAX_TOPIC_CHARS:
        raise TopicInvalid(f"the topic has {len(topic)} characters, at most {MAX_TOPIC_CHARS} are read: shorten it")
    if task is not None and task not in TASK_FAMILIES:
        raise TopicInvalid(f"unknown task {task!r}; choose one of: {', '.join(TASK_FAMILIES)}")


def _parse_frame(text: str, task: str | None, *, assume: bool) -> FrameAnswer:
    answer = parse_answer(text, FrameAnswer)
    if answer.infeasible and not assume:
        return answer
    if missing := [name for name in ("question", "task", "baseline") if getattr(answer, name) is None]:
        raise Unusable("; ".join(f"{name}: Field required" for name in missing))
    if task is None and answer.task not in TASK_FAMILIES:
        raise Unusable(f"there is no task family {answer.task!r}; choose one of: {', '.join(TASK_FAMILIES)}")
    if task is not None and answer.task != task:
        raise Unusable(f"the task family is fixed: {task}")
    return answer


def _parse_contrast(item: HypothesisAnswer, known: Collection[str], baseline: str) -> Contrast | None:
    """What the hypothesis predicts; None if it says so in words alone. Raises Unusable naming what it lacks."""
    if item.relation is None:
        return None
    against = tuple(item.against)
    if not against and item.relation in (Relation.BETTER, Relation.WORSE, Relation.EQUIVALENT):
        against = (baseline,)
    contrast = Contrast(item.relation, tuple(item.arms), against, item.margin)
    if unknown := [name for name in (*contrast.arms, *contrast.against) if name not in known]:
        raise Unusable(f"hypothesis {item.statement!r}: there is no arm {', '.join(unknown)}")
    if not is_complete(contrast):
        raise Unusable(f"hypothesis {item.statement!r}: {item.relation.value} takes {ARMS_OF_RELATION[item.relation]}")
    return contrast


def _program_of(arm: Arm | None) -> str:
    return PLAIN_PROGRAM if arm is None else str(arm.factors.get(PROGRAM, PLAIN_PROGRAM))


def _parse_decision(text: str, arms: Collection[str]) -> DecideAnswer:
    """A decision that disqualifies none but `arms`. Raises Unusable."""
    answer = parse_answer(text, DecideAnswer)
    if unknown := [item.arm for item in answer.disqualified if item.arm not in arms]:
        raise Unusable(f"{', '.join(unknown)} cannot be disqualified: choose among {', '.join(sorted(arms)) or 'none'}")
    return answer


def _check_arms(
    jobs: Mapping[str, Mapping[str, Any]], programs: Mapping[str, str], earlier: Mapping[str, Arm], baseline: str
) -> None:
    if baseline not in jobs:
        raise Unusable(f"one arm must be called exactly {baseline!r}, the baseline")
    if len(jobs) < 2:
        raise Unusable("at least one arm besides the baseline is needed")
    for name, job in jobs.items():
        has_run = name in earlier
        if has_run and (dict(earlier[name].job) != dict(job) or _program_of(earlier[name]) != programs[name]):
            raise Unusable(
                f"arm {name!r} has run with other settings: use another name, or its settings and program as they were"
            )
    everything = {**{name: arm.job for name, arm in earlier.items()}, **jobs}
    for name, job in jobs.items():
        if problem := contradict_name(name, job):
            raise Unusable(f"arm {name!r}: {problem}")
    seen: dict[str, str] = {}
    for name, job in everything.items():
        settings = json.dumps(build_job(dict(job)).resolve().model_dump(mode="json"), sort_keys=True)
        key = f"{settings} {programs[name] if name in programs else _program_of(earlier[name])}"
        if key in seen:
            raise Unusable(f"arms {seen[key]!r} and {name!r} have the same settings and the same program")
        seen[key] = name


def _settable(question: Question) -> tuple[str, ...]:
    """The settings that an arm may set: those of a person's factors, or all that a language model may choose from."""
    if not question.factors:
        return TUNABLE
    return tuple(
        dict.fromkeys(name for factor in question.factors for level in factor.levels for name in level.settings)
    )


def _check_question(question: Question, jobs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises Unusable where the arms have another value than a person's levels, or leave a level out."""
    for factor in question.factors:
        found = [
            level.name
            for job in jobs.values()
            for level in factor.levels
            if all(_setting(job, name) == value for name, value in level.settings.items())
        ]
        if len(found) < len(jobs):
            raise Unusable(
                f"{factor.name}: every arm has one of the levels {', '.join(level.name for level in factor.levels)}"
            )
        if missing := [level.name for level in factor.levels if level.name not in found]:
            raise Unusable(f"{factor.name}: a person asked for {', '.join(missing)} as well, which no arm has")


def _check_cost(runs: int, charter: Charter, history: History) -> None:
    """Raises Unusable for a later plan that the runs left cannot pay, though they could pay a smaller one. The first
    plan gets its number of runs from the design."""
    if not history.plans or charter.budget.max_runs is None or history.runs_used is None:
        return
    left = charter.budget.max_runs - history.runs_used
    if runs > left >= 2 * charter.rule.min_seeds:
        raise Unusable(f"the plan needs {runs} runs, arms times seeds, and {left} of the budget are left: plan fewer")


def _find_factors(jobs: Mapping[str, Mapping[str, Any]], earlier: Mapping[str, Arm]) -> list[str]:
    """The settings in which the arms of the study differ; what it compares, whatever a model says it does."""
    everything = [*jobs.values(), *(arm.job for arm in earlier.values())]
    return [name for name in TUNABLE if len({json.dumps(_setting(job, name)) for job in everything}) > 1]


def _setting(job: Mapping[str, Any], name: str) -> Any:
    return job.get(name, TrainJob.model_fields[name].default)


def _show_parent(parent: ArmProgram | None) -> str:
    if parent is None:
        return "This is the first program of the study."
    return (
        f"The program of the arm that this one is derived from:\n\n{quote_text(parent.code)}\n\n"
        f"If it serves this arm as it is, answer with the one word {UNCHANGED}."
    )


def _without_analyses(history: History) -> History:
    """The last analysis stands above already."""
    return replace(history, analyses=())
