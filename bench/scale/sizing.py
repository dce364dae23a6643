"""The size of a cluster for a number of clients and a kind of workload.

Place in the flow: proposes a `Setup` for the benchmark, which has the simulation say what becomes of it. The hardware
is an example; its figures are the first thing to replace with one's own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bench.scale.setup import Batching, Cluster, Setup, Workload

WORKLOADS = {
    "math": Workload(turns=1, turn_tokens=2_000, read_tokens=200, tool_s=0.5, length_sigma=0.5),
    "tools": Workload(turns=6, turn_tokens=500, read_tokens=400, tool_s=4.0, length_sigma=0.5),
    "coding": Workload(turns=40, turn_tokens=250, read_tokens=600, tool_s=8.0, length_sigma=0.5),
}
"""One long answer; a few calls of quick tools; a long session with slow tools. Groups of 512 tasks vary like that: the
longest of 512 episodes is four times the mean."""

EXAMPLE = Cluster(
    replicas=8,
    token_s=0.015,
    token_per_request_s=0.0002,
    max_num_seqs=256,
    ranks=8,
    rank_tokens_per_s=5_000,
    step_overhead_s=10.0,
    publish_s=3.0,
    gateway_call_s=0.0012,
    gateway_token_s=24e-6,
)
"""One GPU each, of a model of some 7 B parameters: 65 tokens/s for one request, 3,900 for 256; 5,000 trained tokens/s
per rank. Assumed, but for the gateway's times, which were measured (one core of a 2-core server)."""

NUM_REPEAT = 8
MAX_STALENESS = 4
"""Also the default of SkyRL and ART; AReaL names 2 to 8, verl and prime-rl take 8."""
RUNNING_BATCHES = 1.5
"""How many batches of episodes run at once. Up to 1.9 would; the rest of the batches that may be begun is in training,
waits for its groups or for its batch to close."""
PACE = 0.85
"""Of the trainer's time, how much is to be used: at 1, finished episodes wait for it and are staler than need be."""
SLOWDOWN = 2.0
"""How many times as long a token may take on a shared replica as alone."""


def propose(workload: Workload, clients: int) -> Setup:
    """Return a batch, replicas and trainer ranks for so many clients, bounded-asynchronous.

    The batch is such that all clients have something to do. A replica serves as many requests as slow each one down by
    `SLOWDOWN`; how many are open at once follows from the share of an episode that is sampling. Ranks are as many as
    keep pace with what the clients or, if it is slower, the gateway gives.
    """
    batching = Batching(max(1, math.ceil(clients / (RUNNING_BATCHES * NUM_REPEAT))), NUM_REPEAT, MAX_STALENESS)
    each = (SLOWDOWN - 1) * EXAMPLE.token_s / EXAMPLE.token_per_request_s
    sampling_s = SLOWDOWN * EXAMPLE.token_s * workload.turn_tokens
    replicas = max(1, math.ceil(clients * sampling_s / (sampling_s + workload.tool_s) / each))
    gateway_s = EXAMPLE.gateway_s(workload.turn_tokens)
    turns_per_s = min(clients / (workload.tool_s + gateway_s + sampling_s), 1 / gateway_s)
    step_s = batching.episodes * workload.turns / turns_per_s
    tokens_per_s = batching.episodes * workload.trained_tokens / (PACE * step_s - EXAMPLE.step_overhead_s)
    ranks = math.ceil(tokens_per_s / EXAMPLE.rank_tokens_per_s)
    return Setup(workload, replace(EXAMPLE, replicas=replicas, ranks=ranks), batching, clients)
