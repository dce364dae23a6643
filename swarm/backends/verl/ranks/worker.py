"""verl's training workers and FSDP engines with additions for this service, registered with verl when imported."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUntypedClassDecorator=false
# pyright: reportAttributeAccessIssue=false, reportUntypedFunctionDecorator=false, reportOptionalMemberAccess=false
# pyright: reportUnusedImport=false

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForTokenClassification
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_id, get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name, offload_fsdp_model_to_cpu
from verl.utils.model import convert_weight_keys
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from swarm.backends.replicas.weight_file import gather, write_weights
from swarm.backends.verl.ranks import weights as _weights  # noqa: F401  registers
from swarm.backends.verl.ranks.losses import policy_loss
from swarm.trainer.schedule import rate_ratio

TEMPERATURES = "token_temperatures"
"""Field of a row: for each position, the sampling temperature of the token after it. Present only in a batch with
several temperatures; verl's own scalar is then 1."""

HALF_A_COSINE = 0.5
"""verl's default number of cosine cycles, and the meaning of the job's schedule."""


class _SteppedSchedule:
    """Learning rate that moves when a step of the service ends, not with each of its updates."""

    optimizer_config: Any
    lr_scheduler: Any

    def _build_lr_scheduler(self, optimizer: Any) -> Any:
        config = self.optimizer_config
        if config.num_cycles != HALF_A_COSINE or not config.zero_indexed_step:
            # The job sets this schedule by verl's own options.
            return super()._build_lr_scheduler(optimizer)  # type: ignore[misc]

        def ratio(steps_done: int) -> float:
            return rate_ratio(
                config.lr_scheduler_type,
                steps_done + 1,
                warmup_steps=max(0, config.lr_warmup_steps or 0),
                total_steps=config.total_training_steps,
                min_lr_ratio=config.min_lr_ratio or 0.0,
            )

        return LambdaLR(optimizer, ratio)

    def lr_scheduler_step(self) -> float:
        """Return the rate that was used; verl calls this after each update."""
        return float(self.lr_scheduler.get_last_lr()[0])

    def end_step(self) -> None:
        self.lr_scheduler.step()


