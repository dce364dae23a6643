"""What is counted on the attempts of a final score: the manipulation check, and the work of the code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments_db import Author, ExperimentStatus, ExperimentStore, Run, RunStatus
from prompts import load
from researcher.evaluation import scoring
from researcher.evaluation.authorship import Authorship
from researcher.evaluation.evaluator import Evaluator
from researcher.evaluation.manipulation import check_to_json
from researcher.execution.environments import StudyEnvironments
from researcher.phases import AUTHORSHIP, BASE, FINAL, MANIPULATION
from researcher.plan import ManipulationCheck, Speaker
from researcher.planner.rules import RulesPlanner
from researcher.record.log import to_json
from researcher.scope import ArmPart, Scope
from researcher.servers.server_pool import connect
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request
from swarm.environments import load_environment

EPISODES = 8
PATIENCE_S = 120.0
TWICE = """
def agent(task, model, session):
    model.chat(session.messages)
    if len(task.main_query) % 2:
        model.chat(session.messages)
    return "an answer"
"""


@pytest.fixture
def environments() -> Iterator[StudyEnvironments]:
    opened = StudyEnvironments()
    yield opened
    opened.close()


def score(
    store: ExperimentStore,
    environments: StudyEnvironments,
    url: str,
    home: Path,
    code: str,
    check: Any,
    author: Author = Author.PACKAGE,
) -> Run:
    """Train an arm with this program and check for one step, and score it before and after."""
    request = read_request("lr 0.001 or 0.003 on reversal", StudySettings(seeds=1, engine="fake"))
    with closing(load_environment("reverse")) as environment:
        framed = RulesPlanner().frame(request)
        asks = replace(framed.asks, scope=Scope.of([ArmPart.AGENT]))
        charter = replace(framed, environment_digest=environment.digest, eval_episodes=EPISODES, asks=asks)
    study = store.create_study("t", planner="scripted").id
    store.freeze_charter(study, to_json(charter))
    job = {**charter.job, "engine": "fake", "total_steps": 1, "batch_size": 2, "num_repeat": 2}
    arm = store.create_experiment(
        study, "arm", factors={}, job=job, program_code=code, author=author,
        manipulation=None if check is None else check_to_json(check),
    )  # fmt: skip
    store.revise_experiment(arm.id, status=ExperimentStatus.READY)
    run = store.claim_run(arm.id, 0, f"{study}/arm/0/1", job=job)
    store.update_run(run.id, status=RunStatus.LAUNCHING)
    evaluator = Evaluator(
        store=store, charter=charter, home=home, sandbox=None, environments=environments,
        connect=lambda address: connect(address, None), token_of=lambda _: None, is_stopped=lambda: False,
    )  # fmt: skip
    child = evaluator.prepare(store.get_run(run.id), arm, url, is_trusted=True)
    assert child.wait(PATIENCE_S) == 0
    store.update_run(run.id, status=RunStatus.EVALUATING)
    evaluator.measure(store.get_run(run.id), url, child)
    return run


def test_the_final_score_counts_the_attempts_that_pass(
    store: ExperimentStore, environments: StudyEnvironments, start_shared_server: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(scoring, "CHECKED_EPISODES", 6)
    check = ManipulationCheck("it asks twice", speaker=Speaker.MODEL, at_least=2)
    run = score(store, environments, start_shared_server().url, tmp_path, TWICE, check, Author.LANGUAGE_MODEL)

    scores = {item.phase: item.details for item in store.list_evaluations(run_ids=[run.id])}
    counted = scores[FINAL][MANIPULATION]
    assert counted["total"] == 6 and 0 < counted["passed"] < 6 and counted.keys() == {"passed", "total"}
    assert MANIPULATION not in scores[BASE]
    assert scores[FINAL][AUTHORSHIP] == Authorship(attempts=EPISODES).to_json() and AUTHORSHIP not in scores[BASE]


def test_an_arm_without_a_check_has_no_count_and_few_episodes_have_tokens(
    store: ExperimentStore, environments: StudyEnvironments, start_shared_server: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(scoring, "TOKEN_SAMPLES", 3)
    run = score(store, environments, start_shared_server().url, tmp_path, load("program"), None)

    assert not {MANIPULATION, AUTHORSHIP} & store.list_evaluations(run_ids=[run.id], phase=FINAL)[0].details.keys()
    kept = [store.get_episode(run.id, item.episode_id) for item in store.list_episodes(run.id)]
    for step in (0, 1):
        of_step = [episode for episode in kept if episode.summary.step == step]
        assert len(of_step) == EPISODES and sum(bool(episode.samples) for episode in of_step) == 3
    assert all(episode.messages for episode in kept)
