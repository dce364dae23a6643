"""Programs that attack what stands around them: none scores, none changes anything, and the run says what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarm import SwarmClient, TrainJob
from swarm.errors import ProgramFailure
from swarm.program import train
from swarm.program.hosted.process import ProgramProcess, place_program

pytestmark = [pytest.mark.timeout(400), pytest.mark.begins_first]

CALLS_THE_MODEL = """
attack = agent


def agent(task, model, session):
    model.chat(session.messages)
    return attack(task, model, session)
"""

# The last ones of a row fill what the others need.
REFUSED = {
    "servers": [
        "change_the_policy", "smuggle_a_request", "command_the_engine", "end_its_own_episode", "read_other_episodes",
        "reach_other_servers", "ask_the_environment",
    ],
    "machine": ["hide_memory", "enter_namespaces", "meddle_with_processes", "leave_a_daemon"],
    "files": [
        "compute_held_out_tasks", "search_the_files_for_answers", "read_secrets", "rewrite_files", "leave_links",
        "fill_the_folders", "fill_the_log",
    ],
    "library": ["patch_the_library"],
}  # fmt: skip


@pytest.mark.parametrize("file", REFUSED)
def test_what_a_program_tries_is_refused_and_it_is_scored_by_the_true_grader(attack: Any, file: str) -> None:
    outcome = attack(file, *REFUSED[file])
    tried = [line.removeprefix("tried ") for line in outcome.log.splitlines() if line.startswith("tried ")]
    assert tried == REFUSED[file], outcome.log[-2000:] + outcome.errors
    assert "REACHED" not in outcome.log, [line for line in outcome.log.splitlines() if "REACHED" in line]
    # Neither an error nor the end of its process has kept it from an attack; a full log has no more lines.
    assert (outcome.evaluation.n, outcome.evaluation.mean, outcome.evaluation.broken) == (1, 0.0, ()), outcome.errors


ENDED = {
    "make_a_million_files": "more than 20000 files",
    "fork_without_end": "more than 512 processes and threads|MiB of memory, files included",
    "take_all_memory": "MiB of memory, files included|more than 512 processes",
    "kill_everything": "ended in mid-call|ends before it has answered",
    "write_nonsense_without_end": "more than 1000 lines that are no part of the protocol",
    "write_a_huge_line": "a line of more than 16 MiB",
    "flood_one_turn": "replies to one turn|no part of the protocol",
    "never_answer": "agent took longer than 2 s",
}


@pytest.mark.parametrize("name", ENDED)
def test_a_program_that_takes_more_than_it_may_is_ended_and_the_reason_is_told(attack: Any, name: str) -> None:
    outcome = attack("driver", name, limit_s=2.0 if name == "never_answer" else 60.0)
    assert (outcome.evaluation.n, outcome.evaluation.mean, len(outcome.evaluation.broken)) == (1, 0.0, 1)
    assert "REACHED" not in outcome.log
    assert any(each in outcome.errors for each in ENDED[name].split("|")), outcome.errors


@pytest.mark.parametrize("name", ["forge_the_protocol", "answer_other_calls"])
def test_what_a_program_writes_to_its_driver_is_an_answer_and_no_grade(attack: Any, name: str) -> None:
    outcome = attack("driver", name, episodes=3)
    assert f"tried {name}" in outcome.log
    assert outcome.evaluation.mean in (0.0, None)
    assert outcome.evaluation.successes == 0


@pytest.mark.parametrize(
    ("file", "name", "steps"),
    [
        ("library", "patch_the_library", 2),
        ("servers", "end_its_own_episode", 2),
        ("driver", "say_that_training_is_over", None),
    ],
)
def test_in_training_its_reward_is_its_own_and_the_steps_are_the_drivers(
    world: Any, start_server: Any, tmp_path: Path, file: str, name: str, steps: int | None
) -> None:
    job = world.client.job().job | {"total_steps": 2}
    code = world.program(file, [name]) + CALLS_THE_MODEL
    with SwarmClient(start_server(None).url) as client:
        given = TrainJob.model_validate(job)
        client.auto_sync_train_config_and_start_engine(given)
        with (
            place_program(code, tmp_path / "run", client.url, world.sandbox) as place,
            place_program(code, tmp_path / "shaping", client.url, world.sandbox) as shaping,
            ProgramProcess(place, shaping=shaping) as program,
        ):
            if steps is None:
                with pytest.raises(ProgramFailure, match="nearly all episodes failed"):
                    train(client, world.environment, given, program, max_workers=8)
            else:
                assert train(client, world.environment, given, program, max_workers=8).steps == steps
        rewards = {point.metrics["critic/score/mean"] for point in client.metrics()}
    # A reward to train on is a program's to say; how an episode ends is not.
    assert rewards == ({1.0} if name == "patch_the_library" else {0.0} if steps else set())
    assert "REACHED" not in place.log.read_text()
