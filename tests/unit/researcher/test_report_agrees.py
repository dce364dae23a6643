"""No two places of a report disagree: random studies are read through, and planted contradictions are found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from generated_study import COLLAPSED, DIVERGED, GeneratedStudy, draw, generate, rich
from report_contradictions import Texts, find_contradictions

from experiments_db import ExperimentStore, open_store
from researcher.report.numbers.gather import gather
from researcher.report.summary import summarize
from researcher.report.write import build_report

FEW, MANY, PER_STORE = 8, 528, 20
"""The plan node reads the findings of all studies of a store, so a store of many makes each slower."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExperimentStore]:
    with open_store(tmp_path_factory.mktemp("planted") / "research.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def texts(store: ExperimentStore, tmp_path_factory: pytest.TempPathFactory) -> Texts:
    folder = tmp_path_factory.mktemp("report")
    return texts_of(generate(store, folder, rich()), folder)


def texts_of(study: GeneratedStudy, directory: Path) -> Texts:
    paths = build_report(study.store, study.study_id, directory, has_images=False)
    said = summarize(study.store, study.study_id)
    is_single = study.specification.rounds == 1
    return Texts(paths.html.read_text(), said.answer, said.verdicts, said.runs, said.recommendation, is_single)


def _read_through(numbers: range, home: Path) -> dict[int, list[str]]:
    with open_store(home / f"{numbers.start}.db") as store:
        studies = {number: generate(store, home, draw(number)) for number in numbers}
        found = {number: find_contradictions(texts_of(study, home / "report")) for number, study in studies.items()}
    return {number: lines for number, lines in found.items() if lines}


def test_reports_of_generated_studies_do_not_contradict_themselves(tmp_path: Path) -> None:
    assert _read_through(range(FEW), tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FEW, MANY, PER_STORE))
def test_nor_do_those_of_many_more(start: int, tmp_path: Path) -> None:
    assert _read_through(range(start, start + PER_STORE), tmp_path) == {}


def test_runs_are_counted_as_what_happened_to_them(store: ExperimentStore, tmp_path: Path) -> None:
    study: GeneratedStudy = generate(store, tmp_path, rich())
    fates = list(study.specification.fates.values())
    counts = gather(store, study.study_id).counts

    assert counts.begun == len(fates)
    assert counts.finished == sum(fate in ("finished", "retried") for fate in fates)
    assert counts.early == {"collapse": 1, "no_signal": 1}
    assert counts.failures == {COLLAPSED: 1, DIVERGED: 1}
    assert [item.seed for item in counts.without_score] == [2]
    assert [item.arm for item in counts.retried] == ["a1"]


PLANTED = {
    "answer: another mean": (r"(a3 is best in the median pair of runs): [\d.]+", r"\1: 0.912"),
    "answer: another arm is best": (r"a3 is best", "a1 is best"),
    "answer: another difference": (r"(It is better than a0 in the median pair of runs): \+[\d.]+", r"\1: +0.300"),
    "answer: another p value": (r"p (?:&lt;|<) 0\.001 corrected", "p = 0.010 corrected"),
    "answer: p = 0": (r"p (?:&lt;|<) 0\.001 corrected", "p = 0.000 corrected"),
    "answer: better by nothing": (r"(It is better than a0 in the median pair of runs): \+[\d.]+", r"\1: +0.000"),
    "answer: parts that are no whole": (r"and \+[\d.]+ by training", "and +0.100 by training"),
    "runs: another number begun": (r"32 runs begun", "31 runs begun"),
    "runs: another number that failed": (r"; 2 of the 31 that count failed", "; 0 of the 31 that count failed"),
    "limitations: another number that failed": (r"Of the runs, 2 of the 31", "Of the runs, 1 of the 31"),
    "recommendation: an arm that is not kept": (r"Use a3:", "Use a2:"),
    "recommendation: a decided arm is open": (r"Not decided: a1", "Not decided: a3, a1"),
    "terminal: another mean": (r"a3: mean [\d.]+", "a3: mean 0.640"),
    "terminal: another verdict": (r", keep \(", ", worse ("),
}


def test_the_study_in_which_contradictions_are_planted_has_none(texts: Texts) -> None:
    assert find_contradictions(texts) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_contradiction_is_found(texts: Texts, name: str) -> None:
    """A sentence is changed wherever it is quoted, so that what is found is not that two copies differ."""
    pattern, put = PLANTED[name]

    def change(text: str) -> str:
        # The page shows the beginning of the answer, up to a colon, in bold.
        return re.sub(pattern.replace(": ", ":(?:</strong>)? "), put, text)

    changed = Texts(
        change(texts.html),
        change(texts.answer),
        tuple(map(change, texts.verdicts)),
        change(texts.runs),
        tuple(map(change, texts.recommendation)),
        texts.is_single,
    )
    assert changed != texts and find_contradictions(changed) != []
