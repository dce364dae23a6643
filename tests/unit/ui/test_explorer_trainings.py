"""The pages of recorded trainings, on a database with a full one, an empty one and one with hostile names."""

from __future__ import annotations

from pathlib import Path

import pytest
from explorer_samples import HOSTILE, sample_of, words
from store_samples import record_state

from experiments_db import (
    EpisodeFilter,
    InvalidRecord,
    RecordNotFound,
    ServerEvent,
    StoreUnavailable,
    SystemPoint,
    TrainedEpisode,
    TrainedEpisodeSummary,
    TrainingNews,
    TrainingPoint,
    TrainingScore,
    open_store,
)

SECTIONS = {
    "Curves": "Smoothing",
    "Held-out scores": "46 / 50",
    "Trained episodes": "Kept as",
    "Settings": "batch_size",
    "Artifacts": "save_freq",
    "Machine": "machine since the training began",
    "Events": "batch.trained",
}


@pytest.fixture
def trainings(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A database, and the ids of its trainings by experiment."""
    path = tmp_path / "research.db"
    with open_store(path) as store:
        ids = {
            name: record_state(
                store, f"ledger-{number}", experiment=name, settings={"total_steps": 40, "batch_size": 8},
                changes={"3": {"lr": 1e-4}}, home=f"/home/{name}", begun_at=1.0 + number,
            ).id
            for number, name in enumerate(("full", "empty", HOSTILE))
        }  # fmt: skip
        for training_id in (ids["full"], ids[HOSTILE]):
            store.add_to_training(training_id, news_of(training_id, HOSTILE if training_id == ids[HOSTILE] else "ABC"))
    return path, ids


def news_of(training_id: str, text: str) -> TrainingNews:
    sample = sample_of(["A", text], [0.0, -0.5], 0)
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
def test_each_section_of_a_training_opens(open_page, trainings, section: str, name: str) -> None:
    path, ids = trainings
    page = open_page("training", path, training=ids[name], part=section)
    assert not page.error and not page.warning
    if name == "full":
        assert page.title[0].value == "p/full" and SECTIONS[section] in words(page)


def test_the_trainings_are_listed_with_their_last_reward_and_filtered_by_a_setting(open_page, trainings) -> None:
    path, _ = trainings
    page = open_page("trainings", path)
    table = page.dataframe[0].value
    assert len(table) == 3 and set(table["Reward"].dropna()) == {0.5}
    found = open_page("trainings", path, filter="batch_size=8 full")
    assert list(found.dataframe[0].value["Training"]) == ["p/full"]
    unread = open_page("trainings", path, filter="lrr>3")
    assert "no column" in unread.warning[0].value


def test_a_rewind_deletes_what_came_after_its_step(trainings) -> None:
    path, ids = trainings
    with open_store(path) as store:
        store.add_to_training(ids["full"], TrainingNews(rewound_to=1))
        assert store.search_trained_episodes(ids["full"], EpisodeFilter()) == ([], 0)
        assert store.list_training_scores([ids["full"]]) == []
        assert [span.last_step for span in store.sample_metrics([ids["full"]], ["actor/entropy"], most=9)] == [1]


def test_a_training_gets_tags_and_a_note_which_the_recorder_leaves_as_they_are(open_page, trainings) -> None:
    path, ids = trainings
    page = open_page("training", path, training=ids["full"])
    page.multiselect(key="tags").set_value([HOSTILE, "paper"]).run()
    page.text_area(key="note").set_value("The curve of figure 2.").run()
    page.button(key="save labels").click().run()
    assert not page.exception and not page.error
    with open_store(path) as store:
        found = store.get_training(ids["full"])
        assert (found.tags, found.note) == ((HOSTILE, "paper"), "The curve of figure 2.")
        record_state(store, found.key, experiment="full", status="COMPLETE", step=3)
        assert store.get_training(ids["full"]).tags == (HOSTILE, "paper")
    shown = open_page("trainings", path, filter="paper figure")
    table = shown.dataframe[0].value
    assert list(table["Training"]) == ["p/full"] and "paper" in next(iter(table["Tags"]))


@pytest.mark.parametrize(
    ("tags", "note"), [([""], ""), (["a" * 51], ""), ([str(number) for number in range(21)], ""), ([], "a" * 10_001)]
)
def test_labels_that_are_empty_or_too_long_are_refused(trainings, tags: list[str], note: str) -> None:
    path, ids = trainings
    with open_store(path) as store:
        with pytest.raises(InvalidRecord):
            store.label_training(ids["full"], tags=tags, note=note)
        with pytest.raises(RecordNotFound):
            store.label_training("tr-unknown", tags=["a"], note="")


def test_settings_and_metrics_become_columns(open_page, trainings) -> None:
    path, _ = trainings
    page = open_page("trainings", path)
    page.multiselect(key="columns").set_value(["batch_size", "actor/entropy"]).run()
    assert not page.exception
    table = page.dataframe[0].value
    assert set(table["batch_size"]) == {8} and set(table["actor/entropy"].dropna()) == {0.5}


def test_a_database_that_cannot_be_written_costs_the_labels_and_not_the_page(
    open_page, trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreUnavailable("the database cannot be written")

    path, ids = trainings
    page = open_page("training", path, training=ids["full"])
    page.text_area(key="note").set_value("a").run()
    monkeypatch.setattr("experiments_db.ExperimentStore.label_training", refuse)
    page.button(key="save labels").click().run()
    assert not page.exception and "cannot be written" in words(page)


def test_trainings_are_grouped_by_a_setting_and_drawn_as_means(open_page, trainings) -> None:
    path, _ = trainings
    page = open_page("trainings", path, group="batch_size")
    table = page.dataframe[0].value
    assert not page.exception and list(table["Group"]) == ["batch_size=8"] and list(table["Trainings"]) == [3]
    assert "confidence interval" in words(page)


def test_trainings_are_sorted_by_a_value_and_those_without_it_come_last(open_page, trainings) -> None:
    path, ids = trainings
    with open_store(path) as store:
        point = TrainingPoint(ids["full"], "critic/score/mean", 4, 0.9, 9.0)
        store.add_to_training(ids["full"], TrainingNews(points=(point,)))
    page = open_page("trainings", path, sort="reward")
    assert list(page.dataframe[0].value["Reward"].fillna(-1)) == [0.9, 0.5, -1.0]


@pytest.mark.parametrize("aspect", ["Settings", "Parallel coordinates", "Effects of settings"])
def test_trainings_are_compared(open_page, trainings, aspect: str) -> None:
    path, _ = trainings
    with open_store(path) as store:
        for number, lr in enumerate((1e-3, 3e-3)):
            found = record_state(
                store, f"other-{number}", settings={"lr": lr, HOSTILE: [1]}, status="COMPLETE", step=3, begun_at=9.0
            )
            point = TrainingPoint(found.id, "eval/mean", 3, 0.5 + number / 4, 9.0)
            store.add_to_training(found.id, TrainingNews(points=(point,)))
    page = open_page("trainings", path, aspect=aspect, filter="lr>0")
    assert "2 of 5 trainings" in words(page)
    assert not page.error and not page.warning
    drawn = [chart.proto.spec for chart in page.get("vega_lite_chart")]
    if aspect == "Settings":
        assert page.dataframe[1].value.loc["lr"].to_list() == ["0.003", "0.001"]
    else:
        assert any("score" in spec for spec in drawn)


def test_the_trainings_in_the_address_are_the_ones_that_are_drawn(open_page, trainings) -> None:
    path, ids = trainings
    page = open_page("trainings", path, chosen=ids["full"])
    (link,) = [each for each in page.get("page_link") if "Open training" in each.proto.label]
    assert not page.exception and ids["full"] in link.proto.query_string


def test_home_shows_what_runs_and_what_ended(open_page, trainings) -> None:
    path, ids = trainings
    with open_store(path) as store:
        found = store.get_training(ids["full"])
        record_state(store, found.key, experiment="full", status="COMPLETE", step=3)
    page = open_page("home", path)
    shown = words(page)
    assert not page.exception and not page.error
    assert "rolling" in shown and "complete" in shown and "Nothing is running" not in shown
