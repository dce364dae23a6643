"""An environment in a process of its own: what it says, what it hides, and what its death costs."""

from __future__ import annotations

import sys
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from process_support import descendants, kill_all

from swarm.environments import Environment, load_environment
from swarm.environments.scaffold import write_scaffold
from swarm.environments.server import RemoteEnvironment, open_environment
from swarm.environments.server.process import EnvironmentProcess
from swarm.errors import Conflict, EnvironmentFailure, EnvironmentInvalid, Forbidden
from swarm.tasks.base import Split

Open = Callable[[Path], RemoteEnvironment]

pytestmark = pytest.mark.timeout(400)

HANGS = """
import time
def grade(task, transcript):
    while transcript[-1]["content"] == "hang":
        time.sleep(0.01)
    return 1.0
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    write_scaffold(tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def guessing() -> Iterator[EnvironmentProcess]:
    with EnvironmentProcess("guess") as process:
        yield process


@pytest.fixture
def opened() -> Iterator[Callable[[Path], RemoteEnvironment]]:
    """Opens what a socket serves, until the test ends."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(RemoteEnvironment(path))


def attempt(environment: Environment, split: Split, replies: list[str]) -> tuple[list[Any], Any]:
    """What was said in an attempt at the first task of a split, and its grade."""
    item = next(environment.tasks(split))
    session = environment.open(item)
    transcript: list[Any] = [*session.messages]
    for reply in replies:
        message = {"role": "assistant", "content": reply}
        following = session.reply(message)
        transcript += [message, *(following or ())]
        if following is None:
            break
    return transcript, environment.grade(item, transcript)


def kill_server(process: EnvironmentProcess) -> None:
    """End the environment server itself by kill -9, not the process that supervises it."""
    kill_all(descendants(process.pid))


def test_a_served_environment_is_the_environment(own: Path) -> None:
    local = load_environment(str(own))
    with open_environment(str(own)) as served:
        assert (served.name, served.digest) == (local.name, local.digest)
        assert (served.max_turns, served.max_tokens, served.tools) == (1, local.max_tokens, ())
        for split in Split:
            assert [item.task for item in served.tasks(split, 7)] == [item.task for item in local.tasks(split, 7)]
        ours, theirs = next(local.tasks(Split.TEST)), next(served.tasks(Split.TEST))
        assert served.solution(theirs) == local.solution(ours)


def test_sessions_of_several_turns_are_those_of_the_environment(guessing: EnvironmentProcess, opened: Open) -> None:
    replies = ["50", "25", "75", "10", "90"]
    served = opened(guessing.evaluator_socket)
    assert attempt(served, Split.VALIDATION, replies) == attempt(load_environment("guess"), Split.VALIDATION, replies)


def test_programs_see_train_tasks_alone(guessing: EnvironmentProcess, opened: Open) -> None:
    served = opened(guessing.train_socket)
    assert attempt(served, Split.TRAIN, ["50"])[0]
    for split in (Split.VALIDATION, Split.TEST):
        with pytest.raises(Forbidden, match=f"the split {split} is held out"):
            next(served.tasks(split))
    held_out = next(opened(guessing.evaluator_socket).tasks(Split.TEST))
    for call in (served.open, served.solution, lambda item: served.grade(item, [])):
        with pytest.raises(Forbidden):
            call(held_out)
    with pytest.raises(Forbidden, match="only the evaluator may ask for solutions"):
        served.solution(next(served.tasks(Split.TRAIN)))


def test_a_killed_server_is_started_again_and_attempts_go_on(guessing: EnvironmentProcess, opened: Open) -> None:
    served = opened(guessing.train_socket)
    item = list(islice(served.tasks(Split.TRAIN), 40))[-1]
    sessions = [load_environment("guess").open(own_task(item)), served.open(item)]
    for reply in ("50", "25", "10"):
        started = guessing.starts
        while guessing.starts == started:
            kill_server(guessing)
        here, there = (session.reply({"role": "assistant", "content": reply}) for session in sessions)
        assert here == there


def own_task(item: Any) -> Any:
    return next(each for each in load_environment("guess").tasks(Split.TRAIN) if each.task == item.task)


