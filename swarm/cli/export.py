"""The command `swarm export`, which writes the weights of a run as a folder that transformers and vLLM can load.

Place in the flow: commands.py registers the command. It works on the files of a home, whether or not a server runs
there. Heavy imports wait until the checkpoint is found. The module does not know how weights are converted.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.cli.failures import failures_in_one_line
from swarm.cli.options import home_named
from swarm.errors import BadRequest

if TYPE_CHECKING:
    from swarm.backends.local.export import Exported


def export(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN|CHECKPOINT] DIR",
            help="A run as project/experiment, or the directory of a run or checkpoint (default: the newest run), and"
            " where the model goes.",
        ),
    ],
    step: Annotated[
        int | None, typer.Option(min=0, help="The checkpoint of this step of the run (default: its newest).")
    ] = None,
    merge_lora: Annotated[
        bool, typer.Option("--merge-lora", help="Of a LoRA run: the whole model, the adapter merged into its base.")
    ] = False,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16 (default: as in the checkpoint).")
    ] = None,
    home: Annotated[
        Path | None, typer.Option("--home", help="Directory of the server that trained it (default as for start).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON on stdout.")] = False,
) -> None:
    """Hand the weights over: a folder with model, tokenizer and chat template that transformers and vLLM load.

    DIR must be new or empty. A server may be running: what it does is not disturbed.
    """
    with failures_in_one_line():
        from swarm.trainer.run_directories import find_checkpoint

        *named, target = places
        if len(named) > 1:
            raise BadRequest("too many arguments: swarm export [RUN|CHECKPOINT] DIR")
        checkpoint = find_checkpoint(home_named(home), named[0] if named else None, step)
        from swarm.backends.local.export import export_checkpoint
        from swarm.backends.local.model.precision import DTYPES

        if dtype is not None and dtype not in DTYPES:
            raise BadRequest(f"unknown dtype {dtype!r}: use {', '.join(DTYPES)}", param="dtype")
        done = export_checkpoint(checkpoint, Path(target), dtype=dtype, merge_lora=merge_lora)
        typer.echo(json.dumps(asdict(done), default=str) if as_json else _line(done))


def _line(done: Exported) -> str:
    what = "an adapter of " if done.is_adapter else ""
    return (
        f"{done.directory}: step {done.step} of {done.checkpoint}, {what}{done.parameters:,} parameters in"
        f" {done.dtype}, {done.bytes / 1e6:.1f} MB"
    )
