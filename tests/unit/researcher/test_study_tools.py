"""The tools of the MCP server, called without a client: what they show, refuse and hide."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from simulated_study import SimulatedStudy, Simulation
from store_samples import record_finding

from experiments_db import ExperimentStore, StudyStatus, open_store
from researcher.cli.lifecycle import pause
from researcher.cli.mcp import OF_PLACE
from researcher.cli.option_schema import arguments_of, words_of
from researcher.cli.parts import open_database
from researcher.cli.start import start
from researcher.mcp.study_tools import MASK, CommandTool, StudyTools
from researcher.planner.tools.base import PlannerTool, ToolArguments, Toolbox, ToolRefused

WEBHOOK = "https://chat.example/key-0123456789"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedStudy]:
    """A study that is over."""
    simulated = Simulation().carry_out(tmp_path_factory.mktemp("home"))
    simulated.store.set_study_status(simulated.study_id, StudyStatus.FINISHED, "the report is written")
    yield simulated
    simulated.store.close()


def tools_of(home: Path, *commands: CommandTool, toolbox: Toolbox | None = None) -> Toolbox:
    studies = StudyTools(
        home, partial(open_database, home, None), ["--home", str(home)], commands, lambda *_: toolbox or Toolbox([])
    )
    return studies.as_toolbox()


@pytest.fixture
def tools(study: SimulatedStudy) -> Toolbox:
    return tools_of(study.home)


@pytest.fixture
def running(study: SimulatedStudy) -> Iterator[ExperimentStore]:
    """The same study, at work again."""
    study.store.set_study_status(study.study_id, StudyStatus.RUNNING)
    yield study.store
    study.store.set_study_status(study.study_id, StudyStatus.FINISHED, "the report is written")


def ask(tools: Toolbox, name: str, **arguments: Any) -> Any:
    return json.loads(tools.call(name, arguments))


def test_a_study_that_is_over_shows_its_answer_and_its_whole_report(study: SimulatedStudy, tools: Toolbox) -> None:
    assert ask(tools, "report")["verdicts"]
    text = tools.call("report", {"study": study.study_id, "form": "markdown"})
    assert "## Test split" in text and "characters are left out" not in text
    [listed] = ask(tools, "list")
    assert (listed["study"], listed["status"], listed["go_on"]) == (study.study_id, "finished", None)


def test_no_tool_shows_a_score_of_the_test_split_before_the_end(
    study: SimulatedStudy, running: ExperimentStore, tools: Toolbox
) -> None:
    of_study = running.get_study(study.study_id)
    record_finding(running, of_study, study.arm("lr=0.003"), split="test", effect=0.424242, summary="test")

    shown = [tools.call(name, {}) for name in ("list", "status", "findings")]

    assert not any("0.424242" in text for text in shown) and "test" not in json.loads(shown[1])["runs"][0]


def test_findings_of_all_studies_are_shown_by_kind_with_or_without_a_study(
    study: SimulatedStudy, tools: Toolbox
) -> None:
    predicted = tools.call("findings", {"kind": "prediction"})
    assert predicted.startswith("1 to 1 of 1 findings") and "happened: " in predicted
    assert tools.call("findings", {"kind": "prediction", "study": study.study_id}).startswith("1 to 1 of 1")
    with pytest.raises(ToolRefused, match="kind"):
        tools.call("findings", {"kind": "nosuch"})


def test_the_status_hides_the_url_of_a_webhook(tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        store.create_study("a topic", planner="external", settings={"webhook": WEBHOOK})

    text = tools_of(tmp_path).call("status", {})

    assert WEBHOOK not in text and MASK in text


def test_domain_errors_come_with_their_exit_code(tools: Toolbox, tmp_path: Path) -> None:
    with pytest.raises(ToolRefused, match=r"st-none.*\n\(exit code 3\)"):
        tools.call("status", {"study": "st-none"})
    with pytest.raises(ToolRefused, match=r"no database.*\n\(exit code 3\)"):
        tools_of(tmp_path).call("list", {})
    with pytest.raises(ToolRefused, match="wait_s"):
        tools.call("question", {"wait_s": 1e9})
    with pytest.raises(ToolRefused, match="no such field"):
        tools.call("status", {"nosuch": 1})


def test_tools_of_the_planner_are_listed_and_called(study: SimulatedStudy) -> None:
    toolbox = Toolbox([PlannerTool("hello", "Says hello.", ToolArguments, lambda _: "hello")])
    tools = tools_of(study.home, toolbox=toolbox)

    assert [tool["name"] for tool in ask(tools, "tools")] == ["hello", "try_program", "propose"]
    assert tools.call("look", {"tool": "hello"}) == "hello"
    with pytest.raises(ToolRefused, match="asks nothing now"):
        tools.call("look", {"tool": "try_program"})


def test_a_command_has_the_options_of_the_command_line() -> None:
    model = arguments_of(start, without=OF_PLACE)
    given = model.model_validate(
        {"topic": "t", "vary": ["lr=1", "-x=2"], "ask": "best", "seeds": 3, "underpowered": True, "assume": False}
    )

    assert words_of(start, given) == [
        *("--topic=t", "--vary=lr=1", "--vary=-x=2", "--ask=best", "--seeds=3", "--underpowered"),
    ]
    assert model.model_fields["seeds"].description and not model.model_fields.keys() & set(OF_PLACE)
    assert words_of(pause, arguments_of(pause, without=OF_PLACE).model_validate({"study": "st-1"})) == ["st-1"]


def test_commands_load_neither_the_sdk_of_mcp_nor_that_of_language_models() -> None:
    code = "import sys, researcher.cli.commands; sys.exit(bool({'mcp', 'openai', 'langgraph'} & sys.modules.keys()))"

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "code"), [(["--planner=nosuch"], 2), (["--planner=external", "--model=m"], 2), (["--nosuch"], 2)]
)
def test_a_refused_command_gives_its_message_and_exit_code(tmp_path: Path, words: list[str], code: int) -> None:
    begin = CommandTool("start", "Begins.", ToolArguments, lambda _: ["--topic=a topic", *words])

    with pytest.raises(ToolRefused, match=rf"\(exit code {code}\)"):
        tools_of(tmp_path, begin).call("start", {})
    assert not list(tmp_path.iterdir())
