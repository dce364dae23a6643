"""The shipped examples as tests run them: in a process of their own, with a job that is changed to be quick."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(name: str, *arguments: str, timeout_s: float = 280) -> str:
    """The output of the example's client."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name / "client.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def changed_job(directory: Path, name: str, job: str = "job.yaml", **changes: Any) -> str:
    """The path of the example's job with these settings. None leaves a setting out."""
    settings = yaml.safe_load((EXAMPLES / name / job).read_text()) | changes
    path = directory / job
    path.write_text(yaml.safe_dump({name: value for name, value in settings.items() if value is not None}))
    return str(path)
