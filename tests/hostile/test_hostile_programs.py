"""Programs that attack what stands around them: none scores, none changes anything, and the run says what happened.

Each program is a file in programs/, scored on held-out tasks whose answers nobody can know, with a server that takes
anybody for its commander. The fixture `attack` looks afterwards for what a program changed or left behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarm import SwarmClient, TrainJob
from swarm.errors import ProgramFailure
from swarm.program import train
from swarm.program.hosted.process import ProgramProcess, place_program

pytestmark = [pytest.mark.timeout(400), pytest.mark.begins_first]

PROGRAMS = Path(__file__).parent / "programs"
CALLS_THE_MODEL = """
attack = agent


def agent(task, model, session):
    model.chat(session.messages)
    return attack(task, model, session)
"""

REFUSED = [
    "change_the_policy", "command_the_engine", "end_its_own_episode", "read_other_episodes", "compute_held_out_tasks",
    "search_the_files_for_answers", "ask_the_environment", "hide_memory", "enter_namespaces", "leave_a_daemon",
    "reach_other_servers", "read_secrets", "meddle_with_processes", "rewrite_files", "leave_links", "patch_the_library",
    "fill_the_folders", "write_without_end_to_stderr",
]  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_tries_is_refused_and_it_is_scored_by_the_true_grader(attack: Any, name: str) -> None:
    outcome = attack(name)
    assert "tried" in outcome.log, outcome.log + outcome.errors
    assert "REACHED" not in outcome.log, [line for line in outcome.log.splitlines() if "REACHED" in line]
    assert (outcome.evaluation.n, outcome.evaluation.mean, outcome.evaluation.successes) == (3, 0.0, 0), outcome.errors


ENDED = [
    ("make_a_million_files", "more than 20000 files"),
    ("fork_without_end", "more than 512 processes and threads|MiB of memory, files included"),
    ("take_all_memory", "MiB of memory, files included|more than 512 processes"),
    ("kill_everything", "ended in mid-call|ends before it has answered"),
    ("write_without_end_to_the_driver", "more than 1000 lines that are no part of the protocol"),
    ("write_a_huge_line", "a line of more than 16 MiB"),
    ("flood_one_turn", "replies to one turn|no part of the protocol"),
]


@pytest.mark.parametrize(("name", "reason"), ENDED)
def test_a_program_that_takes_more_than_it_may_is_ended_and_the_reason_is_told(
    attack: Any, name: str, reason: str
) -> None:
    outcome = attack(name, episodes=1)
    assert (outcome.evaluation.n, outcome.evaluation.mean, len(outcome.evaluation.broken)) == (1, 0.0, 1)
    assert "REACHED" not in outcome.log
    assert any(each in outcome.errors for each in reason.split("|")), outcome.errors


def test_a_program_that_never_answers_fails_at_its_time_limit(attack: Any) -> None:
    outcome = attack("never_answer", episodes=2, limit_s=2.0)
    assert (outcome.evaluation.n, outcome.evaluation.mean) == (2, 0.0)
    assert "agent took longer than 2 s" in outcome.errors


@pytest.mark.parametrize("name", ["forge_the_protocol", "answer_other_calls"])
def test_what_a_program_writes_to_its_driver_is_an_answer_and_no_grade(attack: Any, name: str) -> None:
    outcome = attack(name)
    assert "tried" in outcome.log
    assert outcome.evaluation.mean in (0.0, None)
    assert outcome.evaluation.successes == 0


def test_errors_that_would_end_or_hold_up_the_run_are_failures_of_the_attempt(attack: Any) -> None:
    outcome = attack("say_that_training_is_over")
    assert outcome.evaluation.failures == ()
    assert len(outcome.evaluation.broken) == 3
    assert all(failure.error.startswith("ProgramFailure") for failure in outcome.evaluation.broken)


@pytest.mark.parametrize(
    ("name", "steps"), [("patch_the_library", 2), ("end_its_own_episode", 2), ("say_that_training_is_over", None)]
)
def test_in_training_its_reward_is_its_own_and_the_steps_are_the_drivers(
    world: Any, start_server: Any, tmp_path: Path, name: str, steps: int | None
) -> None:
    job = world.client.job().job | {"total_steps": 2}
    code = f"FACTS = {world.facts!r}\n{(PROGRAMS / f'{name}.py').read_text()}{CALLS_THE_MODEL}"
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
