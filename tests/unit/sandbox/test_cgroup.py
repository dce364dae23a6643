"""The cgroup of a sandbox: where it is made, its limits, and its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from swarm.sandbox.cgroup import PREFIX, find_parent, has_killed, make_cgroup, remove_cgroup
from swarm.sandbox.sandbox import choose_sandbox


def cgroup(folder: Path, controllers: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "cgroup.subtree_control").write_text(controllers)
    (folder / "cgroup.procs").write_text("")
    return folder


def proc(folder: Path, own: str, mount: Path, root: str = "/") -> Path:
    folder.mkdir()
    (folder / "cgroup").write_text(f"4:memory:/old\n0::{own}\n")
    lines = ["22 1 0:21 / / rw - ext4 /dev/vda rw", f"30 22 0:26 {root} {mount} rw shared:9 - cgroup2 cgroup2 rw"]
    (folder / "mountinfo").write_text("\n".join(lines) + "\n")
    return folder


def test_the_nearest_cgroup_that_passes_both_controllers_on_is_taken(tmp_path: Path) -> None:
    top = cgroup(tmp_path / "fs", "cpu memory pids")
    slice_ = cgroup(top / "user.slice", "memory pids")
    cgroup(slice_ / "half", "memory")
    cgroup(slice_ / "half" / "own.scope", "")
    assert find_parent(proc(tmp_path / "one", "/user.slice/half/own.scope", top)) == slice_
    assert find_parent(proc(tmp_path / "two", "/", top)) == top
    # In a container the mount shows a part of the tree.
    assert find_parent(proc(tmp_path / "three", "/user.slice/half", slice_, root="/user.slice")) == slice_


def test_there_is_none_without_version_2_or_without_its_controllers(tmp_path: Path) -> None:
    top = cgroup(tmp_path / "fs", "")
    assert find_parent(proc(tmp_path / "one", "/", top)) is None
    (tmp_path / "one" / "cgroup").write_text("4:memory:/old\n")
    assert find_parent(tmp_path / "one") is None
    assert find_parent(tmp_path / "absent") is None


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_one_that_cannot_be_written_is_not_taken(tmp_path: Path) -> None:
    top = cgroup(tmp_path / "fs", "memory pids")
    top.chmod(0o555)
    assert find_parent(proc(tmp_path / "one", "/", top)) is None


def test_a_cgroup_has_its_limits_and_abandoned_ones_are_removed(tmp_path: Path) -> None:
    abandoned, recent = tmp_path / f"{PREFIX}old", tmp_path / f"{PREFIX}new"
    abandoned.mkdir()
    recent.mkdir()
    os.utime(abandoned, (0, 0))
    made = make_cgroup(tmp_path, 1000, 20)
    assert made is not None and made.name.startswith(PREFIX)
    assert ((made / "memory.max").read_text(), (made / "pids.max").read_text()) == ("1000", "20")
    assert not abandoned.exists() and recent.exists()
    assert make_cgroup(tmp_path / "absent", 1000, 20) is None


def test_removing_is_idempotent_and_what_memory_ended_is_known(tmp_path: Path) -> None:
    made = tmp_path / f"{PREFIX}x"
    made.mkdir()
    assert not has_killed(made)
    for line, killed in (("oom_kill 0", False), ("oom_kill 2", True)):
        (made / "memory.events").write_text(f"low 0\noom 2\n{line}\noom_group_kill 0\n")
        assert has_killed(made) is killed
    (made / "memory.events").unlink()
    remove_cgroup(made)
    remove_cgroup(made)
    assert not made.exists()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_command_joins_the_cgroup_that_was_made_for_it(tmp_path: Path) -> None:
    sandbox = choose_sandbox(unsafe_no_sandbox=False)
    assert sandbox is not None
    parent = tmp_path / "parent"
    parent.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    command = replace(sandbox, cgroup=parent).command([sys.executable, "-c", ""], workdir=work, server_url=None)
    (made,) = parent.iterdir()
    assert (made / "memory.max").read_text() == str(sandbox.limits.memory_bytes)
    with subprocess.Popen(command.argv, env=command.env, cwd=work) as process:
        assert process.wait(60) == 0
    assert (made / "cgroup.procs").read_text() == str(process.pid)
    # An ordinary folder with files in it stays, where the kernel's goes.
    for file in made.iterdir():
        file.unlink()
    command.cleanup()
    assert not made.exists()
