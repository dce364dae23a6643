"""The agent that plays the attempts of a score: that of the run's arm, or one agent for all arms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from experiments_db import Author, Experiment
from prompts import load
from researcher.charter import Charter
from researcher.phases import PLAIN_AGENT
from researcher.program_parts import find_differing_parts
from researcher.scope import ArmPart

SAMPLING = frozenset({"temperature"})
"""The settings of a job by which its agents sample."""


@dataclass(frozen=True, slots=True)
class Player:
    """An agent: the program that has it, and whether this package wrote that program."""

    code: str
    is_trusted: bool = False

    @property
    def is_plain(self) -> bool:
        """True if the model alone answers."""
        return self.code == load("program")

    @property
    def digest(self) -> str:
        return sha256(self.code.encode()).hexdigest()


def agent_of(experiment: Experiment) -> Player:
    """Return the agent of an arm: the plain one if its program has none."""
    return agent_in(experiment.program_code, is_trusted=experiment.author is Author.PACKAGE)


def agent_in(code: str, *, is_trusted: bool) -> Player:
    """Return the agent of a program: the plain one if it has none."""
    plain = load("program")
    if ArmPart.AGENT not in find_differing_parts(code, plain):
        return Player(plain, is_trusted=True)
    return Player(code, is_trusted=is_trusted)


def agent_for_all(experiments: Iterable[Experiment]) -> Player:
    """Return the agent with which any weights of a study can be scored: that of the baseline, or else the plain one."""
    baseline = next((item for item in experiments if item.is_baseline), None)
    return Player(load("program"), is_trusted=True) if baseline is None else agent_of(baseline)


def plays_its_own(charter: Charter, phase: str) -> bool:
    """Return whether a score of this phase is played by the agent of the run's arm.

    Where a study asks how to train, one agent plays for all arms, so that a score compares weights alone.
    """
    return charter.asks.scope.asks_agents and phase not in PLAIN_AGENT.values()


def fixes_sampling(charter: Charter) -> bool:
    """Return whether all scores are sampled alike, whatever agents ask for.

    Only where sampling itself is a factor of the study may agents differ in it.
    """
    named = {*charter.asks.varied, *charter.asks.scope.settings}
    return not SAMPLING & named


def has_other_agent(experiment: Experiment, shared: Player) -> bool:
    """Return whether an arm has another agent than the one that can play for all arms."""
    return ArmPart.AGENT in find_differing_parts(experiment.program_code, shared.code)
