"""One run of TRL's GRPOTrainer, as a competent user of TRL writes it: `python -m bench.peers.trl_side PLAN`.

Place in the flow: run by TRL's own interpreter, with this tree on PYTHONPATH; PLAN is JSON. The report goes to the last
line of stdout. Word reversal needs nothing but the trainer, the calculator is one of its `tools`, and the game is a
`rollout_func`. Settings are those under which TRL was fastest here: one forward pass for the whole batch, float32, no
gradient checkpointing, the loss `grpo`.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.peers.report import RunReport, StepFigures, peak_mb
from bench.peers.trl_game import GameRollout
from bench.peers.workload import (
    BETAS,
    CLIP,
    EVERY_CASE,
    GRAD_CLIP,
    TEMPERATURE,
    RunPlan,
    reward_of,
    tasks_of,
)
from swarm.tasks.calc import CALCULATOR, calculate
from swarm.types import Task

MODEL = Path(__file__).parents[2] / "swarm" / "nano" / "model"
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}
"""How a reply of the bundled model is taken apart. TRL knows that of the larger families only."""


def calculator(expression: str) -> str:
    """Multiply, add or subtract two integers.

    Args:
        expression: Two integers with an operator between them.
    """
    return calculate(expression)


class TimedTrainer(GRPOTrainer):
    """A trainer that records the time of sampling and scoring, and the number of sampled tokens."""

    rollout_s: float = 0.0
    tokens: int = 0
    first_prompt: list[int] | None = None

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        began = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        self.rollout_s = time.perf_counter() - began
        return output

    def _generate(self, prompts: Any) -> Any:
        output = super()._generate(prompts)
        prompt_ids, completion_ids, tool_mask = output[:3]
        self.first_prompt = self.first_prompt or list(prompt_ids[0])
        self.tokens = sum(map(sum, tool_mask)) if tool_mask else sum(map(len, completion_ids))
        return output


class StepRecorder(TrainerCallback):
    """A callback that records the figures of each step, and ends a run that has a time limit."""

    def __init__(self, plan: RunPlan, rewards: list[float]) -> None:
        self.steps: list[StepFigures] = []
        self.trainer: TimedTrainer | None = None
        self._plan = plan
        self._rewards = rewards
        self._began = self._step_began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._began = self._step_began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        now = time.perf_counter()
        rollout_s = self.trainer.rollout_s
        train_s = now - self._step_began - rollout_s
        self.steps.append(StepFigures(now - self._began, rollout_s, train_s, self._rewards[-1], self.trainer.tokens))
        self._step_began = now
        limit_s = self._plan.seconds
        if limit_s is not None and now - self._began > limit_s:
            control.should_training_stop = len(self.steps) >= EVERY_CASE[self._plan.case].least_steps


def train(plan: RunPlan) -> tuple[RunReport, list[int]]:
    """Train the plan and return the report of the run, and the token ids of its first prompt."""
    case, tasks = EVERY_CASE[plan.case], tasks_of(plan)
    torch.set_num_threads(plan.threads)
    torch.manual_seed(plan.seed)
    directory = plan.model or MODEL
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, case.dtype))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    rewards: list[float] = []
    recorder = StepRecorder(plan, rewards)
    given: dict[str, Any] = {}
    if plan.case == "calc":
        tokenizer.response_template = RESPONSE_TEMPLATE
        tokenizer.chat_template = with_schema(tokenizer.chat_template)
        given["tools"] = [calculator]
    if plan.case == "game":
        given["rollout_func"] = GameRollout(case.family, tasks)
    with TemporaryDirectory(prefix="bench-trl-") as output:
        trainer = TimedTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=score_by(plan, tasks, rewards),
            args=settings(plan, output),
            train_dataset=dataset_of(tasks),
            callbacks=[recorder],
            **given,
        )
        recorder.trainer = trainer
        trainer.train()
    return RunReport(recorder.steps, {"trl": peak_mb()}), trainer.first_prompt or []


def settings(plan: RunPlan, directory: str) -> GRPOConfig:
    case = EVERY_CASE[plan.case]
    return GRPOConfig(
        output_dir=directory,
        seed=plan.seed,
        max_steps=plan.steps,
        learning_rate=case.lr,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=0.0,
        max_grad_norm=GRAD_CLIP,
        per_device_train_batch_size=case.episodes // case.passes,
        gradient_accumulation_steps=case.passes,
        num_generations=case.repeats,
        max_completion_length=case.completion_tokens,
        max_tool_calling_iterations=case.family.max_turns - 1,
        temperature=TEMPERATURE,
        top_p=1.0,
        top_k=0,
        epsilon=CLIP,
        beta=0.0,
        loss_type="grpo",
        scale_rewards="group",
        bf16=False,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


def dataset_of(tasks: list[Task]) -> Dataset:
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": task.main_query}], "number": number}
            for number, task in enumerate(tasks)
        ]
    )


def score_by(plan: RunPlan, tasks: list[Task], rewards: list[float]) -> Any:
    """Return the reward function, which also records the mean reward of every batch in `rewards`."""
    family = EVERY_CASE[plan.case].family

    def score(completions: list[list[dict[str, Any]]], number: list[int], **given: Any) -> list[float]:
        # The rollout of the game has computed its rewards already.
        scores = given.get("game_reward") or [
            reward_of(family, tasks[index], [message for message in messages if message["role"] == "assistant"])
            for index, messages in zip(number, completions, strict=True)
        ]
        rewards.append(sum(scores) / len(scores))
        return scores

    return score


def with_schema(template: str) -> str:
    """Return the chat template with the calculator's schema as the bundled model knows it.

    TRL makes its own schema of the Python function. That schema has descriptions, which the model never saw.
    """
    generated = "(tool | tojson)"
    if generated not in template:
        raise ValueError(f"the chat template has no {generated}")
    return template.replace(generated, f"'{json.dumps(CALCULATOR)}'")


def main() -> None:
    report, first_prompt = train(RunPlan(**json.loads(sys.argv[1])))
    print(json.dumps(first_prompt))
    print(report.to_json(), flush=True)


if __name__ == "__main__":
    main()
