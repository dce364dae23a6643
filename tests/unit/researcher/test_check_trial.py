"""The trial in the check node: what a foreign program does with the model is known before any run is paid for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_planner import Script, ScriptedPlanner

from experiments_db import ExperimentStatus, open_store
from prompts import load
from researcher.charter import Budget
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes import check as check_node
from researcher.loop.nodes.plan import plan
from researcher.loop.nodes.write_program import write_program
from researcher.plan import Arm, Hypothesis, ManipulationCheck, Plan, ProgramProblem, Speaker
from researcher.planner.rules import RulesPlanner
from researcher.planner.tools.base import ToolRefused
from researcher.planner.tools.build import build_toolbox
from researcher.program_trials import study_trials as trials_module
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog, to_json
from researcher.scope import Scope
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request
from swarm.environments import load_environment

ONCE = "def agent(task, model, session):\n    return model.chat(session.messages)\n"
TWICE = """
def agent(task, model, session):
    model.chat(session.messages)
    return model.chat(session.messages)
"""
ASKS_TWICE = ManipulationCheck("it asks twice", speaker=Speaker.MODEL, at_least=2)

Checks = Mapping[str, ManipulationCheck]
Repairs = Mapping[str, tuple[str, ...]]


class Watched(ScriptedPlanner):
    """A scripted planner that keeps the problems that it was told."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.problems: list[ProgramProblem] = []

    def repair_program(self, charter: Any, arm: Any, program: Any, problems: tuple[ProgramProblem, ...]) -> Any:
        self.problems += problems
        return super().repair_program(charter, arm, program, problems)


@pytest.fixture
def study(start_shared_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Deps]]:
    """Makes a study with one server, whose plan has a baseline and further arms with these programs.

    Their preflight is left out, which test_check.py tests and which takes longer than all else.
    """
    monkeypatch.setattr(check_node, "check_program", lambda *_, **__: ())
    with open_store(tmp_path / "research.db") as store, closing(load_environment("reverse")) as environment:
        made: list[Deps] = []

        def make(programs: Mapping[str, str], checks: Checks, repairs: Repairs | None = None) -> Deps:
            rules = RulesPlanner()
            framed = rules.frame(read_request("lr 0.001 or 0.003 on reversal", StudySettings(seeds=1, engine="fake")))
            asks = replace(framed.asks, scope=Scope())
            charter = replace(
                framed, environment_digest=environment.digest, baseline="base", budget=Budget(), asks=asks
            )
            job = {**charter.job, "engine": "fake", "total_steps": 2}
            arms = [Arm("base", {}, job, "", is_baseline=True)]
            arms += [Arm(name, {"program": name}, job, "", parent="base", manipulation=checks.get(name))
                     for name in programs]  # fmt: skip
            hypotheses = (Hypothesis("some arm differs", "it does", ("base", *programs)),)
            planner = Watched(
                Script(charter, [Plan(0, hypotheses, tuple(arms), (0,), "")], {"base": load("program"), **programs}, [],
                       repairs=repairs or {})
            )  # fmt: skip
            study_id = store.create_study("t", planner="scripted").id
            store.freeze_charter(study_id, to_json(charter))
            deps = Deps(
                log=StudyLog(store, study_id),
                planner=planner,
                pool=ServerPool(urls=(start_shared_server().url,), local=0, home=tmp_path, holder=LeaseHolder("s")),
                ledger=BudgetLedger(store, study_id, charter.budget),
                home=tmp_path / study_id,
            )
            made.append(deps)
            return deps

        yield make
        for deps in made:
            deps.background.join()
            deps.environments.close()


def carry_out(deps: Deps) -> dict[str, ExperimentStatus]:
    check_node.check(deps, write_program(deps, plan(deps, first_state(deps.study_id))))
    return {arm.name: arm.status for arm in deps.store.list_experiments(deps.study_id)}


