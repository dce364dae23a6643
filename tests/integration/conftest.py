"""The store of a study that a test of several parts plays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from experiments_db import ExperimentStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperimentStore]:
    """The store of studies in a directory of the test; reports have no pictures meanwhile."""
    from simulated_study import reports_without_images

    from experiments_db import open_store

    with reports_without_images(), open_store(tmp_path / "research.db") as opened:
        yield opened
