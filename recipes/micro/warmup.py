# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The warm-up of micro: supervised learning of right answers to very many wordings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from recipes.micro.demonstrations import stream_conversations
from recipes.micro.vocabulary import make_tokenizer
from recipes.nano.learning import LearningRates, Progress, batch_demos, learn
from recipes.nano.network import Shape, make_network

SHAPE = Shape(hidden_size=128, intermediate_size=384, layers=4, heads=4)


@dataclass(frozen=True, slots=True)
class MicroRecipe:
    """The settings of a build.

    `tokens_per_step` counts padding. Over the first `bare_share` of the steps, the text around questions grows from
    nothing to its usual amount. So does the share of kinds that are not basic. Meanwhile, the weight of the prompts'
    loss falls from 1 to `prompt_weight`, because copying is learned sooner from prompts than from answers alone. Over
    the last `decay_share` of the steps, the learning rate falls linearly to 0.
    """

    steps: int = 3600
    seed: int = 0
    tokens_per_step: int = 2048
    bare_share: float = 0.5
    prompt_weight: float = 0.2
    decay_share: float = 0.4
    lr_warmup_steps: int = 40
    muon_lr: float = 1e-2
    adamw_lr: float = 3e-3


def warm_up(
    recipe: MicroRecipe, report: Callable[[Progress], None]
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train and return the model and its tokenizer, and call `report` after each step."""
    rng = Random(recipe.seed)
    torch.manual_seed(recipe.seed)
    tokenizer = make_tokenizer()
    model = make_network(tokenizer, SHAPE)
    rates = LearningRates(recipe.muon_lr, recipe.adamw_lr, recipe.lr_warmup_steps, recipe.decay_share)
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
