"""The scope of a study: the parts in which its arms may differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class ArmPart(StrEnum):
    """A part of an arm in which it may differ from the baseline.

    REWARD, SCHEDULE and AGENT are functions of its program. SETTINGS are those of its job without the model.
    """

    SETTINGS = "settings"
    REWARD = "reward"
    SCHEDULE = "schedule"
    AGENT = "agent"
    TRAIN_ENVIRONMENT = "train-environment"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Scope:
    """The parts in which the arms of a study may differ, in the order of `ArmPart`.

    `settings` names the settings that may differ; all may if it is empty.
    """

    parts: tuple[ArmPart, ...] = tuple(ArmPart)
    settings: tuple[str, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[ArmPart], settings: Iterable[str] = ()) -> Scope:
        """Return the scope of these parts, each once."""
        given = frozenset(parts)
        return cls(tuple(part for part in ArmPart if part in given), tuple(dict.fromkeys(settings)))

    @property
    def asks_agents(self) -> bool:
        """True if agents are what is asked, so that each arm is scored with its own agent."""
        return ArmPart.AGENT in self.parts

    def allows(self, part: ArmPart) -> bool:
        return part in self.parts

    def allows_setting(self, name: str) -> bool:
        """Return whether arms may differ in a setting of their jobs."""
        if name == ArmPart.MODEL:
            return ArmPart.MODEL in self.parts
        return ArmPart.SETTINGS in self.parts and (not self.settings or name in self.settings)
