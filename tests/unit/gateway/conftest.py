"""What the tests of replies share: the codec of the bundled model."""

from __future__ import annotations

import pytest

from swarm.model_path import BUNDLED_DIRECTORY
from swarm.tracker.codec import Codec


@pytest.fixture(scope="session")
def nano() -> Codec:
    return Codec.load(BUNDLED_DIRECTORY)
