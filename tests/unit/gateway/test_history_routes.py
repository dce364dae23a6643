"""What the history routes say of figures that JSON has no number for."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import httpx
from fastapi import APIRouter, FastAPI

from swarm.gateway.control.server_routes import add_history_routes
from swarm.gateway.http.routes import DirectRoute
from swarm.job import TrainJob
from swarm.ledger import Ledger
from swarm.schemas import MetricsHistory
from swarm.types import StepReport, WeightVersion


def test_metrics_that_are_no_numbers_reach_the_client_as_they_are(tmp_path: Path) -> None:
    async def read(ledger: Ledger) -> httpx.Response:
        await ledger.record_job(TrainJob().model_dump(mode="json"), {})
        await ledger.close_batch("b1", 1, [], [])
        metrics = {"loss": math.nan, "score": 0.5, "ratio": math.inf}
        await ledger.finish_batch(StepReport("b1", 1, WeightVersion(1, 1, 0.0), metrics, {}))
        app, router = FastAPI(), APIRouter(route_class=DirectRoute)
        add_history_routes(router, ledger)
        app.include_router(router)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://swarm") as http:
            return await http.get("/metrics")

    ledger = Ledger.open(tmp_path / "ledger.db")
    try:
        answer = asyncio.run(read(ledger))
    finally:
        ledger.close()
    assert answer.status_code == 200, answer.text
    (point,) = MetricsHistory.model_validate_json(answer.content).points
    assert math.isnan(point.metrics.pop("loss"))
    assert point.metrics == {"score": 0.5, "ratio": math.inf}
