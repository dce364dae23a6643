"""A program in a process and a sandbox of its own trains as it would here, and its death or malice costs no step."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from process_support import descendants, kill_all

from swarm import SwarmClient, TrainJob
from swarm.environments import load_environment
from swarm.errors import EnvironmentInvalid, ProgramFailure, SandboxUnavailable, SwarmError
from swarm.program import Program, measure, train
from swarm.program.base import answer_in_turn
from swarm.program.hosted.host import Host
from swarm.program.hosted.process import ProgramProcess, place_program
from swarm.program.hosted.protocol import FollowingLine
from swarm.sandbox.sandbox import choose_sandbox
from swarm.tasks import Split

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]

JOB = TrainJob(engine="fake", batch_size=4, num_repeat=2, total_steps=4)
THINKS = """
def agent(task, model, session):
    thought = model.chat([{"role": "user", "content": "Think: " + task.main_query}])
    following = session.reply("50")
    while following is not None:
        following = session.reply(model.chat(session.messages, tools=session.tools))

def reward(task, transcript, grade):
    return grade.score + 0.25 * len([each for each in transcript if each["role"] == "assistant"])
"""


@pytest.fixture(scope="module")
def server(start_shared_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_shared_server(JOB).url) as client:
        yield client


@pytest.fixture(scope="module")
def endless_server(start_shared_server: Any) -> Iterator[SwarmClient]:
    """A server whose job has no last step, after which it would begin no train episode."""
    with SwarmClient(start_shared_server(JOB.model_copy(update={"total_steps": None})).url) as client:
        yield client


@contextmanager
def opened(code: str, folder: Path, url: str, **limits: float) -> Iterator[tuple[ProgramProcess, Program]]:
    sandbox = choose_sandbox(unsafe_no_sandbox=False)
    with (
        place_program(code, folder, url, sandbox) as place,
        place_program(code, folder / "shaping", url, sandbox) as shaping,
    ):
        process = ProgramProcess(place, shaping=shaping, **limits)
        with process as program:
            yield process, program


TELLS = """
import os, sys, threading

calls = []

def agent(task, model, session):
    seen = {
        "arguments": sys.argv, "variables": sorted(os.environ), "metadata": task.metadata, "calls": calls,
        "id": len(task.task_id), "model": model.name, "limit": model.max_tokens,
        "modules": sorted(name for name in sys.modules if name.startswith("swarm")),
    }
    sys.stderr.write(f"SEEN {seen}\\n".replace(os.getcwd(), "FOLDER"))
    return model.chat(session.messages)

def reward(task, transcript, grade):
    calls.append("reward")
    return grade.score

def schedule(tasks, progress):
    calls.append("schedule")
    return tasks
"""


def test_an_agent_is_told_the_same_in_training_and_in_evaluation(server: SwarmClient, tmp_path: Path) -> None:
    reverse = load_environment("reverse")
    seen: list[set[str]] = []
    for number in range(2):
        with opened(TELLS, tmp_path / str(number), server.url) as (_, program):
            if number:
                assert measure(server, reverse, program, episodes=6).n == 6
            else:
                job = JOB.model_copy(update={"experiment_name": "told"})
                server.auto_sync_train_config_and_start_engine(job, force_restart=True)
                assert train(server, reverse, job, program, max_workers=8).steps == 4
        lines = (tmp_path / str(number) / "program.log").read_text().splitlines()
        seen.append({line for line in lines if line.startswith("SEEN")})
    assert seen[0] == seen[1] and len(seen[0]) == 1


KILLED_ONCE = """
import os, pathlib, signal

starts = pathlib.Path({starts!r})
is_first = not starts.exists()
with starts.open("a") as file:
    file.write("start\\n")
if is_first:
    os.kill(os.getpid(), signal.SIGKILL)


def agent(task, model, session):
    return "50"
"""


def test_a_program_whose_process_is_killed_as_it_starts_is_started_again(server: SwarmClient, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    code = KILLED_ONCE.format(starts=str(starts))
    with place_program(code, tmp_path / "program", server.url, None) as place, ProgramProcess(place) as program:
        assert starts.read_text() == "start\n" * 2
        assert measure(server, load_environment("guess"), program, episodes=2).n == 2


def test_a_program_that_is_killed_again_and_again_loses_no_step(server: SwarmClient, tmp_path: Path) -> None:
    reverse = load_environment("reverse")
    with opened("def agent(task, model, session): return model.chat(session.messages)", tmp_path, server.url) as (
        process,
        program,
    ):
        ended = threading.Event()
        answered: set[int] = set()

        def agent(*arguments: Any) -> Any:
            pid = process.pid
            answer = program.agent(*arguments)
            if process.pid == pid:
                answered.add(pid)
            return answer

        def kill() -> None:
            while not ended.wait(0.1):
                if (pid := process.pid) in answered:
                    kill_all(descendants(pid))

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            job = JOB.model_copy(update={"total_steps": 5, "experiment_name": "killed"})
            server.auto_sync_train_config_and_start_engine(job, force_restart=True)
            done = train(server, reverse, job, replace(program, agent=agent), max_workers=8)
        finally:
            ended.set()
            killer.join()
        assert len(answered) > 1
    assert done.steps == 5
    assert [point.metrics["batch/groups"] for point in server.metrics()] == [4.0] * 5


STOPPED = """
import os, signal, time

