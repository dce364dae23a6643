"""The pages of recorded trainings, on a database with a full one, an empty one and one with hostile names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from explorer_study import HOSTILE
from explorer_words import words
from streamlit.testing.v1 import AppTest

from experiments_db import (
    ServerEvent,
    SystemPoint,
    TrainedEpisode,
    TrainedEpisodeSummary,
    TrainingNews,
    TrainingPoint,
    TrainingScore,
    open_store,
)

OpenPage = Callable[..., AppTest]
SECTIONS = {
    "Curves": "Smoothing",
    "Held-out scores": "46 / 50",
    "Trained episodes": "kept as: best",
    "Settings": "batch_size",
    "Machine": "Over seconds since the training began",
    "Events": "batch.trained",
}


@pytest.fixture
def trainings(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A database, and the ids of its trainings by experiment."""
    path = tmp_path / "research.db"
    with open_store(path) as store:
        ids = {
            name: store.record_training(
                f"ledger-{number}", project="p", experiment=name, model="nano", engine="local",
                settings={"total_steps": 40, "batch_size": 8}, changes={"3": {"lr": 1e-4}}, home=f"/home/{name}",
                launch_key=None, status="ROLLING", reason=None, step=2, begun_at=1.0 + number,
            ).id
            for number, name in enumerate(("full", "empty", HOSTILE))
        }  # fmt: skip
        for training_id in (ids["full"], ids[HOSTILE]):
            store.add_to_training(training_id, news_of(training_id, HOSTILE if training_id == ids[HOSTILE] else "ABC"))
    return path, ids


def news_of(training_id: str, text: str) -> TrainingNews:
    sample = {
        "token_ids": [1, 2], "tokens": ["A", text], "loss_mask": [0, 1], "logprobs": [0.0, -0.5],
        "weight_versions": [-1, 0], "turn_indices": [0, 0],
    }  # fmt: skip
    summary = TrainedEpisodeSummary(training_id, "e1", 2, "best", text, text, 3, 1.0, True, 0.75, 1, 5.0)
    return TrainingNews(
        points=tuple(
            TrainingPoint(training_id, name, step, None if step == 2 else 0.5, 2.0)
            for name in ("critic/score/mean", "actor/entropy", text)
            for step in (1, 2, 3)
        ),
        scores=(TrainingScore(training_id, 2, 0.92, 0.04, 50, 46, 3.0),),
        episodes=(TrainedEpisode(summary, ({"role": "user", "content": text},), (sample,)),),
        events=(ServerEvent(training_id, 1, "batch.trained", {"step": 2, "why": text}, 4.0),),
        system=(SystemPoint(training_id, "system/cpu_percent", 11.0, 99.0),),
    )


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("name", ["full", "empty", HOSTILE], ids=["full", "empty", "hostile"])
def test_each_section_of_a_training_opens(open_page: OpenPage, trainings, section: str, name: str) -> None:
    path, ids = trainings
    page = open_page("training", path, training=ids[name], part=section)
    assert not page.exception and not page.error and not page.warning
    if name == "full":
        assert page.title[0].value == "p/full" and SECTIONS[section] in words(page)


def test_the_trainings_are_listed_with_their_last_reward_and_filtered_by_a_setting(
    open_page: OpenPage, trainings
) -> None:
    path, _ = trainings
    page = open_page("trainings", path)
    assert not page.exception
    table = page.dataframe[0].value
    assert len(table) == 3 and set(table["Reward"].dropna()) == {0.5}
    found = open_page("trainings", path, filter="batch_size=8 full")
    assert list(found.dataframe[0].value["Training"]) == ["p/full"]


@pytest.mark.parametrize("page", ["trainings", "training"])
def test_without_a_recorded_training_the_pages_say_so(open_page: OpenPage, tmp_path: Path, page: str) -> None:
    open_store(tmp_path / "research.db").close()
    shown = open_page(page, tmp_path / "research.db")
    assert not shown.exception and "recorded a training" in words(shown)


def test_a_rewind_deletes_what_came_after_its_step(trainings) -> None:
    path, ids = trainings
    with open_store(path) as store:
        store.add_to_training(ids["full"], TrainingNews(rewound_to=1))
        assert store.list_trained_episodes(ids["full"]) == [] and store.list_training_scores([ids["full"]]) == []
        assert [span.last_step for span in store.sample_training_metrics([ids["full"]], ["actor/entropy"], most=9)] == [
            1
        ]
