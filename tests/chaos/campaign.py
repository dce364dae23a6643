"""Studies from their begin to their checks: one under attack, or one without faults and one with them.

Place in the flow: tests call it. What is checked is in checks.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from chaos.checks import Check, Outcome, compare, judge, look
from chaos.deployment import Deployment
from chaos.faults import Fault, FaultKind, draw
from chaos.injector import Injector, possible_kinds
from chaos.study import ChaosStudy

STUDY_LIMIT_S = 3600.0
SPREAD = 0.6
"""The part of a study's time in peace over which faults are spread: they have to come before its end."""


@dataclass(frozen=True, slots=True)
class Attack:
    """How a study is attacked: a fault every `mean_pause_s` seconds, until `count` have hit.

    `only` names the kinds; all that are possible here if it is empty.
    """

    seed: int
    count: int
    mean_pause_s: float
    only: tuple[FaultKind, ...] = ()


@dataclass(frozen=True, slots=True)
class Played:
    """A study with what was done to it. `missed` found nothing to hit, `left_out` cannot be done on this machine."""

    outcome: Outcome
    checks: list[Check]
    faults: list[Fault] = field(default_factory=list[Fault])
    missed: dict[FaultKind, int] = field(default_factory=dict[FaultKind, int])
    left_out: dict[FaultKind, str] = field(default_factory=dict[FaultKind, str])

    @property
    def is_passed(self) -> bool:
        return all(check.is_passed for check in self.checks)


def play(folder: Path, study: ChaosStudy, attack: Attack | None = None) -> Played:
    """Carry one study out, attacked or left in peace. Raises OSError if it cannot even begin."""
    with Deployment(folder, study, is_hostile=attack is not None) as deployment:
        if attack is None:
            _await_end(deployment)
            outcome = look(deployment)
            return Played(outcome, judge(outcome, study.runs))
        kinds, left_out = possible_kinds(deployment, attack.only)
        injector = Injector(deployment, draw(attack.seed, kinds, attack.mean_pause_s), attack.count)
        injector.start()
        _await_end(deployment)
        injector.join()
        outcome = look(deployment)
        deployment.keep()
        return Played(outcome, judge(outcome, study.runs), injector.faults, injector.missed, left_out)


def play_both(folder: Path, study: ChaosStudy, *, seed: int, faults: int) -> tuple[Played, Played]:
    """Play the study in peace and then under attack; the second is checked against the first as well.

    The faults are spread over most of the time that the study took in peace: a slow machine gets fewer a minute.
    """
    control = play(folder / "control", study)
    attacked = play(folder / "attacked", study, Attack(seed, faults, SPREAD * control.outcome.seconds / faults))
    hit = len(attacked.faults)
    enough = Check("faults", hit >= faults, f"{hit} of {faults}")
    return control, replace(attacked, checks=[enough, *attacked.checks, *compare(attacked.outcome, control.outcome)])


def _await_end(deployment: Deployment) -> None:
    """Wait for the end of the study, which is given up if that takes too long."""
    if not deployment.researcher.wait(STUDY_LIMIT_S):
        deployment.researcher.close()
