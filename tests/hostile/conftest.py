"""A server, an environment and a sandbox for hostile programs, and what they must not have changed afterwards."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_support import command_of, is_running

from swarm import Evaluation, SwarmClient, TrainJob
from swarm.environments import Environment, load_environment
from swarm.environments.server import RemoteEnvironment
from swarm.environments.server.process import EnvironmentProcess
from swarm.program import measure
from swarm.program.hosted.process import ProgramProcess, place_program
from swarm.sandbox.sandbox import Sandbox, find_sandbox
from swarm.tasks import Split

PROGRAMS = Path(__file__).parent / "programs"
JOB = TrainJob(engine="fake", batch_size=4, num_repeat=2, total_steps=1000, project_name="honest")
TASKS = 12
MAX_LOG_BYTES = 9 * 2**20
ANSWER_MARK = f"answer-{secrets.token_hex(8)}"
SECRET = f"secret-{secrets.token_hex(8)}"


@dataclass(frozen=True)
class World:
    """What stands around a program: nothing of it may it reach but the model."""

    client: SwarmClient
    environment: Environment
    sandbox: Sandbox
    facts: dict[str, Any]

    def program(self, file: str, attacks: Sequence[str], **more: Any) -> str:
        """Return a program that makes attacks of a file in programs/, and knows the facts of its surroundings."""
        parts = [f"FACTS = {self.facts | more!r}", *((PROGRAMS / f"{name}.py").read_text() for name in ("tools", file))]
        return "\n".join([*parts, f"ATTACKS = [{', '.join(attacks)}]\n"])


@dataclass(frozen=True)
class Outcome:
    evaluation: Evaluation
    log: str

    @property
    def errors(self) -> str:
        return " | ".join(failure.error for failure in self.evaluation.broken)


Attack = Callable[..., Outcome]


@pytest.fixture(scope="module")
def world(start_shared_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    folder = tmp_path_factory.mktemp("world")
    canary = folder / "canary.txt"
    canary.write_text("untouched")
    write_environment(folder / "words")
    os.environ["HOSTILE_TEST_SECRET"] = SECRET
    with (
        closing(listener()) as other,
        EnvironmentProcess(str(folder / "words")) as process,
        RemoteEnvironment(process.evaluator_socket) as environment,
        # Without tokens: whoever reaches a control route of this server is its commander.
        SwarmClient(start_shared_server(JOB).url, client_id="honest") as client,
    ):
        episode, _ = client.begin_episode("eval", lease_s=None, discard_episode_timeout=3600.0)
        facts = {
            "episode": episode, "port": other.getsockname()[1], "canary": str(canary), "secret": SECRET,
            "sockets": str(process.evaluator_socket.parent), "pid": os.getpid(), "answer_mark": ANSWER_MARK,
        }  # fmt: skip
        yield World(client, environment, find_sandbox(otherwise=""), facts)
    del os.environ["HOSTILE_TEST_SECRET"]


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    with closing(load_environment("reverse")) as opened:
        yield opened


def write_environment(folder: Path) -> None:
    """Words that nobody can know: any score is stolen."""
    rows = [
        json.dumps({"question": f"What is word {number} of {part}?", "answer": f"{ANSWER_MARK}-{number}", "part": part})
        for part in ("train", "validation", "test")
        for number in range(TASKS)
    ]
    folder.mkdir()
    (folder / "tasks.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "environment.toml").write_text('name = "words"\ngrader = "exact"\nsplit = "part"\n')


def listener() -> socket.socket:
    """Some other service of the machine; connections to it wait unanswered."""
    return socket.create_server(("127.0.0.1", 0))


@pytest.fixture
def attack(world: World, tmp_path: Path) -> Iterator[Attack]:
    """Scores a hostile program as an arm's is scored, then looks whether anything but its own process has changed."""
    before = untouched(world, tmp_path)
    children = set(psutil.Process().children(recursive=True))
    mark = f"hostile-{secrets.token_hex(8)}"

    def run(file: str, *attacks: str, episodes: int = 1, limit_s: float = 60.0) -> Outcome:
        code = world.program(file, attacks, mark=mark)
        with place_program(code, tmp_path / "run", world.client.url, world.sandbox) as place:
            with ProgramProcess(place, attempt_limit_s=limit_s) as program:
                evaluation = measure(
                    world.client, world.environment, program, split=Split.VALIDATION, episodes=episodes,
                    max_workers=episodes,
                )  # fmt: skip
            log = place.log.read_text(errors="replace")
            return Outcome(evaluation, log)

    yield run
    assert untouched(world, tmp_path) == before
    left = [child for child in psutil.Process().children(recursive=True) if child not in children and is_running(child)]
    assert not left, [command_of(child) for child in left]
    assert not [process for process in psutil.process_iter() if mark in " ".join(command_of(process))]
    log = tmp_path / "run" / "program.log"
    assert not log.exists() or log.stat().st_size < MAX_LOG_BYTES
    assert threading.active_count() < 200


def untouched(world: World, folder: Path) -> dict[str, Any]:
    status = world.client.status()
    canary = Path(world.facts["canary"])
    return {
        "server": (status.state, status.step, status.weight_version, status.project_name, status.policy),
        "commands": [(entry.method, entry.path) for entry in world.client.audit() if entry.method != "GET"],
        "canary": (canary.read_text(), canary.stat().st_mode, canary.stat().st_mtime_ns),
        "files": sorted(path.name for path in folder.iterdir() if path.name != "run"),
        "package": sorted((str(path), path.stat().st_mtime_ns) for path in sources() if path.suffix == ".py"),
    }


def sources() -> Iterator[Path]:
    import swarm

    return Path(str(swarm.__file__)).parent.rglob("*")
