"""Studies from their begin to their checks: one without faults and one with them, or several with kills alone.

Place in the flow: command.py and a test call it. What is measured is in checks.py, what is shown in command.py.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.chaos.checks import Check, Outcome, compare, judge, look
from bench.chaos.deployment import Deployment
from bench.chaos.faults import KILLS, Fault, FaultKind, draw
from bench.chaos.injector import Injector, possible_kinds
from bench.chaos.study import ChaosStudy
from experiments_db import StoreError, open_store

STUDY_LIMIT_S = 3600.0
SAY_EVERY_S = 30.0
MEAN_PAUSE_S = 10.0
SPREAD = 0.6
"""The part of a study's time in peace over which faults are spread: they have to come before its end."""


@dataclass(frozen=True, slots=True)
class Attack:
    """How a study is attacked: a fault every `mean_pause_s` seconds, until `count` have hit or `until` says so. `only`
    names the kinds; all that are possible here if it is empty."""

    seed: int
    count: int
    mean_pause_s: float = MEAN_PAUSE_S
    only: tuple[FaultKind, ...] = ()
    until: Callable[[], bool] = field(default=lambda: False)


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

    @property
    def by_kind(self) -> dict[str, int]:
        return dict(Counter(fault.kind.value for fault in self.faults))

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.is_passed,
            "checks": [asdict(check) for check in self.checks],
            "faults_by_kind": self.by_kind,
            "faults": [asdict(fault) for fault in self.faults],
            "missed": self.missed,
            "left_out": self.left_out,
            "study": asdict(self.outcome),
        }


def play(folder: Path, study: ChaosStudy, attack: Attack | None = None) -> Played:
    """Carry one study out, attacked or left in peace. Raises OSError if it cannot even begin."""
    with Deployment(folder, study, is_hostile=attack is not None) as deployment:
        if attack is None:
            _await_end(deployment, list)
            outcome = look(deployment)
            return Played(outcome, judge(outcome, study.runs))
        kinds, left_out = possible_kinds(deployment, attack.only)
        injector = Injector(deployment, draw(attack.seed, kinds, attack.mean_pause_s), attack.count, attack.until)
        injector.start()
        _await_end(deployment, lambda: injector.faults)
        injector.join()
        outcome = look(deployment)
        deployment.keep()
        return Played(outcome, judge(outcome, study.runs), injector.faults, injector.missed, left_out)


def play_both(folder: Path, study: ChaosStudy, attack: Attack, *, is_spread: bool = False) -> tuple[Played, Played]:
    """The study in peace and the study under attack, which is checked against the other one as well. With `is_spread`
    the pauses are such that the faults fill most of the time which the study took in peace: a slow machine gets fewer a
    minute."""
    control = play(folder / "control", study)
    if is_spread:
        attack = replace(attack, mean_pause_s=SPREAD * control.outcome.seconds / attack.count)
    attacked = play(folder / "attacked", study, attack)
    hit = len(attacked.faults)
    enough = Check("faults", hit >= attack.count, f"{hit} of {attack.count}")
    return control, replace(attacked, checks=[enough, *attacked.checks, *compare(attacked.outcome, control.outcome)])


def play_for(folder: Path, studies: Sequence[ChaosStudy], seed: int, minutes: float, kills: int) -> list[Played]:
    """One study after another with random kills alone, `kills` of them spread over the time. None is begun once the
    time is over, and no kill comes any more."""
    ends_at = time.monotonic() + 60 * minutes
    played: list[Played] = []
    for number, study in enumerate(studies):
        if time.monotonic() >= ends_at:
            break
        attack = Attack(
            seed + number, 10 * kills, 60 * minutes / kills, KILLS, until=lambda: time.monotonic() >= ends_at
        )
        played.append(play(folder / f"study-{number}", study, attack))
    return played


def _await_end(deployment: Deployment, faults: Callable[[], Sequence[Fault]]) -> None:
    """Says from time to time how far the study is."""
    deadline = time.monotonic() + STUDY_LIMIT_S
    while not deployment.researcher.wait(SAY_EVERY_S):
        said = f"{time.monotonic() - deployment.began_at:.0f} s, {len(faults())} faults, {_progress(deployment)}"
        print(f"chaos: {deployment.study_id}: {said}", file=sys.stderr, flush=True)
        if time.monotonic() > deadline:
            print(f"chaos: given up after {STUDY_LIMIT_S:.0f} s", file=sys.stderr, flush=True)
            deployment.researcher.close()


def _progress(deployment: Deployment) -> str:
    try:
        with open_store(deployment.database, read_only=True) as store:
            runs = Counter(run.status.value for run in store.list_runs(study_id=deployment.study_id))
    except StoreError:
        return "the record cannot be read at the moment"
    return ", ".join(f"{count} {status}" for status, count in sorted(runs.items())) or "no run yet"
