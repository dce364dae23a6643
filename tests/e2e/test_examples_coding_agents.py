"""The example for coding agents: its job, and what each agent is told. `make test-agents` runs the agents."""

from __future__ import annotations

import json
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from swarm import Credentials, TrainJob

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding_agents"
CREDENTIALS = Credentials("ep-1", "http://127.0.0.1:1/v1", "secret", "small", 0, 60.0)


@pytest.fixture(scope="module")
def agents() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE / "agents.py"))["AGENTS"]


def test_the_job_samples_long_prompts() -> None:
    job = TrainJob.build_job_from_yaml(EXAMPLE / "job.yaml")
    assert (job.sampler, job.max_model_len) == ("vllm", 40960)


def test_every_agent_gets_the_variables_of_the_episode(agents: dict[str, Any], tmp_path: Path) -> None:
    for name, agent in agents.items():
        home = tmp_path / name
        home.mkdir()
        invocation = agent("Do it.", CREDENTIALS, home)
        assert invocation.command[0] == name
        assert "Do it." in invocation.command
        assert CREDENTIALS.env().items() <= invocation.env.items()
        assert all("secret" not in path.read_text() for path in home.rglob("*") if path.is_file())


def test_the_provider_of_codex_is_the_episode(agents: dict[str, Any], tmp_path: Path) -> None:
    agents["codex"]("Do it.", CREDENTIALS, tmp_path)
    settings = tomllib.loads((tmp_path / "config.toml").read_text())
    provider = settings["model_providers"][settings["model_provider"]]
    assert (settings["model"], provider["base_url"]) == ("small", "http://127.0.0.1:1/v1")


def test_the_provider_of_opencode_is_the_episode(agents: dict[str, Any], tmp_path: Path) -> None:
    settings = json.loads(agents["opencode"]("Do it.", CREDENTIALS, tmp_path).env["OPENCODE_CONFIG_CONTENT"])
    provider, _, model = settings["model"].partition("/")
    assert list(settings["provider"][provider]["models"]) == [model] == ["small"]
    assert settings["provider"][provider]["options"]["baseURL"] == "http://127.0.0.1:1/v1"
