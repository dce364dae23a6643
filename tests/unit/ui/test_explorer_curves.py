"""The curves of the explorer: x values, means with intervals, early ends, and the zoom that an address names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from explorer_samples import words
from store_samples import record_state

from experiments_db import TrainingNews, TrainingPoint, open_store


@pytest.fixture(scope="module")
def curves() -> Any:
    """The module of series, which loads pandas."""
    from ui.curves import series

    return series


@pytest.fixture(scope="module")
def one(curves) -> Any:
    return curves.Series("one", (curves.Member("a", 100.0),))


@pytest.fixture(scope="module")
def both(curves) -> Any:
    return curves.Series("both", (curves.Member("a", 100.0), curves.Member("b", 200.0, ended_early="failed")))


def points_of(values: dict[str, list[float]], name: str = "reward") -> Any:
    """Return points at the steps 1, 2, ... of each run, ten seconds apart."""
    import pandas as pd

    began = {"a": 100.0, "b": 200.0}
    rows = [
        (run_id, name, step, 1, value, value, value, int(math.isnan(value)), began[run_id] + 10 * step)
        for run_id, all_values in values.items()
        for step, value in enumerate(all_values, start=1)
    ]
    columns = ["run_id", "name", "step", "steps", "value", "low", "high", "missing", "recorded_at"]
    return pd.DataFrame(rows, columns=columns)


def by_steps(curves, values: dict[str, list[float]], series: Any) -> Any:
    return curves.place(points_of(values), curves.Axis.STEPS, [series], points_of({}))


@pytest.mark.parametrize(
    ("axis", "expected"), [("steps", [1.0, 2.0, 3.0]), ("time", [10.0, 20.0, 30.0]), ("tokens", [5.0, 12.0, 13.0])]
)
def test_x_is_a_step_the_time_since_the_run_began_or_the_sum_of_a_count(
    curves, one, axis: str, expected: list[float]
) -> None:
    counts = points_of({"a": [5.0, 7.0, 1.0]}, "rollout/trained_tokens")
    placed = curves.place(points_of({"a": [0.1, 0.2, 0.3]}), curves.Axis(axis), [one], counts)
    assert placed["x"].to_list() == expected and set(placed["series"]) == {"one"}


def test_counts_in_spans_sum_to_those_of_single_steps(curves, one) -> None:
    counts = points_of({"a": [6.0, 2.0]}, "rollout/episodes").assign(step=[1, 11], steps=[10, 10])
    placed = curves.place(points_of({"a": [0.1] * 20}), curves.Axis.EPISODES, [one], counts)
    assert placed["x"].iloc[[4, 9, 19]].to_list() == [30.0, 60.0, 80.0]


def test_a_run_without_the_count_is_not_drawn_by_it(curves, both) -> None:
    counts = points_of({"a": [5.0]}, "rollout/trained_tokens")
    placed = curves.place(points_of({"a": [0.1], "b": [0.2]}), curves.Axis.TOKENS, [both], counts)
    assert set(placed["run_id"]) == {"a"}


def test_a_mean_of_runs_has_the_interval_of_student_and_none_where_one_run_is_left(curves, both) -> None:
    from scipy import stats

    placed = by_steps(curves, {"a": [1.0, 2.0, 3.0], "b": [3.0, 6.0]}, both)
    drawn = curves.combine(placed, [both], 0.0)
    assert drawn["value"].to_list() == [2.0, 4.0, 3.0] and drawn["runs"].to_list() == [2, 2, 1]
    low, high = stats.t.interval(0.95, 1, loc=2.0, scale=stats.sem([1.0, 3.0]))
    assert drawn.loc[0, ["low", "high"]].to_list() == pytest.approx([low, high])
    assert math.isnan(drawn.loc[2, "low"])
    # An early end lies on the line at the last point of the run.
    ends = curves.early_ends(drawn, placed, [both])
    assert ends.to_dict("records") == [{"series": "both", "x": 2.0, "value": 4.0, "why": "failed"}]


def test_smoothing_is_debiased_and_keeps_the_value_that_was_measured(curves, one) -> None:
    drawn = curves.combine(by_steps(curves, {"a": [1.0, 3.0]}, one), [one], 0.5)
    assert drawn["value"].to_list() == pytest.approx([1.0, (0.5 * 1 + 3) / 1.5])
    assert drawn["raw"].to_list() == [1.0, 3.0]


def test_a_step_without_a_value_is_a_gap(curves, one) -> None:
    drawn = curves.combine(by_steps(curves, {"a": [1.0, math.nan, 3.0]}, one), [one], 0.5)
    assert drawn["value"].isna().to_list() == [False, True, False]


def test_a_range_of_x_covers_the_steps_inside_it_or_else_the_nearest(curves, one) -> None:
    placed = curves.place(points_of({"a": [1.0] * 9}), curves.Axis.TIME, [one], points_of({}))
    assert curves.steps_between(placed, 25.0, 61.0) == (3, 6) and curves.steps_between(placed, 41.0, 42.0) == (4, 4)


def test_each_of_many_series_has_its_own_colour_and_dash(curves) -> None:
    import pandas as pd

    from ui.curves import drawing

    names = [f"r{number}" for number in range(drawing.MOST_SERIES)]
    series = [curves.Series(f"run {name}", (curves.Member(name, 0.0),)) for name in names]
    rows = pd.concat([points_of({"a": [0.1, 0.2]}).assign(run_id=name) for name in names])
    placed = curves.place(rows.reset_index(drop=True), curves.Axis.STEPS, series, points_of({}))
    frame = drawing.Frame([each.label for each in series], "step", (1.0, 2.0), is_whole=True)
    ends = curves.early_ends(placed, placed, series)
    chart = drawing.draw(curves.combine(placed, series, 0.0), ends, title="t", frame=frame)
    dashes = chart.to_dict()["layer"][0]["encoding"]["strokeDash"]["scale"]["range"]
    looks = {(number % drawing.COLORS, tuple(dash)) for number, dash in enumerate(dashes)}
    assert len(looks) == drawing.MOST_SERIES


@pytest.fixture
def long_training(tmp_path: Path) -> tuple[Path, str]:
    """A training of 2,000 steps, and its id."""
    path = tmp_path / "research.db"
    with open_store(path) as store:
        found = record_state(store, "k", settings={"total_steps": 3000}, status="OFFLINE", reason="gone", step=2000)
        points = [
            TrainingPoint(found.id, name, step, value, 1.0 + step)
            for step in range(1, 2001)
            for name, value in (("critic/score/mean", step / 2000), ("rollout/trained_tokens", 100.0))
        ]
        store.add_to_training(found.id, TrainingNews(points=tuple(points)))
    return path, found.id


@pytest.mark.parametrize(("x", "zoom"), [("steps", "100,150"), ("time", "100,150"), ("tokens", "10000,15000")])
def test_a_zoom_in_the_address_reads_its_part_step_by_step(open_page, long_training, x: str, zoom: str) -> None:
    path, training_id = long_training
    whole = open_page("training", path, training=training_id, x=x)
    assert "mean of up to 3 steps" in words(whole) and "ended early" in words(whole)
    part = open_page("training", path, training=training_id, x=x, zoom=zoom)
    assert "mean of up to" not in words(part)
    part.button(key="whole").click().run()
    assert not part.exception and "mean of up to 3 steps" in words(part)


@pytest.mark.parametrize("zoom", ["5,1", "a,b", "1", "nan,nan", "1e400,2", "0,1e400", "-inf,5", "-5,-1", "1e9,2e9"])
def test_a_zoom_that_makes_no_sense_shows_a_page_all_the_same(open_page, long_training, zoom: str) -> None:
    path, training_id = long_training
    page = open_page("training", path, training=training_id, zoom=zoom)
    assert not page.error


def test_an_axis_that_was_not_recorded_is_named(open_page, long_training) -> None:
    path, training_id = long_training
    page = open_page("training", path, training=training_id, x="episodes")
    assert "rollout/episodes" in words(page)
