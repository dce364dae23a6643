"""The doctor on the verl engine: what is missing is named, with what to do, and never keeps a server from starting."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from swarm.doctor.examination import Health
from swarm.doctor.installed import check_packages, check_ray, check_sampler, check_shared_memory


def test_the_packages_of_the_trainer_are_those_of_its_extra() -> None:
    finding = check_packages("verl", is_optional=True)
    assert (finding.verdict, finding.message) == (Health.OK, "3 packages fit")


@pytest.mark.parametrize(
    ("python", "complaint"),
    [(Path("/no/such/python"), "does not run"), (Path(sys.executable), "vLLM is not installed for")],
)
def test_an_interpreter_without_vllm_is_named(python: Path, complaint: str) -> None:
    finding = check_sampler(python)
    assert finding.verdict is Health.WARN
    assert complaint in finding.message and str(python) in finding.message
    assert finding.remedy is not None and "SWARM_VLLM_PYTHON" in finding.remedy


def test_a_cluster_that_listens_is_ok() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert check_ray(address).message == check_ray(f"ray://{address}").message == f"{address} answers"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "host:many", "//:5"])
def test_a_cluster_that_cannot_be_reached_is_a_warning(address: str) -> None:
    finding = check_ray(address)
    assert finding.verdict is Health.WARN
    assert finding.remedy is not None and "RAY_ADDRESS" in finding.remedy


def test_no_cluster_and_any_cluster_need_no_check() -> None:
    assert {check_ray(address).verdict for address in (None, "auto")} == {Health.OK}


def test_free_shared_memory_is_told() -> None:
    finding = check_shared_memory()
    assert "GiB free in /dev/shm" in finding.message
