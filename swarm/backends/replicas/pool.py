"""All replicas of one sampler: started together, restarted one by one, given weights at once, chosen from."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from swarm.backends.replicas.adapter import ReplicaPlan, WeightBroadcast, WeightFile, WeightSource
from swarm.backends.replicas.replica import Replica, ReplicaState
from swarm.backends.waits import together
from swarm.errors import EngineFailure, SwarmError
from swarm.sampler import EngineLost

BLOCK_TOKENS: Final = 64
"""Shorter beginnings are computed so fast that routing by them is not worth it."""
KEPT_BLOCKS: Final = 200_000
"""Some 20 MB: a few thousand episodes of several thousand tokens."""
SPILL_SHARE: Final = 0.25
SPILL_LEAST: Final = 4


class PrefixRouter:
    """Record of the replicas whose caches have the beginnings of sequences."""

    def __init__(self, max_num_seqs: int) -> None:
        """Set the limit on imbalance.

        A replica is passed over if it has more requests than another by a fixed share of `max_num_seqs`.
        """
        self._spill = max(SPILL_LEAST, int(max_num_seqs * SPILL_SHARE))
        self._owners: OrderedDict[int, int] = OrderedDict()

    def choose(self, prompt_ids: Sequence[int], loads: Mapping[int, int]) -> int:
        """Return one of the keys of `loads`, which maps each serving replica to its number of requests."""
        least = min(loads, key=lambda replica: (loads[replica], replica))
        known = self._longest(prompt_ids)
        if known is None or known not in loads or loads[known] - loads[least] >= self._spill:
            return least
        return known

    def remember(self, replica: int, token_ids: Sequence[int]) -> None:
        """Record that these tokens are in the cache of `replica` now."""
        for block in _blocks(token_ids):
            self._owners[block] = replica
            self._owners.move_to_end(block)
        while len(self._owners) > KEPT_BLOCKS:
            self._owners.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Record that the cache of `replica` is gone."""
        self._owners = OrderedDict((block, owner) for block, owner in self._owners.items() if owner != replica)

    def _longest(self, prompt_ids: Sequence[int]) -> int | None:
        found: int | None = None
        for block in _blocks(prompt_ids):
            owner = self._owners.get(block)
            if owner is None:
                break
            found = owner
        return found


def _blocks(token_ids: Sequence[int]) -> list[int]:
    """Return one number per full block, which depends on all tokens up to the end of the block."""
    numbers: list[int] = []
    before = 0
    for end in range(BLOCK_TOKENS, len(token_ids) + 1, BLOCK_TOKENS):
        before = hash((before, tuple(token_ids[end - BLOCK_TOKENS : end])))
        numbers.append(before)
    return numbers


logger = logging.getLogger(__name__)

MOST_DEATHS: Final = 3
"""A replica that dies this often, without new weights or a healthy period in between, has a permanent fault."""
SEEDS: Final = 2**31
NEXT_TRY_S: Final = 0.5


