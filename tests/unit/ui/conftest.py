"""Filled databases and pages opened on them, without a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit as st
from explorer_study import add_many_runs, add_study, create_database
from streamlit.testing.v1 import AppTest

APP = Path(__file__).parents[3] / "ui" / "app.py"
TIMEOUT_S = 60

OpenPage = Callable[..., AppTest]


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a finished and a running study; only to be read."""

    def fill(store: object, home: Path) -> None:
        add_study(store, home)  # pyright: ignore[reportArgumentType]
        add_study(store, home, is_finished=False)  # pyright: ignore[reportArgumentType]

    return create_database(tmp_path_factory.mktemp("explorer"), fill)


@pytest.fixture(scope="session")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a study of 300 runs; only to be read."""
    return create_database(tmp_path_factory.mktemp("crowded"), add_many_runs)


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPage]:
    """Runs a page of the explorer on a database, with query parameters, as a visitor of its address would."""
    # A server looks through all installed distributions for components when it starts; AppTest does so with every run,
    # which takes longer than the pages. The explorer uses none.
    monkeypatch.setattr("streamlit.components.v2.manifest_scanner.scan_component_manifests", list)

    def visit(page: str, database: Path, /, **params: str) -> AppTest:
        monkeypatch.setenv("SWARM_RESEARCH_DB", str(database))
        app = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)
        for name, value in params.items():
            app.query_params[name] = value
        app.switch_page(f"app_pages/{page}.py")
        return app.run()

    yield visit
    st.cache_data.clear()
    st.cache_resource.clear()
