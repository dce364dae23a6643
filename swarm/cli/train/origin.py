"""The origin of a training: the checkpoint, run or export that its weights come from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from swarm.cli import options
from swarm.errors import BadRequest, NotFound

NAMES_SHOWN = 10
MERGED = "merged-adapters"
"""The folder of models that were made of the adapters of checkpoints, beside the folders of trainings."""
OF_THE_RUN = frozenset({"project_name", "experiment_name", "total_steps", "resume_from"})
"""Settings of a checkpoint's job that a training which goes on from it does not take over."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The settings that begin a training at other weights.

    `changes` is the model, or the checkpoint to resume. `settings` are those of the checkpoint's job that hold where no
    job file says otherwise. `step` is the one that the training begins at.
    """

    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    step: int = 0


def find_origin(named: str | None, job: Path | None, *, resume: bool) -> Origin:
    """Return the origin of --from. With `resume`, its optimizer and step go on as well.

    Raise NotFound for an unknown name, CheckpointError for a damaged checkpoint, BadRequest for what cannot begin.
    """
    if named is None:
        if resume:
            raise BadRequest("--resume goes on from a checkpoint or run: name it with --from", param="resume")
        return Origin()
    place = _find(named)
    from swarm.trainer.checkpoint_files import MANIFEST, verify_checkpoint

    if not (place / MANIFEST).is_file():
        if resume:
            raise BadRequest(f"{place} is a model without optimizer and step: leave --resume out", param="resume")
        _say(f"the training begins with the weights in {place}")
        return Origin({"model": str(_whole_model(place))})
    manifest = verify_checkpoint(place)
    if resume:
        return _resumed(place, manifest, job)
    _say(f"the training begins with the weights of step {manifest['step']} in {place}")
    return Origin({"model": str(_weights_of(place))})


def require_outside(origin: Origin, directory: Path) -> None:
    """Raise BadRequest if --fresh would move the weights of the origin, which lie in this folder."""
    place = origin.changes.get("resume_from") or origin.changes.get("model")
    if place is not None and Path(place).is_relative_to(directory.absolute()):
        raise BadRequest(
            f"--fresh would set {directory} aside, with the weights that --from names: give the training a --name of"
            " its own",
            param="fresh",
        )


def _resumed(checkpoint: Path, manifest: Mapping[str, Any], job: Path | None) -> Origin:
    stored: dict[str, Any] = manifest.get("job") or {}
    if job is None and stored.get("demonstrations"):
        raise BadRequest(
            f"{checkpoint} was trained with demonstrations: give the file of its job with --job", param="job"
        )
    step: int = manifest["step"]
    _say(f"the training goes on at step {step} of {checkpoint}")
    # With a job file, only what must be equal is taken over.
    taken = stored.keys() - OF_THE_RUN if job is None else stored.keys() & {"engine", "model"}
    return Origin({"resume_from": str(checkpoint)}, {name: stored[name] for name in stored if name in taken}, step)


def _find(named: str) -> Path:
    """Return the directory of the checkpoint or model that a name or path stands for. Raise NotFound."""
    from swarm.config import LEDGER
    from swarm.trainer.checkpoint_files import MANIFEST
    from swarm.trainer.checkpoints import find_checkpoint, runs_of

    path = Path(named).expanduser().absolute()
    if (path / MANIFEST).is_file() or (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
        return path
    if path.is_dir() and (path / LEDGER).is_file():
        return find_checkpoint(path, is_lasting=True).absolute()
    if path.is_dir() and path.name.startswith("run-"):
        return find_checkpoint(path.parent, str(path), is_lasting=True).absolute()
    trainings = options.home_named(None).with_name("train")
    if named in _trainings_in(trainings):
        return find_checkpoint(trainings / named, is_lasting=True).absolute()
    home = options.home_named(None)
    runs = list(dict.fromkeys(run.name for run in reversed(runs_of(home))))
    if named in runs:
        return find_checkpoint(home, named, is_lasting=True).absolute()
    known = [*_trainings_in(trainings), *runs]
    shown = ", ".join(known[:NAMES_SHOWN]) + (f" and {len(known) - NAMES_SHOWN} more" if known[NAMES_SHOWN:] else "")
    raise NotFound(
        f"--from {named}: no checkpoint, run or export has this name; "
        + (f"the runs here are {shown}" if known else f"no run is in {trainings} or {home}: give a directory"),
        param="from",
    )


def _trainings_in(folder: Path) -> list[str]:
    """Return the names of the trainings in a folder, the newest first."""
    from swarm.config import LEDGER

    found = [path.parent for path in folder.glob(f"*/{LEDGER}")]
    return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]


def _weights_of(checkpoint: Path) -> Path:
    """Return the directory of a checkpoint's whole model. An adapter is merged into its base once."""
    if not (checkpoint / "adapter_config.json").is_file():
        return _whole_model(checkpoint)
    from swarm.backends.local.export import export_checkpoint
    from swarm.trainer.checkpoint_files import MANIFEST

    digest = hashlib.sha256((checkpoint / MANIFEST).read_bytes()).hexdigest()[:16]
    merged = options.home_named(None).with_name(MERGED).absolute() / digest
    if not merged.is_dir():
        _say(f"its adapter is merged into its base, in {merged}")
        merged.parent.mkdir(parents=True, exist_ok=True)
        export_checkpoint(checkpoint, merged, merge_lora=True)
    return merged


def _whole_model(directory: Path) -> Path:
    """Return the directory. Raise BadRequest if it is no whole model."""
    if (directory / "adapter_config.json").is_file():
        raise BadRequest(
            f"{directory} is an adapter without its base model: export it once more with swarm export --merge-lora",
            param="from",
        )
    missing = [name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
    if missing:
        raise BadRequest(f"{directory} is no model: it has no {' and no '.join(missing)}", param="from")
    return directory


def _say(line: str) -> None:
    typer.echo(line, err=True)
