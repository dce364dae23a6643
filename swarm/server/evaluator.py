"""The server's own evaluator, for jobs with an `eval_env`: a child process that runs `swarm eval --follow`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swarm.config import ServerConfig
from swarm.errors import JobInvalid, SwarmError
from swarm.job import TrainJob
from swarm.ledger import Ledger
from swarm.processes.child import Child, python_module, tail
from swarm.run.evaluations import Evaluations
from swarm.server.run import JobRun
from swarm.tasks.families import TASK_FAMILIES

logger = logging.getLogger(__name__)

POLL_S = 0.5
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0


def environment_of(job: TrainJob, config: ServerConfig) -> str | None:
    """Return the environment that the server evaluates the job on, or None without an `eval_env`.

    Raise JobInvalid for an environment that this server does not offer: no job can make a server run other code.
    """
    if job.eval_env is None:
        return None
    offered = dict(each.split("=", 1) for each in config.eval_envs)
    if job.eval_env in offered:
        return offered[job.eval_env]
    if job.eval_env in TASK_FAMILIES:
        return job.eval_env
    names = ", ".join([*offered, *TASK_FAMILIES])
    raise JobInvalid(
        f"eval_env: this server offers no environment {job.eval_env!r}: use one of {names}; or leave eval_env out and"
        " start swarm eval --follow with your own",
        param="eval_env",
    )


def evaluator_of(run: JobRun, job: TrainJob, config: ServerConfig, url: str) -> EvaluatorCommand | None:
    """Return the evaluator of a run, or None if the job has no `eval_env`.

    Also return None if the server does not offer the environment. This happens when a restarted server, which resumes
    the job, offers fewer environments than before.
    """
    try:
        environment = environment_of(job, config)
    except JobInvalid as error:
        logger.error("the job goes on without an evaluator: %s", error.message)
        return None
    if environment is None:
        return None
    command = python_module("swarm.cli", "eval", "--follow", "--env", environment, "--url", url, "--json")
    log = config.home / "evaluator.log"
    return EvaluatorCommand(command, run.loop.evaluations, run.ledger, _environment_variables(config), log)


@dataclass(slots=True)
class EvaluatorCommand:
    """A command that runs whenever a score is due, and is restarted when it fails."""

    command: list[str]
    evaluations: Evaluations
    ledger: Ledger
    variables: Mapping[str, str]
    log: Path

    async def run_forever(self) -> None:
        """Run the command whenever a score is due, until cancelled.

        After a failure, wait before the next attempt: FIRST_PAUSE_S seconds at first, then longer up to MAX_PAUSE_S.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            await self.evaluations.until_wanted()
            code = await self._run()
            if code == 0:
                pause_s = FIRST_PAUSE_S
                continue
            await self._record_failure(code)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _run(self) -> int:
        child = Child(self.command, env=self.variables, cwd=Path.cwd(), out=self.log, errors=self.log)
        try:
            while (code := child.poll()) is None:
                await asyncio.sleep(POLL_S)
            return code
        finally:
            # Killed, because on a polite request it would wait for this server, which gives up its episodes anyway.
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            child.stop()

    async def _record_failure(self, code: int) -> None:
        lines = tail(self.log).splitlines()
        reason = lines[-1] if lines else f"exit code {code}"
        logger.warning("the evaluator ended with exit code %d: %s", code, reason)
        try:
            await self.ledger.record_event("evaluator.failed", {"exit_code": code, "reason": reason})
        except SwarmError as error:
            logger.warning("which could not be recorded: %s", error.message)


def _environment_variables(config: ServerConfig) -> dict[str, str]:
    """Return the environment variables of the server, with only the least powerful token that is enough."""
    tokens = {"SWARM_TOKEN": config.token, "SWARM_ROLLOUT_TOKEN": config.rollout_token, "SWARM_OBSERVER_TOKEN": None}
    variables = {name: value for name, value in os.environ.items() if name not in tokens}
    if config.rollout_token is not None:
        return variables | {"SWARM_ROLLOUT_TOKEN": config.rollout_token}
    return variables if config.token is None else variables | {"SWARM_TOKEN": config.token}
