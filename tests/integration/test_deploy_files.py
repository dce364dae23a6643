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


def pods() -> list[dict[str, Any]]:
    [cluster] = [each["spec"] for each in MANIFEST if each["kind"] == "RayCluster"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


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
    [head] = pods()[0]["containers"]
    assert head["ports"] == [{"containerPort": port, "name": "swarm"}]
    assert service["ports"][0]["port"] == port
    assert {"SWARM_RAY_ADDRESS", "SWARM_TOKEN"} == {each["name"] for each in head["env"]}
    assert "swarm start --host 0.0.0.0" in head["args"][0]


def test_every_node_sees_the_same_data_models_and_a_shared_memory_of_its_own() -> None:
    for pod in pods():
        [container] = pod["containers"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert mounts == {"data": "/data", "models": "/models", "shm": "/dev/shm"}
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert volumes.keys() == mounts.keys()
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    assert "SWARM_HOME=/data" in DOCKERFILE


def test_gpus_are_with_those_that_train_and_sample_and_not_with_the_server() -> None:
    gpus = [pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0) for pod in pods()]
    assert gpus[0] == 0
    assert len(gpus) == 3 and all(gpus[1:])
