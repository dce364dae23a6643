"""Three studies by a careful planner, told by its recorded answers: the honest arm alone is kept.

A folder holds `story.toml` (the question in flags, and what becomes of each arm), and `replies/` (one file per answer,
as llm_replies/server.py reads them), which a language model gives over HTTP.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llm_replies.server import ReplyServer

from experiments_db import ExperimentStatus, ExperimentStore, NoteKind, RunStatus, Verdict, open_store
from researcher.plan import Stage
from researcher.record.log import StudyLog
from researcher.report.clauses import list_clauses
from researcher.report.numbers.gather import gather
from researcher.verification.verify import verify_study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

HERE = Path(__file__).parent
LIMIT_S = 1800.0
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Story:
    """One story. `kept` is the only arm that may be kept; `rejected` never ran, `crashed` failed in training,
    `withdrawn` was taken back after a review, and `gamed` has a reward that rises while the grade does not."""

    name: str
    topic: str
    flags: Mapping[str, Any]
    kept: tuple[str, ...]
    rejected: tuple[str, ...]
    crashed: tuple[str, ...]
    gamed: tuple[str, ...]
    repaired: tuple[str, ...]
    withdrawn: tuple[str, ...] = ()

    @property
    def replies(self) -> Path:
        return HERE / self.name / "replies"

    def options(self, folder: Path) -> dict[str, Any]:
        """The options of `researcher start`, with the paths of the story's own files."""
        own = {name: str(HERE / self.name / value) for name, value in self.flags.items() if name == "program"}
        if self.flags.get("env") == "turn.jsonl":
            own["env"] = str(write_turned_words(folder / "turn.jsonl"))
        return {**self.flags, **own}


def load_story(name: str) -> Story:
    values = tomllib.loads((HERE / name / "story.toml").read_text())
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Story(name=name, **{**values, **lists})


def write_turned_words(path: Path) -> Path:
    """Write a task in a wording that the bundled model does not know."""
    chance = random.Random(5)
    words = dict.fromkeys("".join(chance.choices(LETTERS, k=chance.randint(3, 5))) for _ in range(1300))
    lines = [{"prompt": f"Please turn the word {w} around, letter by letter.", "answer": w[::-1]} for w in words]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def play(story: Story, home: Path) -> None:
    """Carry out a story with `--planner llm`; every answer comes from its files, over HTTP."""
    words = [word for name, value in story.options(home.parent).items() for word in _as_words(name, value)]
    with ReplyServer(story.replies) as server:
        env = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-of-the-story", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "researcher.cli", "start", "--planner", "llm", "--model", "careful"]
        command += ["--topic", story.topic, "--home", str(home), "--llm-patience", "0.1", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def _as_words(name: str, value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        yield f"--{name.replace('_', '-')}"
        if each is not True:
            yield str(each)


@pytest.mark.parametrize("name", ["reward", "workflow", "recipe"])
def test_the_honest_improvement_is_kept_and_nothing_else(name: str, tmp_path: Path) -> None:
    story, home = load_story(name), tmp_path / "runs"
    play(story, home)
    with open_store(home / "research.db", read_only=True) as store:
        [study] = store.list_studies()
        assert study.status == "finished", study.status_reason
        check_arms(story, store, study.id)
        facts = gather(store, study.id)
        assert all(clause.result for clause in list_clauses(facts))
        assert not verify_study(store, study.id, home).mismatches


def check_arms(story: Story, store: ExperimentStore, study_id: str) -> None:
    arms = {arm.name: arm for arm in store.list_experiments(study_id)}
    plans = StudyLog(store, study_id).history().plans
    assert sum(plan.stage is Stage.EXPLORE for plan in plans) >= 4

    kept = {item.experiment_id for item in store.list_findings(study_id=study_id, verdict=Verdict.KEEP)}
    assert len(kept) >= 1 and kept <= {arms[name].id for name in story.kept if name in arms}
    for name in story.rejected:
        assert arms[name].status is ExperimentStatus.INVALID and not store.list_runs(experiment_id=arms[name].id)
    for name in story.crashed:
        assert [run.status for run in store.list_runs(experiment_id=arms[name].id)] == [RunStatus.FAILED]
        [heir] = [arm for arm in arms.values() if arm.parent_id == arms[name].id]
        assert heir.operator == "debug" and heir.status is ExperimentStatus.READY
    repairs = [event.message for event in store.list_events(study_id, kind="arm.repair", limit=None)]
    for name in story.repaired:
        assert any(message.startswith(f"{name}: ") for message in repairs)
        assert arms[name].status is ExperimentStatus.READY
    withdrawn = {review.experiment_id for review in store.list_reviews(study_id) if review.is_withdrawn}
    assert withdrawn <= {arms[name].id for name in story.withdrawn}
    told = [note.text for note in store.list_notes(study_id, kind=NoteKind.TRIED)]
    assert all(any(name in text for text in told) for name in story.gamed)
