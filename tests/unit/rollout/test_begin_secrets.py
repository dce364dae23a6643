"""A begin whose answer was lost is sent again, and is the same episode: no orphan holds a place in its group."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rollout_support import Stage, rolling

from swarm.errors import EpisodeEnded, IdempotencyMismatch
from swarm.types import EpisodeType

pytestmark = pytest.mark.anyio

SECRET = "s" * 32


def begin_of(**changes: Any) -> dict[str, Any]:
    return {"begin_secret": SECRET, "client_id": "laptop", "task_id": "t", **changes}


async def test_the_same_begin_again_is_the_same_episode_also_after_a_restart_of_the_server(tmp_path: Path) -> None:
    async with rolling(tmp_path, num_repeat=2, batch_size=1) as stage:
        first, again = await stage.begin(**begin_of()), await stage.begin(**begin_of())
        assert (again.episode_id, again.api_key) == (first.episode_id, first.api_key)
        assert stage.pool.running == {"default": 1}
        assert SECRET not in first.api_key
    async with rolling(tmp_path, num_repeat=2, batch_size=1) as stage:
        restored = await stage.begin(**begin_of())
        assert (restored.episode_id, restored.api_key) == (first.episode_id, first.api_key)
        other = await stage.begin(**begin_of(begin_secret="o" * 32))
        assert other.episode_id != first.episode_id
        assert stage.pool.running == {"default": 2}
        # The group of the task is whole: the orphan of a lost answer would have opened a second one.
        assert len({id(each) for each in stage.pool._groups}) == 1
        await stage.call(restored)


async def test_two_of_the_same_begin_at_once_are_one_episode_and_leave_one_place_taken(tmp_path: Path) -> None:
    async with rolling(tmp_path, batch_size=1, num_repeat=2) as stage:
        before = [await stage.begin(task_id="t", client_id="desk") for _ in range(2)]
        waiting = [await stage.begin_waiting(**begin_of()) for _ in range(2)]
        for each in before:
            await stage.episodes.abort(each.episode_id, "gone")
        begun = await asyncio.gather(*waiting)
        assert len({each.episode_id for each in begun}) == 1
        assert stage.pool.running == {"default": 1}
        # Its place is free for the other repeat.
        await stage.begin(task_id="t", client_id="laptop")


async def test_a_secret_of_an_episode_that_is_over_or_another_is_refused(stage: Stage) -> None:
    begun = await stage.begin(**begin_of())
    for change in ({"client_id": "desk"}, {"task_id": "u"}, {"data_source": "math"}, {"episode_type": "eval"}):
        with pytest.raises(IdempotencyMismatch, match="draw one for each episode"):
            await stage.begin(**begin_of(**change))
    await stage.episodes.abort(begun.episode_id, "gone")
    with pytest.raises(EpisodeEnded, match=r"is over \(gone\): draw another one"):
        await stage.begin(**begin_of())
    assert stage.pool.running.total() == 0  # type: ignore[attr-defined]
    assert stage.episodes._admission.running(EpisodeType.TRAIN) == 0
