"""The operations of the driver on verl's trainer: open, train, save, load, one at a time."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import logging
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from ray.exceptions import RayActorError, RayError, RayTaskError
from safetensors import SafetensorError

from swarm.backends.process.wire import unpack_batch
from swarm.backends.verl.configuration import VerlSettings, merge_settings, sampler_settings, validate
from swarm.backends.verl.driver.checkpoint import CheckpointOrigin, read_checkpoint, write_checkpoint
from swarm.backends.verl.driver.cluster import RayCluster
from swarm.backends.verl.driver.learner import OUTSIDE_SAMPLER, MiniBatch, SteppedTrainer, StepPlan
from swarm.backends.verl.driver.sequences import Sequences, build_sequences, without_grammars
from swarm.backends.weights import UnfitWeights, check_fit
from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.sampler import EngineLost
from swarm.trainer.advantages import compute_advantages
from swarm.trainer.checkpoint_files import CheckpointInfo
from swarm.trainer.description import describe_batch, describe_demonstrations, mean_advantages
from swarm.trainer.schedule import draw_minibatches
from swarm.trainer.token_rows import Row, build_demonstration_rows, build_rows
from swarm.types import TrainBatch

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Session:
    """One built trainer of the job that was opened with `arguments`, which `_open` describes.

    `step` and `weight_version` belong to the current weights.
    """

    arguments: Mapping[str, Any]
    settings: VerlSettings
    trainer: SteppedTrainer
    step: int = 0
    weight_version: int = 0


class Operations:
    """Executor of operations, used from the main thread.

    `lost` is called when a training process dies, and must not return.
    """

    def __init__(self, environment: Mapping[str, str], lost: Callable[[str], None]) -> None:
        self._environment = dict(environment)
        self._lost = lost
        self._cluster: RayCluster | None = None
        self._session: _Session | None = None

    def carry_out(self, op: str, args: Any) -> Any:
        """Return the answer to one operation. Raise SwarmError.

        Raise EngineLost if the weights no longer belong to a known version.
        """
        operations = {
            "open": self._open,
            "train": self._train,
            "send": self._send,
            "save": self._save,
            "restore": self._restore,
        }
        return operations[op](args)

    def end(self) -> None:
        """End every started process. Idempotent."""
        session, self._session = self._session, None
        if self._cluster is not None:
            self._cluster.end()
        if session is not None:
            shutil.rmtree(session.arguments["shm"], ignore_errors=True)

    def _open(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Build the trainer of a job; if it is built already, bring it back to the base model.

        The arguments are the `job` as JSON, the paths `model`, `home` and `shm`, which is for new weights, and
        `ray_address`. After an exception the driver cannot be used any more.
        """
        session = self._session
        if session is not None and session.arguments == args:
            session.trainer.restore_base()
            session.step = session.weight_version = 0
        elif session is not None:
            raise EngineLost("the driver was opened for another job: it must be started anew")
        else:
            session = self._build(args)
        _empty(Path(args["shm"]))
        return {"ranks": session.settings.ranks, "device": session.settings.device}

    def _build(self, arguments: Mapping[str, Any]) -> _Session:
        job, ray_address = TrainJob.model_validate_json(arguments["job"]), arguments["ray_address"]
        settings = merge_settings(job, Path(arguments["model"]))
        validate(settings)
        _check_weights(Path(arguments["model"]))
        config = settings.config
        rollout = config.actor_rollout_ref.rollout
        rollout.name = OUTSIDE_SAMPLER
        layout = sampler_settings(settings).layout
        receivers = layout.replicas * layout.tensor_parallel * layout.data_parallel
        rollout.checkpoint_engine.engine_kwargs = {
            "shm_file": {"directory": arguments["shm"], "dtype": str(rollout.dtype)},
            "nccl": {"world_size": 1 + receivers, "dtype": str(rollout.dtype)},
        }
        on_gpu = settings.device == "cuda"
        if on_gpu and ray_address is None and torch.cuda.device_count() < settings.ranks:
            raise EngineFailure(
                f"n_gpu: {settings.ranks} asks for {settings.ranks} GPUs and this machine has "
                f"{torch.cuda.device_count()}: set n_gpu to what it has, or start the server with SWARM_RAY_ADDRESS "
                "for those of a Ray cluster"
            )
        self._cluster = RayCluster(
            ray_address,
            Path(arguments["home"]),
            slots=settings.ranks,
            on_gpu=on_gpu,
            environment=self._environment,
        )
        try:
            tq.init(config.transfer_queue)
            trainer = SteppedTrainer(config)
            trainer.init()
        except Exception as error:
            # Any error of verl or Ray here is the reason why the job cannot run.
            raise EngineFailure(f"the training processes cannot be built: {_cause(error)}") from error
        self._cluster.watch(self._lost)
        self._session = _Session(arguments, settings, trainer)
        return self._session

    def _train(self, args: bytes) -> dict[str, Any]:
        session = self._require_session()
        given, job = unpack_batch(args), session.settings.job
        if job.is_supervised(given.step):
            return self._train_supervised(session, given, job)
        batch, constrained = without_grammars(given)
        rows = build_rows(batch)
        if not rows:
            metrics, advantages = {"rollout/episodes": 0.0, "rollout/groups": 0.0, "actor/updates": 0.0}, {}
            return self._finish(session, batch.step, metrics, advantages)
        has_critic = job.has_critic
        if has_critic:
            advantages_EL = torch.zeros(len(rows), max(row.tokens for row in rows))
        else:
            advantages_EL = compute_advantages(rows, job)
        sequences = build_sequences(
            rows,
            advantages_EL,
            constrained,
            loss_agg_mode=str(job.loss_agg_mode),
            per_token_temperature=_takes_each_temperature(session.settings),
        )
        plan = StepPlan(
            batch.step,
            session.weight_version,
            sequences,
            _minibatches(rows, sequences, job, batch.step),
            forgets=bool(job.sft_steps) and batch.step == job.sft_steps + 1,
        )
        measured = self._run(session, plan)
        metrics = {
            "actor/updates": 0.0,
            "actor/grad_norm": 0.0,
            **describe_batch(batch, rows, advantages_EL, session.weight_version),
            **sequences.metrics,
            **measured,
        }
        advantages = mean_advantages(rows, advantages_EL)
        if has_critic:
            advantages |= _judged(rows, sequences, session.trainer.judged_advantages)
        return self._finish(session, batch.step, metrics, advantages)

    def _train_supervised(self, session: _Session, batch: TrainBatch, job: TrainJob) -> dict[str, Any]:
        """Update the weights once, with the demonstrations of the batch alone."""
        assert job.sft_lr is not None, "a resolved job with demonstrations has a learning rate for them"
        rows = build_demonstration_rows(batch.demonstrations)
        sequences = _demonstrated(rows)
        plan = StepPlan(
            batch.step,
            session.weight_version,
            sequences,
            [MiniBatch(tuple(range(len(sequences.trained))), len(rows))],
            supervised_lr=job.sft_lr,
            held_out=_demonstrated(build_demonstration_rows(batch.held_out)) if batch.held_out else None,
        )
        metrics = {
            "actor/updates": 0.0,
            "actor/grad_norm": 0.0,
            **describe_demonstrations(rows),
            **self._run(session, plan),
        }
        return self._finish(session, batch.step, metrics, {})

    def _run(self, session: _Session, plan: StepPlan) -> dict[str, float]:
        try:
            return session.trainer.train(plan)
        except RayError as error:
            if isinstance(error, RayTaskError) and not session.trainer.has_updated:
                raise EngineFailure(f"step {plan.step} cannot be computed: {_cause(error)}") from error
            raise EngineLost(f"step {plan.step} broke off in the middle: {_cause(error)}") from error
        except Exception as error:
            if not session.trainer.has_updated:
                raise
            raise EngineLost(f"step {plan.step} broke off in the middle: {error}") from error

    def _finish(
        self, session: _Session, step: int, metrics: Mapping[str, float], advantages: Mapping[str, float]
    ) -> dict[str, Any]:
        session.step = step
        session.weight_version += 1
        reported = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        began = time.perf_counter()
        released = self._let_out(session)
        reported["timing_s/export_weights"] = time.perf_counter() - began
        return {"metrics": reported, "advantages": dict(advantages), **released}

    def _let_out(self, session: _Session) -> dict[str, Any]:
        """Return the current version, as an existing file or as a broadcast that waits for "send"."""
        try:
            if session.settings.transport == "nccl":
                return {"version": session.weight_version, "broadcast": session.trainer.prepare_broadcast()}
            path = session.trainer.export(session.weight_version)
        except RayError as error:
            raise EngineLost(f"version {session.weight_version} cannot be published: {_cause(error)}") from error
        return {"version": session.weight_version, "weights": path}

    def _send(self, args: int) -> None:
        try:
            self._require_session().trainer.broadcast(args)
        except RayError as error:
            raise EngineLost(f"version {args} cannot be sent: {_cause(error)}") from error

    def _save(self, args: str) -> None:
        session = self._require_session()
        write_checkpoint(
            Path(args),
            info=CheckpointInfo(session.step, session.weight_version),
            origin=_origin(session.settings),
            job=session.settings.job.model_dump(mode="json"),
            model_directory=Path(session.arguments["model"]),
            save=lambda draft: session.trainer.save(draft, session.step),
        )

    def _restore(self, args: str) -> dict[str, Any]:
        session = self._require_session()
        info = read_checkpoint(Path(args), _origin(session.settings))
        try:
            session.trainer.load(Path(args))
        except RayError as error:
            raise EngineLost(f"checkpoint {args} broke off while it was loaded: {_cause(error)}") from error
        session.step, session.weight_version = info.step, info.weight_version
        return {"step": info.step, **self._let_out(session)}

    def _require_session(self) -> _Session:
        if self._session is None:
            raise EngineFailure("the driver has no job open")
        return self._session


