"""Utilisation and staleness by formula: a closed queueing network of clients, and the cycle of a batch around it.

Place in the flow: takes a `Setup`, gives an `Outcome` in milliseconds, for sizing. What it leaves out is what
simulation.py has: chance in the order of events, groups that hold one another up.

Rollout. Clients, tools and samplers are a closed network with a delay and a load-dependent station, which has a product
form whatever the distribution of lengths is (F. Baskett, K. Chandy, R. Muntz, F. Palacios, "Open, Closed, and Mixed
Networks of Queues with Different Classes of Customers", 1975). Waiting at the gateway is that of M/G/1 (Pollaczek and
Khinchine). Durations of episodes are lognormal, scaled by the load; the last of a batch or a group is an order
statistic of them, and what remains of an episode seen in progress follows its equilibrium distribution (D. Cox,
"Renewal Theory", 1962).

Training. A synchronous step is rollout, training, publication, one after the other. With stale tokens allowed the
slower of rollout and training sets the pace, within the room that clients have. Bounded-asynchronous training in this
sense is that of W. Fu et al., "AReaL", 2025 (arXiv 2505.24298), section 5.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bench.scale.setup import Outcome, Setup

Floats = NDArray[np.float64]

GRID = 2_000
TAIL = 7.0
"""The grid of lengths ends so many standard deviations out, beyond the longest of a million episodes."""
LOADS = 48
"""Numbers of running episodes at which the network is solved; between them, throughput is interpolated."""
BUSIEST = 0.99
"""Load of the gateway beyond which waiting is not followed: the clients wait for it then, and are no Poisson stream."""
GATEWAY_ROUNDS = 30
ROUNDS = 400
DAMPING = 0.2
HALVINGS = 30
PHASES = tuple((index + 0.5) / 8 for index in range(8))
"""Of a step, evenly spread."""
RARE = 1_000
"""The maximum of staleness is that of the longest of so many episodes."""


class Lengths:
    """The lognormal factor of an episode's length, of mean 1, on a grid; `sigma` is that of its logarithm."""

    def __init__(self, sigma: float) -> None:
        spread = max(sigma, 1e-3)
        deviations = np.linspace(-TAIL, TAIL, GRID)
        self.at: Floats = np.exp(spread * deviations - spread**2 / 2)
        self.share_below: Floats = np.array([0.5 * (1 + math.erf(each / math.sqrt(2))) for each in deviations])

    def below(self, length: float) -> float:
        return float(np.interp(length, self.at, self.share_below, left=0.0, right=1.0))

    def longest(self, number: float) -> float:
        """Mean of the longest of so many: the integral of the probability that one is longer."""
        return float(self.at[0]) + _integral(1 - self.share_below**number, self.at)

    @cached_property
    def remaining_below(self) -> Floats:
        """The mean of what is left of episodes that are found in progress."""
        steps = np.diff(self.at) * (1 - (self.share_below[1:] + self.share_below[:-1]) / 2)
        share = self.at[0] + np.concatenate(([0.0], np.cumsum(steps)))
        return np.minimum(1.0, share / share[-1])


