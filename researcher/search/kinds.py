"""The kind of an arm: the parts in which it differs from the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from experiments_db import Experiment
from researcher.equal_amounts import in_force
from researcher.program_parts import find_differing_parts
from researcher.scope import ArmPart

NO_PARTS = frozenset({"total_steps", "save_freq"})
"""The settings that follow from others, or change nothing that is learned."""
MODEL = "model"


def find_parts(arm: Experiment, baseline: Experiment) -> Iterator[ArmPart]:
    """Yield the parts in which an arm differs from the baseline; those of its program only once that is written."""
    own, usual = in_force(arm.job), in_force(baseline.job)
    changed = {name for name in {*own, *usual} - NO_PARTS if own.get(name) != usual.get(name)}
    if changed - {MODEL}:
        yield ArmPart.SETTINGS
    if arm.program_code and baseline.program_code:
        try:
            yield from find_differing_parts(arm.program_code, baseline.program_code)
        except SyntaxError:
            # Such a program never runs: its check has rejected it.
            return
    if arm.train_environment != baseline.train_environment:
        yield ArmPart.TRAIN_ENVIRONMENT
    if MODEL in changed:
        yield ArmPart.MODEL
