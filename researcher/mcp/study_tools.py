"""The tools by which a coding agent begins, plans and reads studies."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from experiments_db import ExperimentStore, StoreError, Study
from researcher.errors import ResearchError, exit_code_of
from researcher.memory.subject import subject_of
from researcher.planner.external.requests import (
    await_question,
    call_in_study,
    describe_no_question,
    describe_question,
    submit_answer,
)
from researcher.planner.tools.base import PlannerTool, ToolArguments, Toolbox, ToolRefused
from researcher.planner.tools.build import tools_of_process
from researcher.planner.tools.findings import ABOUT_FINDINGS, FindingsArguments, show_findings
from researcher.record.log import charter_from_json
from researcher.study.ending import is_over
from researcher.study.overview import describe_silence, describe_wait, take_snapshot
from researcher.study.requests import find_study, resume_command, work_of
from swarm.processes import python_module

COMMAND_LIMIT_S = 180.0
"""The longest command: a detached start waits up to two minutes for its process."""
MAX_WAIT_S = 300.0
MAX_RESULT_CHARS = 400_000
MASK = "***"

StudyId = Annotated[str | None, Field(description="Id of a study; without it the newest one.")]
WaitSeconds = Annotated[float, Field(ge=0, le=MAX_WAIT_S, description="How long to wait, in seconds.")]


class OfStudy(ToolArguments):
    study: StudyId = None


class ForQuestion(OfStudy):
    wait_s: WaitSeconds = 20.0


class ForAnswer(OfStudy):
    answer: Annotated[str, Field(description="The answer, in the form that the question asks for.")]
    question: Annotated[int | None, Field(description="Number of the question; without it the open one.")] = None
    wait_s: WaitSeconds = 30.0


class ForReport(OfStudy):
    form: Literal["summary", "markdown"] = "summary"


class ForFindings(FindingsArguments):
    study: Annotated[str | None, Field(description="Id of a study: what is nearest to it comes first.")] = None


class ForLook(OfStudy):
    tool: Annotated[str, Field(description="Name of a planner's tool, as `tools` lists them.")]
    arguments: Annotated[dict[str, Any], Field(default_factory=dict, description="Arguments of that tool.")]
    wait_s: WaitSeconds = 120.0


@dataclass(frozen=True, slots=True)
class CommandTool:
    """A tool that runs a command of `researcher`; `words` makes the words of its command line."""

    name: str
    description: str
    arguments: type[ToolArguments]
    words: Callable[[Any], Sequence[str]]


class StudyTools:
    """The tools of one home and its database."""

    def __init__(
        self,
        home: Path,
        open_database: Callable[..., AbstractContextManager[ExperimentStore]],
        place: Sequence[str],
        commands: Sequence[CommandTool],
        toolbox_of: Callable[[ExperimentStore, Study], Toolbox],
    ) -> None:
        """Create the tools.

        `open_database` opens the store, with `read_only=True` for reading and `must_exist=True` for writing. `place`
        are the options of every command that name home and database. `toolbox_of` makes the tools of a study's planner
        that read the database alone.
        """
        self._home = home
        self._open = open_database
        self._place = list(place)
        self._commands = commands
        self._toolbox_of = toolbox_of

    def as_toolbox(self) -> Toolbox:
        """Return the tools by name."""
        read = {
            "list": ("List all studies, newest first.", ToolArguments, self._list),
            "status": (
                "Show a study, its scope, its runs and what it waits for.",
                OfStudy,
                self._status,
            ),
            "question": (
                "Return the question that a study waits with, and wait for one if there is none yet.",
                ForQuestion,
                self._question,
            ),
            "answer": (
                "Answer the open question of a study. The study checks the answer; a refused one comes back with the "
                "objection, and the question is open again.",
                ForAnswer,
                self._answer,
            ),
            "report": ("Return the summary or the whole report of a study that is over.", ForReport, self._report),
            "findings": (ABOUT_FINDINGS, ForFindings, self._findings),
            "tools": ("List the tools by which a study's planner may look at it, for `look`.", OfStudy, self._tools),
            "look": (
                "Call a tool of a study's planner, such as notebook, findings or query. Those that need the study's "
                "process, such as try_program, answer only while the study waits for an answer.",
                ForLook,
                self._look,
            ),
        }
        tools = [PlannerTool(name, text, model, _refusing(call)) for name, (text, model, call) in read.items()]
        of_commands = [
            PlannerTool(tool.name, tool.description, tool.arguments, partial(self._run, tool))
            for tool in self._commands
        ]
        return Toolbox([*of_commands, *tools], max_chars=MAX_RESULT_CHARS)

    def _run(self, tool: CommandTool, given: ToolArguments) -> str:
        """Run a command and return its result with its messages. Raises ToolRefused with both if it fails."""
        command = python_module("researcher.cli", tool.name, *tool.words(given), *self._place, "--json")
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=COMMAND_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ToolRefused(f"researcher {tool.name} was ended: it took more than {COMMAND_LIMIT_S:.0f} s") from error
        messages = done.stderr.strip()
        if done.returncode != 0:
            raise ToolRefused(f"{messages or done.stdout.strip()}\n(exit code {done.returncode})")
        result: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        return _as_json(result | {"messages": messages.splitlines()})

    def _list(self, _: ToolArguments) -> str:
        with self._open(read_only=True) as store:
            found = [
                {"study": study.id, "topic": study.topic, "planner": study.planner} | _state(store, study, self._home)
                for study in store.list_studies()
            ]
        return _as_json(found)

    def _status(self, given: OfStudy) -> str:
        with self._open(read_only=True) as store:
            study = find_study(store, given.study)
            shown = take_snapshot(store, study.id).to_json()
            if shown["study"]["settings"].get("webhook"):
                # Its path is the key of the service.
                shown["study"]["settings"] = shown["study"]["settings"] | {"webhook": MASK}
            return _as_json(shown | {"state": _state(store, study, self._home)})

    def _question(self, given: ForQuestion) -> str:
        with self._open(read_only=True) as store:
            study = find_study(store, given.study)
            question = await_question(store, study, given.wait_s)
            if question is None:
                why = describe_no_question(store, study, self._home)
                return _as_json({"question": None, "why": why} | _state(store, store.get_study(study.id), self._home))
            return _as_json(describe_question(question) | {"study": study.id})

    def _answer(self, given: ForAnswer) -> str:
        with self._open(must_exist=True) as store:
            study = find_study(store, given.study)
            found = submit_answer(store, study, given.answer, number=given.question, wait_s=given.wait_s)
            state = _state(store, store.get_study(study.id), self._home)
            return _as_json({"question": found.id, "node": found.node, "answer": found.status.value, "study": state})

    def _report(self, given: ForReport) -> str:
        from researcher.report.summary import summarize
        from researcher.report.write import build_report

        with self._open(read_only=True) as store:
            study = find_study(store, given.study)
            if not is_over(store, study):
                raise ToolRefused(f"study {study.id} is not over: its report is for afterwards; see `status`")
            if given.form == "summary":
                return _as_json({"study": study.id} | asdict(summarize(store, study.id)))
            folder = self._home / "studies" / study.id / "report"
            path = folder / "report.md"
            if not path.is_file():
                path = build_report(store, study.id, folder).markdown
            return path.read_text(encoding="utf-8")

    def _findings(self, given: ForFindings) -> str:
        with self._open(read_only=True) as store:
            arguments = FindingsArguments(**given.model_dump(exclude={"study"}))
            charter = None if given.study is None else store.find_charter(find_study(store, given.study).id)
            subject = None if charter is None else subject_of(charter_from_json(charter.document))
            return show_findings(store, arguments, subject)

    def _tools(self, given: OfStudy) -> str:
        with self._open(read_only=True) as store:
            toolbox = self._toolbox_of(store, find_study(store, given.study))
            listed = Toolbox([*toolbox.tools.values(), *tools_of_process()])
            return _as_json([each["function"] for each in listed.as_functions()])

    def _look(self, given: ForLook) -> str:
        with self._open(must_exist=True) as store:
            study = find_study(store, given.study)
            toolbox = self._toolbox_of(store, study)
            if given.tool in toolbox.tools:
                return toolbox.call(given.tool, given.arguments)
            return call_in_study(store, study, given.tool, given.arguments, wait_s=given.wait_s)


def _refusing(call: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return the call with domain errors as refusals, each with the exit code that a command would have."""

    def refuse(given: Any) -> str:
        from swarm import SwarmError

        try:
            return call(given)
        except (ResearchError, StoreError, SwarmError) as error:
            raise ToolRefused(f"{error}\n(exit code {exit_code_of(error)})") from error

    return refuse


def _state(store: ExperimentStore, study: Study, home: Path) -> dict[str, Any]:
    """Return the status of a study in words: what it waits for, and how to go on if nothing works on it."""
    work = work_of(store, study)
    silence = describe_silence(work, time.time())
    wait = describe_wait(store.find_waiting_question(study.id))
    is_left = not work.is_at_work and not is_over(store, study)
    return {
        "status": study.status.value,
        "status_reason": study.status_reason,
        "waits": wait or None,
        "silence": silence or None,
        "go_on": resume_command(store, study.id, home) if is_left else None,
    }


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str)
