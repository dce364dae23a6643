"""The finished texts of a study, as `find_contradictions` reads them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from generated_study import GeneratedStudy
from report_contradictions import Texts

from researcher.report import build_report
from researcher.report.summary import summarize


def texts_of(study: GeneratedStudy, directory: Path) -> Texts:
    paths = build_report(study.store, study.study_id, directory, has_images=False)
    said = summarize(study.store, study.study_id)
    return Texts(
        paths.html.read_text(),
        said.answer,
        said.verdicts,
        said.runs,
        said.recommendation,
        _noise(study),
        study.specification.rounds == 1,
    )


def _noise(study: GeneratedStudy) -> dict[str, float]:
    """The mean variance that finite numbers of episodes give the scores of each arm, from their rows: of what was
    measured, and where all episodes were alike, of a share with one success and one failure more."""
    with closing(sqlite3.connect(study.store.location)) as database:
        rows = database.execute(
            "select x.name, r.status, r.diagnosis, r.seed, v.phase, v.mean, v.stderr, v.episodes from evaluations v"
            " join runs r on r.id = v.run_id join experiments x on x.id = r.experiment_id"
            " where r.study_id = ? and v.phase in ('base', 'final')",
            (study.study_id,),
        ).fetchall()
    has_range = study.specification.metric_range is not None
    is_base = study.specification.failed_score == "base"
    found: dict[str, list[float]] = {}
    for name, status, diagnosis, _, phase, mean, stderr, episodes in rows:
        share = (mean * episodes + 1) / (episodes + 2)
        alike = share * (1 - share) / episodes if has_range else 1 / episodes**2
        noise = stderr**2 if stderr > 0 else alike
        if phase == "final":
            found.setdefault(name, []).append(noise)
        elif status == "failed" and "not_finite" in (diagnosis or ""):
            found.setdefault(name, []).append(noise if is_base else 0.0)
    return {name: sum(each) / len(each) for name, each in found.items()}
