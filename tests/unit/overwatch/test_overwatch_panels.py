"""The panels: all of the status is on them, at any width, and nothing of it reaches the terminal as a command."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from swarm.errors import ServerUnreachable
from swarm.overwatch import panels
from swarm.overwatch.snapshot import ServerSnapshot
from swarm.schemas import (
    BatchPolicyView,
    ClientView,
    EngineState,
    EvaluationView,
    EventView,
    PoolView,
    RunningEpisodeView,
    SourceView,
    Status,
    WarningView,
)

NOW = 1_800_000_000.0
HOSTILE = "evil\x1b[2J\r\nname"


def busy_status(**changes: Any) -> Status:
    fields: dict[str, Any] = {
        "server_version": "1",
        "state": EngineState.ROLLING,
        "reason": None,
        "project_name": "cocktail",
        "experiment_name": "third-try",
        "model": "nano",
        "step": 12,
        "total_steps": 40,
        "weight_version": 12,
        "pool": PoolView(
            stop_rule="enough_tasks",
            episodes=71,
            episodes_target=128,
            tasks=9,
            tasks_target=16,
            running_train=41,
            running_eval=3,
            waiting_begins=7,
            sources={
                "math": SourceView(episodes=40, tasks=5, tasks_target=10, running=20),
                "code": SourceView(episodes=31, tasks=4, tasks_target=6, running=21),
            },
            agreed=["laptop-1"],
        ),
        "policy": BatchPolicyView(
            stop_rule="enough_tasks",
            batch_size=16,
            num_repeat=8,
            min_group=2,
            drain_timeout_s=30,
            batch_timeout_s=600,
            group_timeout_s=30,
            stall_timeout_s=300,
            max_staleness=1,
            mixture={"math": 0.6, "code": 0.4},
        ),
        "clients": [
            ClientView(client_id="laptop-1", last_seen_at=NOW - 3, running=20, completed=4312, lost=3),
            ClientView(client_id=HOSTILE, last_seen_at=NOW - 75, running=21, completed=9, lost=0),
        ],
        "running": [
            RunningEpisodeView(
                episode_id="0123456789abcdef",
                episode_type="train",
                client_id="laptop-1",
                task_id=HOSTILE,
                data_source="math",
                turns=4,
                calls_in_flight=1,
                age_s=400,
                idle_s=187,
            )
        ],
        "warnings": [
            WarningView(code="constant_reward", client_id="laptop-1", message="all rewards equal", count=8, last_at=NOW)
        ],
        "recoveries": 2,
        "failures": {"idle_timeout": 41, HOSTILE: 1},
        "calls": {},
        "ignored_fields": {},
        "tokens_per_second": 1240.3,
        "last_metrics": {"critic/score/mean": 0.61, "actor/entropy": 1.32},
        "started_at": NOW - 7400,
        "now": NOW,
    }
    return Status(**{**fields, **changes})


def snapshot_of(status: Status | None, **changes: Any) -> ServerSnapshot:
    event = EventView(event_id=1, kind="batch.closed", detail={"batch_id": HOSTILE, "episodes": 32}, at=NOW)
    rewards = tuple((step, step / 40) for step in range(1, 13))
    return ServerSnapshot("http://host:1", NOW, status, rewards, (event,), **changes)


def drawn(renderable: RenderableType, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width, no_color=True, force_terminal=True, color_system=None).print(renderable)
    return out.getvalue()


def test_a_report_shows_everything_that_the_server_said() -> None:
    text = drawn(panels.report(snapshot_of(busy_status()), with_history=True))
    for fragment in (
        "http://host:1", "2 recoveries · ROLLING", "cocktail/third-try on nano", "step 12/40", "1,240 tok/s",
        "up 2h03m", "reward 0.300", "9/16", "71/128", "41 run, 7 wait", "step 1 ",
            "an idle group waits", "3 eval", "5/10", "math 60%",
        "up to 1 versions old", "10m00s",
        "1 agreed", "laptop-1", "4312", "01234567", "4…", "3m07s", "all rewards equal (8x)", "idle_timeout 41",
        "Not trained · 42", "batch.closed", "episodes=32",
    ):  # fmt: skip
        assert fragment in text, fragment


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = drawn(panels.report(snapshot_of(busy_status()), with_history=True), width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_nothing_that_came_over_the_wire_reaches_the_terminal_as_a_command() -> None:
    text = drawn(panels.report(snapshot_of(busy_status(reason=HOSTILE)), with_history=True))
    assert "\x1b" not in text and "\r" not in text
    assert "evil\N{REPLACEMENT CHARACTER}[2J" in text


def test_an_empty_panel_says_so() -> None:
    idle = busy_status(pool=None, clients=[], running=[], warnings=[], failures={})
    for panel in (panels.batch, panels.clients, panels.longest_idle, panels.warnings, panels.not_trained):
        assert re.search("^(none|no engine is running)", drawn(panel(idle)))


def test_a_single_source_without_a_quota_is_not_listed() -> None:
    pool = busy_status().pool
    assert pool is not None
    alone = {"default": SourceView(episodes=1, tasks=1, tasks_target=None, running=1)}
    assert "default" not in drawn(panels.batch(busy_status(pool=pool.model_copy(update={"sources": alone}))))


def test_a_panel_with_a_limit_keeps_to_it() -> None:
    assert len(drawn(panels.clients(busy_status(), 1)).splitlines()) == 2


def test_a_server_out_of_reach_is_shown_with_the_time_of_the_first_failure() -> None:
    text = drawn(panels.header(snapshot_of(busy_status(), error=ServerUnreachable("gone"), failing_since=NOW - 90)))
    assert "unreachable since" in text and "(1m30s), still trying" in text
    assert "ROLLING" in text, "what was known last stays on the screen"


def test_a_failed_engine_shows_its_reason() -> None:
    text = drawn(panels.header(snapshot_of(busy_status(state=EngineState.FAILED, reason="no memory left"))))
    assert "FAILED" in text and "no memory left" in text


def test_held_out_scores_are_shown_with_who_measures_the_next_one() -> None:
    done = EvaluationView(
        step=10, weight_version=10, state="done", episodes=9, scored=9, due_at=NOW, mean=0.25, stderr=0.05
    )
    due = EvaluationView(step=12, weight_version=12, state="due", episodes=9, due_at=NOW)
    running = due.model_copy(update={"state": "running", "evaluator": HOSTILE})
    for present, words in (
        (due, "the score of step 12 waits for an evaluator"),
        (running, "the score of step 12 is being measured"),
    ):
        text = drawn(panels.header(snapshot_of(busy_status(last_evaluation=done, evaluation=present))))
        assert "held-out score at step 10: 0.250 (0.152 to 0.348)" in text and words in text
        assert "\x1b" not in text
    assert "score" not in drawn(panels.header(snapshot_of(busy_status())))


@pytest.mark.parametrize("height", [1, 4])
def test_the_curve_of_rising_rewards_rises_from_the_lowest_to_the_highest_value_of_its_axis(height: int) -> None:
    rewards = [reward for _, reward in snapshot_of(busy_status()).rewards]
    lines = drawn(panels.curve(snapshot_of(busy_status()), height=height), 80).splitlines()
    labels = [float(line.split()[0]) for line in lines]
    assert len(lines) == height + 1 and labels == sorted(labels, reverse=True)
    assert (labels[0], labels[-1]) == pytest.approx((max(rewards), min(rewards)), abs=0.005)
    assert "step 1 " in lines[-1] and lines[-1].rstrip().endswith(" 12")
    for line in lines[:-1]:
        bars = line.partition("┤")[2]
        levels = [" ▁▂▃▄▅▆▇█".index(bar) for bar in bars]
        assert levels == sorted(levels)


@pytest.mark.parametrize("values", [[0.5], [0.5] * 3, [-1e-9, 1e9], [0.5001, 0.5002]])
def test_any_rewards_have_a_curve_with_an_axis(values: list[float]) -> None:
    snapshot = replace(snapshot_of(busy_status()), rewards=tuple(enumerate(values, 1)))
    lines = drawn(panels.curve(snapshot, height=3), 60).splitlines()
    assert len(lines) == 4 and all(len(line) <= 60 for line in lines) and "└" in lines[-1]
    labels = [label for line in lines if (label := line.split()[0]) not in "┤└"]
    assert len(set(labels)) == len(labels) > 0


def test_the_pace_and_the_time_left_are_shown_once_they_are_known() -> None:
    status = busy_status()
    assert "s/step" not in drawn(panels.header(snapshot_of(status)), 120)
    assert "left" not in drawn(panels.header(snapshot_of(status)), 120)
    paced = replace(snapshot_of(status), step_s=2.5)
    assert "2.5 s/step · about 1m10s left" in drawn(panels.header(paced), 120)
    under_way = replace(paced, step_ended_at=NOW - 2)
    assert "about 1m08s left" in drawn(panels.header(under_way), 120)
    assert replace(paced, status=busy_status(step=40)).seconds_left is None


@pytest.mark.parametrize("step", [12, 39])
def test_a_step_that_takes_too_long_is_said_to_and_no_time_left_is_shown(step: int) -> None:
    late = replace(snapshot_of(busy_status(step=step)), step_s=2.5, step_ended_at=NOW - 95)
    text = drawn(panels.header(late), 120)
    assert "this step takes longer than expected: 1m35s" in text and "left" not in text
    assert late.as_json()["is_overdue"] and late.as_json()["seconds_left"] is None
    a_little = replace(late, step_ended_at=NOW - 4)
    assert not a_little.is_overdue and a_little.seconds_left is not None and a_little.seconds_left >= 1


@pytest.mark.parametrize("state", [EngineState.FAILED, EngineState.OFFLINE, EngineState.COMPLETE, EngineState.BOOTING])
def test_a_server_that_does_not_train_has_no_time_left(state: EngineState) -> None:
    still = replace(snapshot_of(busy_status(state=state)), step_s=2.5, step_ended_at=NOW - 95)
    assert still.seconds_left is None and not still.is_overdue


@pytest.mark.parametrize("width", [80, 140])
def test_the_job_and_the_time_left_are_both_on_the_screen(width: int) -> None:
    text = drawn(panels.header(replace(snapshot_of(busy_status()), step_s=123.0)), width)
    assert "cocktail/third" in text and "step 12/40 · 123 s/step · about 57m24s left" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (7.6, "8s"), (125, "2m05s"), (12_000, "3h20m"), (100 * 3600, "4d4h")],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert panels.duration(seconds) == text
