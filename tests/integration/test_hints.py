"""What messages tell people to type does what they say, typed as it stands, in the place where it was said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm import SwarmClient, TrainJob

pytestmark = pytest.mark.timeout(500)

LIMIT_S = 300
TOPIC = "batch size 2 or 3 for tool use at equal steps"
SMALL = "--planner rules --engine fake --seeds 1 --steps 1 --eval-episodes 4 --parallel 1 --underpowered"
_HINTS = (
    re.compile(r"`((?:researcher|swarm) [^`]+)`"),
    re.compile(r"(?:go on (?:later )?with|now): ((?:researcher|swarm) [^\n)]+)"),
    re.compile(r"\((swarm stop [^)]+)\)"),
)


class Shell:
    """Commands as a person types them: in one directory, with spaces in names, through a shell."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.place = place
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SWARM_", "OPENAI_"))}
        self._environment = {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}

    def __call__(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=self.place, env=self._environment, text=True, timeout=LIMIT_S, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "a place")


def hints(said: str) -> list[str]:
    return list(dict.fromkeys(found.strip() for pattern in _HINTS for found in pattern.findall(said)))


@pytest.mark.slow
def test_hints_of_an_environment_that_fails_show_what_fails_and_go_on_where_it_failed(shell: Shell) -> None:
    _, made = shell("swarm env init 'my env'")
    assert hints(made) == ["swarm env check 'my env'"] and shell(hints(made)[0])[0] == 0
    (shell.place / "my env" / "grade.py").write_text("def grade(task, transcript):\n    return 1 / 0\n")
    topic = "--topic 'Is 2 or 4 the better num_repeat?'"

    code, said = shell(f"researcher start {topic} --env 'my env' {SMALL} --home 'my runs' --db 'my studies.db'")

    assert code == 13, said
    resume, check = sorted(hints(said))
    assert check == f"swarm env check '{shell.place}/my env'" and resume.startswith("researcher resume st-")
    code, found = shell(check)
    assert code == 1 and "ZeroDivisionError" in found
    code, again = shell(resume)
    assert code == 13 and "ZeroDivisionError" in again
    code, shown = shell("researcher status --home 'my runs' --db 'my studies.db'")
    assert code == 0 and [hint for hint in hints(shown) if hint.startswith("researcher")] == [resume]


@pytest.mark.slow
def test_the_command_that_goes_on_with_a_killed_study_finishes_it(shell: Shell) -> None:
    from experiments_db import StudyStatus, lease_name, open_store
    from researcher.record.lease import TTL_S
    from researcher.study.requests import create_study
    from researcher.study.settings import StudySettings

    with open_store(shell.place / "my runs" / "research.db") as store:
        settings = StudySettings(engine="fake", steps=1, seeds=1, eval_episodes=4, parallel=1, underpowered=True)
        study = create_study(store, TOPIC, settings)
        # No process has the number 0.
        store.acquire_lease(lease_name(study.id), f"{os.uname().nodename}:0:1", TTL_S)

    said = [shell(f"researcher {word} --home 'my runs'") for word in ("status", "list", "watch")]

    assert [code for code, _ in said] == [0, 0, 1]
    [command] = {hint for _, text in said for hint in hints(text)}
    code, done = shell(command)
    assert code == 0 and "answer: " in done
    [explorer] = re.findall(r"^explorer: (.*)$", done, re.MULTILINE)
    assert shell(f"{explorer} --help")[0] == 0
    with open_store(shell.place / "my runs" / "research.db", read_only=True) as store:
        assert store.get_study(study.id).status is StudyStatus.FINISHED


def test_hints_for_a_study_that_there_is_not_list_and_begin_one(shell: Shell) -> None:
    from experiments_db import open_store
    from researcher.loop.settings_check import check_study
    from researcher.study.requests import EXAMPLE
    from researcher.study.settings import StudySettings
    from researcher.study.topics import complete_from_topic

    with open_store(shell.place / "my runs" / "research.db") as store:
        known = store.create_study(TOPIC, planner="rules").id
    open_store(shell.place / "empty" / "research.db").close()

    code, said = shell("researcher status st-nothing --home 'my runs'")
    listed = shell(hints(said)[0])
    _, none = shell("researcher status --home empty")

    assert code == 3 and listed[0] == 0 and known in listed[1]
    assert hints(none) == [f"researcher start --topic '{EXAMPLE}'"]
    check_study(EXAMPLE, complete_from_topic(EXAMPLE, StudySettings()))


@pytest.mark.slow
def test_a_server_that_is_busy_with_something_else_is_freed_by_the_command_that_is_named(
    shell: Shell, start_server: Callable[..., Any]
) -> None:
    url = start_server().url
    with SwarmClient(url) as client:
        job = TrainJob(engine="fake", project_name="mine", experiment_name="other", batch_size=2, num_repeat=2)
        client.auto_sync_train_config_and_start_engine(job)
    begin = f"researcher start --topic '{TOPIC}' {SMALL} --servers {url}"

    code, said = shell(begin)
    freed = shell(hints(said)[0])

    assert code == 5 and freed[0] == 0
    assert shell(begin)[0] == 0
