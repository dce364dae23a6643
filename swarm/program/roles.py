"""The roles of a program and their servers: each role has its own model, which its own server trains."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from swarm.client import OpenEpisodes, SwarmClient, SwarmTeam
from swarm.client.episode import DEFAULT_TIMEOUT_S, EpisodeSampling
from swarm.config import complete_address
from swarm.errors import BadRequest
from swarm.job import TrainJob
from swarm.types import Task

ONE_ROLE = ""
"""The name of the only role in a run without roles."""
AGREED = ("batch_size", "num_repeat", "total_steps", "max_staleness", "stop_rule")
"""The settings that decide how many episodes a server takes. All roles must agree, as episodes count on all servers."""

_NAMED = re.compile(r"([A-Za-z][\w-]*)=(.*)", re.DOTALL)

Servers = SwarmClient | SwarmTeam
"""The client of the only server, or a team with one client for each role."""


def clients_of(servers: Servers) -> dict[str, SwarmClient]:
    """Return the clients by role, the coordinator's first."""
    return {ONE_ROLE: servers} if isinstance(servers, SwarmClient) else servers.clients


@contextmanager
def connected(
    addresses: Mapping[str, str], token: str | None, *, client_id: str, timeout: float = DEFAULT_TIMEOUT_S
) -> Generator[Servers]:
    """Open a client of the only server, or a team of clients by role, for a `with` block."""
    with ExitStack() as stack:
        clients = {
            role: stack.enter_context(SwarmClient(url, token=token, client_id=client_id, timeout=timeout))
            for role, url in addresses.items()
        }
        yield clients[ONE_ROLE] if ONE_ROLE in clients else SwarmTeam(clients)


@contextmanager
def open_episodes(servers: Servers, task: Task, sampling: EpisodeSampling) -> Generator[OpenEpisodes]:
    """Open a train episode on each server for a `with` block. Afterwards all are ended, or all are aborted."""
    if isinstance(servers, SwarmTeam):
        with servers.open_episodes(task, **sampling) as episodes:
            yield episodes
        return
    with servers.open_episode(task, **sampling) as episode:
        opened = OpenEpisodes(task, {ONE_ROLE: episode.credentials})
        yield opened
        episode.output = opened.outputs.get(ONE_ROLE)


def servers_named(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return the addresses by role, in the order given: one `URL`, or `ROLE=URL` for each role.

    Raises BadRequest for any other form, for a role that is named twice, and for two roles on one server.
    """
    addresses: dict[str, str] = {}
    for text in given:
        named = _NAMED.fullmatch(text)
        role, address = (named[1], named[2]) if named else (ONE_ROLE, text)
        if not address or address.startswith("=") or (not named and "=" in text.partition("://")[0]):
            raise _malformed(option, f"{text!r} names no role with its server")
        if role in addresses:
            what = f"the role {role} twice" if role else "two servers without a role"
            raise _malformed(option, f"there is {what}")
        addresses[role] = address
    if ONE_ROLE in addresses and len(addresses) > 1:
        raise _malformed(option, f"{addresses[ONE_ROLE]} has no role")
    if len({complete_address(address).rstrip("/") for address in addresses.values()}) < len(addresses):
        raise BadRequest(
            f"{option}: two roles have the same server, which trains one model: name another server for each role, or "
            "one server without a role, whose model then plays all of them",
            param="server",
        )
    return addresses


def refuse_roles(option: str, given: str | None, instead: str) -> None:
    """Raise BadRequest for a `ROLE=URL` where only one server is allowed; `instead` is the command for several."""
    if given is not None and _NAMED.fullmatch(given):
        raise BadRequest(f"{option} takes one server; for a program with several roles, run: {instead}", param="url")


def jobs_named(given: Sequence[str], roles: Sequence[str]) -> dict[str, TrainJob]:
    """Read the job of each role: `FILE` for all roles, or `ROLE=FILE` for one, which takes precedence.

    Raises BadRequest for an unknown role, for a role without a job, and for jobs that do not agree on a setting of
    AGREED. Raises JobInvalid for a file that is no job.
    """
    files: dict[str, Path] = {}
    for text in given:
        named = _NAMED.fullmatch(text) if list(roles) != [ONE_ROLE] else None
        role, file = (named[1], named[2]) if named else (ONE_ROLE, text)
        if role and role not in roles:
            raise BadRequest(f"--job: there is no role {role!r}: the roles are {', '.join(roles)}", param="job")
        if role in files:
            raise BadRequest(f"--job: there are two jobs {f'of the role {role}' if role else 'for all'}", param="job")
        files[role] = Path(file)
    missing = [role for role in roles if role not in files and ONE_ROLE not in files]
    if missing:
        raise BadRequest(
            f"--job: the role {missing[0]} has no job: give --job {missing[0]}=FILE, or --job FILE for all", param="job"
        )
    read = {file: TrainJob.build_job_from_yaml(file) for file in dict.fromkeys(files.values())}
    jobs = {role: read[files.get(role, files.get(ONE_ROLE, Path()))] for role in roles}
    _require_agreement(jobs)
    return jobs


def _require_agreement(jobs: Mapping[str, TrainJob]) -> None:
    for setting in AGREED:
        values = {role: getattr(job, setting) for role, job in jobs.items()}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{value} for {role}" for role, value in values.items())
            raise BadRequest(f"--job: {setting} is {shown}: it must be the same for all roles", param=setting)


def _malformed(option: str, what: str) -> BadRequest:
    return BadRequest(f"{option}: {what}: write {option} URL, or {option} ROLE=URL for each role", param="server")