class ReplicaPool:
    """Pool of replicas. Used from one asyncio event loop, from `start` to `stop`, once."""

    def __init__(self, plan: ReplicaPlan, sampling_seed: Sequence[int]) -> None:
        """Create the pool of a plan.

        Seeds of unseeded requests derive from `sampling_seed`, the number of the replica, and its number of starts.
        """
        self.lost = asyncio.Event()
        self._plan = plan
        self._router = PrefixRouter(plan.settings.max_num_seqs)
        self._seeds = random.Random(f"sampler {list(sampling_seed)}")
        self._reason = ""
        self._source: WeightSource | None = None
        self._stopped = False
        self._publishing = asyncio.Lock()
        self._awake = asyncio.Event()
        self._awake.set()
        self._change = asyncio.Event()
        self._replicas = [Replica(index, plan, self.notify) for index in range(plan.settings.layout.replicas)]
        self._deaths = [0] * len(self._replicas)
        self._fresh_since = [0.0] * len(self._replicas)
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def replicas(self) -> Sequence[Replica]:
        return self._replicas

    @property
    def reason(self) -> str:
        """Reason why no replica is left, once `lost` is set."""
        return self._reason

    @property
    def all_serve(self) -> bool:
        return all(replica.state is ReplicaState.SERVING for replica in self._replicas)

    async def start(self) -> None:
        """Start all replicas. After an error no replica is left.

        Raise EngineFailure if the sampler cannot run, and EngineLost if a replica keeps dying.
        """
        try:
            await together(self._bring_up(replica) for replica in self._replicas)
        except BaseException:
            await self.stop()
            raise
        self._keepers = [
            asyncio.create_task(self._keep(replica), name=f"keeper of {replica.label}") for replica in self._replicas
        ]

    async def stop(self) -> None:
        """End all replicas and wait for their end. Idempotent."""
        self._stopped = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(replica.end("the engine was stopped", in_order=True) for replica in self._replicas))
        self.notify()

    def choose(self, prompt_ids: Sequence[int]) -> Replica | None:
        """Return a replica for this prompt, or None while none serves. Raise EngineLost if none ever will."""
        if self.lost.is_set():
            raise EngineLost(self._reason)
        serving = (each for each in self._replicas if each.state is ReplicaState.SERVING and not each.in_doubt)
        loads = {each.index: each.load for each in serving}
        return self._replicas[self._router.choose(prompt_ids, loads)] if loads else None

    async def change(self) -> None:
        """Wait until the state of a replica changes, or `notify` is called.

        There is no timeout here: the operations of replicas have their own.
        """
        await self._change.wait()

    def remember(self, replica: int, token_ids: Sequence[int]) -> None:
        """Record that these tokens are now in the cache of this replica."""
        self._router.remember(replica, token_ids)

    async def publish(self, source: WeightSource) -> None:
        """Make every replica sample with `source`. A replica that cannot load it is restarted with it.

        Return as soon as all serving replicas have it, at least one. Raise EngineLost if none is left.
        """
        async with self._publishing:
            if isinstance(source, WeightBroadcast):
                await self._publish_broadcast(source)
                return
            self._source = source
            await asyncio.gather(*(self._update(each) for each in self._replicas if _has_process(each)))
            await self._until_served(source.version)

    async def rebase(self) -> None:
        """Make every replica sample with the model's own weights again, version 0. Raise EngineLost."""
        async with self._publishing:
            self._source = None
            await asyncio.gather(*(self._update(each) for each in self._replicas if _has_process(each)))
            await self._until_served(0)

    async def suspend(self) -> None:
        """Give the devices back until `resume`; requests wait. Raise EngineFailure if this sampler cannot sleep."""
        async with self._publishing:
            self._awake.clear()
            await asyncio.gather(*(self._rest(each) for each in self._replicas if each.state is ReplicaState.SERVING))

    async def resume(self) -> None:
        """Take the devices again, and restart replicas that do not wake. Raise EngineLost if none is left."""
        async with self._publishing:
            self._awake.set()
            await asyncio.gather(*(self._wake(each) for each in self._replicas if each.state is ReplicaState.ASLEEP))
            await self._until_served(None)

    async def _bring_up(self, replica: Replica) -> None:
        """Start a replica with the current weights. Raise EngineFailure, EngineLost."""
        while True:
            try:
                await replica.boot(self._seeds.randrange(SEEDS))
                await self._catch_up(replica)
                return
            except EngineLost as error:
                await replica.end(error.message)
                if not self._count_death(replica, error.message):
                    raise
                await asyncio.sleep(NEXT_TRY_S)

    async def _catch_up(self, replica: Replica) -> None:
        """Give a booted replica the current weights, however often they change meanwhile; then it serves."""
        while isinstance(source := self._source, WeightFile):
            try:
                await replica.take(source)
            except SwarmError as error:
                if source is not self._source:
                    # A newer file has replaced this one, and a half-loaded replica cannot be used.
                    raise EngineLost(f"the weights changed while it took them: {error.message}") from error
                raise
            if source is self._source:
                break
        self._fresh_since[replica.index] = time.monotonic()
        waits = isinstance(self._source, WeightBroadcast)
        replica.move(ReplicaState.IDLE if waits else ReplicaState.SERVING)

    async def _keep(self, replica: Replica) -> None:
        while True:
            reason = await replica.until_broken()
            logger.error("%s is started again: %s", replica.label, reason)
            self._router.forget(replica.index)
            await replica.end(reason)
            if not self._count_death(replica, reason):
                self._give_up(replica, reason)
                return
            # The trainer uses the devices while the sampler sleeps.
            await self._awake.wait()
            try:
                await self._bring_up(replica)
            except SwarmError as error:
                await replica.end(error.message)
                self._give_up(replica, error.message)
                return

    def _count_death(self, replica: Replica, reason: str) -> bool:
        """Count a death, and return whether another start is worthwhile."""
        number = replica.index
        fresh = self._fresh_since[number]
        is_healthy = bool(fresh) and time.monotonic() - fresh > self._plan.limits.healthy_s
        self._deaths[number] = 1 if is_healthy else self._deaths[number] + 1
        logger.info("death %d of %s: %s", self._deaths[number], replica.label, reason)
        return self._deaths[number] < MOST_DEATHS

    def _give_up(self, replica: Replica, reason: str) -> None:
        logger.error("%s is given up: %s", replica.label, reason)
        replica.move(ReplicaState.GIVEN_UP)
        if all(each.state in {ReplicaState.GIVEN_UP, ReplicaState.IDLE} for each in self._replicas):
            self._reason = f"no {self._plan.adapter.name} replica is left; the last one: {reason}"
            self.lost.set()
        self.notify()

    async def _update(self, replica: Replica) -> None:
        """Give a serving replica the current weights, or condemn it. A starting replica loads them before it serves."""
        source = self._source
        try:
            await (replica.take_base() if source is None else replica.take(source))
        except SwarmError as error:
            replica.condemn(f"it did not take weight version {source.version if source else 0}: {error.message}")
            replica.move(ReplicaState.ENDED)
            return
        self._deaths[replica.index] = 0
        self._router.forget(replica.index)

    async def _publish_broadcast(self, source: WeightBroadcast) -> None:
        """Broadcast weights to all replicas at once; a missing replica delays all, so it is waited for."""
        async with asyncio.timeout(self._plan.limits.boot_timeout_s):
            while any(each.state not in {ReplicaState.SERVING, ReplicaState.IDLE} for each in self._replicas):
                self._raise_if_over()
                await self.change()
        self._source = source
        await asyncio.gather(*(self._update(each) for each in self._replicas))
        if not all(each.version == source.version for each in self._replicas):
            raise EngineLost(f"weight version {source.version} did not reach every replica")
        for replica in self._replicas:
            replica.move(ReplicaState.SERVING)

    async def _rest(self, replica: Replica) -> None:
        try:
            await replica.rest()
        except EngineLost as error:
            # Its end frees the devices as well; it starts again when the trainer is done.
            replica.condemn(f"it did not go to sleep: {error.message}")
            await replica.end(error.message)

    async def _wake(self, replica: Replica) -> None:
        try:
            await replica.wake()
        except SwarmError as error:
            replica.condemn(f"it did not wake up: {error.message}")

    async def _until_served(self, version: int | None) -> None:
        """Wait until some replica serves, and every serving one has `version`. Starts have their own limits."""
        while True:
            self._raise_if_over()
            serving = [each for each in self._replicas if each.state is ReplicaState.SERVING]
            if serving and (version is None or all(each.version == version for each in serving)):
                return
            await self.change()

    def _raise_if_over(self) -> None:
        if self.lost.is_set():
            raise EngineLost(self._reason)
        if self._stopped:
            raise EngineFailure("the engine was stopped")

    def notify(self) -> None:
        """Wake the tasks that wait for a change."""
        self._change.set()
        self._change = asyncio.Event()


def _has_process(replica: Replica) -> bool:
    """Return whether a replica serves, or waits for weights. A sleeping replica must be woken first."""
    return replica.state in {ReplicaState.SERVING, ReplicaState.IDLE}
