"""Files of own servers: what is removed, and what stays."""

from __future__ import annotations

from pathlib import Path

from researcher.execution.storage import GB, DiskGuard, free_bytes
from researcher.loop.pruning import remove_checkpoints, remove_optimizer_state


def add_run(servers: Path, server: int, name: str, number: int, *steps: int) -> list[Path]:
    """A run with checkpoints of these steps and one for a restart; returns the checkpoints."""
    run = servers / str(server) / "research" / name / f"run-{number:04d}"
    checkpoints = [run / "checkpoints" / f"step-{step:06d}" for step in steps]
    for folder in (*checkpoints, run / "recovery" / "step-000001"):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"w" * 100)
        (folder / "trainer_state.pt").write_bytes(b"o" * 200)
    return checkpoints


def test_past_runs_lose_what_is_not_needed_and_the_newest_of_each_server_stays(tmp_path: Path) -> None:
    needed, other = add_run(tmp_path, 0, "a", 1, 5, 10)
    (newest,) = add_run(tmp_path, 0, "b", 2, 5)
    (alone,) = add_run(tmp_path, 1, "a", 1, 5)

    removed = remove_checkpoints(tmp_path, {needed.resolve()}, are_stopped=False)

    assert removed.checkpoints == (other.resolve(),)
    assert removed.freed == 600
    assert needed.is_dir() and newest.is_dir() and alone.is_dir() and not other.exists()
    assert not needed.parents[1].joinpath("recovery").exists()
    assert newest.parents[1].joinpath("recovery").is_dir()


def test_stopped_servers_lose_all_that_is_not_needed_and_a_kept_one_its_optimizer(tmp_path: Path) -> None:
    (needed,) = add_run(tmp_path, 0, "a", 1, 5)
    (newest,) = add_run(tmp_path, 0, "b", 2, 5)

    removed = remove_checkpoints(tmp_path, {needed.resolve()}, are_stopped=True)

    assert removed.checkpoints == (newest.resolve(),)
    assert not list(tmp_path.glob("*/*/*/*/recovery"))
    assert remove_optimizer_state(needed) == 200
    assert [path.name for path in needed.iterdir()] == ["model.safetensors"]
    assert remove_optimizer_state(needed) == 0


def test_guard_names_the_fullest_file_system(tmp_path: Path) -> None:
    free = {tmp_path / "a": 3 * GB, tmp_path / "b": GB}
    guard = DiskGuard([*free], 2 * GB, measure=free.__getitem__)

    assert guard.look().is_low
    assert str(guard.look()) == f"1.00 GB free at {tmp_path / 'b'}, the limit is 2 GB"
    free[tmp_path / "b"] = 2 * GB
    assert not guard.look().is_low
    assert free_bytes(tmp_path / "not" / "there") > 0
