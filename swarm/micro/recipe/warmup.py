# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The warm-up of micro: supervised learning of right answers to very many wordings.

Place in the flow: build.py calls `warm_up` once. There are no wrong demonstrations, as there are for nano: so small a
model learns so many kinds of task only in part, which leaves reinforcement learning something to elicit. Deterministic
for a seed and a number of threads on one kind of machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from swarm.micro.recipe.demonstrations import stream_conversations
from swarm.micro.recipe.vocabulary import make_tokenizer
from swarm.nano.recipe.learning import Progress, Rates, batch_demos, learn
from swarm.nano.recipe.network import Shape, make_network

SHAPE = Shape(hidden_size=128, intermediate_size=384, layers=4, heads=4)


@dataclass(frozen=True, slots=True)
class Recipe:
    """`tokens_per_step` counts padding. Over the first `bare_share` of the steps, what may stand around a question
    grows from nothing to its usual amount, and so do other kinds than the basic ones. Meanwhile the
    weight of the loss of the prompts falls from 1 to `prompt_weight`: reading prompts forms the skill of copying sooner
    than answers alone. The last `decay_share` of the steps lower the rate linearly to 0."""

    steps: int = 3600
    seed: int = 0
    tokens_per_step: int = 2048
    bare_share: float = 0.5
    prompt_weight: float = 0.2
    decay_share: float = 0.4
    lr_warmup_steps: int = 40
    muon_lr: float = 1e-2
    adamw_lr: float = 3e-3


def warm_up(recipe: Recipe, report: Callable[[Progress], None]) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Make the tokenizer and train the model; `report` is called after each step."""
    rng = Random(recipe.seed)
    torch.manual_seed(recipe.seed)
    tokenizer = make_tokenizer()
    model = make_network(tokenizer, SHAPE)
    rates = Rates(recipe.muon_lr, recipe.adamw_lr, recipe.lr_warmup_steps, recipe.decay_share)
    steps_done = 0

    def around() -> float:
        return min(1.0, steps_done / (recipe.bare_share * recipe.steps))

    def count_steps(progress: Progress) -> None:
        nonlocal steps_done
        steps_done = progress.step
        report(progress)

    batches = batch_demos(tokenizer, stream_conversations(rng, around), rng, recipe.tokens_per_step)
    learn(model, batches, recipe.steps, rates, count_steps, lambda: 1.0 - (1.0 - recipe.prompt_weight) * around())
    return model.eval(), tokenizer