def _demonstrated(rows: Sequence[Row]) -> Sequences:
    ones_EL = torch.ones(len(rows), max(row.tokens for row in rows))
    return build_sequences(rows, ones_EL, {}, loss_agg_mode="token-mean", per_token_temperature=False)


def _minibatches(rows: Sequence[Row], sequences: Sequences, job: TrainJob, step: int) -> list[MiniBatch]:
    """Return the minibatches of the local trainer, without those that teach nothing."""
    of_episode: dict[int, list[int]] = {}
    for number, sequence in enumerate(sequences.trained):
        of_episode.setdefault(sequence.episode, []).append(number)
    always = job.has_critic or job.use_kl_loss or job.entropy_coeff != 0
    drawn: list[MiniBatch] = []
    for episodes in draw_minibatches(len(rows), job, step):
        chosen = tuple(number for episode in episodes for number in of_episode.get(episode, ()))
        if chosen and (always or any(sequences.trained[number].has_signal for number in chosen)):
            drawn.append(MiniBatch(chosen, len(episodes)))
    return drawn


def _judged(rows: Sequence[Row], sequences: Sequences, judged: Mapping[int, tuple[float, int]]) -> dict[str, float]:
    """Return a map from episode id to the mean advantage of its tokens, from a critic's results per sequence."""
    sums: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    for number, sequence in enumerate(sequences.trained):
        total, count = judged.get(number, (0.0, 0))
        sums[rows[sequence.episode].episode_id] += total
        counts[rows[sequence.episode].episode_id] += count
    return {episode_id: sums[episode_id] / count for episode_id, count in counts.items() if count}


