"""The page of every metric of a training step with its unit and formula, from swarm/batch/step_metrics.py."""

from __future__ import annotations

from markdown_table import table

from swarm.batch.step_metrics import STEP_METRICS

TEXT = """\
# Metrics

`SwarmClient.metrics()`, `GET /v1/swarm/metrics`, the explorer and every tracker have these names. They are verl's
wherever verl has the metric, on each engine. A `*` stands for any text. A number that was not measured is absent, never
0. The notation is that of [algorithms](algorithms.md#notation).

{rows}
The server's own figures for Prometheus are other ones: see the [HTTP API](http-api.md#the-server).
"""


def page() -> str:
    rows = [
        [", ".join(f"`{name}`" for name in metric.names), metric.unit, metric.formula, metric.only_with]
        for metric in STEP_METRICS
    ]
    return TEXT.format(rows=table(["metric", "unit", "formula or meaning", "only with"], rows))
