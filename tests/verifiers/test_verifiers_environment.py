"""The library verifiers itself: its agents play with a served model, and its rewards are those of our episodes."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from swarm import SwarmClient, TrainJob
from swarm.cli import app
from swarm.client.runner import is_transient
from swarm.environments import DrivenEnvironment, EnvironmentTask, load_environment
from swarm.environments.verifiers.worker import VerifiersWorker
from swarm.errors import EnvironmentFailure, EnvironmentInvalid, NotFound
from swarm.tasks import Split
from swarm.types import EpisodeType

pytestmark = [
    pytest.mark.verifiers,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("SWARM_VERIFIERS_PYTHON"),
        reason="SWARM_VERIFIERS_PYTHON names no interpreter with verifiers: run `make test-verifiers`",
    ),
]
PATIENCE_S = 300.0
PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def name_of(**options: object) -> str:
    return "verifiers:reverse-words?" + urlencode({"max_tokens": 16, **options})


def opened(**options: object) -> DrivenEnvironment:
    environment = load_environment(name_of(**options))
    assert isinstance(environment, DrivenEnvironment)
    return environment


def of_the_page(verb: str) -> list[str]:
    """The words of the command that the documentation shows."""
    [line] = re.findall(rf"^    swarm ({verb} --env .*verifiers:.*)$", PAGE.read_text(), re.MULTILINE)
    return shlex.split(line)


def first(environment: DrivenEnvironment) -> EnvironmentTask:
    return next(environment.tasks(Split.TRAIN))


def attempt(environment: DrivenEnvironment, url: str, task: EnvironmentTask | None = None) -> Any:
    """One attempt with the model of an episode, which is given up afterwards."""
    task = task or first(environment)
    with SwarmClient(url) as client, client.open_episode(task.task, EpisodeType.EVAL) as episode:
        own = episode.credentials
        return environment.run(task, own.base_url, own.api_key, own.model, environment.max_tokens)


@pytest.fixture(scope="module")
def url(start_shared_server: Any) -> str:
    return start_shared_server(TrainJob(engine="fake")).url


@pytest.fixture(scope="module")
def environment() -> Iterator[DrivenEnvironment]:
    with closing(opened()) as environment:
        yield environment


def test_twenty_attempts_with_the_bundled_model_are_rewarded_in_the_servers_record(start_server: Any) -> None:
    address = start_server(TrainJob(engine="local")).url
    done = CliRunner().invoke(app, [*of_the_page("eval"), "--url", address, "--workers", "8", "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["task"], figures["episodes"], figures["failures"]) == ("verifiers:reverse-words", 20, 0)
    with SwarmClient(address) as client:
        episodes = client.episodes(limit=100)
    rewards = [episode.reward for episode in episodes]
    assert len(rewards) == 20 and all(reward is not None and 0 <= reward <= 1 for reward in rewards)
    assert figures["mean_reward"] == pytest.approx(sum(rewards) / 20)
    assert [episode.turns for episode in episodes] == [1] * 20


def test_a_model_is_trained_by_its_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("engine: local\nbatch_size: 2\nnum_repeat: 2\ntotal_steps: 3\nlr: 1.0e-3\n")
    sizes = ["--eval-episodes", "4", "--few-tasks", "--workers", "8", "--json"]
    done = CliRunner().invoke(app, [*of_the_page("train"), "--url", start_server().url, *sizes])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["steps"], figures["failed_episodes"]) == (3, 0)
    assert figures["before"]["n"] == figures["after"]["n"] == 4
    assert done.stderr.count("step ") == 3


def test_the_tasksets_own_splits_are_used(environment: DrivenEnvironment) -> None:
    by_split = {split: [each.task.main_query for each in environment.tasks(split)] for split in Split}
    assert len(by_split[Split.VALIDATION]) == 50
    assert len(by_split[Split.TRAIN]) + len(by_split[Split.TEST]) == 150
    assert len({question for questions in by_split.values() for question in questions}) == 200
    assert all(question.startswith("Reverse: ") for questions in by_split.values() for question in questions)
    assert environment.description == "Three letters to be written backwards."


def test_an_attempt_tells_what_was_said_and_how_it_was_judged(environment: DrivenEnvironment, url: str) -> None:
    task = first(environment)
    transcript, grade = attempt(environment, url, task)
    assert [message["role"] for message in transcript] == ["user", "assistant"]
    assert transcript[0]["content"] == task.task.main_query
    assert grade.details["rewards"] == {"reversed_word": pytest.approx(grade.score)}
    assert grade.details["metrics"] == {"letters": float(len(transcript[1]["content"].strip()))}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task.judgement": "nan"}, "must be a finite number"),
        ({"task.judgement": "error"}, "TaskError.*this judge never comes to an end"),
        ({"task.judgement": "never", "rollout_seconds": 1}, "the rollout took longer than 1 s"),
    ],
)
def test_what_is_no_reward_is_a_failure(url: str, options: dict[str, object], message: str) -> None:
    with closing(opened(**options)) as environment, pytest.raises(EnvironmentFailure, match=message) as failed:
        attempt(environment, url)
    assert not is_transient(failed.value)


def test_a_server_that_does_not_answer_is_a_failure_to_be_tried_again(environment: DrivenEnvironment) -> None:
    with pytest.raises(EnvironmentFailure) as failed:
        environment.run(first(environment), "http://127.0.0.1:1/v1", "key", "default", 16)
    assert is_transient(failed.value)


def test_attempts_leave_nothing_open(environment: DrivenEnvironment, url: str) -> None:
    attempt(environment, url)
    held = Path(f"/proc/{environment._worker.pid}/fd")
    before = len(list(held.iterdir()))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda task: attempt(environment, url, task), [first(environment)] * 8))
    # One to spare for what is just being closed.
    assert len(list(held.iterdir())) <= before + 1


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("verifiers:no-such-words", NotFound, "no package 'no-such-words' is installed in"),
        ("verifiers:json", NotFound, "'json' is not a taskset of verifiers"),
        ("verifiers:reverse-words?num_taks=3", EnvironmentInvalid, "taskset.num_taks"),
        ("verifiers:reverse-words?harness=nul", EnvironmentInvalid, "harness 'nul' not found"),
        ("verifiers:reverse-words?num_tasks=3&split=all", EnvironmentInvalid, "none of its 3 tasks is in the split"),
    ],
)
def test_what_cannot_be_opened_is_refused_by_name(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as failed:
        load_environment(name)
    assert "\n" not in str(failed.value)


def test_the_library_sees_no_module_of_ours() -> None:
    asked = {"id": "swarm", "settings": {}, "harness": None, "runtime": None, "rollout_seconds": 1.0}
    worker = VerifiersWorker(Path(os.environ["SWARM_VERIFIERS_PYTHON"]))
    with pytest.raises(NotFound, match="no package 'swarm'"):
        worker.ask("open", asked, PATIENCE_S)
    worker.stop()