class PolicyEngine(_SteppedSchedule, FSDPEngineWithLMHead):
    """Language model under FSDP."""

    def _merged_lora_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield whole weights with the adapters merged in, unrounded: verl would return them as bfloat16."""
        try:
            with merged_lora_context(self.module, backup_adapters=True):
                named = normalize_peft_param_name(self.module.state_dict())
                for name, weight in convert_weight_keys(named, self.module).items():
                    is_sharded = isinstance(weight, DTensor)
                    # A weight that was not gathered is the live one, which loses the adapters when this ends.
                    yield name, weight.to(get_device_id()).full_tensor() if is_sharded else weight.detach().clone()
        finally:
            if self._is_offload_param:
                offload_fsdp_model_to_cpu(self.module)

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> Any:
        temperatures = micro_batch.get(TEMPERATURES, None)
        if temperatures is not None:
            logits = output.logits
            if logits.shape[0] == 1 and logits.shape[1] == temperatures.values().shape[0]:
                scale = temperatures.values()[None]
            else:
                scale = torch.nested.to_padded_tensor(temperatures, padding=1.0, output_size=tuple(logits.shape[:2]))
            output.logits = logits / scale[..., None].to(logits.dtype)
        return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)


class ValueEngine(_SteppedSchedule, FSDPEngineWithValueHead):
    """Critic under FSDP. Its new head is drawn from the seed, so that a run can be repeated."""

    def _build_module(self) -> torch.nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(self.engine_config.seed)
            return self._load_module()

    def _load_module(self) -> torch.nn.Module:
        return super()._build_module()


class _HostMemory:
    """Engine that does not offload weights from host memory to host memory: verl would pin them for a GPU."""

    engine_config: Any

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        own = self.engine_config
        self.engine_config = dataclasses.replace(own, forward_only=False)
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            self.engine_config = own


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device=["cpu"])
class CpuPolicyEngine(_HostMemory, PolicyEngine):
    pass


@EngineRegistry.register(model_type="value_model", backend=["fsdp2"], device=["cpu"])
class CpuValueEngine(_HostMemory, ValueEngine):
    def _load_module(self) -> torch.nn.Module:
        """Load the module like verl, but without flash attention, which verl always configures for a critic."""
        model, config = self.model_config, self.model_config.hf_config
        config.num_labels, config.classifier_dropout, config.hidden_dropout = 1, 0.0, "0"
        module = AutoModelForTokenClassification.from_pretrained(
            model.local_path,
            dtype=PrecisionType.to_dtype(self.engine_config.model_dtype),
            config=config,
            trust_remote_code=model.trust_remote_code,
        )
        apply_monkey_patch(model=module, use_remove_padding=self.use_remove_padding, ulysses_sp_size=1)
        if model.enable_gradient_checkpointing:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return module


# verl prefers a vendor's engine to its own for the device.
EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda"], vendor=["nvidia"])(
    PolicyEngine
)
EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device=["cuda"], vendor=["nvidia"])(
    ValueEngine
)


COLLECTIVE_TIMEOUT_S = 600
"""Longest wait of a rank for the others. A dead rank is noticed at once; this limit is for one that hangs."""


def _join_process_group() -> None:
    """Create the process group here if verl would ask torch for gloo twice, which torch refuses.

    The group is created once.
    """
    if get_device_name() == "cpu":
        initialize_global_process_group_ray(timeout_second=COLLECTIVE_TIMEOUT_S, backend="cpu:gloo")


class PolicyWorker(ActorRolloutRefWorker):
    """Actor, with the reference policy beside it if the job needs one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _join_process_group()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        self._set_loss()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def restore_base(self) -> None:
        """Restore weights, optimizer and schedule from before the first step."""
        self.actor.reset()
        self._set_loss()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def end_step(self) -> None:
        """Move the learning rate, once for all updates of a step."""
        if self.actor is not None:
            _end_step(self.actor)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_rate(self, lr: float | None) -> None:
        """Make the next updates with this learning rate, or with that of the schedule if it is None."""
        engine = self.actor.engine
        rates = engine.lr_scheduler.get_last_lr() if lr is None else [lr] * len(engine.optimizer.param_groups)
        for group, rate in zip(engine.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def forget_moments(self) -> None:
        """Begin with new moments of AdamW, as for a first update."""
        self.actor.engine.optimizer.state.clear()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_weights(self, path: str, dtype: str) -> None:
        """Write the whole weights as one file, from rank 0."""
        weights, _adapter = self.actor.engine.get_per_tensor_param()
        is_kept = torch.distributed.get_rank() == 0
        tensors = gather(weights, getattr(torch, dtype), is_kept=is_kept)
        if is_kept:
            write_weights(Path(path), tensors)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def describe_weights(self) -> list[tuple[str, str, list[int]]]:
        """Return name, dtype and shape of every tensor, in the order in which they are sent."""
        weights, _adapter = self.actor.engine.get_per_tensor_param()
        return [(name, str(weight.dtype).removeprefix("torch."), list(weight.shape)) for name, weight in weights]

    def _set_loss(self) -> None:
        if self.actor is not None:
            self.actor.set_loss_fn(partial(policy_loss, config=self.loss_fn.keywords["config"]))


class ValueWorker(TrainingWorker):
    """Critic, for algorithms that have one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        _join_process_group()
        super().__init__(*args, **options)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def end_step(self) -> None:
        _end_step(self)


def _end_step(worker: TrainingWorker) -> None:
    # verl's other model engines move the learning rate themselves.
    if isinstance(worker.engine, PolicyEngine | ValueEngine):
        worker.engine.end_step()
