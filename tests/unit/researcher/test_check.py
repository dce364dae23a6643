"""What `check` finds in a program, up to a real training step on a real server with the fake engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import researcher.execution.preflight
from experiments_db import ExperimentStatus, open_store
from researcher.charter import Budget
from researcher.errors import EnvironmentBroken, ResearchError
from researcher.execution.preflight import check_program
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes import check as check_node
from researcher.loop.nodes.plan import plan
from researcher.loop.nodes.write_program import write_program
from researcher.plan import ArmProgram
from researcher.planner.rules import RulesPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog, to_json
from researcher.servers.server_pool import ServerPool, Slot
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request
from swarm.sandbox.sandbox import choose_sandbox

JOB = {"project_name": "research", "model": "nano", "batch_size": 16, "num_repeat": 8, "total_steps": 30}


GOOD = """
def agent(task, model, session):
    answer = model.chat(session.messages)
    return answer

def reward(task, transcript, grade):
    return grade.score
"""


def check(code: str, workdir: Path, *, job: dict[str, Any] | None = None, url: str | None = None):
    program = ArmProgram(arm="a", code=code, trusted=False)
    return check_program(
        program, JOB if job is None else job, workdir=workdir, sandbox=None, preflight_url=url, environment="reverse"
    )


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def messages(code: str, workdir: Path, stage: str) -> str:
    problems = check(code, workdir)
    assert {problem.stage for problem in problems} == {stage}
    return "\n".join(problem.message for problem in problems)


def test_a_sound_program_has_no_problem(tmp_path):
    assert check(GOOD, tmp_path) == ()


def test_code_that_drives_itself_is_no_program(tmp_path):
    drives = "import os\nfrom swarm import SwarmClient\nSwarmClient(os.environ['URL']).status()\n"
    assert "none of the functions agent, reward and schedule" in messages(drives, tmp_path, "functions")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(:\n", "line 1: invalid syntax"),
        ("return 1\n", "outside function"),
        ("  \n", "empty"),
        ("x = 1\0", "null bytes"),
        ("x = " + "(" * 3000 + ")" * 3000, "too many nested"),
        ("#" * 50_000, "at most"),
    ],
)
def test_code_that_does_not_parse_is_named(code, message, tmp_path):
    assert message in messages(code, tmp_path, "parse")


def test_undefined_name_is_found_without_running(tmp_path):
    found = messages(changed("return answer", "return final(answer)"), tmp_path, "lint")
    assert "Undefined name `final`" in found
    assert found.startswith("line ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import socket", "may not import socket"),
        ("import subprocess", "may not import subprocess"),
        ("from ctypes import CDLL", "may not import ctypes"),
        ("import importlib", "may not import importlib"),
        ("import swarm.server.commands", "public names only"),
        ("from swarm.backends.fake import FakeSampler", "public names only"),
        ("from experiments_db import open_store", "may not import experiments_db"),
        ("from researcher import judge", "may not import researcher"),
        ("from swarm import Swarmclient", "swarm has no name 'Swarmclient'"),
        ("from swarm.tasks import secret_tasks", "swarm.tasks has no name 'secret_tasks'"),
        ("from . import other", "relative imports"),
        ("import os; os.system('ls')", "os.system"),
        ("from os import fork", "os.fork"),
        ("eval('1')", "eval"),
        ("__import__('socket')", "__import__"),
        ("().__class__.__subclasses__()", "__subclasses__"),
        ("FAMILY.tasks('test', 10)", "the test split is held out"),
        ("FAMILY.stream(split='validation')", "the validation split is held out"),
        ("FAMILY.stream(Split.TEST)", "the test split is held out"),
    ],
)
def test_what_a_program_may_not_use_is_named_with_its_line(line, message, tmp_path, monkeypatch):
    monkeypatch.setattr(researcher.execution.preflight, "LINT_RULES", "E9")
    found = messages(f"from swarm.tasks import Split\n{line}\n", tmp_path, "imports")
    assert message in found
    assert "line 2" in found


def test_job_that_cannot_be_run_is_named(tmp_path):
    [problem] = check(GOOD, tmp_path, job={**JOB, "batch_size": -1})
    assert problem.stage == "job"
    assert "batch_size" in problem.message
    [problem] = check(GOOD, tmp_path, job={**JOB, "learning_rate": 1})
    assert "learning_rate: unknown setting" in problem.message


def test_preflight_trains_one_step_and_leaves_the_server_free(tmp_path, start_server):
    server = start_server()
    assert check(GOOD, tmp_path / "arm", url=server.url) == ()
    assert check(GOOD.replace("reward", "other"), tmp_path / "arm", url=server.url) == ()
    assert list((tmp_path / "arm").iterdir()) == []


def test_preflight_reports_the_last_words_of_a_program_that_fails(tmp_path, start_server):
    [problem] = check(changed("model.chat", "model.ask"), tmp_path, url=start_server().url)
    assert problem.stage == "preflight"
    assert "exit code 3" in problem.message
    assert "'Model' object has no attribute 'ask'" in problem.message
    assert "\n" not in problem.message


def test_preflight_reads_only_what_the_program_printed(tmp_path, start_server):
    secret = tmp_path / "secret"
    secret.write_text("canary of the host")
    attack = f"import pathlib\npathlib.Path('output.log').symlink_to({str(secret)!r})\nraise ValueError('printed')\n"
    [problem] = check(attack + GOOD, tmp_path, url=start_server().url)
    assert "ValueError: printed" in problem.message
    assert "canary" not in problem.message


def test_preflight_ends_a_program_that_hangs(tmp_path, start_server, monkeypatch):
    monkeypatch.setattr(researcher.execution.preflight, "PREFLIGHT_TIMEOUT_S", 3.0)
    hanging = "import time\n" + changed("    return answer", "    time.sleep(600)")
    [problem] = check(hanging, tmp_path, url=start_server().url)
    assert "did not end within 3 s" in problem.message


def test_unreachable_preflight_server_is_not_the_programs_fault(tmp_path, monkeypatch):
    with pytest.raises(ResearchError, match="preflight server"):
        check(GOOD, tmp_path, url="http://127.0.0.1:9")


def test_a_foreign_program_is_tried_in_the_sandbox(start_server: Any, tmp_path: Path) -> None:
    for code, problems in ((GOOD, 0), (GOOD.replace("return grade.score", "return 1 / 0"), 1)):
        program = ArmProgram(arm="a", code=code, trusted=False)
        sandbox = choose_sandbox(unsafe_no_sandbox=False)
        found = check_program(
            program, JOB, workdir=tmp_path, sandbox=sandbox, preflight_url=start_server().url, environment="reverse"
        )
        assert [problem.stage for problem in found] == ["preflight"] * problems
    assert "program.py, line 7: ZeroDivisionError" in found[0].message


def test_arm_whose_environment_fails_costs_itself_and_not_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def try_out(program: ArmProgram, *_: Any, **__: Any) -> tuple[()]:
        if program.arm == "batch_size=3":
            raise EnvironmentBroken("grade.py, line 3: ZeroDivisionError")
        return ()

    monkeypatch.setattr(check_node, "check_program", try_out)
    pool = SimpleNamespace(
        take=lambda: Slot(0, "http://one"), give_back=print, token_of=print, take_changes=tuple, slots=()
    )
    with open_store(tmp_path / "research.db") as store:
        study, planner = store.create_study("t", planner="rules").id, RulesPlanner()
        charter = planner.frame(read_request("batch size 2, 3 or 4 on reversal", StudySettings(seeds=1)))
        store.freeze_charter(study, to_json(replace(charter, environment="reverse")))
        deps = Deps(
            log=StudyLog(store, study),
            planner=planner,
            pool=cast(ServerPool, pool),
            ledger=BudgetLedger(store, study, Budget()),
            home=tmp_path,
        )
        state = write_program(deps, plan(deps, first_state(study)))

        check_node.check(deps, state)

        status = {arm.name: arm.status for arm in store.list_experiments(study)}
        broken = store.find_experiment(study, "batch_size=3")
    assert status.pop("batch_size=3") is ExperimentStatus.INVALID
    assert set(status.values()) == {ExperimentStatus.READY} and len(status) == 2
    assert broken is not None and "its environment fails: grade.py, line 3: ZeroDivisionError" in broken.note


def test_style_is_a_warning_and_no_reason_to_refuse_a_program(tmp_path):
    styled = changed(
        "    return answer\n", "    print(f'no placeholder')\n    return answer if answer is not 1 else None\n"
    )
    assert check(styled, tmp_path) == ()
    found = researcher.execution.preflight.find_style_warnings(styled)
    assert {(problem.stage, problem.message.split()[2]) for problem in found} == {("style", "F541"), ("style", "F632")}
    both = changed("    return answer\n", "    print(f'no placeholder')\n    return final(answer)\n")
    assert "F821" in messages(both, tmp_path, "lint")
    for breaks in ("'%d %d' % (1,)", "'{} {}'.format(1)", "'%(a)s' % (1,)"):
        assert messages(changed("    return answer\n", f"    print({breaks})\n    return answer\n"), tmp_path, "lint")
