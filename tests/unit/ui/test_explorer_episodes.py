"""The page of episodes: of a training, a run and a study; search, one episode, and its group."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from explorer_samples import HOSTILE, LONG, add_study, create_database, record_training, words

from experiments_db import open_store

PER_PAGE = 50


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A database with a training of 96 kept episodes and a study, and the ids of both and of a run."""
    ids: dict[str, str] = {}

    def fill(store, home: Path) -> None:
        study = add_study(store, home)
        run = next(run for run in store.list_runs(study_id=study) if store.list_episodes(run.id))
        ids.update(study=study, run=run.id, training=record_training(store, launch_key=run.idempotency_key))

    return create_database(tmp_path_factory.mktemp("episodes"), fill), ids


def listed(page) -> list[tuple[object, ...]]:
    table = page.dataframe[0].value
    return list(zip(table["Step"], table["Reward"], strict=True))


def test_episodes_of_a_training_come_in_pages(open_page, recorded) -> None:
    path, ids = recorded
    page = open_page("episodes", path, training=ids["training"])
    assert not page.error and not page.warning
    assert len(page.dataframe[0].value) == PER_PAGE and "1 to 50 of 96 episodes" in words(page)
    last = open_page("episodes", path, training=ids["training"], page="2")
    assert len(last.dataframe[0].value) == 46 and "51 to 96 of 96 episodes" in words(last)


def test_a_search_by_reward_step_and_words_is_in_the_address(open_page, recorded) -> None:
    path, ids = recorded
    page = open_page("episodes", path, training=ids["training"], reward_from="0.5", step_from="3", step_to="4")
    assert {step for step, _ in listed(page)} == {3, 4}
    assert {reward for _, reward in listed(page)} == {0.5, 0.75}
    page.text_input(key="text").set_value("DROW3").run()
    assert {step for step, _ in listed(page)} == {3}
    page.text_input(key="text").set_value("no such words").run()
    assert not page.exception and "No episode matches." in words(page)


def test_the_search_on_a_page_beyond_its_end_shows_its_last_page(open_page, recorded) -> None:
    path, ids = recorded
    page = open_page("episodes", path, training=ids["training"], page="2")
    page.number_input(key="step_from").set_value(12).run()
    assert not page.exception and len(listed(page)) == 8


@pytest.mark.parametrize("kind", ["run", "study"])
def test_held_out_episodes_of_runs_are_shown(open_page, recorded, kind: str) -> None:
    path, ids = recorded
    page = open_page("episodes", path, **{kind: ids[kind]})
    assert not page.error and not page.warning
    table = page.dataframe[0].value
    assert set(table["Kind"]) == {"eval"} and len(table) == (2 if kind == "run" else 18)
    assert ("Run" in table) is (kind == "study") and "Advantage" not in table
    page.segmented_control(key="kind").set_value("train").run()
    assert not page.exception and "No episode matches." in words(page)


def test_an_episode_in_the_address_is_shown_with_its_group_beside_it(open_page, recorded) -> None:
    path, ids = recorded
    page = open_page("episodes", path, training=ids["training"], episode="ep-12-1")
    assert not page.error and not page.warning
    assert "drow12" in [text.value for text in page.text] and "Sample 1 of 1, 7 tokens" in words(page)
    group = page.dataframe[1].value
    assert list(group["Reward"]) == [0.75, 0.5, 0.25, 0.0] and list(group["Advantage"]) == [0.75, 0.25, -0.25, -0.75]
    selected = json.loads(page.dataframe[1].proto.selection_default)["selection"]["rows"]
    assert selected == [2]
    # The other page and another filter leave the episode as it is.
    assert "drow12" in words(open_page("episodes", path, training=ids["training"], episode="ep-12-1", page="2"))


def test_an_episode_of_a_run_can_be_named_beside_its_run_or_its_study(open_page, recorded) -> None:
    path, ids = recorded
    of_run = open_page("episodes", path, run=ids["run"], episode="ep-1")
    of_study = open_page("episodes", path, study=ids["study"], episode=f"{ids['run']}/ep-1")
    for page in (of_run, of_study):
        assert not page.exception and not page.error and not page.warning
        assert "EXIQ" in words(page) and "No other episode of its group was kept." in words(page)
    # A held-out episode was not trained on, so its tokens have no advantage.
    assert "advantage" not in of_run.segmented_control(key="coloring").options


def test_hostile_episodes_are_shown_as_text(open_page, recorded) -> None:
    path, ids = recorded
    page = open_page("episodes", path, training=ids["training"], episode="ep-12-7")
    texts = [text.value for text in page.text]
    assert any(HOSTILE in text and LONG in text and "<U+202E>" in text for text in texts)
    for part in [*page.markdown, *page.caption, *page.subheader]:
        assert HOSTILE not in part.value and ":red[no]" not in part.value


def test_conversations_with_halves_of_surrogates_are_shown(open_page, tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        training = record_training(store, steps=1)
    messages = json.dumps([{"role": "\ud800", "content": ["\udfff", 1]}, "no message", None])
    connection = sqlite3.connect(tmp_path / "research.db")
    connection.execute("UPDATE trained_episodes SET messages = ?", (messages,))
    connection.commit()
    connection.close()
    page = open_page("episodes", tmp_path / "research.db", training=training, episode="ep-1-0")
    assert not page.error
    assert "<U+DFFF>" in words(page) and "no message" in words(page)


def test_without_an_address_the_newest_training_is_shown(open_page, recorded) -> None:
    path, ids = recorded
    page = open_page("episodes", path)
    assert page.query_params["training"] in (ids["training"], [ids["training"]])
    assert len(page.dataframe[0].value) == PER_PAGE
