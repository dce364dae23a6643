"""The store of a study, in a directory of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from experiments_db import ExperimentStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperimentStore]:
    from experiments_db import open_store

    with open_store(tmp_path / "research.db") as opened:
        yield opened
