"""Which checkpoints a run leaves: what its job keeps, what was asked for, and no recovery copy more than is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarm.errors import JobInvalid
from swarm.job import TrainJob, build_job
from swarm.schemas import EngineState

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]

JOB = TrainJob(engine="fake", batch_size=1, num_repeat=2, drain_timeout_s=1)


def left(home: Path, kind: str, number: int = 1) -> list[str]:
    folder = home / "home" / "swarm" / "default" / f"run-{number:04d}" / kind
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


async def train(hosted: Any, first: int, last: int, rewards: dict[int, float] | None = None) -> None:
    for step in range(first, last + 1):
        for repeat in range(2):
            episode = await hosted.begin()
            await hosted.call(episode)
            await hosted.end(episode, f"task-{step}", (rewards or {}).get(step, 0.1 * repeat))
        state = EngineState.COMPLETE if step == hosted.server._job.total_steps else EngineState.ROLLING
        await hosted.wait_for(state, step=step)


async def test_two_hundred_steps_end_with_three_checkpoints_and_no_recovery_copy(host: Any, tmp_path: Path) -> None:
    hosted = host(recovery_overhead=1.0)
    await hosted.start(JOB.model_copy(update={"total_steps": 200, "save_freq": 5, "keep_last": 2, "keep_best": 1}))
    await train(hosted, 1, 200, rewards={35: 1.0, 36: 2.0, 120: 0.9})
    assert left(tmp_path, "checkpoints") == ["step-000035", "step-000195", "step-000200"]
    assert left(tmp_path, "recovery") == []


async def test_the_lowest_value_is_best_where_the_job_says_so(host: Any, tmp_path: Path) -> None:
    hosted = host()
    keep = {"save_freq": 1, "keep_last": 1, "keep_best": 1, "keep_best_metric": "-critic/score/mean"}
    await hosted.start(JOB.model_copy(update=keep))
    await train(hosted, 1, 4, rewards={2: -3.0})
    assert left(tmp_path, "checkpoints") == ["step-000002", "step-000004"]


async def test_a_checkpoint_that_was_asked_for_stays_whatever_the_job_keeps(host: Any, tmp_path: Path) -> None:
    hosted = host()
    await hosted.start(JOB.model_copy(update={"save_freq": 1, "keep_last": 1}))
    await train(hosted, 1, 2)
    await hosted.server.checkpoint()
    await train(hosted, 3, 5)
    assert left(tmp_path, "checkpoints") == ["step-000002", "step-000005"]


async def test_a_finished_run_is_served_again_and_goes_on_without_its_recovery_copies(
    host: Any, tmp_path: Path
) -> None:
    first = host(recovery_overhead=1.0)
    job = JOB.model_copy(update={"total_steps": 4, "save_freq": 2, "keep_last": 1})
    await first.start(job)
    await train(first, 1, 4)
    assert (left(tmp_path, "checkpoints"), left(tmp_path, "recovery")) == (["step-000004"], [])
    await first.crash()

    second = host()
    assert await second.server.resume(job.model_copy(update={"total_steps": 6}))
    await second.wait_for(EngineState.ROLLING, step=4)
    assert (second.sampler.weight_version, second.backends.trained) == (4, [])
    await train(second, 5, 6)
    assert left(tmp_path, "checkpoints") == ["step-000006"]


async def test_the_newest_recovery_copy_stays_where_nothing_newer_was_kept(host: Any, tmp_path: Path) -> None:
    first = host(recovery_overhead=1.0)
    await first.start(JOB.model_copy(update={"total_steps": 5}))
    await train(first, 1, 5)
    kept = left(tmp_path, "recovery")
    assert len(kept) == 1
    await first.crash()
    second = host()
    assert await second.server.resume()
    await second.wait_for(EngineState.COMPLETE, step=5)
    assert [batch.step for batch in second.backends.trained] == list(range(int(kept[0][-1]) + 1, 6))


async def test_another_run_leaves_the_earlier_one_its_newest_checkpoint_alone(host: Any, tmp_path: Path) -> None:
    hosted = host()
    await hosted.start(JOB)
    await train(hosted, 1, 3)
    await hosted.server.stop_engine()
    for step in (2, 3):
        (tmp_path / "home" / "swarm" / "default" / "run-0001" / "recovery" / f"step-00000{step}").mkdir(exist_ok=True)
    assert len(left(tmp_path, "recovery")) >= 2
    await hosted.server.start_engine(resume=False)
    await hosted.wait_for(EngineState.ROLLING)
    assert left(tmp_path, "recovery") == ["step-000003"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"keep_last": 2}, "add `save_freq: 10`"),
        ({"save_freq": 5, "keep_best": 1}, "keep_best has no effect while keep_last is not set: add `keep_last"),
        ({"save_freq": 5, "keep_last": 0}, "keep_last"),
        ({"save_freq": 5, "keep_last": 1, "keep_best_metric": "--x y"}, "keep_best_metric"),
    ],
)
async def test_settings_that_keep_nothing_sensible_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(JobInvalid, match=said):
        build_job(settings)
