"""schemathesis over the description of a running server: no server error, no route open without its token."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests_support import begin, wait_for_state

from swarm.job import TrainJob

# No begin is held: what nobody ends would fill any batch.
JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, drain_timeout_s=1, stop_rule="any_client_agrees")
COMMANDER = "commander-0123456789"
CHECKS = (
    "not_a_server_error",
    "ignored_auth",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)

CONFIG = """
[[operations]]
include-tag = "model"
headers = {{ Authorization = "Bearer {key}" }}
phases.coverage.enabled = {covers_models}

[[operations]]
include-path = "/v1/swarm/events"
request-timeout = 0.5
"""


def run_schemathesis(
    directory: Path, url: str, key: str, *, covers_models: bool, phases: str
) -> subprocess.CompletedProcess[str]:
    (directory / "schemathesis.toml").write_text(CONFIG.format(key=key, covers_models=str(covers_models).lower()))
    # What ends the server or its engine is left out, and the claim of an evaluation, which waits as long as it is told.
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml"]
    command += ["run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {COMMANDER}"]
    command += ["--checks", ",".join(CHECKS), "--exclude-path-regex", "/(shutdown|engine/stop|evaluations/claim)$"]
    command += ["--phases", phases, "--max-examples", "3"]
    # One worker: the parser of CPython 3.11, which hypothesis uses, fails in threads.
    command += ["--workers", "1", "--request-timeout", "10", "--continue-on-failure", "--no-color"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=90)


# Wrong values in every place of a body to a model route are what test_model_routes_fuzz.py sends.
@pytest.mark.parametrize(
    ("covers_models", "phases"),
    [(False, "examples"), pytest.param(True, "examples,coverage,fuzzing", marks=pytest.mark.slow)],
    ids=["control routes", "all routes"],
)
def test_no_request_breaks_the_server_and_none_passes_without_its_token(
    start_server: Any, tmp_path: Path, covers_models: bool, phases: str
) -> None:
    server = start_server(JOB, token=COMMANDER)
    with httpx.Client(base_url=server.url, timeout=60, headers={"authorization": f"Bearer {COMMANDER}"}) as http:
        wait_for_state(http, "ROLLING")
        # Of an eval episode, which no checkpoint that is loaded ends.
        key = begin(http, episode_type="eval", idle_timeout_s=600)["api_key"]
        ended = run_schemathesis(tmp_path, server.url, key, covers_models=covers_models, phases=phases)
        assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
        assert "No test cases were generated" not in ended.stdout
        assert http.get("/ready").json()["ready"]
