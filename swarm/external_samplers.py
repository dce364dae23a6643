"""The samplers that run in processes of their own, by the name that a job gives them."""

from __future__ import annotations

from typing import Final

EXTERNAL_SAMPLERS: Final = {
    "vllm": "swarm.backends.replicas.vllm.adapter:VllmAdapter",
}
"""Name of the sampler -> module and class of its adapter."""