def test_every_foreign_program_is_tried_once_and_the_trial_is_stored(
    study: Callable[..., Deps], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials_module, "SLOW_ATTEMPT_S", 0.0)
    deps = study({"once": ONCE, "twice": TWICE}, {"twice": ASKS_TWICE})
    assert set(carry_out(deps).values()) == {ExperimentStatus.READY}

    arms = {arm.id: arm.name for arm in deps.store.list_experiments(deps.study_id)}
    trials = {arms[trial.experiment_id or ""]: trial for trial in deps.store.list_program_trials(deps.study_id)}
    assert set(trials) == {"base", "once", "twice"}
    assert (trials["twice"].attempts, trials["twice"].calls, trials["twice"].passed) == (8, 2.0, 8)
    assert trials["once"].passed is None and trials["once"].broken == 0
    events = deps.store.list_events(deps.study_id, kind="program.tried", limit=None)
    assert len(events) == 3 and "8 attempts with the base weights" in events[0].message
    slow = deps.store.list_events(deps.study_id, kind="program.slow", limit=None)
    assert any("once: an attempt takes" in event.message for event in slow)
    toolbox = build_toolbox(deps.trials().tool_sources(notes=None))
    assert "2 model calls" in toolbox.call("episodes", {"arm": "twice", "which": "trial"})
    before = deps.store.list_program_trials(deps.study_id)
    [arm] = [arm for arm in deps.store.list_experiments(deps.study_id) if arm.name == "once"]
    deps.store.revise_experiment(arm.id, status=ExperimentStatus.DRAFT)
    check_node.check(deps, first_state(deps.study_id))
    assert deps.store.list_program_trials(deps.study_id) == before, "a trial that was made is not made again"


def test_a_program_that_is_not_what_it_claims_is_repaired_with_its_transcripts(study: Callable[..., Deps]) -> None:
    deps = study({"twice": ONCE}, {"twice": ASKS_TWICE}, {"twice": (TWICE,)})
    assert carry_out(deps)["twice"] is ExperimentStatus.READY

    assert isinstance(deps.planner, Watched)
    [problem] = deps.planner.problems
    assert problem.stage == "trial"
    assert problem.message.startswith("0 of 8 attempts pass its manipulation check (it asks twice)")
    assert "[user] " in problem.message and "[model call 1] " in problem.message
    assert [trial.passed for trial in deps.store.list_program_trials(deps.study_id)][-2:] == [0, 8]


def test_a_program_that_stays_wrong_is_rejected_and_costs_no_run(study: Callable[..., Deps]) -> None:
    deps = study({"silent": "def agent(task, model, session):\n    return 'known'\n"}, {})
    assert carry_out(deps)["silent"] is ExperimentStatus.INVALID
    found = deps.store.find_experiment(deps.study_id, "silent")
    assert found is not None and "rejected by check: trial: its agent asked the model nothing" in str(found.note)


def test_a_planner_tries_a_draft_on_the_studys_own_server(study: Callable[..., Deps]) -> None:
    deps = study({"once": ONCE}, {})
    toolbox = build_toolbox(deps.trials().tool_sources(notes=None))
    early = toolbox.call("try_program", {"code": TWICE, "attempts": 1})
    assert "1 attempts, 0 broken" in early, "the charter is enough: there is no plan yet"
    carry_out(deps)
    given = {"statement": "it asks twice", "speaker": "model", "at_least": 2}
    shown = toolbox.call("try_program", {"code": TWICE, "attempts": 2, "check": given})
    assert "2 attempts, 0 broken" in shown and "2 of 2 attempts pass" in shown and "BEGIN DATA" in shown
    assert deps.store.list_program_trials(deps.study_id)[-1].experiment_id is None
    refused = toolbox.call("try_program", {"code": "import socket\n" + TWICE})
    assert "may not import socket" in refused
    assert "parse: line 1" in toolbox.call("try_program", {"code": "def agent(:"})
    slot = deps.pool.take()
    assert slot is not None, "the server is given back"
    with pytest.raises(ToolRefused, match="all servers of the study have runs"):
        toolbox.call("try_program", {"code": TWICE})


def test_what_only_a_linter_objects_to_is_a_warning_in_the_record(study: Callable[..., Deps]) -> None:
    styled = ONCE.replace("    return", "    print(f'no placeholder')\n    return")
    deps = study({"styled": styled}, {})
    assert carry_out(deps)["styled"] is ExperimentStatus.READY
    [event] = deps.store.list_events(deps.study_id, kind="program.style", limit=None)
    assert "F541" in event.message
    assert any("F541" in note.text for note in deps.store.list_notes(deps.study_id))
    toolbox = build_toolbox(deps.trials().tool_sources(notes=None))
    assert "F541" in toolbox.call("try_program", {"code": styled, "attempts": 1})
