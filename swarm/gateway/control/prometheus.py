"""The route /metrics: the server's state and traffic in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from swarm.gateway.control.event_routes import EventStreams
from swarm.gateway.control.server_routes import Control
from swarm.gateway.http.middleware import Traffic
from swarm.gateway.http.openapi import errors
from swarm.gateway.served import Served
from swarm.ledger import CommitCount, Ledger
from swarm.schemas import EngineState, PoolView, Status

MAX_OUTCOMES = 100
"""The most outcomes with a time series of their own. Clients choose the reasons of aborts freely, so rarer ones are
counted as `other`."""

OTHER = "other"

Labels = Mapping[tuple[str, ...], float]

_RESPONSES = {
    200: {
        "description": "Prometheus' text format, or OpenMetrics if the header `Accept` asks for it.",
        "content": {"text/plain": {"schema": {"type": "string"}, "example": "swarm_step 12.0\n"}},
    },
    **errors(507),
}


@dataclass(frozen=True, slots=True)
class Scrape:
    """The data of one scrape.

    `episodes` counts the episodes of the present job by state and outcome. The outcome is "" where there is none.
    """

    status: Status
    episodes: Mapping[tuple[str, str], int]
    tokens_sampled: int
    commits: CommitCount
    watchers: int
    traffic: Traffic


def add_prometheus_route(
    router: APIRouter, control: Control, served: Served, ledger: Ledger, events: EventStreams, traffic: Traffic
) -> None:
    @router.get("/metrics", summary="State and traffic for Prometheus", response_class=Response, responses=_RESPONSES)
    async def scrape(request: Request) -> Response:
        service = served()
        snapshot = Scrape(
            status=await control.status(),
            episodes=await ledger.episode_counts(),
            tokens_sampled=0 if service is None else service.tokens_sampled,
            commits=ledger.commits,
            watchers=events.watchers,
            traffic=traffic,
        )
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry_of(snapshot)), headers={"content-type": content_type})


def registry_of(snapshot: Scrape) -> CollectorRegistry:
    """Return a registry with the metrics of this snapshot and of the process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Snapshots(snapshot))
    return registry


class _Snapshots(Collector):
    def __init__(self, snapshot: Scrape) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from _engine(self._snapshot.status)
        yield from _clients(self._snapshot.status)
        watchers = {(): float(self._snapshot.watchers)}
        yield _gauge("swarm_event_watchers", "Open streams of events", (), watchers)
        if self._snapshot.status.pool is not None:
            yield from _pool(self._snapshot.status.pool)
        counts = {key: float(count) for key, count in _bounded(self._snapshot.episodes).items()}
        yield _gauge("swarm_episodes", "Episodes of the job by state and outcome", ("state", "outcome"), counts)
        sampled = self._snapshot.tokens_sampled
        yield CounterMetricFamily("swarm_sampled_tokens", "Tokens sampled since the engine was started", value=sampled)
        yield from _ledger(self._snapshot.commits)
        yield _requests(self._snapshot.traffic)


def _engine(status: Status) -> Iterator[Metric]:
    info = {(status.server_version, status.model or "", status.project_name or "", status.experiment_name or ""): 1.0}
    yield _gauge("swarm_info", "Version, model and job", ("version", "model", "project", "experiment"), info)
    states = {(state.value,): float(state is status.state) for state in EngineState}
    yield _gauge("swarm_engine_state", "1 for the state the engine is in", ("state",), states)
    yield _gauge("swarm_start_time_seconds", "When the server started, since the epoch", (), {(): status.started_at})
    yield _gauge("swarm_step", "Finished training steps of the job", (), {(): float(status.step)})
    yield _gauge("swarm_weight_version", "Version of the weights served", (), {(): float(status.weight_version)})
    yield _gauge("swarm_recoveries", "Crashes that this job recovered from", (), {(): float(status.recoveries)})
    rate = {(): status.tokens_per_second}
    yield _gauge("swarm_tokens_per_second", "Tokens sampled per second over the last seconds", (), rate)
    oddities = {(kind,): float(count) for kind, count in status.calls.items()}
    yield _gauge("swarm_calls", "Model calls joined, replayed, orphaned or withheld", ("kind",), oddities)
    ignored = {(name,): float(count) for name, count in status.ignored_fields.items()}
    yield _gauge("swarm_ignored_fields", "Fields of model calls that had no effect", ("field",), ignored)
    metrics = {(name,): value for name, value in status.last_metrics.items()}
    yield _gauge("swarm_training_metric", "Metrics of the last finished step, by name", ("name",), metrics)
    is_due = {(): float(status.evaluation is not None)}
    yield _gauge("swarm_evaluation_open", "1 while an evaluation is due or running", (), is_due)
    if (score := status.last_evaluation) is not None and score.mean is not None:
        yield _gauge("swarm_evaluation_mean", "The newest held-out score", (), {(): score.mean})
        yield _gauge("swarm_evaluation_step", "The step whose weights got that score", (), {(): float(score.step)})


