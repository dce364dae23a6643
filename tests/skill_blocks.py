"""The blocks of a skill's pages: files to save, and shell blocks to run one by one, as a coding agent does.

A block whose first line is a comment with a path is a file. A shell block runs in a shell of its own, so that it cannot
rest on variables of an earlier one. A block of language `text` is an output, and one of `json` must be JSON. A comment
`not run: REASON` before a block keeps it from being run. The tutorials of the documentation are walked in the same way.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import researcher.cli
import swarm.cli

APPS = {"swarm": swarm.cli.app, "researcher": researcher.cli.app}
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.M | re.S)
PATH = re.compile(r"# ([\w./-]+\.(?:py|toml|yaml))\n")
BLOCK_TIMEOUT_S = 560


@dataclass(frozen=True)
class SkillBlock:
    language: str
    text: str
    reason: str | None
    """Why it is not run."""

    @property
    def path(self) -> str | None:
        found = PATH.match(self.text)
        return found[1] if found else None


def blocks_of(page: Path) -> list[SkillBlock]:
    return [SkillBlock(found["language"], found["text"], found["reason"]) for found in BLOCK.finditer(page.read_text())]


def commands_of(page: Path) -> set[str]:
    """All commands of the package that a page names, in blocks, indented lines and its sentences."""
    text = page.read_text().replace("\\\n", " ")
    lines = [
        line for block in BLOCK.finditer(text) if block["language"] == "bash" for line in block["text"].splitlines()
    ]
    rest = BLOCK.sub("", text)
    spans = re.findall(r"^ {4}(.+)|`([^`\n]+)`", rest, re.MULTILINE)
    found: set[str] = set()
    for span in [*lines, *(indented or quoted for indented, quoted in spans)]:
        for part in re.split(r"\|\|?|&&?|;|\$\(|\bdo\b", re.sub(r"\"[^\"]*\"", "TEXT", span)):
            words = re.sub(r"^\s*(?:nohup|env -u \w+|\w+=\S*)\s+", "", part).strip().removeprefix(".venv/bin/")
            if re.match(r"(?:swarm|researcher) ", words):
                found.add(words)
    return found


def unknown_options(command: str) -> set[str]:
    """What a command line names that is no command, or no option of it."""
    words = shlex.split(re.sub(r"[)[\]]", "", command), comments=True)
    commands: Any = typer.main.get_command(APPS[words[0]])
    rest = words[1:]
    while rest and hasattr(commands, "commands") and not rest[0].startswith("-"):
        if rest[0] not in commands.commands:
            return {rest[0]}
        commands, rest = commands.commands[rest[0]], rest[1:]
    known = {name for parameter in commands.params for name in [*parameter.opts, *parameter.secondary_opts]}
    return {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)} - known - {"--help"}


@contextmanager
def shell_in(directory: Path, skill: Path) -> Iterator[Any]:
    """Runs a shell block in `directory`; whatever it left running is ended on leaving."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SKILL": str(skill),
    }
    for name in ("OPENAI_API_KEY", "SWARM_URL", "SWARM_HOME", "SWARM_TOKEN"):
        environment.pop(name, None)
    groups: list[int] = []

    def run(text: str) -> str:
        with subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as shell:
            groups.append(shell.pid)
            output, _ = shell.communicate(timeout=BLOCK_TIMEOUT_S)
        assert shell.returncode == 0, f"exit code {shell.returncode} of:\n{text}\n{output}\n{logs_in(directory)}"
        return output

    try:
        yield run
    finally:
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)


def free_ports(number: int) -> list[int]:
    """Different ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def logs_in(directory: Path) -> str:
    """The ends of what the blocks wrote to logs."""
    return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(directory.glob("*.log")))


def walk(page: Path, directory: Path, skill: Path, changes: dict[str, str]) -> str:
    """Save and run all blocks of a page, each of `changes` made in at least one of them. Gives what was printed."""
    printed: list[str] = []
    unused = set(changes)
    with shell_in(directory, skill) as run:
        for block in blocks_of(page):
            if block.reason is not None or block.language == "text":
                continue
            text = block.text
            for old in [each for each in changes if each in text]:
                text = text.replace(old, changes[old])
                unused.discard(old)
            if block.path is not None:
                (directory / block.path).parent.mkdir(parents=True, exist_ok=True)
                (directory / block.path).write_text(text)
            elif block.language == "json":
                json.loads(text)
            else:
                assert block.language == "bash", f"{page}: {block.text[:60]}"
                printed.append(run(text))
    assert not unused, f"{page} no longer has {unused}"
    return "".join(printed)