def _takes_each_temperature(settings: VerlSettings) -> bool:
    """Return whether the scoring engine is ours and sees the logits of whole sequences."""
    actor, model = settings.config.actor_rollout_ref.actor, settings.config.actor_rollout_ref.model
    if actor.strategy not in {"fsdp", "fsdp2"} or model.use_fused_kernels:
        return False
    return int(actor.ulysses_sequence_parallel_size) == int(actor.fsdp_config.ulysses_sequence_parallel_size) == 1


def _origin(settings: VerlSettings) -> CheckpointOrigin:
    model = settings.config.actor_rollout_ref.model
    return CheckpointOrigin.of(
        Path(model.path),
        strategy=str(settings.config.actor_rollout_ref.actor.strategy),
        ranks=settings.ranks,
        lora_rank=int(model.lora_rank),
        has_critic=settings.job.has_critic,
    )


def _empty(directory: Path) -> None:
    """Remove unused weight files, such as those of a killed driver."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)


def _cause(error: Exception) -> str:
    if isinstance(error, RayActorError):
        return "a training process died"
    cause = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
    lines = [line for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[-1][:300] if lines else ''}"


def _check_weights(model: Path) -> None:
    """Raise EngineFailure for weights that do not fit their model: the ranks would fill what is missing by chance."""
    try:
        check_fit(model)
    except UnfitWeights as error:
        raise EngineFailure(f"{model}: its weights do not fit its config.json: {error}") from error
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        # The ranks say what is wrong with files that cannot be read, or with code of the model's own.
        logger.info("the weights of %s were not compared with their model: %s", model, error)
