"""The planner that asks in words: for frames, plans, rounds of exploration, programs, claims and decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from experiments_db import Author, Experiment, ExperimentStatus, ExperimentStore, JsonObject, Operator, RunStatus
from prompts import load
from researcher.analysis import Analysis
from researcher.charter import Charter, FrameRequest, SampleSizeGoal, StudiedEnvironment
from researcher.claims import Claim
from researcher.history import Action, Decision, History, Objection, Response
from researcher.plan import Arm, ArmProgram, Plan, ProgramProblem
from researcher.planner.base import Asker
from researcher.planner.designs import program_of
from researcher.planner.language_model.answers import (
    MAX_ARMS,
    DecideAnswer,
    FrameAnswer,
    RespondAnswer,
    Unusable,
    parse_answer,
    parse_claims,
    parse_program,
)
from researcher.planner.language_model.arms import MAX_EPISODES_PER_STEP, start_job
from researcher.planner.language_model.briefing import (
    list_fixed,
    list_settings,
    list_tasks,
    show_budget,
    show_choice,
    show_history,
    show_job,
    show_manipulation,
    show_measures,
    show_memory,
    show_moves,
    show_notes_beside_tree,
    show_results,
    show_rules,
    show_tree,
)
from researcher.planner.language_model.framing import check_request, parse_frame
from researcher.planner.language_model.plans import (
    MAX_SEEDS,
    parse_plan,
    parse_round,
    plan_promotions,
    read_confirmed,
)
from researcher.planner.texts import messages_as_text, quote_code, quote_data, quote_text
from researcher.question.factors import ALGORITHMS
from researcher.question.refusal import refuse_by_name
from researcher.search.rules import PLAIN_PROGRAM
from researcher.tree import Move, Promote
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
MAX_MESSAGES = 12
"""The messages of a broken attempt that are shown, the last ones."""
MAX_MESSAGE_CHARS = 1_500
DEFAULT_TOPIC = "Which settings train reverse best?"


@dataclass(frozen=True, slots=True)
class StoredArms:
    """The arms of one study on record."""

    store: ExperimentStore
    study_id: str

    def find_program(self, arm: str) -> ArmProgram | None:
        """Return the program of an arm as it stands now, after any repair; None if it has none."""
        found = self.store.find_experiment(self.study_id, arm)
        if found is None or not found.program_code:
            return None
        return ArmProgram(arm, found.program_code, trusted=found.author is Author.PACKAGE)

    def describe_failure(self, arm: str) -> str:
        """Return why an arm failed: the check's reason, failed runs, and the attempts that broke in its trials."""
        found = self.store.find_experiment(self.study_id, arm)
        return "" if found is None else "\n\n".join(self._failures(found))

    def _failures(self, experiment: Experiment) -> Iterator[str]:
        if experiment.status is ExperimentStatus.INVALID and experiment.note:
            yield experiment.note
        for run in self.store.list_runs(experiment_id=experiment.id):
            if run.status is RunStatus.FAILED and run.exit_reason:
                yield f"A run of seed {run.seed} failed: {run.exit_reason}"
        for trial in self.store.list_program_trials(self.study_id, experiment_id=experiment.id)[-1:]:
            if trial.error:
                yield f"{trial.broken} of {trial.attempts} attempts broke in its trial: {trial.error}"
            if broken := next((item for item in trial.transcripts if item.get("error")), None):
                last = list[JsonObject](broken.get("messages") or ())[-MAX_MESSAGES:]
                yield f"A broken attempt:\n{messages_as_text(last, MAX_MESSAGE_CHARS)}"


