"""Stands where the base of vLLM's weight transfer stands, in an older form: engines are not given the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class WeightTransferInitInfo(ABC):  # noqa: B024  as in vLLM
    pass


class WeightTransferUpdateInfo(ABC):  # noqa: B024  as in vLLM
    pass


class WeightTransferEngine(ABC):
    init_info_cls: Any
    update_info_cls: Any

    def __init__(self, config: Any, parallel_config: Any) -> None:
        self.config = config
        self.parallel_config = parallel_config

    def parse_update_info(self, told: dict[str, Any]) -> Any:
        return self.update_info_cls(**told)

    @abstractmethod
    def init_transfer_engine(self, init_info: Any) -> None: ...

    @abstractmethod
    def receive_weights(self, update_info: Any, load_weights: Any) -> None: ...

    @abstractmethod
    def shutdown(self) -> None: ...

    @staticmethod
    @abstractmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None: ...