def test_a_server_that_is_killed_as_it_starts_is_started_again(own: Path, tmp_path: Path) -> None:
    kills = (
        "import os, pathlib, signal\n"
        f"mark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
        "if not mark.exists():\n"
        "    mark.touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (own / "grade.py").write_text(kills + (own / "grade.py").read_text())
    with EnvironmentProcess(str(own)) as process:
        assert process.starts == 2


def test_a_server_that_is_killed_whenever_it_starts_is_given_up(own: Path) -> None:
    (own / "grade.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(EnvironmentFailure, match="did not start: it was killed"):
        EnvironmentProcess(str(own))


def test_a_grader_that_takes_forever_fails_its_own_attempt_alone(own: Path, opened: Open) -> None:
    (own / "grade.py").write_text(HANGS)
    with (own / "environment.toml").open("a") as options:
        options.write("\ntime_limit_s = 1\n")
    with EnvironmentProcess(str(own)) as process:
        served = opened(process.evaluator_socket)
        with pytest.raises(EnvironmentFailure, match=r"own: grading task own/\w+ took longer than 1 s"):
            attempt(served, Split.TRAIN, ["hang"])
        assert attempt(served, Split.TRAIN, ["x"])[1].score == 1.0


def test_a_grader_that_holds_the_interpreter_is_ended_too(
    own: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No other thread gets its turn meanwhile: the match takes longer than anybody waits.
    (own / "grade.py").write_text(
        "import re\ndef grade(task, transcript):\n"
        "    return 0.0 if re.match('(a|aa)*b', 'a' * len(transcript[-1]['content'])) else 1.0\n"
    )
    with (own / "environment.toml").open("a") as options:
        options.write("\ntime_limit_s = 1\n")
    with EnvironmentProcess(str(own)) as process:
        served = opened(process.evaluator_socket)
        with pytest.raises(EnvironmentFailure, match="own: a call for grades took longer than 1 s"):
            attempt(served, Split.TRAIN, ["a" * 60])
        assert attempt(served, Split.TRAIN, ["x"])[1].score == 1.0


def test_a_call_under_which_the_server_dies_fails_alone(own: Path, opened: Open) -> None:
    (own / "grade.py").write_text(
        "import os\ndef grade(task, transcript):\n"
        "    transcript[-1]['content'] != 'die' or os.kill(os.getpid(), 9)\n    return 1.0\n"
    )
    with EnvironmentProcess(str(own)) as process:
        served = opened(process.evaluator_socket)
        with ThreadPoolExecutor(9) as pool:
            poison = pool.submit(attempt, served, Split.TRAIN, ["die"])
            others = [pool.submit(attempt, served, Split.TRAIN, ["x"]) for _ in range(8)]
            assert [each.result()[1].score for each in others] == [1.0] * 8
            with pytest.raises(EnvironmentFailure, match="its process died 5 times during the same call for grades"):
                poison.result()


def test_a_server_that_cannot_be_started_again_is_not_waited_for(own: Path, opened: Open) -> None:
    with EnvironmentProcess(str(own)) as process:
        served = opened(process.evaluator_socket)
        (own / "grade.py").unlink()
        kill_server(process)
        with pytest.raises(EnvironmentFailure, match=r"could not be restarted: .*write a grade.py"):
            attempt(served, Split.TRAIN, ["x"])


def test_calls_of_an_environment_that_is_given_up_end_at_once(own: Path, opened: Open) -> None:
    (own / "grade.py").write_text(HANGS)
    with EnvironmentProcess(str(own)) as process, ThreadPoolExecutor(1) as pool:
        served = opened(process.evaluator_socket)
        hanging = pool.submit(attempt, served, Split.TRAIN, ["hang"])
        served.give_up("nothing can be graded")
        with pytest.raises(EnvironmentFailure, match="nothing can be graded"):
            hanging.result()


def test_a_folder_that_is_changed_in_use_is_noticed(own: Path, opened: Open) -> None:
    with EnvironmentProcess(str(own)) as process:
        served = opened(process.evaluator_socket)
        (own / "grade.py").write_text("def grade(task, transcript): return 1.0")
        kill_server(process)
        with pytest.raises(Conflict, match="own was changed while it was in use"):
            next(served.tasks(Split.TRAIN))


def test_what_the_environment_prints_is_no_answer(own: Path) -> None:
    (own / "grade.py").write_text(
        "print('{\"error\": 1}')\ndef grade(task, transcript):\n    print('x')\n    return 1.0"
    )
    with open_environment(str(own)) as served:
        assert attempt(served, Split.TRAIN, ["x"])[1].score == 1.0


@pytest.mark.parametrize(
    ("grader", "kind", "message"),
    [
        ("def grade(task, transcript): return 1 / 0", EnvironmentFailure, "ZeroDivisionError"),
        ("import nothing_of_this_name", EnvironmentInvalid, "importing it raised ModuleNotFoundError"),
        ("import sys\ndef grade(task, transcript): sys.exit(1)", EnvironmentFailure, "SystemExit"),
    ],
)
def test_what_is_wrong_with_a_grader_is_told_in_one_line(
    own: Path, grader: str, kind: type[Exception], message: str
) -> None:
    (own / "grade.py").write_text(grader)
    with pytest.raises(kind, match=message) as refused, open_environment(str(own)) as served:
        attempt(served, Split.TRAIN, ["x"])
    assert "\n" not in str(refused.value)


def test_a_folder_runs_in_the_interpreter_that_it_names(own: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    places = [str(Path(__file__).parents[3]), *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "places.pth").write_text("\n".join(places))
    (own / "grade.py").write_text("import sys\ndef grade(task, transcript): return float('venv' in sys.prefix)")
    toml = own / "environment.toml"
    toml.write_text(toml.read_text() + '\npython = "../venv/bin/python"\n')
    with open_environment(str(own)) as served:
        assert attempt(served, Split.TRAIN, ["x"])[1].score == 1.0
    with pytest.raises(EnvironmentInvalid, match="needs its own interpreter"):
        load_environment(str(own))


def test_an_interpreter_that_there_is_not_is_named(own: Path) -> None:
    toml = own / "environment.toml"
    toml.write_text(toml.read_text() + '\npython = "nothing/python"\n')
    message = "nothing/python cannot be run"
    with pytest.raises(EnvironmentInvalid, match=message), open_environment(str(own)):
        pass
