"""The run of `bench gpu` without its parts: time boxes, failures as data, and the page."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bench.gpu import page, schedule
from bench.gpu.page import RunReport, to_json, to_page
from bench.gpu.schedule import Figure, Part, PartReport, read_figures, run_part, run_parts, share
from bench.results import Conditions

CONDITIONS = Conditions("2026-01-01T00:00:00+00:00", "1.0", None, "a processor", 2, 0.5, 60.0)


@pytest.fixture
def parts_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `bench.gpu` of small parts, in the place of the real one in the children."""
    package = tmp_path / "root" / "bench" / "gpu"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "child.py").write_text(CHILD)
    monkeypatch.setattr(schedule, "ROOT", tmp_path / "root")
    return package


CHILD = """
import json, sys, time
order = json.loads(sys.argv[1])

def add(metric, value):
    with open(order["figures"], "a") as file:
        file.write(json.dumps({"case": "one", "metric": metric, "value": value, "unit": ""}) + "\\n")

add("time", order["deadline"] - time.time())
if order["module"] == "peaks":
    add("bandwidth", 7.0)
elif order["module"] == "broken":
    sys.exit("no memory left")
elif order["module"] == "endless":
    time.sleep(600)
else:
    add("known", order["peaks"].get("bandwidth", 0.0))
"""


def test_time_that_a_part_leaves_goes_to_the_later_ones() -> None:
    assert share(60.0, [1, 2, 3]) == 10.0
    assert share(55.0, [2, 3]) == 22.0
    assert share(0.0, [2, 3]) == 0.0


def test_parts_that_fail_keep_their_figures_and_the_others_go_on(parts_folder: Path, tmp_path: Path) -> None:
    parts = [Part(name, name, 1) for name in ("peaks", "broken", "plain")]
    said: list[str] = []
    peaks, broken, plain = run_parts(parts, "cpu", 900.0, tmp_path, said.append)
    assert (peaks.failure, plain.failure) == (None, None)
    assert broken.failure == "ended with code 1: no memory left"
    assert [figure.metric for figure in broken.figures] == ["time"]
    assert plain.figures[-1] == Figure("one", "known", 7.0, "")
    assert [line.split(",")[0] for line in said] == ["bench: peaks", "bench: broken", "bench: plain"]


def test_part_that_does_not_end_is_ended_at_its_time_box(parts_folder: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    report = run_part(Part("endless", "endless", 1), "cpu", 2.0, tmp_path, {})
    assert report.failure == "ended at its time box of 2 s"
    assert time.monotonic() - began < 300


def test_line_that_was_cut_off_is_no_figure(tmp_path: Path) -> None:
    path = tmp_path / "figures.jsonl"
    assert read_figures(path) == ()
    path.write_text('{"case": "a", "metric": "step", "value": 1.5, "unit": "s"}\n{"case": "a", "me')
    assert read_figures(path) == (Figure("a", "step", 1.5, "s"),)


def report_of(*parts: PartReport, device: str = "cpu") -> RunReport:
    return RunReport(device, 8.0, CONDITIONS, {"torch": "2.0"}, parts)


def test_page_and_json_name_every_figure_and_every_failure() -> None:
    figures = (
        Figure("0.5 B", "tokens_per_second", 12345.6, "tokens/s"),
        Figure("0.5 B", "failure", "OutOfMemoryError: too large", ""),
    )
    report = report_of(
        PartReport("training", "Training step", 60.0, 12.0, figures, None),
        PartReport("vllm", "vLLM", 30.0, 31.0, (), "ended at its time box of 30 s"),
    )
    assert report.failures == ["vllm", "training: 0.5 B"]
    text = to_page(report)
    assert "12,346 tokens/s" in text and "OutOfMemoryError: too large" in text
    assert "FAILED: ended at its time box of 30 s" in text
    read = json.loads(json.dumps(to_json(report)))
    assert read["failures"] == report.failures
    assert read["parts"][0]["figures"][0]["value"] == 12345.6


def test_page_of_a_cpu_says_that_its_figures_are_not_those_of_a_gpu() -> None:
    assert page.SMALL in to_page(report_of())
    assert page.SMALL not in to_page(report_of(device="cuda"))
