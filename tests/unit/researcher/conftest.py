"""The store of a study, in a directory of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments_db import ExperimentStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperimentStore]:
    with open_store(tmp_path / "research.db") as opened:
        yield opened
