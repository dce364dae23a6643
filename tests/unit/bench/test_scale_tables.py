"""What bench scale shows of its figures: clients down, modes across, one line per other case."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from bench import scale
from bench.results import Result
from bench.scale.setup import Cluster


def row(case: str, metric: str, value: float) -> dict[str, Any]:
    return asdict(Result(scale.BENCHMARK, case, metric, value, ""))


def shown(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    for table in scale.tables(rows):
        Console(width=300, file=text).print(table)
    return text.getvalue()


@pytest.fixture
def grid() -> list[dict[str, Any]]:
    """Every figure of the table over clients: thousands of clients and tens of staleness, so that each is its own."""
    modes = {"sync": 0, "staleness 1": 1, "staleness 2": 2, "staleness 4": 4}
    return [
        row(f"{clients} clients, {mode}", metric, clients / 1000 + 10 * number)
        for clients in scale.CLIENTS
        for mode, number in modes.items()
        for metric in scale.UNITS
    ]


def test_each_figure_stands_under_its_mode_beside_its_clients(grid: list[dict[str, Any]]) -> None:
    lines = [line.split() for line in shown(grid).splitlines()]
    at_128 = [line for line in lines if line[1:2] == ["128"]]
    assert len(at_128) == 6, "one table per figure"
    assert all([line[3], line[5], line[7], line[9]] == ["0.128", "10.1", "20.1", "40.1"] for line in at_128)


def test_cases_of_sizing_and_of_a_real_server_have_a_line_each(grid: list[dict[str, Any]]) -> None:
    rows = [
        *grid,
        row("sizing math, 64 clients", "replicas", 7.0),
        row("live 8 clients, sync", "step_s", 3.25),
    ]
    text = shown(rows)
    assert "math, 64 clients" in text
    assert "8 clients, sync" in text
    assert "3.25" in text
    assert "live" not in shown(grid)


def test_a_replica_gives_its_peak_when_it_is_full_and_no_more() -> None:
    cluster = Cluster(2, 0.01, 0.001, 10, ranks=1, rank_tokens_per_s=1, step_overhead_s=0, publish_s=0)
    assert cluster.tokens_per_s(2) == pytest.approx(2 / 0.011)
    assert cluster.peak_tokens_per_s == cluster.tokens_per_s(20) == cluster.tokens_per_s(400) == pytest.approx(1000)
