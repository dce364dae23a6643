"""What a sandbox shows of the package is what the host of a program imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from swarm.sandbox.mounts import PROGRAM_FILES

PACKAGE = Path(__file__).parents[3] / "swarm"
LOADED = """
import sys
import swarm.program.hosted.__main__, swarm.program.hosted.host, swarm.sandbox.inside, swarm.job, swarm.tasks
from swarm.client import *
print(*(module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "swarm"), sep="\\n")
"""


def test_every_file_that_the_host_of_a_program_imports_is_in_the_sandbox() -> None:
    found = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True)
    shown = [PACKAGE / name for name in PROGRAM_FILES]
    assert all(path.exists() for path in shown)
    loaded = [Path(line) for line in found.stdout.split()]
    assert loaded
    assert [path for path in loaded if not any(path == each or each in path.parents for each in shown)] == []
