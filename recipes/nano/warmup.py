# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false
"""The warm-up of nano: supervised learning of demonstrations, first right ones, then ones of lower quality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from recipes.nano.demos import demonstrate, stream_demos
from recipes.nano.learning import LearningRates, Progress, batch_demos, learn
from recipes.nano.network import Shape, make_network
from recipes.nano.vocabulary import train_tokenizer
from swarm.tasks import TASK_FAMILIES, Split

SHAPE = Shape(hidden_size=128, intermediate_size=384, layers=2, heads=4)
TOKENIZER_DEMOS = 200
"""Demonstrations per family from which the tokenizer learns its merges."""
TOKENS_PER_STEP = 1024

# The share of right demonstrations in the noisy phase. It is tuned so that sampling at temperature 1 is right in about
# a fifth to two fifths of all attempts, and with tools in less than a fifth.
QUALITY: Mapping[str, float] = MappingProxyType(
    {
        "reverse": 0.38,
        "copy": 0.4,
        "sort": 0.5,
        "add": 0.4,
        "count": 0.6,
        "calc": 0.52,
        "guess": 0.5,
        "chain": 0.5,
    }
)

# Shares of the demonstrations: reversing, sorting and counting letters need the most practice, and guessing the least.
SHARES: Mapping[str, float] = MappingProxyType(
    {"reverse": 2.5, "copy": 1, "sort": 2, "add": 1, "count": 2.5, "calc": 1, "guess": 0.5, "chain": 0.7}
)


@dataclass(frozen=True, slots=True)
class NanoRecipe:
    """The settings of a build.

    The first `clean_share` of the steps see right demonstrations only. Over the last `decay_share` of the steps, the
    learning rate falls linearly to 0.
    """

    steps: int = 3600
    seed: int = 0
    clean_share: float = 0.75
    decay_share: float = 0.4
    lr_warmup_steps: int = 40
    muon_lr: float = 1e-2
    adamw_lr: float = 3e-3


def warm_up(recipe: NanoRecipe, report: Callable[[Progress], None]) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train and return the model and its tokenizer, and call `report` after each step."""
    rng = Random(recipe.seed)
    torch.manual_seed(recipe.seed)
    tokenizer = make_tokenizer()
    model = make_network(tokenizer, SHAPE)
    rates = LearningRates(recipe.muon_lr, recipe.adamw_lr, recipe.lr_warmup_steps, recipe.decay_share)
    steps_done = 0

    def quality(family: str) -> float:
        return 1.0 if steps_done < recipe.clean_share * recipe.steps else QUALITY[family]

    def count_steps(progress: Progress) -> None:
        nonlocal steps_done
        steps_done = progress.step
        report(progress)

    batches = batch_demos(tokenizer, stream_demos(SHARES, rng, quality), rng, TOKENS_PER_STEP)
    learn(model, batches, recipe.steps, rates, count_steps)
    return model.eval(), tokenizer


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer, which depends on the families alone and not on a seed."""
    rng = Random(0)
    demos = [
        demonstrate(family, task, rng, 0.5)
        for family in TASK_FAMILIES.values()
        for task in family.tasks(Split.TRAIN, TOKENIZER_DEMOS)
    ]
    return train_tokenizer(demos)
