"""How stock coding agents are pointed at an episode. Each runs once, without questions, in the current folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from swarm import Credentials


@dataclass(frozen=True)
class Invocation:
    """The command line of an agent, and the variables that it needs besides PATH."""

    command: tuple[str, ...]
    env: Mapping[str, str]


Agent = Callable[[str, Credentials, Path], Invocation]
"""Takes the prompt, the credentials, and an empty folder that becomes the agent's home."""


def codex(prompt: str, credentials: Credentials, home: Path) -> Invocation:
    """Return a run of Codex CLI, whose provider is a section of its configuration file."""
    lines = (
        f"model = {json.dumps(credentials.model)}",
        'model_provider = "swarm"',
        "check_for_update_on_startup = false",
        "[analytics]",
        "enabled = false",
        "[model_providers.swarm]",
        'name = "swarm"',
        f"base_url = {json.dumps(credentials.base_url)}",
        'env_key = "OPENAI_API_KEY"',
        'wire_api = "responses"',
    )
    (home / "config.toml").write_text("\n".join(lines) + "\n")
    command = ("codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", prompt)
    return Invocation(command, {**credentials.env(), "CODEX_HOME": str(home), "HOME": str(home)})


def claude(prompt: str, credentials: Credentials, home: Path) -> Invocation:
    """Return a run of Claude Code, which takes everything from variables."""
    command = ("claude", "-p", prompt, "--permission-mode", "acceptEdits", "--allowedTools", "Bash,Read,Edit,Write")
    env = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "HOME": str(home)}
    return Invocation(command, {**credentials.env(), **env})


def opencode(prompt: str, credentials: Credentials, home: Path) -> Invocation:
    """Return a run of opencode, whose provider is a part of its configuration. The title saves it a call of its own."""
    model = f"swarm/{credentials.model}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "swarm",
        "options": {"baseURL": credentials.base_url, "apiKey": "{env:OPENAI_API_KEY}"},
        "models": {credentials.model: {}},
    }
    settings = {"model": model, "small_model": model, "autoupdate": False, "share": "disabled"}
    env = {
        "OPENCODE_CONFIG_CONTENT": json.dumps({**settings, "provider": {"swarm": provider}}),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "HOME": str(home),
    }
    return Invocation(("opencode", "run", "--title", "episode", prompt), {**credentials.env(), **env})


def qwen(prompt: str, credentials: Credentials, home: Path) -> Invocation:
    """Return a run of Qwen Code, which needs the name of the model besides the variables of OpenAI's SDK."""
    settings = home / ".qwen" / "settings.json"
    settings.parent.mkdir()
    quiet = {"general": {"enableAutoUpdate": False}, "privacy": {"usageStatisticsEnabled": False}}
    settings.write_text(json.dumps(quiet))
    command = ("qwen", "-p", prompt, "--yolo", "--auth-type", "openai", "--model", credentials.model)
    return Invocation(command, {**credentials.env(), "HOME": str(home)})


AGENTS: Mapping[str, Agent] = MappingProxyType({"codex": codex, "claude": claude, "opencode": opencode, "qwen": qwen})
