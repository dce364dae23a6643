"""Credentials: how an agent reaches the model for the length of one episode.

Place in the flow: begin_episode returns them, an agent or its child process uses them. Knows nothing of HTTP clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from swarm.schemas import BeginEpisodeResponse

_ANTHROPIC_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
)
"""By which Claude Code chooses models for its purposes."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """`base_url` ends in /v1 and `api_key` opens nothing but this episode. `deadline_s` is its longest life in seconds.

    `weight_version` is the one served when the episode began.
    """

    episode_id: str
    base_url: str
    api_key: str = field(repr=False)
    model: str
    weight_version: int
    deadline_s: float

    @property
    def path_base_url(self) -> str:
        """A base URL that holds the key, for what can be given no key of its own. Libraries that log URLs log it too:
        where a key can be given, use `base_url` and `api_key`."""
        return f"{self.base_url.removesuffix('/v1')}/e/{self.api_key}/v1"

    def env(self) -> dict[str, str]:
        """Environment variables by which OpenAI and Anthropic SDKs in a child process find the model unchanged."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_AUTH_TOKEN": self.api_key,
            **dict.fromkeys(_ANTHROPIC_MODELS, self.model),
        }


def credentials_of(begun: BeginEpisodeResponse, server_url: str) -> Credentials:
    """The server's answer under the address that this client uses, so that a tunnel or proxy stays in between."""
    return Credentials(
        episode_id=begun.episode_id,
        base_url=_through(server_url, begun.base_url),
        api_key=begun.api_key,
        model=begun.model,
        weight_version=begun.weight_version,
        deadline_s=begun.deadline_s,
    )


def _through(server_url: str, base_url: str) -> str:
    own, answered = urlsplit(server_url), urlsplit(base_url)
    prefix = own.path.rstrip("/")
    path = answered.path if answered.path.startswith(f"{prefix}/") else prefix + answered.path
    return urlunsplit((own.scheme, own.netloc, path, "", ""))
