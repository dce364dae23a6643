"""Writes docs/metrics.md, every metric of a training step with its unit and formula, from swarm/batch/step_metrics.py.

python scripts/metric_reference.py           rewrite the page
python scripts/metric_reference.py --check   say whether it is up to date; exit code 1 if not
"""

from __future__ import annotations

import sys

from generated_page import table, write_or_check

from swarm.batch.step_metrics import STEP_METRICS

TEXT = """\
# Metrics

This page is written by `scripts/metric_reference.py` from `swarm/batch/step_metrics.py`. A test compares that table
with what trainings report.

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


if __name__ == "__main__":
    sys.exit(write_or_check("metrics.md", page(), sys.argv[1:]))
