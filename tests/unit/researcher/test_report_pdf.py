"""The report as PDF: every part of the HTML report is on its pages, and the same report gives the same file."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path

import pytest
from simulated_study import SimulatedStudy, Simulation
from typer.testing import CliRunner

from researcher.cli import app
from researcher.report.write import write_pdf

pytestmark = pytest.mark.skipif(find_library("pangoft2-1.0") is None, reason="needs Pango")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedStudy]:
    study = Simulation(has_images=True).carry_out(tmp_path_factory.mktemp("pdf"))
    study.store.close()
    yield study


def _objects(pdf: Path) -> bytes:
    """The objects of a PDF, with its compressed streams unpacked after it."""
    content = pdf.read_bytes()
    packed = re.findall(rb"/FlateDecode.*?stream\n(.*?)\nendstream", content, re.DOTALL)
    return content + b"\n".join(zlib.decompressobj().decompress(stream) for stream in packed)


def _pages(pdf: Path) -> int:
    return len(re.findall(rb"/Type /Page\b", _objects(pdf)))


def test_command_writes_a_pdf_with_pages_and_figures(study: SimulatedStudy) -> None:
    result = CliRunner().invoke(app, ["report", study.study_id, "--pdf", "--home", str(study.home)])

    assert result.exit_code == 0, result.stderr
    path = study.folder / "report" / "report.pdf"
    assert f"pdf: {path}" in result.stdout.splitlines()
    objects = _objects(path)
    assert objects.startswith(b"%PDF-") and _pages(path) >= 3
    assert objects.count(b"/Subtype /Image") >= 3
    # The table of runs, which has thirteen columns, lies on a page on its side.
    assert re.search(rb"/MediaBox \[0 0 841\.\d+ 595\.\d+\]", objects)


def test_same_report_gives_the_same_file(study: SimulatedStudy, tmp_path: Path) -> None:
    for name in ("one.pdf", "two.pdf"):
        write_pdf(study.folder / "report" / "report.html", tmp_path / name)

    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_text_of_any_kind_is_set_and_no_file_is_loaded(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    picture.write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text>loaded</text></svg>')
    source = tmp_path / "report.html"
    source.write_text(
        f"<h1>Title – with ünïcode 漢字</h1><pre>{'x' * 500}</pre><table><tr><td>{'y' * 300}</td></tr></table>"
        f'<img src="{picture.as_uri()}" alt="a picture">'
    )
    beside = tmp_path / "without.html"
    beside.write_text(source.read_text().replace(picture.as_uri(), ""))

    for page in (source, beside):
        write_pdf(page, page.with_suffix(".pdf"))

    assert _pages(source.with_suffix(".pdf")) == 1
    assert source.with_suffix(".pdf").read_bytes() == beside.with_suffix(".pdf").read_bytes()


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        ("ModuleNotFoundError", "pip install 'swarm-researcher[researcher]'"),
        ("OSError", "apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0"),
    ],
)
def test_without_a_library_it_is_refused_by_name(
    study: SimulatedStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, advice: str
) -> None:
    (tmp_path / "weasyprint.py").write_text(f"print('advice of several lines')\nraise {failure}('not found')\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "weasyprint"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    result = CliRunner().invoke(app, ["report", study.study_id, "--pdf", "--home", str(study.home)])

    assert result.exit_code == 1 and result.stdout == ""
    assert advice in result.stderr