class LLMPlanner:
    """A planner that asks in words.

    `environment` is the environment that a person named; None lets the model choose a bundled one. `program` is the
    code that the programs of all arms start from; None stands for the plain program. Without `records` the planner
    knows only the programs that it is given.
    """

    def __init__(
        self,
        chat: Asker,
        *,
        environment: StudiedEnvironment | None = None,
        program: str | None = None,
        records: StoredArms | None = None,
    ) -> None:
        self._chat = chat
        self._environment = environment
        self._records = records
        self._plain = program or load("program")
        self._contract = load("program_contract", example=self._plain)
        # Several arms may share one program, so a program that was repaired once needs no second question.
        self._mended: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self._chat.name

    def frame(self, request: FrameRequest) -> Charter:
        check_request(request)
        question = load(
            "frame",
            topic=" ".join(request.topic.split()),
            memory=show_memory(request.earlier_findings),
            tasks=list_tasks(self._environment),
            settings=list_settings(request.question.scope),
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
            **self._about(charter, history),
            seeds=str(goal.seeds or goal.pilot_seeds),
            min_seeds=str(goal.seeds or charter.rule.min_seeds),
            max_seeds=str(goal.seeds or MAX_SEEDS),
        )
        return self._chat.ask("plan", question, lambda text: parse_plan(text, charter, history))

    def explore(self, charter: Charter, history: History, moves: Sequence[Move]) -> Plan:
        promotions = [move for move in moves if isinstance(move, Promote)]
        if moves and len(promotions) == len(moves):
            return plan_promotions(charter, history, promotions)
        question = load("explore", **self._about(charter, history), tree=show_tree(history), moves=show_moves(moves))
        return self._chat.ask("explore", question, lambda text: parse_round(text, charter, history, moves))

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        if arm.program_of is not None and (same := self._find_program(arm.program_of, parent)):
            return replace(same, arm=arm.name)
        if program_of(arm) == PLAIN_PROGRAM:
            # A person has named this program, or it is the package's own.
            return ArmProgram(arm.name, self._plain, trusted=True)
        question = load(
            "write_program",
            arm=arm.name,
            task=charter.environment_name,
            description=self._describe(charter),
            program=program_of(arm),
            purpose=arm.rationale,
            manipulation=show_manipulation(arm.manipulation),
            rules=show_measures(charter),
            job=show_job(arm.job),
            contract=self._contract,
            parents=self._show_parents(arm, parent),
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
                purpose=arm.rationale,
                manipulation=show_manipulation(arm.manipulation),
                problems=quote_text("\n".join(f"{problem.stage}: {problem.message}" for problem in problems)),
                code=quote_code(program.code),
                contract=self._contract,
            )
            self._mended[program.code] = self._chat.ask("repair_program", question, parse_program)
        return ArmProgram(arm.name, self._mended[program.code], trusted=False)

    def interpret(self, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
        question = load(
            "interpret",
            question=charter.question,
            memory=show_memory(history.earlier_findings),
            rules=show_rules(charter),
            results=show_results(analysis, charter.about),
            tree="" if charter.search is None else show_tree(history),
            history=show_history(_without_analyses(history), charter.about),
            notebook=show_notes_beside_tree(history),
        )
        return self._chat.ask("interpret", question, parse_claims)

    def respond(self, charter: Charter, arm: str, objections: Sequence[Objection], history: History) -> Response:
        question = load(
            "respond",
            question=charter.question,
            arm=arm,
            rules=show_rules(charter),
            objections=quote_data(
                f"{item.kind}{', grave' if item.is_grave else ''}: {item.sentence}" for item in objections
            ),
            tree=show_tree(history),
            notebook=show_notes_beside_tree(history),
            code=self._show_program(arm, "The program of the arm"),
        )
        answer = self._chat.ask("respond", question, lambda text: parse_answer(text, RespondAnswer))
        return Response(answer.answer, is_withdrawn=answer.withdraw)

    def decide(self, charter: Charter, analysis: Analysis, history: History) -> Decision:
        question = load(
            "decide",
            question=charter.question,
            memory=show_memory(history.earlier_findings),
            iterations=str(len(history.plans)),
            rules=show_rules(charter),
            results=show_results(analysis, charter.about),
            history=show_history(_without_analyses(history), charter.about),
            tree="" if charter.search is None else show_tree(history),
            notebook=show_notes_beside_tree(history),
            budget=show_budget(charter, history),
            actions="refine, confirm or stop" if charter.search is not None else "refine or stop",
        )
        others = {*(arm.arm for arm in analysis.arms), *(node.name for node in history.tree.nodes)} - {charter.baseline}
        parse = partial(_parse_decision, charter=charter, history=history, arms=others)
        return self._chat.ask("decide", question, parse)

    def _about(self, charter: Charter, history: History) -> dict[str, str]:
        """Return what every plan is told of the study."""
        return {
            "question": charter.question,
            "task": charter.environment_name,
            "description": self._describe(charter),
            "baseline": charter.baseline,
            "memory": show_memory(history.earlier_findings),
            "rules": show_rules(charter),
            "notebook": show_notes_beside_tree(history),
            "budget": show_budget(charter, history),
            "iteration": str(len(history.plans) + 1),
            "base_job": show_job(start_job(charter)),
            "choice": show_choice(charter),
            "history": show_history(history, charter.about),
            "arms": load("arms", max_episodes=str(MAX_EPISODES_PER_STEP)),
            "max_arms": str(MAX_ARMS),
        }

    def _describe(self, charter: Charter) -> str:
        described = task_family(charter.environment_name) if self._environment is None else self._environment
        return described.description

    def _find_program(self, arm: str, parent: ArmProgram | None) -> ArmProgram | None:
        if parent is not None and parent.arm == arm:
            return parent
        return None if self._records is None else self._records.find_program(arm)

    def _show_parents(self, arm: Arm, parent: ArmProgram | None) -> str:
        """Return the program that an arm is derived from, the second one of a combination, and why a parent failed."""
        if parent is None:
            return "This is the first program of the study."
        derived = "derived" if arm.operator is None else f"derived by operator {arm.operator}"
        title = f"The program of its parent {parent.arm}, from which it is {derived}"
        is_plain = parent.code == self._plain
        parts = [f"{title}, is the plain program." if is_plain else f"{title}:\n\n{quote_code(parent.code)}"]
        if arm.second_parent is not None:
            parts.append(self._show_program(arm.second_parent, "The program of its second parent"))
        records = self._records if arm.operator is Operator.DEBUG else None
        if records is not None and (failure := records.describe_failure(parent.arm)):
            parts.append(f"What went wrong with {parent.arm}:\n\n{quote_text(failure)}")
        return "\n\n".join(parts)

    def _show_program(self, arm: str, title: str) -> str:
        found = None if self._records is None else self._records.find_program(arm)
        return "" if found is None else f"{title} {arm}:\n\n{quote_code(found.code)}"


def _parse_decision(text: str, charter: Charter, history: History, arms: Collection[str]) -> Decision:
    """Return a decision that doubts only arms in `arms`.

    Raises Unusable if it names another arm, or confirms in a study that does not explore.
    """
    answer = parse_answer(text, DecideAnswer)
    if charter.search is None and (answer.action == Action.CONFIRM or answer.confirm):
        raise Unusable("this study compares given arms, so there is nothing to confirm: choose refine or stop")
    for does, doubted in (("disqualified", answer.disqualified), ("called suspect", answer.suspect)):
        if unknown := [item.arm for item in doubted if item.arm not in arms]:
            known = ", ".join(sorted(arms)) or "none"
            raise Unusable(f"{', '.join(unknown)} cannot be {does}: choose among {known}")
    return Decision(
        Action(answer.action),
        answer.reason,
        disqualified={item.arm: item.reason for item in answer.disqualified},
        suspect={item.arm: item.reason for item in answer.suspect},
        lessons=tuple(answer.lessons),
        confirms=read_confirmed(answer.confirm, charter, history),
    )


def _without_analyses(history: History) -> History:
    """Return the history without analyses, because the prompt shows the last analysis elsewhere."""
    return replace(history, analyses=())
