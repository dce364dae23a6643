"""Server-sent events of a model call.

Place in the flow: dialects make frames, the model routes send them. Knows nothing of what they say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: JSON, or text as it is. `event` is its name, if the API gives it one."""

    data: Mapping[str, Any] | str
    event: str | None = None

    def encode(self) -> bytes:
        text = (
            self.data
            if isinstance(self.data, str)
            else json.dumps(self.data, ensure_ascii=False, separators=(",", ":"))
        )
        name = "" if self.event is None else f"event: {self.event}\n"
        return f"{name}data: {text}\n\n".encode()


def encode_frames(frames: Iterable[Frame]) -> bytes:
    return b"".join(frame.encode() for frame in frames)
