"""One held-out task before and after training: which is shown, and that the text of a model stays text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from simulated_study import SimulatedStudy, Simulation

from experiments_db import EpisodeSample, EpisodeSummary, Run
from researcher.report.conversation import MESSAGE_CHARS, MOST_MESSAGES
from researcher.report.numbers.gather import gather
from researcher.report.write import build_report

BEST = "lr=0.003"
HOSTILE = "<script>alert('x')</script> | **bold** [link](http://evil.example)"
SYSTEM = {"role": "system", "content": "Answer with the word alone."}


@pytest.fixture
def study(tmp_path: Path) -> Iterator[SimulatedStudy]:
    simulated = Simulation(seeds=2, failed=()).carry_out(tmp_path)
    with closing(simulated.store):
        yield simulated


def keep(study: SimulatedStudy, run: Run, phase: str, scores: dict[str, float], *replies: dict[str, Any]) -> None:
    """Keep one attempt at each task, as the evaluator does, with these replies."""
    score = study.store.find_evaluation(run.id, phase, "validation")
    assert score is not None
    for name, reward in scores.items():
        task = f"reverse/validation/{name}"
        version = score.weight_version
        summary = EpisodeSummary(
            run.id, f"{phase}-{task}", "eval", "validation", version, task, reward, reward > 0, None, version, 0.0
        )
        question = {"role": "user", "content": [{"type": "text", "text": f"Reverse: {name}"}]}
        study.store.record_episodes(run.id, [EpisodeSample(summary, (SYSTEM, question, *replies), ())])


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def test_the_first_task_whose_score_rose_is_shown_with_the_counts_of_the_others(study: SimulatedStudy) -> None:
    run = study.runs(BEST)[0]
    keep(study, run, "base", {"0": 1.0, "1": 0.0, "2": 0.0, "3": 1.0}, reply("wrong"))
    keep(study, run, "final", {"0": 1.0, "1": 1.0, "2": 1.0, "3": 0.0}, reply("right"))

    shown = gather(study.store, study.study_id).conversation

    assert shown is not None and (shown.arm, shown.seed, shown.task_id) == (
        BEST,
        run.seed,
        "reverse/validation/1",
    )
    assert (shown.rose, shown.fell, shown.same) == (2, 1, 1)
    assert [message.text for message in shown.opening] == [SYSTEM["content"], "Reverse: 1"]
    assert [[message.text for message in each.messages] for each in (shown.before, shown.after)] == [
        ["wrong"],
        ["right"],
    ]
    assert (shown.before.score, shown.after.score) == (0.0, 1.0)


def test_attempts_of_one_side_alone_are_not_shown(study: SimulatedStudy) -> None:
    keep(study, study.runs(BEST)[0], "final", {"0": 1.0}, reply("right"))

    assert gather(study.store, study.study_id).conversation is None
    paths = build_report(study.store, study.study_id, study.home / "report", has_images=False)
    assert "before and after training</h2>" not in paths.html.read_text()


def test_text_of_a_model_is_text_in_the_report_and_long_ones_are_cut(study: SimulatedStudy) -> None:
    run = study.runs(BEST)[0]
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}
    keep(study, run, "base", {"0": 0.0}, reply(HOSTILE), reply("x" * 2 * MESSAGE_CHARS))
    keep(study, run, "final", {"0": 1.0}, *[call] * MOST_MESSAGES, reply("done"))

    paths = build_report(study.store, study.study_id, study.home / "report", has_images=False)

    html = paths.html.read_text()
    assert "<script" not in html and "evil.example)" in html and "calls look({})" in html
    assert f"({MESSAGE_CHARS} characters left out)" in html and "1 earlier messages are left out" in html
    assert f'href="#{run.id}"' in html and f'id="{run.id}"' in html
