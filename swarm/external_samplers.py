"""The samplers that run in processes of their own, by the name that a job gives them.

Place in the flow: a job's `sampler` is one of these names. backends/replicas loads the adapter of that name, which
knows the server's command and routes. This is plain data, so that a client checks a job without importing a backend.
"""

from __future__ import annotations

from typing import Final

EXTERNAL_SAMPLERS: Final = {
    "vllm": "swarm.backends.replicas.vllm.adapter:VllmAdapter",
}
"""Name of the sampler -> module and class of its adapter."""
