"""The command line of a program: `python program.py --server URL --env NAME --job job.yaml` trains with it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from swarm.client import SwarmClient
from swarm.environments.server import open_environment
from swarm.errors import EnvironmentFailure, ProgramFailure, SandboxUnavailable, SwarmError
from swarm.processes.child import own_name
from swarm.program.base import Program, load_program
from swarm.program.gates import AmountGate
from swarm.program.hosted.key_router import KeyRouter
from swarm.program.hosted.process import ProgramProcess, place_program
from swarm.program.order import RUN_MARK
from swarm.program.roles import ONE_ROLE, clients_of, connected, jobs_named, servers_named
from swarm.program.steps import watch_steps
from swarm.program.training import train
from swarm.sandbox.sandbox import choose_sandbox
from swarm.schemas import GuardView

PROGRAM_FAILED = 3
"""The exit code of a training that an error of its program has ended."""
SHAPING = "shaping"
"""The folder of the process that runs reward and schedule, apart from the agent."""
PATIENCE_S = 120.0
"""The wait for a server that no longer answers, because somebody may start it again."""
NO_SANDBOX, ENVIRONMENT_FAILED = 6, 13
"""Exit codes of errors that are not the program's fault."""


def main(program: str | Path, argv: Sequence[str] | None = None) -> None:
    """Train with the program file `program` until its job is done, and print each step; a second call continues.

    On an error, print one line and exit. The exit code is 1 for an error of the server or the command line, and 3 for
    one of the program. It is 6 without a sandbox, 13 for an error of the environment, and 130 when interrupted.
    """
    options = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        _run(Path(program), options)
    except SwarmError as error:
        sys.stderr.write(f"{Path(program).name}: {error.message}\n")
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _exit_code(error: SwarmError) -> int:
    """Return the exit code of an error: it shows whether the program, the environment or the server is at fault."""
    if isinstance(error, ProgramFailure) or error.param == "program":
        return PROGRAM_FAILED
    codes = {SandboxUnavailable: NO_SANDBOX, EnvironmentFailure: ENVIRONMENT_FAILED}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), 1)


def _run(program: Path, options: argparse.Namespace) -> None:
    addresses = servers_named("--server", options.server)
    jobs = jobs_named(options.job, list(addresses))
    if options.seed is not None:
        jobs = {role: job.model_copy(update={"seed": options.seed}) for role, job in jobs.items()}
    with (
        _opened(program, options, addresses) as opened,
        open_environment(options.env) as environment,
        connected(
            addresses, os.environ.get("SWARM_TOKEN"), client_id=_client_id(options.run), timeout=PATIENCE_S
        ) as servers,
        ExitStack() as watches,
    ):
        clients = clients_of(servers)
        for role, client in clients.items():
            client.auto_sync_train_config_and_start_engine(jobs[role])
        for role, client in clients.items():
            name = f"{role} " if role else ""
            watches.enter_context(watch_steps(client, partial(_print_step, name), partial(_print_fault, name)))
        job = next(iter(jobs.values()))
        gate = _gate(options, next(iter(clients.values())), job.batch_size)
        done = train(
            servers,
            environment,
            job,
            opened,
            max_workers=options.workers,
            gate=gate,
            attempt_calls=options.attempt_calls,
            attempt_tokens=options.attempt_tokens,
        )
    sys.stdout.write(f"done: {done.steps} steps, {done.failures} episodes failed\n")


def _gate(options: argparse.Namespace, client: SwarmClient, batch_size: int) -> Callable[[int], int] | None:
    tokens, seconds, steps = options.until_tokens, options.until_seconds, options.until_steps
    if tokens is None and seconds is None and steps is None:
        return None
    return AmountGate(client, tokens=tokens, seconds=seconds, steps=steps, batch_size=batch_size).gate


@contextmanager
def _opened(program: Path, options: argparse.Namespace, addresses: Mapping[str, str]) -> Generator[Program]:
    """Load the program into this process, or into processes of its own, with `--sandbox` in a sandbox."""
    if not options.sandbox and not options.hosted:
        yield load_program(program)
        return
    sandbox = choose_sandbox(unsafe_no_sandbox=False) if options.sandbox else None
    code = program.read_text(encoding="utf-8")
    with ExitStack() as stack:
        router = None if ONE_ROLE in addresses else stack.enter_context(KeyRouter())
        url = addresses[ONE_ROLE] if router is None else router.url
        place = stack.enter_context(place_program(code, Path.cwd(), url, sandbox))
        shaping = stack.enter_context(place_program(code, Path.cwd() / SHAPING, url, sandbox))
        yield stack.enter_context(ProgramProcess(place, shaping=shaping, router=router))


def _print_step(role: str, step: int, description: str) -> None:
    _say(f"{role}step {step}: {description}")


def _print_fault(role: str, found: GuardView) -> None:
    _say(f"{role}guard: {found.sentence} {found.advice}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _client_id(run: str | None) -> str:
    """Return the client's name. It contains this process, so that a later one can see that it is dead."""
    return own_name() if run is None else f"{run}{RUN_MARK}{own_name()}"


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model with this program.")
    parser.add_argument(
        "--server", required=True, action="append", help="address of a swarm server, or ROLE=URL for each role"
    )
    parser.add_argument("--env", required=True, help="a bundled environment, a path, LIBRARY:NAME, or unix:SOCKET")
    parser.add_argument("--job", required=True, action="append", help="a job.yaml, or ROLE=FILE for the job of a role")
    parser.add_argument("--seed", type=int, help="seed of the job and of the order of tasks (default: the job's)")
    parser.add_argument("--workers", type=int, default=64, help="number of episodes at the same time")
    parser.add_argument("--attempt-calls", type=_positive, help="limit of model calls in one attempt")
    parser.add_argument("--attempt-tokens", type=_positive, help="limit of sampled tokens in one attempt")
    parser.add_argument(
        "--until-tokens", type=float, help="end with the step that reaches this number of trained tokens"
    )
    parser.add_argument(
        "--until-seconds", type=float, help="end with the first step that is done after this number of seconds"
    )
    parser.add_argument(
        "--until-steps",
        type=_positive,
        help="end with the step of this number; steps before a resume_from of the job count",
    )
    parser.add_argument("--run", help="name of this run; the client ids of its episodes begin with it")
    parser.add_argument("--hosted", action="store_true", help="run the program's functions in processes of their own")
    parser.add_argument("--sandbox", action="store_true", help="run the program's functions in a sandbox")
    return parser.parse_args(argv)
