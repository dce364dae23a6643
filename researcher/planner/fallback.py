"""The planner that asks a language model first, and the rules planner if the model fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TypeVar

from researcher.analysis import Analysis
from researcher.charter import Charter, FrameRequest
from researcher.claims import Claim
from researcher.errors import BudgetExceeded, LanguageModelUnavailable, PlannerError, ResearchError, TopicInvalid
from researcher.history import Decision, History, Objection, Response
from researcher.plan import Arm, ArmProgram, Plan, ProgramProblem
from researcher.planner.base import Planner
from researcher.planner.rules import build_rules_planner
from researcher.question.factors import PROGRAM
from researcher.question.scopes import describe_scope
from researcher.search.rules import PLAIN_PROGRAM, default_space
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request
from researcher.tree import Move

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FallbackPlanner:
    """A planner made of a language model and rules.

    Each question goes to the language model first. Rules answer only what they answer soundly: they frame a topic as
    `--planner rules` reads it, plan by the factors of the charter, and write no program except the plain one. If rules
    cannot answer either, the model's failure is raised.

    `failures` are the errors after which `rules` answer. `read` turns a topic into the request that rules frame; it
    raises TopicInvalid. `plain` is the name of the plain program in the language model's arms. `say` gets the kind of
    an event and a line for people.
    """

    model: Planner
    rules: Planner
    read: Callable[[str], FrameRequest]
    _: KW_ONLY
    failures: tuple[type[ResearchError], ...]
    plain: str
    report: Callable[[str, str], object]

    @property
    def name(self) -> str:
        return self.model.name

    def frame(self, request: FrameRequest) -> Charter:
        return self._ask(
            "frame the topic",
            lambda planner: planner.frame(request),
            lambda: self.rules.frame(self.read(request.topic)),
        )

    def plan(self, charter: Charter, history: History) -> Plan:
        def by_rules() -> Plan:
            planned = self.rules.plan(self._with_question(charter), history)
            baseline = next(arm.name for arm in planned.arms if arm.is_baseline)
            if baseline != charter.baseline:
                raise PlannerError(f"the charter's baseline, {charter.baseline}, is not that of the rules, {baseline}")
            return replace(planned, author=self.rules.name)

        return self._ask("plan", lambda planner: planner.plan(charter, history), by_rules)

    def explore(self, charter: Charter, history: History, moves: Sequence[Move]) -> Plan:
        return self._ask(
            "explore",
            lambda planner: planner.explore(charter, history, moves),
            lambda: replace(self.rules.explore(self._with_question(charter), history, moves), author=self.rules.name),
        )

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        return self._ask(
            f"write the program of {arm.name}",
            lambda planner: planner.write_program(charter, arm, parent),
            lambda: self._write_plain(charter, arm),
        )

    def repair_program(
        self, charter: Charter, arm: Arm, program: ArmProgram, problems: tuple[ProgramProblem, ...]
    ) -> ArmProgram:
        return self._ask(
            f"mend the program of {arm.name}",
            lambda planner: planner.repair_program(charter, arm, program, problems),
            lambda: self._write_plain(charter, arm),
        )

    def interpret(self, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
        return self._ask("interpret the results", lambda planner: planner.interpret(charter, analysis, history))

    def respond(self, charter: Charter, arm: str, objections: Sequence[Objection], history: History) -> Response:
        return self._ask(
            f"respond to objections to {arm}", lambda planner: planner.respond(charter, arm, objections, history)
        )

    def decide(self, charter: Charter, analysis: Analysis, history: History) -> Decision:
        def by_rules() -> Decision:
            return replace(self.rules.decide(charter, analysis, history), author=self.rules.name)

        return self._ask("decide", lambda planner: planner.decide(charter, analysis, history), by_rules)

    def _ask(self, what: str, ask: Callable[[Planner], T], of_rules: Callable[[], T] | None = None) -> T:
        """Return the answer of the model, or after a failure that of rules, which is `of_rules` if it differs."""
        try:
            return ask(self.model)
        except self.failures as failure:
            try:
                answer = ask(self.rules) if of_rules is None else of_rules()
            except (TopicInvalid, PlannerError) as unable:
                first = " ".join(str(unable).split("\n")[0].split())
                self.report("rules.unable", f"The rules planner cannot {what} in its place: {first}")
                raise failure from None
            self.report("rules.answered", f"The rules planner takes over to {what}: {failure}")
            return answer

    def _with_question(self, charter: Charter) -> Charter:
        """Return the charter, with the default search space if it leaves the factors open."""
        if charter.asks.factors:
            return charter
        asks = charter.asks
        factors = default_space(charter.job, (), asks.fixed, asks.scope)
        if not factors:
            raise PlannerError(
                f"the rules write no programs, and arms may differ in {describe_scope(asks.scope)} alone"
            )
        return replace(charter, asks=replace(asks, factors=factors))

    def _write_plain(self, charter: Charter, arm: Arm) -> ArmProgram:
        """Return the program that rules write for an arm.

        Raises PlannerError if the arm studies another program.
        """
        if arm.factors.get(PROGRAM, self.plain) != self.plain:
            raise PlannerError(f"{arm.name} needs a program, which the rules cannot write")
        factors = {name: value for name, value in arm.factors.items() if name != PROGRAM}
        return self.rules.write_program(charter, replace(arm, factors=factors), None)


def answer_by_rules(
    planner: Planner, settings: StudySettings, *, report: Callable[[str, str], object]
) -> FallbackPlanner:
    """Return a planner for which rules answer while the language model is away or over its budget."""
    as_rules = settings.model_copy(update={"planner": "rules"})
    return FallbackPlanner(
        planner,
        build_rules_planner(settings),
        lambda topic: read_request(topic, as_rules),
        failures=(LanguageModelUnavailable, BudgetExceeded),
        plain=PLAIN_PROGRAM,
        report=report,
    )
