"""The rollout of a job on a rolling engine, for tests that are coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rollout_support import Stage, rolling


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "job(**settings): what the job of `stage` has besides the engine")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def stage(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    marker = request.node.get_closest_marker("job")
    async with rolling(tmp_path, **(marker.kwargs if marker else {})) as stage:
        yield stage
