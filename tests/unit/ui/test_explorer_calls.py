"""The calls of a language model on the page of a study."""

from __future__ import annotations

from pathlib import Path

import pytest
from explorer_samples import HOSTILE, LONG, record_calls, words

from experiments_db import StudyStatus, open_store

SECTION = "Model calls"


def metrics_of(page) -> dict[str, str]:
    return {metric.label: metric.value for metric in page.metric}


@pytest.fixture
def study(tmp_path: Path) -> tuple[Path, str]:
    """A database with a study of three calls, one of which failed, and no price."""
    path = tmp_path / "research.db"
    with open_store(path) as store:
        study_id = store.create_study("Which rate?", planner="llm").id
        record_calls(store, study_id)
    return path, study_id


def test_calls_are_listed_and_summed_by_node_and_model(open_page, study: tuple[Path, str]) -> None:
    path, study_id = study
    page = open_page("study", path, study=study_id, section=SECTION)
    assert not page.error
    by_node, by_model, calls = (table.value for table in page.dataframe)
    assert list(by_node["Node"]) == ["plan", HOSTILE] and list(by_node["Calls"]) == [2, 1]
    assert list(by_model["Tokens in"]) == [8100] and list(by_model["Failed"]) == [1]
    assert list(calls["Prompt"][:2]) == ["a" * 12] * 2 and f"HTTP 503: {HOSTILE}" in set(calls["Failed"])
    assert metrics_of(page)["Failed"] == "1"


def test_a_cost_without_a_price_is_unknown_and_never_zero(open_page, study: tuple[Path, str]) -> None:
    path, study_id = study
    page = open_page("study", path, study=study_id, section=SECTION)
    assert metrics_of(page)["Cost"] == "unknown" and "--llm-price" in words(page)
    assert all(table.value["Cost"].isna().all() for table in page.dataframe)


@pytest.mark.parametrize("settings", [{}, {"llm_price": [1.0, 2.0]}])
def test_a_cost_with_a_price_is_summed(open_page, tmp_path: Path, settings: dict[str, object]) -> None:
    with open_store(tmp_path / "research.db") as store:
        study_id = store.create_study("Which rate?", planner="llm", settings=settings).id
        record_calls(store, study_id, price=1e-4)
    page = open_page("study", tmp_path / "research.db", study=study_id, section=SECTION)
    assert metrics_of(page)["Cost"] == "$0.9050" and "--llm-price" not in words(page)
    assert list(page.dataframe[0].value["Cost"]) == pytest.approx([0.905, 0.0])


def test_a_call_in_the_address_is_read_in_full_with_its_tool_calls(open_page, study: tuple[Path, str]) -> None:
    path, study_id = study
    page = open_page("study", path, study=study_id, section=SECTION, call="1")
    assert not page.error
    said = words(page)
    assert "First I look." in said and "`curve`" in said and '"arm": "lr=0.001"' in said
    texts = [text.value for text in page.text]
    assert any(HOSTILE in text and LONG in text and "<U+202E>right to left" in text for text in texts)
    assert HOSTILE not in "".join(part.value for part in [*page.markdown, *page.caption])


def test_a_failed_call_shows_its_error_and_that_nothing_was_answered(open_page, study: tuple[Path, str]) -> None:
    path, study_id = study
    page = open_page("study", path, study=study_id, section=SECTION, call="3")
    assert "HTTP 503" in page.error[0].value and "There was no response." in words(page)


@pytest.mark.parametrize("call", ["99", "x", HOSTILE, "-1"])
def test_an_unknown_call_in_the_address_selects_none(open_page, study: tuple[Path, str], call: str) -> None:
    path, study_id = study
    page = open_page("study", path, study=study_id, section=SECTION, call=call)
    assert not page.error and "Select a call to read it." in words(page)


@pytest.mark.parametrize(
    ("planner", "said"),
    [
        ("rules", "asks no language model"),
        ("scripted", "asks no language model"),
        ("external", "outside of this program"),
        ("llm", "No language model was called."),
    ],
)
def test_a_study_without_a_call_says_why(open_page, tmp_path: Path, planner: str, said: str) -> None:
    with open_store(tmp_path / "research.db") as store:
        study_id = store.create_study("Which rate?", planner=planner).id
        store.set_study_status(study_id, StudyStatus.FINISHED, "done")
    page = open_page("study", tmp_path / "research.db", study=study_id, section=SECTION)
    assert not page.error and said in words(page)
