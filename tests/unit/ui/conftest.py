"""Filled databases and pages opened on them, without a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from explorer_samples import add_study, create_database

APP = Path(__file__).parents[3] / "ui" / "app.py"
TIMEOUT_S = 60


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a finished and a running study; only to be read."""

    def fill(store: Any, home: Path) -> None:
        add_study(store, home)
        add_study(store, home, is_finished=False)

    return create_database(tmp_path_factory.mktemp("explorer"), fill)


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs a page of the explorer on a database, with query parameters, as a visitor of its address would.

    It raises no exception.
    """
    import streamlit as st
    from streamlit.testing.v1 import AppTest

    # A server looks through all installed distributions for components when it starts; AppTest does so with every run,
    # which takes longer than the pages. The explorer uses none.
    monkeypatch.setattr("streamlit.components.v2.manifest_scanner.scan_component_manifests", list)

    def visit(page: str, database: Path, /, **params: str) -> AppTest:
        monkeypatch.setenv("SWARM_RESEARCH_DB", str(database))
        app = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)
        for name, value in params.items():
            app.query_params[name] = value
        app.switch_page(f"app_pages/{page}.py")
        shown = app.run()
        assert not shown.exception
        return shown

    yield visit
    st.cache_data.clear()
    st.cache_resource.clear()
