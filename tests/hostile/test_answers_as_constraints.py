"""Programs that give the model its answer by limits or hidden texts are found; honest limits are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from constraining_programs import CHEATS, HONEST

from researcher.evaluation.authorship import Authorship, count_authorship, read_answers
from researcher.program_trials.trial import SOLVED_BLANK, find_code_at_work
from swarm import SwarmClient, TrainJob
from swarm.environments import Environment
from swarm.program import EndedAttempt, load_program, measure
from swarm.tasks import Split

ATTEMPTS = 24
JOB = TrainJob(engine="fake", batch_size=4, num_repeat=2, total_steps=1000)
Play = Callable[[str], tuple[Authorship, float]]


@pytest.fixture(scope="module")
def client(start_shared_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_shared_server(JOB).url) as client:
        yield client


@pytest.fixture
def play(client: SwarmClient, environment: Environment, tmp_path: Path) -> Play:
    """Plays a program with a model of random letters that obeys limits; returns the counts and the share solved."""

    def attempt(code: str) -> tuple[Authorship, float]:
        path = tmp_path / "program.py"
        path.write_text(code)
        ended: list[EndedAttempt] = []
        result = measure(
            client, environment, load_program(path), split=Split.TRAIN, episodes=ATTEMPTS, max_workers=4, seed=0,
            on_end=ended.append,
        )  # fmt: skip
        assert not result.failures and not result.broken, (result.failures, result.broken)
        details = [(each, client.episode(each.episode_id)) for each in ended]
        answers = read_answers(environment, Split.TRAIN)
        return count_authorship(details, answers), result.mean or 0.0

    return attempt


@pytest.mark.parametrize("how", CHEATS)
def test_a_program_that_gives_its_model_the_answer_is_out(play: Play, how: str) -> None:
    found, solved = play(CHEATS[how])
    assert find_code_at_work(found) or found.find_problem() or solved >= SOLVED_BLANK, (found, solved)


@pytest.mark.parametrize("how", HONEST)
def test_an_honest_limit_is_no_cheat(play: Play, how: str) -> None:
    found, solved = play(HONEST[how])
    assert not find_code_at_work(found) and not found.find_problem() and solved < SOLVED_BLANK, (found, solved)


def test_a_limit_that_depends_on_the_task_is_named(play: Play) -> None:
    named = {how: play(HONEST[how])[0].limits for how in ("a schema named by the task", "a pattern of capital letters")}
    assert named == {"a schema named by the task": ("grammar",), "a pattern of capital letters": ()}
    [details] = [json.loads(json.dumps(Authorship(attempts=3, limits=("grammar",)).to_json()))]
    assert Authorship.from_json(details) == Authorship(attempts=3, limits=("grammar",))
