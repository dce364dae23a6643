"""The command `python -m bench gpu`.

Exit codes: 0 done, 1 a part or a case failed, 2 wrong usage.
"""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench.gpu.page import RunReport, to_json, to_page
from bench.gpu.schedule import PARTS, PartReport, run_parts
from bench.results import read_conditions

LIBRARIES = ("torch", "transformers", "verl", "peft")
PAGE, DATA = "report.txt", "report.json"


class Device(StrEnum):
    """The devices of the local engine."""

    CUDA = "cuda"
    CPU = "cpu"


def main(
    device: Annotated[Device, typer.Option(help="Where to measure.")] = Device.CUDA,
    minutes: Annotated[float, typer.Option(min=2, max=60, help="How long all parts may take together.")] = 8.0,
    out: Annotated[Path, typer.Option(help="Folder for the page and the JSON.")] = Path("build/bench-gpu"),
) -> None:
    """Test and measure the local engine on a GPU, or the same on a CPU in small."""
    if device is Device.CUDA:
        _require_gpu()
    out.mkdir(parents=True, exist_ok=True)
    conditions, versions = read_conditions(60 * minutes), _versions()
    done: list[PartReport] = []
    report = RunReport(device, minutes, conditions, versions, ())
    with tempfile.TemporaryDirectory(prefix="bench-gpu-", ignore_cleanup_errors=True) as directory:
        for part in run_parts(PARTS, device, 60 * minutes, Path(directory), lambda line: typer.echo(line, err=True)):
            done.append(part)
            report = RunReport(device, minutes, conditions, versions, tuple(done))
            (out / PAGE).write_text(to_page(report), encoding="utf-8")
            (out / DATA).write_text(json.dumps(to_json(report), indent=1), encoding="utf-8")
    typer.echo(to_page(report), nl=False)
    raise typer.Exit(1 if report.failures else 0)


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        typer.echo("bench: torch finds no GPU here: use --device cpu, or see `swarm doctor`", err=True)
        raise typer.Exit(2)


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
