"""No two places of a report disagree: random studies are read through, and planted contradictions are found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
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


Plant = Callable[[Texts], Texts]


def _said(pattern: str, put: str) -> Plant:
    """The same change of a sentence wherever it is quoted, so that what is found is not that two copies differ."""

    # The page shows the beginning of the answer, up to a colon, in bold.
    said = pattern.replace(": ", ":(?:</strong>)? ")

    def change(text: str) -> str:
        return re.sub(said, put, text)

    def plant(texts: Texts) -> Texts:
        changed = replace(
            texts,
            html=change(texts.html),
            answer=change(texts.answer),
            runs=change(texts.runs),
            recommendation=tuple(map(change, texts.recommendation)),
        )
        assert changed.html != texts.html, "nothing was planted"
        return changed

    return plant


def _terminal(pattern: str, put: str) -> Plant:
    """A change of the lines of the terminal alone."""

    def plant(texts: Texts) -> Texts:
        verdicts = tuple(re.sub(pattern, put, line) for line in texts.verdicts)
        recommendation = tuple(re.sub(pattern, put, line) for line in texts.recommendation)
        changed = replace(texts, verdicts=verdicts, recommendation=recommendation)
        assert changed != texts, "nothing was planted"
        return changed

    return plant


def _cell(heading: str, table: int, column: int, put: str) -> Plant:
    """Another cell of the first row of a3 in a table of the page."""

    def in_html(section: str) -> str:
        found = re.findall(r"<table.*?</table>", section, re.S)[table]
        row = next(each for each in re.findall(r"<tr.*?</tr>", found, re.S) if ">a3<" in each)
        cells = re.findall(r"<td.*?</td>", row, re.S)
        cells[column] = f"<td>{put}</td>"
        return section.replace(row, f"<tr>{''.join(cells)}</tr>")

    def plant(texts: Texts) -> Texts:
        html = re.sub(rf"(?s)<h2>{heading}.*?(?=<h2>|\Z)", lambda found: in_html(found[0]), texts.html)
        assert html != texts.html, "nothing was planted"
        return replace(texts, html=html)

    return plant


IT_IS = r"It is better than a0: \+[\d.]+"
PLANTED: dict[str, Plant] = {
    "answer: another mean": _said(r"a3 is best: [\d.]+", "a3 is best: 0.912"),
    "answer: another arm is best": _said(r"a3 is best", "a1 is best"),
    "answer: another difference": _said(IT_IS, "It is better than a0: +0.300"),
    "answer: another p value": _said(r"p (?:&lt;|<) 0\.001 corrected", "p = 0.010 corrected"),
    "answer: p = 0": _said(r"p (?:&lt;|<) 0\.001 corrected", "p = 0.000 corrected"),
    "answer: better by nothing": _said(IT_IS, "It is better than a0: +0.000"),
    "answer: parts that are no whole": _said(r"and \+[\d.]+ by training", "and +0.100 by training"),
    "runs: another number begun": _said(r"32 runs begun", "31 runs begun"),
    "runs: another number that failed": _said(r"; 2 of the 31 that count failed", "; 0 of the 31 that count failed"),
    "limitations: another number that failed": _said(r"Of the runs, 2 of the 31", "Of the runs, 1 of the 31"),
    "recommendation: an arm that is not kept": _said(r"Use a3:", "Use a2:"),
    "recommendation: a decided arm is open": _said(r"Not decided: a1", "Not decided: a3, a1"),
    "arms: another mean": _cell("Arms", 0, 5, "0.640"),
    "arms: another verdict": _cell("Arms", 0, 7, "inconclusive"),
    "arms: another number of runs": _cell("Arms", 1, 1, "9"),
    "comparisons: another verdict": _cell("Comparisons", 0, 10, "worse"),
    "test split: another mean": _cell("Test split", 0, 2, "0.123"),
    "runs: another score": _cell("Runs", 0, 7, "0.100"),
    "terminal: another mean": _terminal(r"a3: mean [\d.]+", "a3: mean 0.640"),
    "terminal: another verdict": _terminal(r", keep \(", ", worse ("),
    "terminal: another recommendation": _terminal(r"^Use a3", "Stay with a0"),
}


def test_the_study_in_which_contradictions_are_planted_has_none(texts: Texts) -> None:
    assert find_contradictions(texts) == []


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_planted_contradiction_is_found(texts: Texts, plant: Plant) -> None:
    assert find_contradictions(plant(texts)) != []
