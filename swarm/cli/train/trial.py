"""The trial before a training: some steps and attempts on a server of its own, whose files are removed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from swarm.cli import options
from swarm.cli.own_server import server_at
from swarm.cli.train.measurement import LEAST_STEPS, MeasuredTraining, TrainingMeter
from swarm.errors import EngineFailure
from swarm.program.gates import ChunkGate, until_demonstrated, until_rest

if TYPE_CHECKING:
    from swarm.client import SwarmClient
    from swarm.environments import Environment
    from swarm.job import TrainJob
    from swarm.program import Program


class TrialGate(ChunkGate):
    """A limit of as many steps as a meter needs."""

    def __init__(self, client: SwarmClient, job: TrainJob, meter: TrainingMeter) -> None:
        super().__init__(client, job.batch_size)
        self._meter, self._sft_steps = meter, job.sft_steps

    def _next_steps(self) -> int:
        step = until_rest(self._client).step - self._sft_steps
        if self._meter.has_enough(step):
            return 0
        return max(LEAST_STEPS, step)


def run_trial(
    job: TrainJob,
    environment: Environment,
    program: Program,
    demonstrations: Path | None,
    *,
    tasks: int,
    workers: int,
    beside: Path,
) -> MeasuredTraining:
    """Return what some steps and attempts take, which are really run in a new folder in `beside` that is removed.

    Raise EngineFailure if no step was trained.
    """
    from swarm.client import SwarmClient
    from swarm.client.fault_log import FaultLog
    from swarm.processes.child import own_name
    from swarm.program import measure, train

    sft_steps = min(job.sft_steps, LEAST_STEPS)
    total = (job.total_steps or 0) - job.sft_steps + sft_steps
    job = job.model_copy(update={"sft_steps": sft_steps, "total_steps": total})
    beside.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".estimate-", dir=beside) as name:
        home = Path(name)
        meter = TrainingMeter(job, workers, home)
        with (
            server_at(None, home, job) as address,
            SwarmClient(address, token=options.token_of("commander"), client_id=own_name()) as client,
            FaultLog() as faults,
            meter.memory(),
        ):
            if demonstrations is not None:
                client.add_demonstrations(demonstrations)
            client.auto_sync_train_config_and_start_engine(job)
            # As many attempts as are made at a time, because a single one says little of the others.
            attempts = min(tasks, workers)
            meter.timed(measure)(
                client, environment, program, episodes=attempts, max_workers=workers, faults=faults
            )  # fmt: skip
            gate = TrialGate(client, job, meter)
            with meter.training():
                with meter.demonstrating():
                    until_demonstrated(client, job)
                done = train(client, environment, job, program, max_workers=workers, gate=gate.gate, faults=faults)
            measured = meter.read(client, 0, done.steps)
            client.save_checkpoint()
        if measured is None:
            raise EngineFailure("no step was trained, so nothing can be estimated")
        return meter.complete(measured, done.steps)