def agent(task, model, session):
    os.kill(os.getpid(), signal.SIGSTOP)
    # The signal may reach another thread first, and this one would return before the process stands still.
    time.sleep(60)
"""


def test_a_program_that_stops_reading_keeps_no_attempt_waiting(server: SwarmClient, tmp_path: Path) -> None:
    folder = tmp_path / "long"
    folder.mkdir()
    rows = [{"question": f"{number} " + "x" * 30_000, "answer": "1", "part": "validation"} for number in range(6)]
    rows += [{"question": part, "answer": "1", "part": part} for part in ("train", "test")]
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "environment.toml").write_text('name = "long"\ngrader = "exact"\nsplit = "part"\n')
    environment = load_environment(str(folder))
    with place_program(STOPPED, tmp_path / "program", server.url, None) as place:
        process = ProgramProcess(place, attempt_limit_s=2.0, max_hung=2)
        with process as program:
            few: dict[str, Any] = {"episodes": 6, "max_workers": 6, "worst": 0.0}
            score = measure(server, environment, program, split=Split.VALIDATION, **few)
    assert (score.n, len(score.broken), score.failures) == (6, 6, ())


def test_a_system_that_starts_no_process_is_no_failure_of_the_program(server: SwarmClient, tmp_path: Path) -> None:
    with place_program(THINKS, tmp_path / "program", server.url, None) as place:
        nowhere = replace(place, log=tmp_path / "gone" / "program.log")
        with pytest.raises(SandboxUnavailable, match=r"program\.py cannot be started: No such file or directory"):
            ProgramProcess(nowhere)


def test_a_reply_after_an_agent_has_returned_ends_no_process() -> None:
    host = Host(Program("late", answer_in_turn, None, None), Path("late.py"), "http://127.0.0.1:1", StringIO())
    host.serve(StringIO(FollowingLine(id=7).model_dump_json() + "\n"))


BROKEN = {
    "return 1 / 0": r"program\.py, line 6: ZeroDivisionError",
    "raise SystemExit(0)": r"program\.py, line 8: SystemExit: 0",
    "return object()": r"program\.py: PydanticSerializationError",
    "session.reply('A'); session.reply('B')": r"program\.py, line 12: BadRequest",
    "return 'A'": "it must be finite",
    "time.sleep(600)": "agent took longer than 2 s on task",
    "os._exit(7)": "ended in mid-call|ends before it has answered",
}
"""What an agent does wrong, one attempt after the other, and the message that tells it. Its reward is no number."""


def test_what_a_program_does_wrong_is_told_with_its_line(endless_server: SwarmClient, tmp_path: Path) -> None:
    code = "import os, time\n\ndef agent(task, model, session):\n"
    code += "    number = int(task.main_query)\n"
    code += "".join(f"    if number == {number}:\n        {wrong}\n" for number, wrong in enumerate(BROKEN))
    code += "def reward(*rest): return float('nan')\n"
    reverse = load_environment("reverse")
    item = next(reverse.tasks(Split.TRAIN))
    with opened(code, tmp_path, endless_server.url, attempt_limit_s=2.0) as (_, program):
        for number, message in enumerate(BROKEN.values()):
            asked = replace(item, task=replace(item.task, main_query=str(number)))
            with pytest.raises(SwarmError, match=message) as told:
                run_once(endless_server, program, reverse, asked)
            assert "\n" not in told.value.message


def run_once(server: SwarmClient, program: Program, environment: Any, item: Any) -> Any:
    """One attempt as training makes it, outside of a run."""
    import httpx

    from swarm.program.training import _Player

    with httpx.Client() as http, server.open_episode(item.task) as episode:
        player = _Player(program, environment, http, {"": 64})
        [episode.output] = player.trained(item, {"": episode.credentials}).values()
        return episode.output


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("x = 1", EnvironmentInvalid, "it defines no function agent, reward or schedule"),
        ("import nothing_of_this_name", EnvironmentInvalid, "importing it raised ModuleNotFoundError"),
        ("import os; os._exit(3)", ProgramFailure, r"the process of program\.py did not start"),
    ],
)
def test_files_that_are_no_programs_are_refused(
    server: SwarmClient, tmp_path: Path, code: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message), opened(code, tmp_path, server.url):
        pass


def test_a_program_file_is_its_own_command(start_server: Any, tmp_path: Path) -> None:
    url = start_server().url
    footer = "\nif __name__ == '__main__':\n    from swarm.program import main\n    main(__file__)\n"
    (tmp_path / "program.py").write_text(THINKS + footer)
    JOB.dump_job_as_yaml(tmp_path / "job.yaml")
    command = [sys.executable, "program.py", "--server", url, "--env", "guess", "--job", "job.yaml", "--sandbox"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^step (\d+): reward (\d\.\d{3})$", done.stdout, re.MULTILINE)
    assert [step for step, _ in told] == ["1", "2", "3", "4"]
    # Every attempt has the agent's own first answer and one of the model at least, each worth a quarter.
    assert all(float(reward) >= 0.5 for _, reward in told)
    assert done.stdout.endswith("done: 4 steps, 0 episodes failed\n")
