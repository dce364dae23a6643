"""The common parts of the commands: opening the store, finding the study and printing the result."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from researcher.cli.terminal import log_to
from researcher.home import DATABASE, home_option
from swarm.processes import collector_paused

"""A topic that works in any home."""


@contextmanager
def open_database(
    home: Path, db: str | None, *, read_only: bool = False, must_exist: bool = False, waits: bool = False
) -> Generator[Any]:
    """Open the store of a command, and close it at its end.

    With `waits`, the command waits for a store that is locked or on a full disk, because nobody may be there to repeat
    the command.
    """
    from experiments_db import StoreUnavailable

    location = database_of(home, db)
    opened: list[Any] = []

    def try_to_open() -> None:
        opened.append(_open(location, read_only=read_only, must_exist=must_exist))

    try:
        try_to_open()
    except StoreUnavailable as error:
        if not (waits and error.may_pass):
            raise
        from researcher.execution.storage import await_storage

        await_storage(try_to_open, error)
    with opened[0] as store:
        yield store


def _open(location: str, *, read_only: bool, must_exist: bool) -> Any:
    from experiments_db import open_store

    if must_exist:
        # A mistyped --home must not leave an empty database behind.
        open_store(location, read_only=True).close()
    return open_store(location, read_only=read_only)


def database_of(home: Path, db: str | None) -> str:
    return db or str(home / DATABASE)


def paths_of(store: Any, study_id: str, home: Path, db: str | None) -> dict[str, str]:
    location = database_of(home, db)
    # A URL may contain a password, which `store.location` omits.
    found = {"database": store.location if "://" in location else location}
    for name, kind in (("report", "report.markdown"), ("html", "report.html")):
        for artifact in store.list_artifacts(study_id, kind=kind):
            found[name] = artifact.path
    return found


def print_values(values: Mapping[str, str | int | list[str]], as_json: bool) -> None:
    """Print one `name: value` per line, or one JSON object."""
    if as_json:
        typer.echo(json.dumps(values))
        return
    for name, value in values.items():
        if isinstance(value, list):
            typer.echo("\n".join([f"{name}:", *(f"  {line}" for line in value)]))
        else:
            typer.echo(f"{name}: {value}")


def work(
    store: Any,
    study_id: str,
    home: Path,
    db: str | None,
    as_json: bool,
    *,
    detach: bool = False,
    min_free_gb: float | None = None,
    budget: Mapping[str, float] | None = None,
    go_on: bool = False,
) -> None:
    """Carry on a study with progress on stderr, and print the paths of its results.

    Exits with 128 + signal if a signal ended the work. With `detach`, a process of its own works on the study, and the
    output says how to watch it. `min_free_gb` replaces the value in the study's settings. `budget` has new limits, by
    name of the setting. With `go_on`, a model that solves nothing is trained all the same.
    """
    from researcher.study.ending import is_over
    from researcher.study.requests import find_study

    study = find_study(store, study_id)
    if is_over(store, study) and not budget:
        typer.echo(f"study {study.id} is {study.status} already: nothing is left to do", err=True)
        _end_with(store, study, home, db, as_json)
        return
    if detach:
        given = {**(budget or {}), **({} if min_free_gb is None else {"min_free_gb": min_free_gb})}
        options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", f"{value:.15g}")]
        options += ["--go-on"] if go_on else []
        _detach(store, study, home, db, as_json, options)
        return
    with collector_paused("langgraph"):
        from researcher.loop.session import work_on
    from researcher.study.progress import Follower

    log = home / "studies" / study.id / "researcher.log"
    with log_to(log), Follower(store, study.id, Console(stderr=True)):
        outcome = work_on(store, study.id, home, budget=budget, min_free_gb=min_free_gb, go_on=go_on)
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)
    typer.echo(f"study {study.id} is {outcome.study.status}: {outcome.study.status_reason}", err=True)
    _end_with(store, outcome.study, home, db, as_json)


def _end_with(store: Any, study: Any, home: Path, db: str | None, as_json: bool) -> None:
    """Print the result.

    Raises StudyFailed if there is none.
    """
    from experiments_db import StudyStatus
    from researcher.errors import StudyFailed

    print_result(store, study, home, db, as_json)
    if study.status is StudyStatus.FAILED:
        raise StudyFailed(f"study {study.id} has no result: {study.status_reason}")


def _detach(store: Any, study: Any, home: Path, db: str | None, as_json: bool, options: list[str]) -> None:
    from researcher.cli.detached import work_detached
    from researcher.study.requests import database_option

    begun = work_detached(store, study, home, db, options)
    place = f" {study.id}{home_option(home)}{database_option(db)}"
    values: dict[str, Any] = {
        "study": study.id,
        "status": store.get_study(study.id).status.value,
        "pid": begun.pid,
        "log": str(begun.log),
        "watch": f"researcher watch{place}",
        "pause": f"researcher pause{place}",
        "resume": f"researcher resume{place}",
    }
    print_values(values, as_json)


def print_result(store: Any, study: Any, home: Path, db: str | None, as_json: bool) -> None:
    """Print the paths of a study; if it is over, print its findings and the command of the explorer too."""
    from researcher.study.ending import is_over

    values: dict[str, Any] = {"study": study.id, "status": study.status.value} | paths_of(store, study.id, home, db)
    if is_over(store, study):
        from researcher.report.summary import summarize
        from researcher.study.requests import database_option

        found = summarize(store, study.id)
        place = f"{home_option(home)}{database_option(db)}"
        explorer = f"researcher ui{place}"
        advice = [item.replace(f"`{found.to_decide}`", f"`{found.to_decide}{place}`") for item in found.recommendation]
        left_out = {"not_studied": found.not_studied} if found.not_studied else {}
        shown = {"answer": found.answer, "recommendation": advice}
        shown |= {"verdicts": list(found.verdicts), "runs": found.runs}
        values = left_out | shown | values | {"explorer": explorer}
    print_values(values, as_json)
