"""The demonstrations that clients upload to a server, before a job names them by their digest."""

from __future__ import annotations

import asyncio

from swarm.demonstrations import digest_demonstrations, is_digest, parse_demonstrations
from swarm.errors import JobInvalid
from swarm.job import TrainJob
from swarm.ledger import Ledger
from swarm.schemas import DemonstrationsView


async def store_demonstrations(ledger: Ledger, content: bytes) -> DemonstrationsView:
    """Store demonstrations; durable on return. Raise BadRequest, which names the first line that is none."""
    parsed = await asyncio.to_thread(parse_demonstrations, content)
    digest = digest_demonstrations(content)
    await ledger.add_demonstrations(digest, content)
    return DemonstrationsView(digest=digest, demonstrations=len(parsed))


async def require_demonstrations(ledger: Ledger, job: TrainJob) -> None:
    """Raise JobInvalid unless the server has the demonstrations of the job."""
    name = job.demonstrations
    if name is None:
        return
    if not is_digest(name) or await ledger.demonstrations(name) is None:
        raise JobInvalid(unknown_demonstrations(name), param="demonstrations")


def unknown_demonstrations(name: str) -> str:
    """Return why demonstrations cannot be used, and how a client makes them known."""
    return (
        f"demonstrations: this server has none named {name}: upload the file first, as SwarmClient and swarm train do"
        " (POST /v1/swarm/demonstrations), and name the digest of the answer"
    )
