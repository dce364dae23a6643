"""Writes the client for threads from the one for asyncio, which is the source.

python scripts/generate_sync_client.py           rewrite the modules
python scripts/generate_sync_client.py --check   say whether they are up to date; exit code 1 if not
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

CLIENT = Path(__file__).parents[1] / "swarm" / "client"
MODULES = {"async_client.py": "client.py", "teams/async_team.py": "teams/sync_team.py"}
NAMES = {
    "AsyncSwarmClient": "SwarmClient",
    "AsyncSwarmTeam": "SwarmTeam",
    "AsyncAttemptNotes": "AttemptNotes",
    "AsyncConnectionStack": "ConnectionStack",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncGenerator": "Generator",
    "HeartbeatTask": "HeartbeatThread",
    "TaskCoalescer": "ThreadCoalescer",
    "asynccontextmanager": "contextmanager",
    "async_client": "client",
    "asyncio": "time",
    "aiter_lines": "iter_lines",
    "aread": "read",
    "aclose": "close",
}
WORDS = {
    "for the tasks of one loop": "for any number of threads",
    "a task of that loop": "a daemon thread",
}
"""In docstrings, where a name stands for no code."""


def generate(source: Path) -> str:
    """Return the module for threads, formatted as the repository is."""
    with tempfile.TemporaryDirectory() as directory:
        rule = unasync.Rule(f"{CLIENT}/", f"{directory}/", additional_replacements=NAMES)
        unasync.unasync_files([str(source)], [rule])
        made = Path(directory) / source.relative_to(CLIENT)
        text = made.read_text(encoding="utf-8")
    for old, new in WORDS.items():
        text = text.replace(old, new)
    text = f"# Made of {source.name} by scripts/generate_sync_client.py: change that and run it.\n{text}"
    for arguments in (["check", "--fix-only", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(source.with_name("made.py")), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    stale = [name for source, name in MODULES.items() if generate(CLIENT / source) != _present(CLIENT / name)]
    if sys.argv[1:] == ["--check"]:
        if stale:
            sys.exit(f"not what their async modules say: {', '.join(stale)}; run scripts/generate_sync_client.py")
        return
    for source, name in MODULES.items():
        (CLIENT / name).write_text(generate(CLIENT / source), encoding="utf-8")


def _present(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    main()
