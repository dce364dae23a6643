"""The report as PDF: every part of the Markdown report is on its pages, and the same report gives the same file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_study import SimulatedStudy, Simulation
from typer.testing import CliRunner

from researcher.cli import app
from researcher.report.pdf import write_pdf


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedStudy]:
    study = Simulation(has_images=True).carry_out(tmp_path_factory.mktemp("pdf"))
    study.store.close()
    yield study


def _pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type /Page\b", pdf))


def test_command_writes_a_pdf_with_pages_and_figures(study: SimulatedStudy) -> None:
    result = CliRunner().invoke(app, ["report", study.study_id, "--pdf", "--home", str(study.home)])

    assert result.exit_code == 0, result.stderr
    path = study.folder / "report" / "report.pdf"
    assert f"pdf: {path}" in result.stdout.splitlines()
    pdf = path.read_bytes()
    assert pdf.startswith(b"%PDF-") and _pages(pdf) >= 3
    assert pdf.count(b"/Subtype /Image") >= 3
    # The table of runs, which has thirteen columns, lies on a page on its side.
    assert re.search(rb"/MediaBox \[0 0 841\.\d+ 595\.\d+\]", pdf)


def test_same_report_gives_the_same_file(study: SimulatedStudy, tmp_path: Path) -> None:
    for name in ("one.pdf", "two.pdf"):
        write_pdf(study.folder / "report" / "report.md", tmp_path / name, made_at=1.7e9)

    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_text_of_any_kind_is_set(tmp_path: Path) -> None:
    source = tmp_path / "report.md"
    source.write_text(
        "# Title – with ünïcode 漢字\n\nA **bold *and italic* `code`** line.\n\n- one\n- two\n  1. nested\n\n"
        f"```diff\n{'x' * 500}\n```\n\n| a | b |\n|---|---|\n| {'y' * 300} |  |\n\n![missing](nowhere.png)\n"
    )

    write_pdf(source, tmp_path / "report.pdf", made_at=0.0)

    assert _pages((tmp_path / "report.pdf").read_bytes()) == 1


def test_without_the_library_it_is_refused_by_name(study: SimulatedStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fpdf", None)

    result = CliRunner().invoke(app, ["report", study.study_id, "--pdf", "--home", str(study.home)])

    assert result.exit_code == 1
    assert "a PDF needs fpdf2: pip install" in result.stderr