class Rollout:
    """The rollout side of a setup: how fast so many running episodes go."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.lengths = Lengths(setup.workload.length_sigma)
        self._gateway_s = setup.cluster.gateway_s(setup.workload.turn_tokens)
        self._loads: Floats = np.unique(np.round(np.geomspace(1, setup.clients, LOADS))).astype(np.float64)
        self._rates: Floats = np.array([self._solve(int(load)) for load in self._loads])

    def rate(self, running: float) -> float:
        """Episodes per second that end while so many run."""
        if running < 1:
            return running * float(self._rates[0])
        return float(np.interp(running, self._loads, self._rates))

    def running(self, episodes_per_s: float) -> float:
        """How many have to run for so many to end per second; infinite if no number does."""
        return float(np.interp(episodes_per_s, self._rates, self._loads, left=1.0, right=math.inf))

    def duration_s(self, running: float) -> float:
        """The seconds that a mean episode takes, by Little's law."""
        return max(running, 1.0) / self.rate(max(running, 1.0))

    def gateway_wait_s(self, episodes_per_s: float) -> float:
        """Mean wait of a call in M/G/1: calls/s E[S^2] / (2 (1 - calls/s E[S])) for a service time S."""
        calls_per_s = episodes_per_s * self._setup.workload.turns
        by_call, by_tokens = self._setup.cluster.gateway_call_s, self._gateway_s - self._setup.cluster.gateway_call_s
        # The square of the lognormal factor has the mean exp(sigma^2).
        square = by_call**2 + 2 * by_call * by_tokens + by_tokens**2 * math.exp(self._setup.workload.length_sigma**2)
        return calls_per_s * square / (2 * (1 - min(BUSIEST, calls_per_s * self._gateway_s)))

    def makespan_s(self, episodes: float) -> tuple[float, float]:
        """Seconds from the first begin to the last end of so many episodes, and how many of them a load that is even
        to the end would save.

        While clients have a next episode they all run. The last one begins when the others are in progress, or, with
        less than two rounds, partly as new as it is. Then they run out: with fewer left, work goes faster.
        """
        running = min(float(self._setup.clients), episodes)
        fresh = max(0.0, 2 - episodes / running)
        ended = self.lengths.share_below
        others = fresh * ended + (1 - fresh) * self.lengths.remaining_below
        left = np.maximum(1.0, (1 - ended) + (running - 1) * (1 - others))
        paces = np.array([self.duration_s(float(each)) for each in left])
        is_any_left = 1 - ended * others ** (running - 1)
        drain = _integral(is_any_left * paces, self.lengths.at) + float(self.lengths.at[0] * paces[0])
        whole = (episodes - running) / self.rate(running) + drain
        return whole, max(0.0, whole - episodes / self.rate(running))

    def _solve(self, running: int) -> float:
        """Throughput of the closed network with so many episodes, its gateway at most busy all the time."""
        workload = self._setup.workload
        if not self._gateway_s:
            return self._turns_per_s(running, workload.tool_s) / workload.turns
        most = rate = 1 / (self._gateway_s * workload.turns)
        for _ in range(GATEWAY_ROUNDS):
            outside_s = workload.tool_s + self._gateway_s + self.gateway_wait_s(rate)
            rate = (rate + min(most, self._turns_per_s(running, outside_s) / workload.turns)) / 2
        return rate

    def _turns_per_s(self, running: int, outside_s: float) -> float:
        """Product form: p(k at the samplers) is proportional to outside_s^(n-k)/(n-k)! times the product over j <= k of
        tokens / speed(j)."""
        tokens, cluster = self._setup.workload.turn_tokens, self._setup.cluster
        counts = np.arange(running + 1, dtype=np.float64)
        each = counts[1:] / cluster.replicas
        served = np.minimum(each, cluster.max_num_seqs)
        step_s = cluster.token_s + cluster.token_per_request_s * np.maximum(1.0, served)
        speeds = cluster.replicas * served / step_s
        if outside_s <= 0:
            return float(speeds[-1]) / tokens
        log_factorials = np.concatenate(([0.0], np.cumsum(np.log(counts[1:]))))
        log_inside = np.concatenate(([0.0], np.cumsum(np.log(tokens / speeds))))
        logs = (running - counts) * math.log(outside_s) - log_factorials[::-1] + log_inside
        shares = np.exp(logs - logs.max())
        return float((shares[1:] * speeds).sum() / shares.sum()) / tokens


def predict(setup: Setup) -> Outcome:
    """The outcome in the long run."""
    rollout = Rollout(setup)
    return _stream(setup, rollout) if setup.batching.max_staleness else _batch_by_batch(setup, rollout)


def _batch_by_batch(setup: Setup, rollout: Rollout) -> Outcome:
    """A batch is begun when the one before is trained."""
    cluster = setup.cluster
    episodes = float(setup.batching.episodes)
    generation, lost = rollout.makespan_s(episodes)
    training = cluster.train_s(episodes * setup.workload.trained_tokens)
    step = generation + training + cluster.publish_s
    return _outcome(setup, rollout, step, episodes, training, straggling=lost / step)


def _stream(setup: Setup, rollout: Rollout) -> Outcome:
    """Episodes flow on while batches are trained: a fixed point of step time, batch and running episodes, damped."""
    flow = _Flow(setup, rollout)
    for _ in range(ROUNDS):
        flow.improve()
    return _outcome(
        setup,
        rollout,
        flow.step_s,
        flow.batch,
        flow.training_s,
        staleness=flow.staleness(),
        dropped=1 - flow.in_time,
        running=flow.running,
    )