def _clients(status: Status) -> Iterator[Metric]:
    yield _gauge("swarm_clients", "Clients that called recently", (), {(): float(len(status.clients))})
    warnings: dict[tuple[str, ...], float] = {}
    for warning in status.warnings:
        warnings[warning.code,] = warnings.get((warning.code,), 0.0) + warning.count
    yield _gauge("swarm_client_warnings", "Warnings about probable mistakes of clients", ("code",), warnings)


def _pool(pool: PoolView) -> Iterator[Metric]:
    running = {("train",): float(pool.running_train), ("eval",): float(pool.running_eval)}
    yield _gauge("swarm_running_episodes", "Episodes between begin and end", ("type",), running)
    yield _gauge("swarm_waiting_begins", "Calls that wait to begin an episode", (), {(): float(pool.waiting_begins)})
    for unit, collected, target in (
        ("episodes", pool.episodes, pool.episodes_target),
        ("tasks", pool.tasks, pool.tasks_target),
    ):
        yield _gauge(f"swarm_pool_{unit}", f"The next batch: {unit} collected so far", (), {(): float(collected)})
        yield _gauge(f"swarm_pool_{unit}_target", f"The next batch: {unit} it needs", (), {(): float(target)})
    sources = pool.sources.items()
    of_source = ("source",)
    for name, text, values in (
        ("episodes", "episodes collected so far", {(key,): float(source.episodes) for key, source in sources}),
        ("tasks", "tasks collected so far", {(key,): float(source.tasks) for key, source in sources}),
        ("running", "episodes that run for it", {(key,): float(source.running) for key, source in sources}),
        (
            "tasks_target",
            "its quota of tasks",
            {(key,): float(source.tasks_target) for key, source in sources if source.tasks_target is not None},
        ),
    ):
        yield _gauge(f"swarm_source_{name}", f"The next batch, by data source: {text}", of_source, values)


def _ledger(commits: CommitCount) -> Iterator[Metric]:
    yield CounterMetricFamily("swarm_ledger_commits", "Transactions committed to the ledger", value=commits.commits)
    yield CounterMetricFamily("swarm_ledger_writes", "Writes in the committed transactions", value=commits.writes)
    yield CounterMetricFamily("swarm_ledger_commit_seconds", "Seconds that the commits took", value=commits.seconds)


def _requests(traffic: Traffic) -> Metric:
    family = HistogramMetricFamily(
        "swarm_http_request_duration_seconds",
        "Seconds from the head of a request to the end of its answer",
        labels=("method", "route", "status"),
    )
    for labels, latencies in traffic.latencies.items():
        buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in latencies.cumulative()]
        family.add_metric(labels, buckets=buckets, sum_value=latencies.total_s)
    return family


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Labels) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _bounded(counts: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    by_frequency = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    bounded = dict(by_frequency[:MAX_OUTCOMES])
    for (state, _), count in by_frequency[MAX_OUTCOMES:]:
        bounded[state, OTHER] = bounded.get((state, OTHER), 0) + count
    return bounded
