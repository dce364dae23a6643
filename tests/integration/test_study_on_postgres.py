"""A whole study with its database on a PostgreSQL server: worked on, shown, exported, and its password never told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_schema import POSTGRES_URL, new_schema

from experiments_db import open_store

pytestmark = [
    pytest.mark.skipif(POSTGRES_URL is None, reason="needs a PostgreSQL server; run `make test-postgres`"),
    pytest.mark.timeout(400),
]

APP = Path(__file__).parents[2] / "ui" / "app.py"
TIMEOUT_S = 240
PASSWORD = "correct-horse"


@pytest.fixture
def location() -> Iterator[str]:
    """A server that takes any password, so that one can be looked for in all that is written."""
    assert POSTGRES_URL is not None
    with new_schema(POSTGRES_URL) as url:
        yield url.set(password=PASSWORD).render_as_string(hide_password=False)


def run_researcher(command: str, *arguments: str, home: Path, location: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "researcher.cli", command, *arguments, "--home", str(home), "--db", location]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    return done


def test_a_study_on_postgresql_is_worked_on_shown_and_exported(location: str, tmp_path: Path) -> None:
    import pandas as pd

    home, tables = tmp_path / "home", tmp_path / "tables"
    plan = [
        "--topic",
        "batch size 2 or 3 for tool use at equal steps",
        "--planner",
        "rules",
        "--engine",
        "fake",
        "--json",
    ]
    size = ["--steps", "2", "--seeds", "1", "--eval-episodes", "6"]
    made = json.loads(run_researcher("start", *plan, *size, home=home, location=location).stdout)
    assert made["status"] == "finished"
    assert "batch\\_size=3" in Path(made["report"]).read_text()
    assert "batch_size=3" in run_researcher("status", made["study"], home=home, location=location).stdout
    run_researcher("export", made["study"], str(tables), "--format", "parquet", home=home, location=location)
    assert set(pd.read_parquet(tables / "runs.parquet")["status"]) == {"finished"}
    assert not [path for path in home.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


@pytest.fixture
def explorer(monkeypatch: pytest.MonkeyPatch, location: str) -> Iterator[Any]:
    import streamlit as st
    from streamlit.testing.v1 import AppTest

    monkeypatch.setenv("SWARM_RESEARCH_DB", location)
    yield AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)
    st.cache_data.clear()
    # Closes the connections, which would keep the schema from being dropped.
    st.cache_resource.clear()


def test_the_explorer_shows_a_study_on_postgresql(location: str, explorer) -> None:
    with open_store(location) as store:
        study = store.create_study("batch size 2 or 3 for tool use", planner="rules")
    for page, parameters in (("studies", {}), ("study", {"study": study.id})):
        for name, value in parameters.items():
            explorer.query_params[name] = value
        shown = explorer.switch_page(f"app_pages/{page}.py").run()
        assert not shown.exception and not shown.error
    assert "batch size 2 or 3 for tool use" in " ".join(str(part.value) for part in shown.title)
