"""The limits that a study or a command gives each attempt: kept in the charter, and enforced in training and in
evaluation; what they cost is on record by arm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swarm import SwarmClient, TrainJob
from swarm.environments import load_environment
from swarm.program import Program, measure
from swarm.program.base import PLAIN
from swarm.program.command_line import main

PROGRAM = """
def agent(task, model, session):
    replies = []
    try:
        for _ in range(5):
            replies.append(model.chat(session.messages, max_tokens=4))
    except Exception:
        pass
    return replies[-1]
"""


def test_a_program_on_its_own_command_line_is_bounded_in_training(start_server: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=1).dump_job_as_yaml(tmp_path / "job.yaml")
    url = start_server().url
    main(
        tmp_path / "program.py",
        ["--server", url, "--env", "copy", "--job", str(tmp_path / "job.yaml"), "--attempt-calls", "2",
         "--attempt-tokens", "7"],
    )  # fmt: skip
    with SwarmClient(url) as client:
        usage = client.usage()
        views = client.episodes(state="trained")
    assert usage.episodes == len(views) == 4
    assert usage.limited == 4
    assert all(view.usage.calls <= 2 and view.usage.sampled_tokens <= 7 for view in views)
    assert {(view.max_calls, view.max_tokens) for view in views} == {(2, 7)}


@pytest.mark.parametrize("words", [["--attempt-calls", "0"], ["--attempt-tokens", "many"]])
def test_a_limit_that_is_none_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main("program.py", ["--server", "http://127.0.0.1:1", "--env", "copy", "--job", "job.yaml", *words])
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_the_limits_of_a_study_are_frozen_in_its_charter_and_hold_everywhere(
    start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulated_study import reports_without_images

    from experiments_db import open_store
    from researcher.cli import app
    from researcher.record.costs import cost_flags, gather_costs

    server = start_server()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ["--topic", "lr 0.001 or 0.003 on reverse", "--engine", "fake", "--planner", "rules", "--seeds", "1"]
    words += ["--steps", "2", "--eval-episodes", "4", "--servers", server.url, "--underpowered", "--json"]
    with reports_without_images():
        done = CliRunner().invoke(app, ["start", *words, "--attempt-calls", "3", "--attempt-tokens", "900"])
    assert done.exit_code == 0, done.output
    study = json.loads(done.stdout)["study"]
    with open_store(tmp_path / "runs" / "research.db") as store:
        charter = store.find_charter(study)
        assert charter is not None
        assert (charter.document["attempt_calls"], charter.document["attempt_tokens"]) == (3, 900)
        costs = gather_costs(store, study)
    with SwarmClient(server.url) as client:
        views = client.episodes(limit=10_000, state="trained") + client.episodes(limit=10_000, episode_type="eval")
    own = [view for view in views if view.episode_type == "eval" or view.client_id.startswith("run-")]
    assert {(view.max_calls, view.max_tokens) for view in own} == {(3, 900)}
    assert {view.episode_type for view in own} == {"train", "eval"}
    for cost in costs.values():
        assert cost.training is not None and cost.evaluation is not None
        assert (cost.evaluation.attempts, cost.evaluation.calls, cost.evaluation.model_share) == (4, 1.0, 1.0)
        assert cost.evaluation.temperatures == cost.training.temperatures == (1.0,)
        assert cost.training.calls == 1.0 and cost.training.attempts >= 4
        assert cost_flags(cost, cost) == ()


def solve_and_ignore(task: Any, model: Any, session: Any) -> str:
    model.chat(session.messages)
    return f"the answer is {task.main_query[::-1]}"


def ask_eight_times(task: Any, model: Any, session: Any) -> Any:
    return [model.chat(session.messages) for _ in range(8)][-1]


def draw_the_likeliest(task: Any, model: Any, session: Any) -> Any:
    return model.chat(session.messages, top_k=1)


def extract_and_wrap(task: Any, model: Any, session: Any) -> str:
    return json.dumps({"answer": model.chat(session.messages)["content"].strip()})


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (solve_and_ignore, ["its replies do not come from the model: 0 % of their characters"]),
        (ask_eight_times, ["at 8.0 times the calls", "times the prompt tokens", "times the sampled tokens"]),
        (draw_the_likeliest, ["samples with top_k=1 in evaluation alone"]),
        (extract_and_wrap, []),
    ],
)
def test_what_a_program_does_beside_the_model_is_told_by_the_record_of_the_server(
    start_server: Any, agent: Any, said: list[str]
) -> None:
    from researcher.record.costs import ArmCost, cost_flags, cost_of_attempts

    server = start_server(TrainJob(engine="fake"))
    environment = load_environment("reverse")
    with SwarmClient(server.url) as client:
        client.wait_until_step(0, timeout=60)
        plain, own = (
            cost_of_attempts(measure(client, environment, program, episodes=8, seed=1).receipts)
            for program in (PLAIN, Program("own", agent=agent))
        )
    training = None if plain is None or not said or "top_k" not in said[0] else plain
    flags = cost_flags(ArmCost(training, own), ArmCost(None, plain))
    assert all(any(part in flag for flag in flags) for part in said), flags
    assert bool(flags) == bool(said), flags
