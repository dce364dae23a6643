# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""The operations of the worker process on its one model: sample, train, save and restore, one at a time."""

from __future__ import annotations

import gc
import importlib
import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from swarm.backends.grammar import GrammarCompiler
from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler
from swarm.backends.local.model.computing import computing_with
from swarm.backends.local.model.loading import LoadedModel, load_model
from swarm.backends.local.pacing import Gathering, TokenDelivery
from swarm.backends.process.wire import Inbox, Message, attempt, pack_error, unpack_batch
from swarm.backends.threads import choose_threads, choose_training_threads
from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.processes.imports import collector_paused
from swarm.sampler import SamplerInfo
from swarm.types import SamplingParams, TrainBatch

if TYPE_CHECKING:
    from swarm.backends.local.learning.learner import Learner

logger = logging.getLogger(__name__)

GENERATION = frozenset({"generate", "abort"})
"""Operations that run while others sample, and have no answer."""
IDLE_S = 0.5
"""After this long without work, the libraries of the learner are imported, which takes seconds, once."""


@dataclass(slots=True)
class _Session:
    """One loaded model. The learner is built at first use: sampling must not wait for its libraries.

    `threads` is the configured number of threads, None for an automatic choice; `most_threads` bounds that choice.
    """

    job: TrainJob
    model: LoadedModel
    sampler: BatchSampler
    grammars: GrammarCompiler
    threads: int | None = None
    most_threads: int | None = None
    step: int = 0
    learner: Learner | None = None

    def training_threads(self, batch: TrainBatch) -> int:
        trained = (*batch.episodes, *batch.demonstrations)
        tokens = sum(len(sample.token_ids_T) for episode in trained for sample in episode.samples)
        return self.threads or choose_training_threads(self.model.parameters, tokens, self.most_threads)


