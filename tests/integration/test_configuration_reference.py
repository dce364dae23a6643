"""Every setting of a job and of a server is described, and a server takes its settings from the environment."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from swarm.config import ServerConfig
from swarm.errors import JobInvalid
from swarm.job import TrainJob


@pytest.mark.parametrize("model", [TrainJob, ServerConfig])
def test_every_setting_says_what_it_does(model: type[BaseModel]) -> None:
    fields = model.model_json_schema()["properties"].items()
    assert [name for name, field in fields if not field.get("description", "").endswith(".")] == []


def test_a_server_takes_its_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_MAX_RUNNING_REQUESTS", "7")
    monkeypatch.setenv("SWARM_MAX_WAIT_S", "2.5")
    monkeypatch.setenv("SWARM_PORT", "tcp://10.0.0.1:10086")
    config = ServerConfig.from_environment()
    assert (config.max_running_requests, config.max_wait_s, config.port) == (7, 2.5, 10086)

    monkeypatch.setenv("SWARM_MAX_WAIT_S", "soon")
    with pytest.raises(JobInvalid, match=r"server: max_wait_s: .*'soon'"):
        ServerConfig.from_environment()
