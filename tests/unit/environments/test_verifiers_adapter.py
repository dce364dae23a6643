"""Environments of verifiers, seen from our side: whatever a worker does, what is no reward is a failure."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from verifiers_stand_in import STAND_IN, interpreter, name_of, opened

from swarm.client.runner import is_transient
from swarm.environments import DrivenEnvironment, load_environment
from swarm.environments.environment_check import CheckSeverity, check_environment
from swarm.environments.verifiers.rollouts import RolloutRefused, outcome
from swarm.environments.verifiers.worker import VerifiersWorker
from swarm.errors import EnvironmentFailure, EnvironmentInvalid
from swarm.processes.child import process_start
from swarm.tasks import Split

PATIENCE_S = 60.0
ADDRESS = ("http://127.0.0.1:1/v1", "key", "default", 16)
OPEN = {"id": "numbers", "settings": {}, "harness": None, "runtime": None, "rollout_seconds": 1.0}


def ids(environment: DrivenEnvironment, split: Split, seed: int = 0, number: int | None = None) -> list[str]:
    return [each.task.task_id for each in islice(environment.tasks(split, seed), number)]


def run(environment: DrivenEnvironment, position: int = 0) -> float:
    task = next(islice(environment.tasks(Split.TRAIN), position, None))
    return environment.run(task, *ADDRESS)[1].score


def test_every_task_is_in_one_split_in_the_order_of_the_seed(tmp_path: Path) -> None:
    with opened(tmp_path) as environment:
        by_split = {split: ids(environment, split) for split in Split}
        assert sum(map(len, by_split.values())) == len(set().union(*by_split.values())) == 60
        assert len(by_split[Split.TRAIN]) > len(by_split[Split.TEST]) > 0
        again = ids(environment, Split.TRAIN)
        other = ids(environment, Split.TRAIN, seed=1)
        assert again == by_split[Split.TRAIN] != other
        assert sorted(other) == sorted(again)


def test_tasks_without_end_are_made_as_they_are_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path, is_endless=True) as environment:
        some = {split: ids(environment, split, number=600) for split in Split}
        assert all(len(set(found)) == 600 for found in some.values())
        assert not set(some[Split.TRAIN]) & set(some[Split.VALIDATION])
        assert ids(environment, Split.TRAIN, number=600) == some[Split.TRAIN]
        assert ids(environment, Split.TRAIN, seed=1, number=600) != some[Split.TRAIN]


def test_a_tasksets_own_splits_are_kept_and_the_missing_one_is_a_part_of_train(tmp_path: Path) -> None:
    with opened(tmp_path, split_values="[all, train, eval]") as environment:
        assert len(ids(environment, Split.VALIDATION)) == 60
        assert len(ids(environment, Split.TRAIN)) + len(ids(environment, Split.TEST)) == 60
        assert len(ids(environment, Split.TEST)) > 0


def test_splits_can_be_named_and_a_chosen_one_is_split_by_hash(tmp_path: Path) -> None:
    with opened(tmp_path, split_values="[a, b, c]", train="a", validation="b", test="c") as environment:
        assert [len(ids(environment, split)) for split in Split] == [60, 60, 60]
    with opened(tmp_path, split_values="[train, eval]", split="train") as environment:
        assert sum(len(ids(environment, split)) for split in Split) == 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"split_values": "[train, test]", "overlap": True},
            "the splits test and train overlap|train and test overlap",
        ),
        ({"count": 2}, "none of its 2 tasks is in the split"),
        ({"is_endless": True, "train": "a"}, "split by hash: leave out the splits"),
        ({"validation": "a"}, "name the split train as well"),
        ({"split": "a", "train": "a", "validation": "b"}, "option split has no effect beside train"),
        ({"pass-rate": 1, "pass_rate": 0}, "option pass_rate is given twice"),
        ({"rollout_seconds": "soon"}, "option rollout_seconds: Input should be a valid number"),
        ({"env.agent": 1, "env.agent.max_turns": 2}, "agent exclude each other: keep one"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(EnvironmentInvalid, match=message), opened(tmp_path, **options):
        pass


def test_the_digest_is_that_of_options_and_versions_and_not_of_the_interpreters_place(tmp_path: Path) -> None:
    digests: list[str] = []
    for place, options in (
        ("a", {}),
        ("b", {}),
        ("a", {"count": 61}),
        ("a", {"version": "2"}),
        ("a", {"max_tokens": 7}),
    ):
        (tmp_path / place).mkdir(exist_ok=True)
        with opened(tmp_path / place, **options) as environment:
            digests.append(environment.digest)
    assert digests[0] == digests[1] and len(set(digests)) == 4


def test_an_attempt_brings_what_was_said_and_its_grade(tmp_path: Path) -> None:
    with opened(tmp_path, reward=1.0) as environment:
        task = next(environment.tasks(Split.TRAIN))
        transcript, grade = environment.run(task, *ADDRESS)
        assert [message["role"] for message in transcript] == ["user", "assistant"]
        assert transcript[0]["content"] == task.task.main_query
        assert (grade.score, grade.is_success, grade.details["rewards"]) == (1.0, True, {"said": 1.0})


def test_attempts_are_under_way_at_once(tmp_path: Path) -> None:
    with opened(tmp_path, reward=0.25, together=8) as environment, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda position: run(environment, position), range(8))) == [0.25] * 8


@pytest.mark.parametrize("reward", ["nan", "much", ".inf"])
def test_a_reward_that_is_no_finite_number_is_a_failure(tmp_path: Path, reward: str) -> None:
    with opened(tmp_path, reward=reward) as environment, pytest.raises(EnvironmentFailure, match=r"number|no reward"):
        run(environment)


def test_a_killed_worker_fails_all_attempts_under_way_and_another_one_takes_its_place(tmp_path: Path) -> None:
    with (
        opened(tmp_path, reward=0.25, together=3, die=tmp_path / "died") as environment,
        ThreadPoolExecutor(3) as pool,
    ):
        lost = [pool.submit(run, environment, position) for position in range(3)]
        for each in lost:
            failure = each.exception(PATIENCE_S)
            assert isinstance(failure, EnvironmentFailure) and "was killed by SIGKILL" in failure.message
            assert is_transient(failure)
        assert list(pool.map(lambda position: run(environment, position), range(3))) == [0.25] * 3


@pytest.mark.parametrize(("status", "is_tried_again"), [(503, True), (409, True), (400, False)])
def test_a_failed_model_call_is_a_failure_that_tells_its_status(
    tmp_path: Path, status: int, is_tried_again: bool
) -> None:
    with opened(tmp_path, fail=status) as environment, pytest.raises(EnvironmentFailure) as failed:
        run(environment)
    assert is_transient(failed.value) is is_tried_again


@pytest.mark.parametrize(("status", "is_graded"), [(400, True), (403, True), (401, False), (503, False)])
def test_a_rollout_whose_last_call_the_policy_could_not_make_is_graded(status: int, is_graded: bool) -> None:
    """403 is the limit of the calls or tokens of an attempt."""
    refused = SimpleNamespace(error=SimpleNamespace(status_code=status, message="refused"))
    trace = SimpleNamespace(
        agent=SimpleNamespace(name="agent"), calls=[refused], num_turns=1, rewards={"said": SimpleNamespace(value=0.5)},
        reward=0.5, metrics={}, messages=[],
    )  # fmt: skip
    episode = SimpleNamespace(ok=True, traces=[trace])
    if is_graded:
        assert outcome(episode, "agent")["reward"] == 0.5
    else:
        with pytest.raises(RolloutRefused, match="the last model call failed: refused"):
            outcome(episode, "agent")


def test_a_worker_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    worker = VerifiersWorker(interpreter(tmp_path))
    worker.ask("open", {**OPEN, "settings": {"taskset": {"together": 2}}}, PATIENCE_S)
    with pytest.raises(EnvironmentFailure, match=r"did not answer within 0.1 s"):
        worker.ask("run", {}, 0.1)
    worker.stop()
    assert worker.has_ended and process_start(worker.pid) is None


def test_a_closed_environment_is_asked_no_more(tmp_path: Path) -> None:
    with opened(tmp_path) as environment:
        task = next(environment.tasks(Split.TRAIN))
    with pytest.raises(EnvironmentFailure, match="is closed"):
        environment.run(task, *ADDRESS)


def test_a_worker_does_not_outlive_its_killed_parent(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from swarm.environments.verifiers.worker import VerifiersWorker\n"
        "worker = VerifiersWorker(Path(sys.argv[1]))\n"
        f"worker.ask('open', {OPEN!r}, 60); print(worker.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(interpreter(tmp_path))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        worker = os.pidfd_open(pid)
        os.kill(parent.pid, signal.SIGKILL)
    ended, _, _ = select.select([worker], [], [], PATIENCE_S)
    os.close(worker)
    assert ended


def test_tokens_of_servers_and_our_modules_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_TOKEN", "the commander's")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "the data's")
    shown = tmp_path / "shown.py"
    shown.write_text("import os, sys; print(sorted(os.environ), file=sys.stderr)")
    with pytest.raises(EnvironmentFailure, match="HF_TOKEN") as failed:
        load_environment(name_of(interpreter(tmp_path, shown)))
    assert "SWARM_TOKEN" not in failed.value.message and "PYTHONPATH" not in failed.value.message


def test_no_interpreter_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWARM_VERIFIERS_PYTHON", raising=False)
    with pytest.raises(EnvironmentInvalid, match=r"name it with \?python=PATH or SWARM_VERIFIERS_PYTHON"):
        load_environment("verifiers:numbers")


def test_the_variable_names_an_interpreter_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_VERIFIERS_PYTHON", str(interpreter(tmp_path)))
    environment = load_environment("verifiers:numbers")
    environment.close()
    assert environment.name == "verifiers:numbers" and environment.description == "Numbers to be said."


def test_a_library_with_another_api_is_refused(tmp_path: Path) -> None:
    (tmp_path / "verifiers").mkdir()
    (tmp_path / "verifiers" / "__init__.py").write_text("__version__ = '0.1.9'\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(EnvironmentInvalid, match=r"verifiers 0.1.9 in .* has another API: install verifiers>=0.4"):
        load_environment(name_of(python))


def test_check_looks_at_tasks_and_leaves_grades_to_attempts(tmp_path: Path) -> None:
    with opened(tmp_path) as environment:
        found = {result.check: result for result in check_environment(environment)}
    assert list(found) == ["tasks", "splits", "order", "grades"]
    assert all(result.severity is CheckSeverity.OK for result in found.values())
    assert STAND_IN.exists()
