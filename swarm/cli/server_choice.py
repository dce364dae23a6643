"""The server that a command looks at when no address is given: the only one of this user on this machine."""

from __future__ import annotations

import asyncio

from swarm.cli.options import DEFAULT_URL, token_of
from swarm.errors import BadRequest, Forbidden, ServerUnreachable, SwarmError, Unauthorized

LOOK_TIMEOUT_S = 3.0


def choose_server(command: str) -> str:
    """Return the address of this user's server on this machine.

    Raise BadRequest if there are several, or if a server answers at the default address that is not on the list of
    running servers, and ServerUnreachable if there is none. The message names what to call instead of `command`.
    """
    from swarm.processes.running_servers import list_running_servers

    servers = list_running_servers()
    if len(servers) == 1:
        return servers[0].url
    if not servers:
        raise asyncio.run(_none_known(command))
    lines = asyncio.run(_describe_all({server.url: server.home for server in servers}))
    raise BadRequest(
        f"several servers run on this machine: name one, as in `{command} {servers[0].url}`. {'; '.join(lines)}"
    )


async def _none_known(command: str) -> SwarmError:
    """Return the error for a machine on which no server of this user is known to run."""
    try:
        found = await _describe(DEFAULT_URL)
    except ServerUnreachable:
        return ServerUnreachable(
            f"no server of yours runs on this machine: `swarm start` starts one, and `{command} URL` takes another"
        )
    return BadRequest(
        f"no server of yours is known on this machine. One answers that may be another user's: {found}. If you mean it:"
        f" {command} {DEFAULT_URL}"
    )


async def _describe_all(homes: dict[str, str]) -> list[str]:
    async def describe(url: str, home: str) -> str:
        try:
            return await _describe(url, home)
        except ServerUnreachable:
            return f"{url} (does not answer, {home})"

    return await asyncio.gather(*(describe(url, home) for url, home in homes.items()))


async def _describe(url: str, home: str = "") -> str:
    """Return what a server says about itself on one line. Raise ServerUnreachable."""
    from swarm.client import AsyncSwarmClient
    from swarm.overwatch.panels import printable

    client = AsyncSwarmClient(url, token_of("observer", "commander", "rollout"), timeout=LOOK_TIMEOUT_S)
    try:
        status = await client.status()
    except (Unauthorized, Forbidden):
        words = ["needs another token"]
    except ServerUnreachable:
        raise
    except SwarmError as error:
        words = [printable(error.message)]
    else:
        name = f"{status.project_name}/{status.experiment_name} on {status.model}"
        words = ["no job" if status.model is None else printable(name), status.state.value]
    finally:
        await client.close()
    return f"{url} ({', '.join([*words, *([home] if home else [])])})"
