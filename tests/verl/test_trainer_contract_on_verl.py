"""What every Trainer promises, of the verl trainer on the CPU. The sampler is the fake engine."""

from __future__ import annotations

import pytest
from contract.test_trainer_contract import *  # noqa: F403  the promises are written once

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.timeout(900)]
