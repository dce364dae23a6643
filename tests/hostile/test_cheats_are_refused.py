"""Programs that cheat are refused before a run: by their text, or by a trial with a model that knows nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cheating_programs import CHECKS, HINTED, REFUSED_BY_TEXT, REFUSED_BY_TRIAL

from researcher.plan import ArmProgram, ManipulationCheck, Speaker
from swarm import SwarmClient
from swarm.environments import Environment, load_environment

SOME = ("tells the answer to a part of the tasks", "asks for show, then tells the answer", "says that it looks twice")
"""The others are played as studies, by test_cheating_studies.py."""
JOB = {"project_name": "research", "experiment_name": "trial", "engine": "fake", "batch_size": 4, "num_repeat": 2,
       "total_steps": 3}  # fmt: skip


@pytest.fixture(scope="module")
def client(start_shared_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_shared_server().url) as client:
        yield client


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    with closing(load_environment("reverse")) as opened:
        yield opened


def find_problems_of(
    client: SwarmClient, environment: Environment, code: str, folder: Path, check: ManipulationCheck | None = None
) -> list[str]:
    """Return what a study finds wrong with a program of a planner before its first run."""
    from experiments_db import open_store
    from researcher.execution.preflight import check_program
    from researcher.program_trials.trial import TrialRequest, find_problems, run_trial

    refused = check_program(
        ArmProgram("arm", code, trusted=False), JOB, workdir=folder, sandbox=None, preflight_url=None, environment=""
    )
    if refused:
        return [problem.message for problem in refused]
    result = run_trial(client, TrialRequest(code, JOB, environment, folder, None, check=check), lambda: None)
    with open_store(folder / "research.db") as store:
        trial = result.store_in(store, store.create_study("t", planner="llm").id, code, experiment_id=None)
        return [problem.message for problem in find_problems(trial, code, check)]


@pytest.mark.parametrize("how", REFUSED_BY_TEXT)
def test_program_that_reaches_for_what_it_must_not_have_is_refused_unrun(
    client: SwarmClient, environment: Environment, tmp_path: Path, how: str
) -> None:
    assert find_problems_of(client, environment, REFUSED_BY_TEXT[how], tmp_path)


@pytest.mark.parametrize("how", SOME)
def test_program_that_does_the_work_of_the_model_is_refused_by_its_trial(
    client: SwarmClient, environment: Environment, tmp_path: Path, how: str
) -> None:
    assert find_problems_of(client, environment, REFUSED_BY_TRIAL[how], tmp_path, CHECKS.get(how))


def test_honest_program_is_not_refused(client: SwarmClient, environment: Environment, tmp_path: Path) -> None:
    assert not find_problems_of(client, environment, HINTED, tmp_path)


@pytest.mark.parametrize(
    ("check", "is_of_all"),
    [
        (CHECKS["has a check that is always true"], True),
        (CHECKS["says that it looks twice"], False),
        (ManipulationCheck("It speaks.", pattern=".*"), True),
        (ManipulationCheck("It speaks."), True),
        (ManipulationCheck("It asks twice.", speaker=Speaker.MODEL, at_least=2), False),
        (ManipulationCheck("It never says sorry.", pattern="sorry", at_least=0, at_most=0), False),
        (ManipulationCheck("It says it sometimes.", pattern="again", share=0.0), True),
        (ManipulationCheck("It is short.", code="def check(transcript):\n    return len(transcript) < 9\n"), False),
    ],
)
def test_check_that_is_true_of_every_transcript_is_known(check: ManipulationCheck, is_of_all: bool) -> None:
    from researcher.evaluation.manipulation import is_true_of_all

    assert is_true_of_all(check) is is_of_all
