"""A program's own command line: `python program.py --server URL --env NAME --job job.yaml`, the run a study makes.

Place in the flow: at the foot of a program file, or `python -m swarm.program PROGRAM ...`, which studies start. It
begins the job on the server, trains until the job is done, and says each step on standard output. Run again, it goes on
where the server has got to.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from swarm.client import SwarmClient
from swarm.environments.server import open_environment
from swarm.errors import SwarmError
from swarm.job import TrainJob
from swarm.program.base import Program, load_program
from swarm.program.process import ProgramProcess, place_program
from swarm.program.steps import watch_steps
from swarm.program.training import train
from swarm.sandbox.sandbox import choose_sandbox


def main(program: str | Path, argv: Sequence[str] | None = None) -> None:
    """Train with the program in the file `program`, as the command line says. Exits 1 with one line if it cannot."""
    options = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        _run(Path(program), options)
    except SwarmError as error:
        sys.exit(f"{Path(program).name}: {error.message}")
    except KeyboardInterrupt:
        sys.exit(130)


def _run(program: Path, options: argparse.Namespace) -> None:
    job = TrainJob.build_job_from_yaml(options.job)
    if options.seed is not None:
        job = job.model_copy(update={"seed": options.seed})
    with (
        _opened(program, options) as opened,
        open_environment(options.env) as environment,
        SwarmClient(options.server, token=os.environ.get("SWARM_TOKEN"), client_id=options.client_id) as client,
    ):
        client.auto_sync_train_config_and_start_engine(job)
        with watch_steps(client, _print_step):
            done = train(client, environment, job, opened, max_workers=options.workers)
        sys.stdout.write(f"done: {done.steps} steps, {done.failures} episodes failed\n")


@contextmanager
def _opened(program: Path, options: argparse.Namespace) -> Generator[Program]:
    """The program in this process, or in a process of its own in a sandbox if that is asked for."""
    if not options.sandbox:
        yield load_program(program)
        return
    sandbox = choose_sandbox(unsafe_no_sandbox=False)
    with (
        place_program(program.read_text(encoding="utf-8"), Path.cwd(), options.server, sandbox) as place,
        ProgramProcess(place) as opened,
    ):
        yield opened


def _print_step(step: int, reward: float) -> None:
    sys.stdout.write(f"step {step}: reward {reward:.3f}\n")
    sys.stdout.flush()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model with this program.")
    parser.add_argument("--server", required=True, help="address of a swarm server")
    parser.add_argument("--env", required=True, help="a bundled environment, a path, LIBRARY:NAME, or unix:SOCKET")
    parser.add_argument("--job", required=True, type=Path, help="a job.yaml")
    parser.add_argument("--seed", type=int, help="of the job and of the order of tasks (default: the job's)")
    parser.add_argument("--workers", type=int, default=32, help="episodes at the same time")
    parser.add_argument("--client-id", help="name of this run in the server's records (default: host and process)")
    parser.add_argument("--sandbox", action="store_true", help="run the program's functions in a sandbox")
    return parser.parse_args(argv)
