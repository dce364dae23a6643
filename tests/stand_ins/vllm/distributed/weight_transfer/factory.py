"""Stands where vLLM's register of weight transfers stands."""

from __future__ import annotations

from typing import Any, ClassVar


class WeightTransferEngineFactory:
    registered: ClassVar[dict[str, Any]] = {}

    @classmethod
    def register_engine(cls, name: str, engine: Any) -> None:
        cls.registered[name] = engine
