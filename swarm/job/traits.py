"""The traits of a setting: when it is read, what it is for, and what it needs to have an effect."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final


class Reader(StrEnum):
    """The time at which a setting is read, which decides the first step that can have a change of it.

    BATCH settings are read from the first episode of a batch on and never change within one. A change takes effect with
    the batch after the present one. STEP settings are read when a batch is trained, or later. A change takes effect
    with the next batch that is closed.
    """

    BATCH = "batch"
    STEP = "step"


class Purpose(StrEnum):
    """The purpose of a setting that does not change what is learned. No study compares values of such a setting."""

    NAMING = "naming"
    WAITING = "waiting"
    KEEPING = "keeping"
    SCORING = "scoring"
    COMPUTING = "computing"


@dataclass(frozen=True, slots=True)
class Need:
    """The value of another setting without which a setting has no effect.

    It is one of `values`, or any that is on if these are empty. A job of which the property `unless` is true does not
    have the need.

    `adds` is a value that meets the need, for the line that refuses the setting without it.
    """

    setting: str
    adds: Any
    values: Sequence[Any] = ()
    unless: str = ""

    def is_met(self, value: Any) -> bool:
        return value in self.values if self.values else bool(value)


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of one setting. A field of a job has them in its annotation.

    A setting has either a `reader`, if it can change while the job runs, or `fixed`, which says why it cannot and what
    to do instead.
    """

    reader: Reader | None = None
    fixed: str = ""
    on_verl: bool = True
    """False if engine verl cannot change the setting while the job runs."""
    of_sampling: bool = False
    """True if the setting can change what the model says before a step is trained, and so the base score."""
    purpose: Purpose | None = None
    """None if the setting may change what is learned, so that studies may compare values of it."""
    needs: tuple[Need, ...] = ()
    """All that the setting needs to have an effect. A job or study that gives it without them is refused."""
    is_spare: bool = False
    """True if a job may have the setting without its needs. So verl's options stay when a job changes its engine."""
    needed: str = ""
    """The meaning of the setting if a job that has its needs must give it, and else empty."""
    automatic: Any = None
    """The default of a job that has its needs."""
    follows: str = ""
    """Another setting, whose value is the default. A job that gives the same value says nothing by it."""

    def needing(self, *needs: Need) -> Traits:
        """Return these traits for a setting with such needs."""
        return replace(self, needs=needs)


COLLECTED: Final = Traits(Reader.BATCH)
SAMPLED: Final = Traits(Reader.BATCH, of_sampling=True)
COUNTED: Final = Traits(Reader.STEP)
WAITED: Final = replace(COLLECTED, purpose=Purpose.WAITING)
KEPT: Final = replace(COUNTED, purpose=Purpose.KEEPING)
SCORED: Final = replace(COUNTED, purpose=Purpose.SCORING)
# verl's processes are built with their optimizer and their loss.
LEARNED: Final = Traits(Reader.STEP, on_verl=False)

CRITIC: Final = Need("algorithm", "gae", ("gae",))
OF_CRITIC: Final = LEARNED.needing(CRITIC)
NAMED_REWARDS: Final = Need("algorithm", "gdpo", ("gdpo",))
DIVIDED: Final = Need("algorithm", "grpo", ("grpo", "grpo_vectorized", "grpo_passk", "gdpo"))
DISCOUNTED: Final = Need("algorithm", "reinforce_plus_plus", ("gae", "reinforce_plus_plus"))
# The loss of bypass_mode is chosen by loss_type, which nothing else reads.
UNWEIGHTED: Final = Need("loss_type", "ppo_clip", ("ppo_clip",))
DUAL_CLIPPED: Final = Need("policy_loss", "vanilla", ("vanilla", "dppo_tv", "dppo_kl", "bypass_mode"))
CLIPPED: Final = replace(DUAL_CLIPPED, values=(*DUAL_CLIPPED.values, "gspo", "cispo", "clip_cov", "geo_mean"))
# In the first update of a step, the policy is still the reference of the importance ratio.
SEVERAL_UPDATES: Final = Need("mini_batch_num", 4, range(2, sys.maxsize), unless="moves_without_minibatches")
OF_CLIPPING: Final = LEARNED.needing(CLIPPED, UNWEIGHTED, SEVERAL_UPDATES)
OF_CLIPPED_SIDE: Final = replace(OF_CLIPPING, follows="clip_ratio")
OF_DUAL_CLIPPING: Final = LEARNED.needing(DUAL_CLIPPED, UNWEIGHTED, SEVERAL_UPDATES)
BYPASS: Final = Need("policy_loss", "bypass_mode", ("bypass_mode",))
CORRECTED: Final = Need("rollout_is", "token", ("token", "sequence"))
KL_TERM: Final = Need("use_kl_loss", True)
DEMONSTRATED: Final = Need("demonstrations", "demonstrations.jsonl")
HELD_OUT: Final = Need("eval_every", 10)
FALLING: Final = Need("lr_scheduler_type", "cosine", ("linear", "cosine"))

NEW_RUN: Final = 'sync the changed job with resume="weights", which begins a new run from the present weights'


def another_run(reason: str, way_out: str, *, of_sampling: bool = False) -> Traits:
    """Return the traits of a setting that is part of a run's identity, so that another value is another run."""
    return Traits(fixed=f"{reason}: sync a job {way_out}, which begins a new run", of_sampling=of_sampling)


def fixed_sampling(reason: str) -> Traits:
    """Return the traits of a setting of sampling that only a new run can change, for this reason."""
    return Traits(fixed=f"{reason}: {NEW_RUN}", of_sampling=True)


NAME: Final = replace(another_run("it names the run", "with another name"), purpose=Purpose.NAMING)
SUPERVISED: Final = Traits(
    fixed=f"the order of the demonstrations is fixed when a run begins: {NEW_RUN}", needs=(DEMONSTRATED,)
)
ALGORITHM: Final = Traits(fixed=f"networks and episodes are set up for it: {NEW_RUN}")
BUILT: Final = Traits(fixed=f"the engine is built with it: {NEW_RUN}", purpose=Purpose.COMPUTING)
ADAPTER: Final = Traits(
    fixed="the adapter is part of the model: write the whole model with swarm export --merge-lora, and begin a new run"
    " with a job of that model",
    of_sampling=True,
)
OF_ADAPTER: Final = ADAPTER.needing(Need("lora_rank", 8))
OF_VERL: Final = replace(
    fixed_sampling("verl's processes are built with these options").needing(Need("engine", "verl", ("verl",))),
    is_spare=True,
)
PARSER: Final = Traits(fixed=f"recorded turns were parsed with it: {NEW_RUN}", of_sampling=True)
