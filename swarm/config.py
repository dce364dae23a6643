"""The configuration of a server process, from flags and environment variables, and the addresses of servers."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from swarm.descriptions import DescribedModel
from swarm.errors import JobInvalid
from swarm.external_samplers import EXTERNAL_SAMPLERS
from swarm.job import first_line, first_location

LEDGER = "ledger.db"
"""The name of the ledger in a server's home."""
WORKER_LOG = "worker.log"
"""The name of the local worker's log in a server's home."""

BOOT_TIMEOUT_S = {"local": 120.0, "fake": 120.0, "verl": 1800.0}
"""The longest time that each engine may take to boot. With verl, many processes on many hosts may read a large model
from shared storage, which takes long."""


class ServerConfig(DescribedModel):
    """The settings of one server process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """Address to listen on. An address that other machines can reach needs `token`."""
    port: int = Field(default=10086, ge=0, le=65_535)
    """Port to listen on. With 0, the server takes any free port."""
    home: Path = Path("runs/swarm")
    """Directory of the ledger, checkpoints and logs."""
    token: str | None = Field(default=None, min_length=16, repr=False)
    """Token of the commander role, which may do everything."""
    rollout_token: str | None = Field(default=None, min_length=16, repr=False)
    """Token of the rollout role, which may run episodes."""
    observer_token: str | None = Field(default=None, min_length=16, repr=False)
    """Token of the observer role, which may read."""
    max_running_requests: int = Field(default=128, ge=1, le=4096)
    """Model calls that the local engine samples at the same time; further ones wait."""
    torch_threads: int | None = Field(default=None, ge=1)
    """CPU threads of an engine's process. Default: one. With engine local, or vLLM as its sampler, large work gets as
    many as the process has cores, up to `max_torch_threads`. Large work is a model of 30 million parameters or more, or
    a training step on a large batch."""
    max_torch_threads: int | None = Field(default=None, ge=1)
    """See `torch_threads`. Set it if several servers share a machine, as threads that wait for a core slow each other
    down. Default: no limit."""
    max_wait_s: float = Field(default=100.0, gt=0, le=600)
    """Seconds that a model call waits while weights change, before it is refused with `Retry-After`."""
    boot_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds that an engine may take to start. Default: 120, and 1800 for verl."""
    train_timeout_s: float = Field(default=3600.0, gt=0)
    """Seconds that one training step may take."""
    max_body_bytes: int = Field(default=16 * 2**20, ge=1024)
    """Largest body of a request."""
    max_running_episodes: int = Field(default=20_000, ge=1)
    """Episodes that may run at the same time; further ones wait."""
    recovery_overhead: float = Field(default=0.05, gt=0, le=1)
    """Share of the training time that checkpoints for crash recovery may take."""
    peers: tuple[str, ...] = ()
    """Base URLs of the servers that this server may ask for the outcome of a transaction over several servers."""
    eval_envs: tuple[str, ...] = ()
    """Environments, besides the bundled ones, that a job may name in `eval_env`. Each is written NAME=ENVIRONMENT: the
    name for jobs, and the environment as in `swarm eval --env`. The server runs the code of these environments."""
    ray_address: str | None = Field(default=None, min_length=1)
    """The Ray cluster that engine verl uses instead of starting its own."""
    sampler_pythons: Mapping[str, Path] = Field(default_factory=dict[str, Path])
    """The Python interpreter that has a sampler in processes of its own, by the sampler's name in a job, if it is not
    that of the server. Each has a variable of its own, as in `SWARM_VLLM_PYTHON`."""

    @field_validator("peers")
    @classmethod
    def _peers_are_addresses(cls, peers: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(base_url(peer) for peer in peers)

    @field_validator("eval_envs")
    @classmethod
    def _eval_envs_are_named(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for text in given:
            name, equals, environment = text.partition("=")
            if not (name and equals and environment):
                raise ValueError(f"{text!r} names no environment: write NAME=ENVIRONMENT")
        return given

    @model_validator(mode="after")
    def _distinct_tokens(self) -> Self:
        lesser = [token for token in (self.rollout_token, self.observer_token) if token is not None]
        if lesser and self.token is None:
            raise ValueError("without SWARM_TOKEN a rollout or observer token restricts nobody: set SWARM_TOKEN too")
        given = [*lesser, self.token]
        if len(set(given)) != len(given):
            raise ValueError("the tokens of different roles must differ")
        return self

    @model_validator(mode="after")
    def _token_if_exposed(self) -> Self:
        if not is_loopback(self.host) and self.token is None:
            raise ValueError(
                f"host {self.host} is reachable from other machines: set SWARM_TOKEN (16+ characters) first"
            )
        return self

    def boot_limit_s(self, engine: str) -> float:
        """Return the seconds that an engine of this kind may take to start."""
        return self.boot_timeout_s or BOOT_TIMEOUT_S[engine]

    def python_of(self, sampler: str) -> Path:
        """Return the interpreter that has this sampler."""
        return self.sampler_pythons.get(sampler) or Path(sys.executable)

    @classmethod
    def from_environment(cls, **flags: Any) -> ServerConfig:
        """Return the configuration from flags, environment variables and defaults, in this order of precedence.

        A flag that is None counts as not given. The variable of a setting is its name in capitals after `SWARM_`.
        SWARM_HOME is the parent of the server's directory. SWARM_PEERS and SWARM_EVAL_ENVS are separated by commas.
        The interpreter of each external sampler has a variable of its own, as in SWARM_VLLM_PYTHON.
        Host and port have no variable: if a service is called swarm, Kubernetes sets SWARM_PORT to a URL in every
        container. Raise JobInvalid for an invalid configuration.
        """
        names = cls.model_fields.keys() - {"host", "port", "sampler_pythons"}
        given = {name: os.environ.get(f"SWARM_{name.upper()}") for name in names}
        values: dict[str, Any] = {name: value for name, value in given.items() if value}
        if home := home_from_environment():
            values["home"] = home
        for name in ("peers", "eval_envs"):
            if several := values.get(name):
                values[name] = tuple(each.strip() for each in several.split(",") if each.strip())
        pythons = {name: os.environ.get(f"SWARM_{name.upper()}_PYTHON") for name in EXTERNAL_SAMPLERS}
        values["sampler_pythons"] = {name: python for name, python in pythons.items() if python}
        values.update({name: value for name, value in flags.items() if value is not None})
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise JobInvalid(f"server: {first_line(error)}", param=first_location(error)) from error


def base_url(address: str) -> str:
    """Return the address of a server in canonical form, without a slash at the end.

    `host:port` alone gets the scheme http. Raise ValueError unless the address is http or https with a host, and
    without user, query and fragment.
    """
    address = complete_address(address)
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    is_printable = address.isascii() and address.isprintable() and not any(letter in address for letter in " \\?#@%")
    if parts.scheme not in {"http", "https"} or not host or not is_printable or ".." in parts.path:
        raise ValueError("not the address of a server: write it like http://host:10086")
    shown = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme]
    at = "" if port in {None, default} else f":{port}"
    return f"{parts.scheme}://{shown}{at}{parts.path.rstrip('/')}"


def local_url(host: str, port: int) -> str:
    """Return the address at which a client on this machine finds a server that listens on `host`."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def complete_address(address: str) -> str:
    """Return an address like `localhost:10086` with the scheme http, and any other address unchanged."""
    host, _, port = address.partition("/")[0].rpartition(":")
    is_bare = "://" not in address and bool(host) and port.isascii() and port.isdecimal()
    return f"http://{address}" if is_bare else address


def home_from_environment() -> Path | None:
    """Return the directory of the server under SWARM_HOME, or None if the variable is not set."""
    home = os.environ.get("SWARM_HOME")
    return Path(home) / "swarm" if home else None


def cluster_from_environment() -> tuple[str | None, Path | None]:
    """Return the values of SWARM_RAY_ADDRESS and SWARM_VLLM_PYTHON, each None if it is not set."""
    python = os.environ.get("SWARM_VLLM_PYTHON")
    return os.environ.get("SWARM_RAY_ADDRESS") or None, Path(python) if python else None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
