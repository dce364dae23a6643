"""The held-out tasks of a search: some to explore with, others for claims, and a refusal where there are too few."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_planner import Script, ScriptedPlanner
from searched_study import begin_search, make_charter

from researcher.charter import Charter, FrameRequest, StudiedEnvironment
from researcher.errors import TopicInvalid
from researcher.loop.deps import first_state
from researcher.loop.nodes.frame import frame
from researcher.record.log import StudyLog


def frame_on(home: Path, tasks: int, charter: Charter) -> Charter:
    """The charter as it is frozen for an environment with so many validation tasks."""
    rows = [{"question": f"Say {n}", "answer": str(n), "split": "validation"} for n in range(tasks)]
    rows += [{"question": f"Say {part}", "answer": part, "split": part} for part in ("train", "test")]
    (home / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reference = f"{home / 'tasks.jsonl'}?split=split"
    framed = replace(charter, environment="", environment_digest="", environment_name="tasks")
    study = begin_search(home, planner=ScriptedPlanner(Script(framed, (), {}, ())))
    fresh = study.store.create_study("A title", planner="scripted").id
    deps = replace(study.deps, log=StudyLog(study.store, fresh))
    environment = StudiedEnvironment(reference, "tasks", "Questions.", "")
    try:
        frame(deps, first_state(fresh), FrameRequest("A title", environment=environment))
    finally:
        deps.environments.close()
    return deps.log.charter()


@pytest.mark.parametrize(
    ("tasks", "explored", "claimed"), [(700, 200, 400), (300, 100, 200), (50, 20, 30), (41, 20, 21), (40, 20, 20)]
)
def test_tasks_of_a_split_are_divided_between_exploring_and_claims(
    tmp_path: Path, tasks: int, explored: int, claimed: int
) -> None:
    rules = make_charter().search
    assert rules is not None

    charter = frame_on(tmp_path, tasks, make_charter(eval_episodes=400, search=replace(rules, episodes=200)))

    assert charter.search is not None
    assert (charter.search.episodes, charter.eval_episodes) == (explored, claimed)
    assert charter.tasks_of("validation", explores=True) == slice(0, explored)
    assert charter.tasks_of("validation", explores=False) == slice(explored, explored + claimed)
    assert charter.tasks_of("test", explores=False) == slice(0, claimed)
    assert any("validation split has" in each for each in charter.assumptions) is (tasks < 600)


def test_search_with_too_few_tasks_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TopicInvalid, match="tasks has 39 validation tasks, and a search needs 40"):
        frame_on(tmp_path, 39, make_charter(eval_episodes=400))


def test_comparison_is_scored_on_all_tasks_there_are(tmp_path: Path) -> None:
    charter = frame_on(tmp_path, 39, make_charter(eval_episodes=400, search=None))

    assert charter.eval_episodes == charter.held_out == 39
    assert charter.tasks_of("validation", explores=False) == slice(0, 39)
