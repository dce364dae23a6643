"""What is deployed is what the repository holds: the image's sources and extras, the manifest's ports and volumes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from swarm.config import ServerConfig

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
MANIFEST: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "deploy" / "raycluster.yaml").read_text()))


def test_the_image_is_built_from_every_package_and_from_extras_that_exist() -> None:
    copied = {source for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.M) for source in line.split()}
    assert all((ROOT / source).exists() for source in copied)
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M))
    assert copied == allowed
    extras = {*re.findall(r"EXTRAS=(\w+)", DOCKERFILE)}
    assert extras == {"gpu", "server"} and extras <= PROJECT["project"]["optional-dependencies"].keys()


def test_the_manifest_serves_the_port_of_the_server_behind_a_token() -> None:
    port = ServerConfig().port
    assert f"EXPOSE {port}" in DOCKERFILE
    [service] = [each["spec"] for each in MANIFEST if each["kind"] == "Service"]
    [cluster] = [each["spec"] for each in MANIFEST if each["kind"] == "RayCluster"]
    [head] = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert head["ports"] == [{"containerPort": port, "name": "swarm"}]
    assert service["ports"][0]["port"] == port
    assert {"SWARM_RAY_ADDRESS", "SWARM_TOKEN"} == {each["name"] for each in head["env"]}
    assert "swarm start --host 0.0.0.0" in head["args"][0]
