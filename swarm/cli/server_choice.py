"""The server that a command looks at when no address is given: the only one of this user, or the one that is chosen."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import typer

from swarm.cli.options import DEFAULT_URL, token_of
from swarm.errors import BadRequest, Forbidden, ServerUnreachable, SwarmError, Unauthorized

LOOK_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """A server that can be chosen, with its own words about what it trains; they are empty if it told none.

    `is_there` is whether anything answered.
    """

    url: str
    name: str
    model: str
    state: str
    home: str
    is_there: bool = True

    @property
    def words(self) -> str:
        """The server on one line."""
        trains = [f"{self.name} on {self.model}"] if self.name else []
        return f"{self.url} ({', '.join([*trains, self.state, *([self.home] if self.home else [])])})"


def choose_server(command: str) -> str:
    """Return the address of this user's server on this machine; if there are several, the one that the user chooses.

    Raise BadRequest if there are several and nobody can be asked, or if a server answers at the default address that
    is not on the list, and ServerUnreachable if there is none. The message names what to call instead of `command`.
    """
    from swarm.processes.running_servers import list_running_servers

    servers = list_running_servers()
    if len(servers) == 1:
        return servers[0].url
    if not servers:
        raise _none_known(command)
    choices = asyncio.run(_look_at({server.url: server.home for server in servers}))
    if sys.stdin.isatty() and sys.stderr.isatty():
        return _ask(choices)
    lines = "; ".join(item.words for item in choices)
    raise BadRequest(f"several servers run on this machine: name one, as in `{command} {choices[0].url}`. {lines}")


def _none_known(command: str) -> SwarmError:
    """Return the error for a machine on which no server of this user is known to run."""
    [found] = asyncio.run(_look_at({DEFAULT_URL: ""}))
    if found.is_there:
        return BadRequest(
            f"no server of yours is known on this machine. One answers that may be another user's: {found.words}. If "
            f"you mean it: {command} {found.url}"
        )
    return ServerUnreachable(
        f"no server of yours runs on this machine: `swarm start` starts one, and `{command} URL` takes another"
    )


def _ask(choices: list[ServerChoice]) -> str:
    from rich.console import Console
    from rich.prompt import IntPrompt
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("training", overflow="fold")
    for title in ("address", "model", "state"):
        table.add_column(title, no_wrap=True)
    for number, item in enumerate(choices, 1):
        cells = (item.name or item.home, item.url, item.model, item.state)
        table.add_row(str(number), *map(Text, cells))
    console.print(table)
    numbers = [str(number) for number in range(1, len(choices) + 1)]
    try:
        chosen = IntPrompt.ask("which server?", choices=numbers, default=1, console=console)
    except EOFError:
        raise typer.Abort from None
    return choices[chosen - 1].url


async def _look_at(homes: dict[str, str]) -> list[ServerChoice]:
    """Ask all servers at the same time what they train."""
    return list(await asyncio.gather(*(_describe(url, home) for url, home in homes.items())))


async def _describe(url: str, home: str) -> ServerChoice:
    from swarm.client import AsyncSwarmClient
    from swarm.overwatch.panels import printable

    client = AsyncSwarmClient(url, token_of("observer", "commander", "rollout"), timeout=LOOK_TIMEOUT_S)
    try:
        status = await client.status()
    except (Unauthorized, Forbidden):
        return ServerChoice(url, "", "", "needs another token", home)
    except ServerUnreachable:
        return ServerChoice(url, "", "", "does not answer", home, is_there=False)
    except SwarmError as error:
        return ServerChoice(url, "", "", printable(error.message), home)
    finally:
        await client.close()
    name, model = ("no job", "no model") if status.model is None else (
        printable(f"{status.project_name}/{status.experiment_name}"),
        printable(status.model),
    )  # fmt: skip
    return ServerChoice(url, name, model, status.state.value, home)