class _Flow:
    """A guess at the steady state, which `improve` brings nearer to one that agrees with itself.

    `in_time` is the share of episodes that end before they are stale. A batch is so many groups, each with those of its
    episodes that do. `ready` are episodes of full groups that wait
    for their turn because the trainer is the slower side.
    """

    def __init__(self, setup: Setup, rollout: Rollout) -> None:
        self._setup, self._rollout = setup, rollout
        self._longest = rollout.lengths.longest(setup.batching.num_repeat)
        self.batch = float(setup.batching.episodes)
        self.running = min(float(setup.clients), setup.batching.room())
        self.ready = 0.0
        self.step_s = rollout.duration_s(self.running)
        self.in_time = 1.0

    @property
    def training_s(self) -> float:
        return self._setup.cluster.train_s(self.batch * self._setup.workload.trained_tokens)

    @property
    def cycle_s(self) -> float:
        """From the seal of a batch until its weights are served."""
        return self.training_s + self._setup.cluster.publish_s

    @property
    def held(self) -> float:
        """How far clients are held back: 1 if all begins come in a burst with each publication, 0 if none does."""
        return min(1.0, (self._setup.clients - self.running) / (self.batch / 2))

    @property
    def rate(self) -> float:
        """Episodes per second that end. Samplers stand still for part of each step.

        A burst of begins dies away until the next one: the mean by Simpson's rule.
        """
        swing = min(self.running, self._setup.clients - self.running, self.batch / 2)
        at = (self.running - swing, self.running, self.running + swing)
        mean = sum(weight * self._rollout.rate(each) for weight, each in zip((1, 4, 1), at, strict=True)) / 6
        return mean * max(0.1, 1 - self._setup.cluster.publish_s / self.step_s)

    def improve(self) -> None:
        batching, rate = self._setup.batching, self.rate
        duration_s = self.running / rate
        self.in_time = max(1e-3, self._in_time(duration_s))
        batch = batching.episodes * self.in_time
        step_s = max(batch / (rate * self.in_time), self.cycle_s)
        room = batching.room(min(1.0, self.cycle_s / self.step_s))
        waiting = rate * (self._longest - 1) * duration_s + self.batch / 2
        allowed = max(1.0, room - waiting)
        # Where more end than are trained, what is ready grows until no more may run than the trainer can take.
        needed = batch / (self.in_time * self.cycle_s)
        enough = self._rollout.running(self._rollout.rate(self.running) * needed / rate)
        running = min(float(self._setup.clients), allowed, enough)
        ready = max(0.0, allowed - enough) if enough < self._setup.clients else 0.0
        self.ready += DAMPING * (ready - self.ready)
        self.step_s += DAMPING * (step_s - self.step_s)
        self.batch += DAMPING * (batch - self.batch)
        self.running += DAMPING * (running - self.running)

    def _in_time(self, duration_s: float) -> float:
        """Older than the bound is an episode that is sealed so long after the weights of its first token came out."""
        oldest_s = (self._setup.batching.max_staleness + 1) * self.step_s - self.cycle_s
        tool_s = self._setup.workload.tool_s
        first_s = tool_s % self.step_s
        below = self._rollout.lengths.below
        in_burst = below((oldest_s + tool_s - first_s) / duration_s)
        sampling_s = max(1e-9, duration_s - tool_s)
        spread = sum(below((oldest_s - phase * self.step_s) / sampling_s) for phase in PHASES) / len(PHASES)
        return self.held * in_burst + (1 - self.held) * spread

    def staleness(self) -> tuple[float, float]:
        """Mean and maximum over trained episodes.

        An episode that is sealed L seconds after its begin, which came at a phase U of a step, has seen
        floor((L + cycle) / step + U) publications before the one of its own batch, less those before its first token.
        Its group ends with the longest of it. U is 0 in a burst, else uniform.
        """
        repeat, bound = self._setup.batching.num_repeat, self._setup.batching.max_staleness
        lengths, duration_s, tool_s = self._rollout.lengths, self.running / self.rate, self._setup.workload.tool_s
        further_s = ((1 - self.held) * (repeat - 1) / 2 + self.ready) / self.rate + self.cycle_s
        weights = np.diff(lengths.share_below**repeat, prepend=0.0)
        ends = (lengths.at * duration_s + further_s) / self.step_s
        in_burst = np.ceil(ends) - 1 - math.floor(tool_s / self.step_s)
        # The mean of floor(x + U) is x.
        spread = ends - tool_s / self.step_s
        mean = self.held * np.clip(in_burst, 0, bound) + (1 - self.held) * np.clip(spread, 0, bound)
        oldest = (lengths.longest(RARE) * duration_s + further_s) / self.step_s
        return float((weights * mean).sum()), float(min(bound, math.ceil(oldest)))


def _integral(values: Floats, at: Floats) -> float:
    return float((np.diff(at) * (values[1:] + values[:-1])).sum() / 2)


def _outcome(
    setup: Setup,
    rollout: Rollout,
    step: float,
    batch: float,
    training: float,
    *,
    straggling: float = 0.0,
    staleness: tuple[float, float] = (0.0, 0.0),
    dropped: float = 0.0,
    running: float | None = None,
) -> Outcome:
    begun = batch / max(1e-9, 1 - dropped)
    return Outcome(
        step_s=step,
        episodes_per_s=batch / step,
        batch_episodes=batch,
        trainer_utilization=training / step,
        sampler_utilization=begun * setup.workload.sampled_tokens / step / setup.cluster.peak_tokens_per_s,
        staleness_mean=staleness[0],
        staleness_max=staleness[1],
        straggler_share=straggling,
        dropped_share=dropped,
        gateway_s=rollout.gateway_wait_s(begun / step) + setup.cluster.gateway_s(setup.workload.turn_tokens),
        running=running if running is not None else begun / step * rollout.duration_s(min(setup.clients, batch)),
    )
