"""verl's FSDP engines with additions for this service, on the CPU and on NVIDIA GPUs.

Place in the flow: registered with verl in every training process; verl builds one per role. It adds two features.
Logits are divided by the temperature at which each single token was sampled. The schedule of the learning rate counts
steps of the service, and already the first step learns.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUntypedClassDecorator=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForTokenClassification
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name, offload_fsdp_model_to_cpu
from verl.utils.model import convert_weight_keys
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

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
