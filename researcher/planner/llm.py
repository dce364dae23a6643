"""The planner that asks a language model for frames, plans, programs, claims and decisions.

Place in the flow: one of the planners of base.py. Prompts come from prompts/, and chat.py makes the calls. The modules
in language_model/ read and check the answers. A model chooses only among what exists: task families, settings of a
training job, a number of seeds. Metric, splits, rule, steps and budget are fixed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from prompts import load
from researcher.analysis import Analysis
from researcher.charter import Charter, FrameRequest, SampleSizeGoal, StudiedEnvironment
from researcher.plan import Arm, ArmProgram, Plan, ProgramProblem
from researcher.planner.base import Action, Decision, History
from researcher.planner.claims import Claim
from researcher.planner.language_model.answers import (
    MAX_ARMS,
    DecideAnswer,
    FrameAnswer,
    Unusable,
    parse_answer,
    parse_claims,
    parse_program,
)
from researcher.planner.language_model.briefing import (
    list_fixed,
    list_settings,
    list_tasks,
    quote_text,
    show_budget,
    show_choice,
    show_history,
    show_job,
    show_results,
)
from researcher.planner.language_model.chat import Chat
from researcher.planner.language_model.framing import check_request, parse_frame
from researcher.planner.language_model.planning import (
    MAX_EPISODES_PER_STEP,
    MAX_SEEDS,
    find_baseline,
    parse_plan,
    program_of,
    start_job,
)
from researcher.question.asking import refuse_by_name
from researcher.question.factors import ALGORITHMS
from swarm.tasks import task_family

REFUSED = (
    "Then give no question: the person is told what cannot be studied, and nothing is run. Never put another task or "
    "setting in its place."
)
LEFT_OUT = (
    "The person has agreed to go on without it: frame the rest of the topic as well. The report says first what was "
    "left out."
)
"""The instructions of the frame prompt for a topic that cannot be studied as asked."""
DEFAULT_TOPIC = "Which settings train reverse best?"


class LLMPlanner:
    """A planner that asks a language model.

    `environment` is the environment that a person named; None lets the model choose a bundled one. `program` is the
    code that the programs of all arms start from; None stands for the plain program.
    """

    def __init__(
        self, chat: Chat, *, environment: StudiedEnvironment | None = None, program: str | None = None
    ) -> None:
        self._chat = chat
        self._environment = environment
        self._contract = load("program_contract", example=program or load("program"))
        # Most arms share one program, so a program that was repaired once needs no second call.
        self._mended: dict[str, str] = {}

    @property
    def name(self) -> str:
        return f"llm:{self._chat.model}"

    def frame(self, request: FrameRequest) -> Charter:
        check_request(request)
        question = load(
            "frame",
            topic=" ".join(request.topic.split()),
            tasks=list_tasks(self._environment),
            settings=list_settings(),
            algorithms=", ".join(ALGORITHMS),
            fixed=list_fixed(request),
            max_arms=str(MAX_ARMS),
            left_out=LEFT_OUT if request.assume else REFUSED,
        )
        framed = self._chat.ask("frame", question, lambda text: parse_frame(text, request, self.name))
        if isinstance(framed, FrameAnswer):
            parts = [(item.what, item.why) for item in framed.infeasible]
            raise refuse_by_name(parts, framed.nearest or DEFAULT_TOPIC, request)
        return framed

    def plan(self, charter: Charter, history: History) -> Plan:
        goal = charter.sample_size or SampleSizeGoal()
        question = load(
            "plan",
            question=charter.question,
            task=charter.environment_name,
            description=self._describe(charter),
            baseline=charter.baseline,
            iteration=str(len(history.plans) + 1),
            base_job=show_job(start_job(charter)),
            choice=show_choice(charter),
            history=show_history(history),
            budget=show_budget(charter.budget, history),
            seeds=str(goal.seeds or goal.pilot_seeds),
            min_seeds=str(goal.seeds or charter.rule.min_seeds),
            max_seeds=str(goal.seeds or MAX_SEEDS),
            max_arms=str(MAX_ARMS),
            max_episodes=str(MAX_EPISODES_PER_STEP),
        )
        return self._chat.ask("plan", question, lambda text: parse_plan(text, charter, history))

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        if parent is not None and _has_program_of(arm, parent, charter):
            return replace(parent, arm=arm.name)
        question = load(
            "write_program",
            arm=arm.name,
            task=charter.environment_name,
            description=self._describe(charter),
            program=program_of(arm),
            job=show_job(arm.job),
            contract=self._contract,
            parent=_show_parent(parent),
        )
        return ArmProgram(arm.name, self._chat.ask("write_program", question, parse_program), trusted=False)

    def repair_program(
        self, charter: Charter, arm: Arm, program: ArmProgram, problems: tuple[ProgramProblem, ...]
    ) -> ArmProgram:
        if program.code not in self._mended:
            question = load(
                "repair_program",
                arm=arm.name,
                task=charter.environment_name,
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
        described = task_family(charter.environment_name) if self._environment is None else self._environment
        return described.description


def _has_program_of(arm: Arm, parent: ArmProgram, charter: Charter) -> bool:
    """Return whether an arm has the same program as its parent.

    A plan chooses a parent other than the baseline only for arms with the parent's program.
    """
    return parent.arm != charter.baseline or program_of(arm) == program_of(find_baseline(charter))


def _show_parent(parent: ArmProgram | None) -> str:
    if parent is None:
        return "This is the first program of the study."
    return f"The program of the baseline, from which this one is to differ:\n\n{quote_text(parent.code)}"


def _parse_decision(text: str, arms: Collection[str]) -> DecideAnswer:
    """Return a decision that disqualifies only arms in `arms`.

    Raises Unusable if it names another arm.
    """
    answer = parse_answer(text, DecideAnswer)
    if unknown := [item.arm for item in answer.disqualified if item.arm not in arms]:
        raise Unusable(f"{', '.join(unknown)} cannot be disqualified: choose among {', '.join(sorted(arms)) or 'none'}")
    return answer


def _without_analyses(history: History) -> History:
    """Return the history without analyses, because the prompt shows the last analysis elsewhere."""
    return replace(history, analyses=())
