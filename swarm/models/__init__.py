"""Models that a user's machine has by name, beside the bundled ones."""

from __future__ import annotations

from typing import Final

MODEL_DESCRIPTION: Final = "a name that swarm models list shows, or the directory of a Hugging Face model"
"""What the option of a model takes, in every command."""