class Worker:
    """Executor of operations, one at a time; `send` writes one message to the parent.

    `shared_files` collects the files in shared memory that this process has written, so that they are removed at its
    end.
    """

    def __init__(self, inbox: Inbox, send: Callable[[Message], None], shared_files: set[Path]) -> None:
        self._inbox = inbox
        self._send = send
        self._shared_files = shared_files
        self._delivery = TokenDelivery(send)
        self._gathering = Gathering()
        self._session: _Session | None = None
        self._learner_imported = False
        self._operations: dict[str, Callable[[int, Any], Any]] = {
            "load": self._load,
            "unload": self._unload,
            "generate": self._generate,
            "abort": self._abort,
            "train": self._train,
            "save": self._save,
            "restore": self._restore,
            "write_weights": self._write_weights,
        }

    def run(self) -> None:
        """Carry out operations until the process ends; the reader of standard input ends it."""
        while True:
            message = self._take(self._pause_s())
            while message is not None:
                self._carry_out(message)
                message = self._take(0.0)
            if self._session is not None and not self._session.sampler.idle:
                self._sample(self._session.sampler)

    def _pause_s(self) -> float | None:
        """Return how long to wait for a message in seconds; None while there is nothing else to do."""
        if self._session is None or self._session.sampler.idle:
            return None
        sampler = self._session.sampler
        return 0.0 if sampler.running else self._gathering.wait_s(sampler.waiting)

    def _take(self, wait_s: float | None) -> Message | None:
        try:
            if wait_s is not None:
                return self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            if not self._learner_imported:
                return self._inbox.get(timeout=IDLE_S)
            return self._inbox.get()
        except queue.Empty:
            if wait_s is None:
                self._import_learner()
            return None

    def _carry_out(self, message: Message) -> None:
        has_answer = message["op"] not in GENERATION
        if has_answer:
            # The operation may take long, or change the weights.
            self._delivery.flush()
        op = self._operations[message["op"]]
        answer = attempt(message["op"], lambda: op(message["id"], message["args"]))
        if has_answer:
            # Before the answer, at which a sampler on the same GPU wakes up: torch keeps what the operation has freed.
            torch.cuda.empty_cache()
        if has_answer or "error" in answer:
            self._send({"id": message["id"], **answer})

    def _sample(self, sampler: BatchSampler) -> None:
        is_waiting = self._gathering.wait_s(sampler.waiting) > 0
        if not is_waiting:
            self._gathering.begun()
        elif not sampler.running:
            return
        try:
            results = sampler.step(admits=not is_waiting)
        except Exception as error:
            logger.exception("sampling failed")
            failure = EngineFailure(f"sampling failed: {type(error).__name__}: {error}")
            self._delivery.fail(sampler.abort_all(), pack_error(failure))
            return
        self._delivery.add(results, sampler.weight_version)

    def _load(self, call_id: int, args: Any) -> SamplerInfo:
        self._unload(call_id, None)
        job = TrainJob.model_validate_json(args["job"]).resolve()
        torch.manual_seed(job.seed)
        device = "cuda" if job.n_gpu else "cpu"
        model = load_model(
            Path(args["directory"]),
            device=device,
            max_model_len=job.max_model_len,
            dtype=job.dtype,
            lora=job if job.lora_rank else None,
        )
        asked, at_most = args["torch_threads"], args["max_torch_threads"]
        torch.set_num_threads(asked or choose_threads(model.parameters, at_most))
        grammars = GrammarCompiler(model.tokenizer, model.vocabulary, model.stop_ids)
        sampler = BatchSampler(
            model.module,
            BatchingLimits(model.context_length, model.vocabulary, args["max_running_requests"]),
            model.stop_ids,
            model.decode,
            seed=args["sampling_seed"],
            grammars=grammars,
        )
        self._session = _Session(job, model, sampler, grammars, threads=asked, most_threads=at_most)
        return SamplerInfo(job.model, str(model.directory), model.context_length, model.parameters, model.device)

    def _unload(self, call_id: int, args: Any) -> None:
        if self._session is None:
            return
        self._delivery.abort(self._session.sampler.abort_all())
        self._session = None
        gc.collect()

    def _generate(self, call_id: int, args: Any) -> None:
        prompt_ids, params = args
        sampler = self._require_session().sampler
        sampler.submit(call_id, prompt_ids, msgspec.convert(params, SamplingParams))
        self._gathering.arrived(sampler.waiting + sampler.running)

    def _abort(self, call_id: int, args: Any) -> None:
        if self._session is not None:
            self._session.sampler.abort(call_id)
            self._delivery.forget(call_id)

    def _train(self, call_id: int, args: bytes) -> dict[str, Any]:
        session = self._require_session()
        batch = unpack_batch(args)
        session.sampler.pause()
        with computing_with(session.training_threads(batch)):
            report = self._learner_of(session).step(batch, weight_version=session.sampler.weight_version)
        session.step = batch.step
        self._publish(session, session.sampler.weight_version + 1)
        return {
            "metrics": dict(report.metrics),
            "advantages": dict(report.advantages),
            "version": session.sampler.weight_version,
        }

    def _save(self, call_id: int, args: Any) -> None:
        from transformers import AutoTokenizer

        session = self._require_session()
        # An adapter has no tokenizer beside it: that stays with the base model, and would be most of the checkpoint.
        tokenizer = None
        if not session.job.lora_rank:
            tokenizer = AutoTokenizer.from_pretrained(session.model.directory, local_files_only=True)
        self._learner_of(session).save(
            Path(args), step=session.step, weight_version=session.sampler.weight_version, tokenizer=tokenizer
        )

    def _restore(self, call_id: int, args: Any) -> dict[str, int]:
        session = self._require_session()
        info = self._learner_of(session).load(Path(args))
        session.step = info.step
        self._publish(session, info.weight_version)
        return {"step": info.step, "version": info.weight_version}

    def _write_weights(self, call_id: int, args: Any) -> str:
        """Write the current weights as a file for a sampler in another process, and return its path."""
        from swarm.backends.replicas.weight_file import gather, path_of_version, write_weights

        session = self._require_session()
        module: Any = session.model.module
        directory = Path(args)
        directory.mkdir(parents=True, exist_ok=True)
        path = path_of_version(directory, session.sampler.weight_version)
        self._shared_files.difference_update([each for each in self._shared_files if not each.exists()])
        self._shared_files.add(path)
        write_weights(path, gather(module.state_dict().items(), module.dtype, is_kept=True))
        return str(path)

    def _publish(self, session: _Session, weight_version: int) -> None:
        session.model.module.eval()
        session.sampler.publish(weight_version)

    def _require_session(self) -> _Session:
        if self._session is None:
            raise EngineFailure("the worker has no model loaded")
        return self._session

    def _learner_of(self, session: _Session) -> Learner:
        if session.learner is None:
            with collector_paused("verl"):
                from swarm.backends.local.learning.learner import Learner
                from swarm.backends.local.learning.microbatches import GrammarFollower

            follower = GrammarFollower(session.grammars, session.model.stop_ids)
            session.learner = Learner(session.model.module, session.job, follower)
        return session.learner

    def _import_learner(self) -> None:
        self._learner_imported = True
        try:
            with collector_paused("verl"):
                importlib.import_module("swarm.backends.local.learning.learner")
        except Exception:
            # Sampling works without it; the first training step will fail with the same reason.
            logger.exception("the learner cannot be imported")
