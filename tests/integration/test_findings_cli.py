"""What studies found: shown, retracted by hand, and repeated by a study of its own on the fake engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_study import BASELINE, SimulatedStudy, Simulation, reports_without_images
from store_samples import record_finding
from typer.testing import CliRunner

from experiments_db import Author, Finding, Operator, StudyStatus, Verdict, open_store
from researcher.cli import app
from researcher.history import History
from researcher.memory.recall import recall
from researcher.memory.replication import read_replication, settings_of
from researcher.planner.replication import ReplicationPlanner
from researcher.record.log import StudyLog
from researcher.study.settings import sandbox_of
from swarm.sandbox import choose_sandbox

pytestmark = pytest.mark.begins_first
KEPT = "lr=0.003"


@pytest.fixture
def study(tmp_path: Path) -> Iterator[SimulatedStudy]:
    """A study whose scores were drawn: a large effect that no run of the fake engine has."""
    study = Simulation(seeds=5, failed=()).carry_out(tmp_path)
    yield study
    study.store.close()


def finding_on(study: SimulatedStudy, arm: str) -> Finding:
    return next(
        item for item in study.store.list_findings(study_id=study.study_id) if item.experiment_id == study.arm(arm).id
    )


def run(study: SimulatedStudy, *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--home", str(study.home)])


def shown(study: SimulatedStudy, *arguments: str) -> list[dict[str, Any]]:
    result = run(study, "findings", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_findings_are_shown_with_their_recipe_and_filtered(study: SimulatedStudy) -> None:
    found = shown(study, "--all", "--kind", "comparison")
    assert {item["recipe"]["arm"]["name"] for item in found} == {KEPT, "lr=0.0003"}
    kept = next(item for item in found if item["recipe"]["arm"]["name"] == KEPT)
    assert kept["verdict"] == "keep" and kept["recipe"]["baseline"]["name"] == BASELINE
    assert kept["recipe"]["arm"]["settings"]["lr"] == 0.003 and "seed" not in kept["recipe"]["arm"]["settings"]
    assert kept["recipe"]["runs"] == 5 and kept["recipe"]["planner"] == "scripted"

    chosen = ("--env", "reverse", "--factor", "lr", "--model", kept["recipe"]["model"])
    assert len(shown(study, "--all", "--kind", "comparison", *chosen)) == 2
    for nothing in (("--env", "copy"), ("--factor", "num_repeat"), ("--model", "micro")):
        assert shown(study, "--all", *nothing) == []
    table = run(study, "findings")
    assert table.exit_code == 0 and kept["finding"] in table.stdout


def test_finding_retracted_by_hand_is_told_with_the_reason_and_is_no_prior(study: SimulatedStudy) -> None:
    finding = finding_on(study, KEPT)
    retracted = run(study, "findings", "retract", finding.id, "--reason", "the grader was broken")
    assert retracted.exit_code == 0, retracted.output

    (again,) = [item for item in shown(study, "--all") if item["finding"] == finding.id]
    assert again["retracted"] == "the grader was broken"
    charter = StudyLog(study.store, study.study_id).charter()
    lines = recall(study.store, "another study", charter)
    assert any("retracted: the grader was broken" in line and study.study_id in line for line in lines)
    assert run(study, "findings", "retract", finding.id, "--reason", "once more").exit_code == 2
    assert run(study, "findings", "retract", "fi-nothing", "--reason", "x").exit_code == 3
    assert run(study, "verify", study.study_id).exit_code == 0


def test_replication_repeats_both_arms_on_fresh_seeds_and_retracts_a_finding_that_is_false(
    study: SimulatedStudy, start_server: Callable[..., Any]
) -> None:
    finding, url = finding_on(study, KEPT), start_server().url
    assert finding.verdict is Verdict.KEEP
    with reports_without_images():
        result = run(study, "replicate", finding.id, "--servers", url, "--seeds", "3", "--json")
    assert result.exit_code == 0, result.output

    newest = study.store.list_studies()[0]
    assert (newest.status, newest.settings["replicates"]["finding"]) == (StudyStatus.FINISHED, finding.id)
    arms = {item.name: item for item in study.store.list_experiments(newest.id)}
    for name, arm in arms.items():
        before = study.arm(name)
        assert (arm.program_code, dict(arm.job), dict(arm.factors)) == (
            before.program_code, dict(before.job), dict(before.factors),
        )  # fmt: skip
    assert arms.keys() == {BASELINE, KEPT}
    assert {each.seed for each in study.store.list_runs(study_id=newest.id)} == {5, 6, 7}
    (plan,) = StudyLog(study.store, newest.id).history().plans
    assert [arm.operator for arm in plan.arms] == [None, Operator.REPLICATE]

    retracted = study.store.get_finding(finding.id)
    (own,) = study.store.list_findings(study_id=newest.id)
    assert retracted.retracted_by == own.id and newest.id in (retracted.retraction or "")
    for each in (study.study_id, newest.id):
        assert study.store.list_events(each, kind="finding.retracted")
    assert run(study, "verify", newest.id).exit_code == 0


def test_replication_of_a_program_of_a_language_model_runs_in_the_sandbox(study: SimulatedStudy) -> None:
    finding = finding_on(study, KEPT)
    trusted = settings_of(read_replication(study.store, finding.id), {})
    assert trusted.replicates is not None and trusted.replicates.is_trusted and sandbox_of(trusted) is None

    arm = study.arm(KEPT)
    study.store.revise_experiment(arm.id, program_code=arm.program_code, author=Author.LANGUAGE_MODEL)
    foreign = settings_of(read_replication(study.store, finding.id), {"unsafe_no_sandbox": True})
    assert foreign.replicates is not None and not foreign.replicates.is_trusted
    assert sandbox_of(foreign) == choose_sandbox(True)
    planner = ReplicationPlanner(replication=read_replication(study.store, finding.id))
    charter = planner.frame(foreign.request("again"))
    plan = planner.plan(charter, History())
    assert [planner.write_program(charter, arm, None).trusted for arm in plan.arms] == [True, False]


def test_finding_that_decided_nothing_is_replicated_with_a_number_of_seeds_alone(study: SimulatedStudy) -> None:
    assert run(study, "replicate", "fi-nothing").exit_code == 3
    with open_store(study.database) as store:
        changes = {"iteration": 7, "baseline_id": study.arm(BASELINE).id, "recipe": finding_on(study, KEPT).recipe}
        arm, of_study = study.arm(KEPT), store.get_study(study.study_id)
        inconclusive = record_finding(store, of_study, arm, verdict=Verdict.INCONCLUSIVE, **changes)
    refused = run(study, "replicate", inconclusive.id)
    assert refused.exit_code == 2 and "--seeds" in refused.output
    with open_store(study.database) as store:
        planner = ReplicationPlanner(replication=read_replication(store, inconclusive.id, seeds=30))
    charter = planner.frame(settings_of(planner.replication, {"seeds": 30}).request("again"))
    assert len(planner.plan(charter, History()).seeds) == 30 and "better" in charter.question
