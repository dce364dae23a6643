"""`python -m bench compare`: measures the working tree beside an earlier version and says what got worse.

Place in the flow: bench/__main__.py hands over to this. Figures go to stdout, messages to stderr. Both versions run
with this interpreter and the packages that are installed for it.

Exit codes: 0 nothing got worse beyond noise; 1 something did, or the working tree could not be measured, or nothing
could be judged; 2 wrong usage or no such version; 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.board.checkout import CheckoutError, Repository, Tree, find_changed_dependencies
from bench.board.figures import FIGURES, Probe
from bench.board.rounds import Measurements, ProbeError, measure
from bench.board.table import render_change
from bench.board.verdict import Change, Verdict, judge_all
from bench.board.versions import DIRECTORY, StoredResultInvalid, build_document, read_documents, store_document
from bench.results import read_conditions

ROOT = Path(__file__).parents[2]


def main(
    probes: Annotated[list[Probe] | None, typer.Argument(help="What to measure; all without a name.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Commit, tag or branch to compare with (default: the previous version).")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, max=600, help="How long all of it takes; at least a round.")] = 9.0,
    results: Annotated[Path, typer.Option(help="Directory that the result is stored in.")] = DIRECTORY,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Measure the working tree and an earlier version side by side. Exit code 1 if something got worse beyond noise."""
    # What was checked out is removed, and what was started is ended, on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    conditions = read_conditions(0)
    try:
        with check_out_both(against, results) as (new, old):
            _say(f"{new.name} beside {old.name}, {minutes:g} minutes")
            if changed := find_changed_dependencies(new, old):
                _say(f"the two ask for other packages, and both run with those installed: {', '.join(changed)}")
            names = list(dict.fromkeys(probes or Probe))
            measured = measure(new, old, names, began + 60 * minutes, _say)
        changes = judge_all(measured.pairs)
        conditions = replace(conditions, seconds=time.monotonic() - began)
        document = build_document(new, old, conditions, changes, measured.skipped)
        reason = _find_reason_not_to_store(document, names)
        _say(f"not stored: {reason}" if reason else f"stored in {store_document(results, document)}")
    except (CheckoutError, StoredResultInvalid) as error:
        _say(str(error))
        raise typer.Exit(2) from None
    except (ProbeError, OSError) as error:
        _say(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        _show(changes)
    raise typer.Exit(_conclude(changes, measured))


@contextmanager
def check_out_both(against: str | None, results: Path, root: Path = ROOT) -> Iterator[tuple[Tree, Tree]]:
    """The working tree at `root` and the earlier version, in temporary directories that are removed with the block.

    Raises CheckoutError, and StoredResultInvalid where no version is named and those in `results` cannot be read.
    """
    repository = Repository(root)
    if against is None:
        commit = repository.find_previous(document["commit"] for document in read_documents(results))
    else:
        commit = repository.find_commit(against)
    with tempfile.TemporaryDirectory(prefix="bench-versions-") as directory:
        new, old = Path(directory) / "new", Path(directory) / "old"
        new.mkdir()
        old.mkdir()
        yield repository.copy_working_tree(new), repository.check_out(commit, old)


def _say(message: str) -> None:
    typer.echo(f"bench: {message}", err=True)


def _find_reason_not_to_store(document: Mapping[str, Any], names: Sequence[Probe]) -> str | None:
    """A row of the record has all figures of a version, beside those of another version."""
    if set(names) != set(Probe):
        return "only some of the probes were asked for"
    if document["commit"] == document["against"]["commit"]:
        return "both versions are the same"
    return None


def _conclude(changes: Mapping[str, Change], measured: Measurements) -> int:
    """Say what came out, in a line; the exit code."""
    by_verdict = {
        verdict: [name for name, change in changes.items() if change.verdict is verdict] for verdict in Verdict
    }
    if worse := by_verdict[Verdict.WORSE]:
        _say(f"worse beyond noise: {', '.join(worse)}")
        return 1
    if not changes or by_verdict[Verdict.TOO_FEW_ROUNDS]:
        _say("nothing could be judged: " + ("no probe runs on both" if measured.skipped else "give it more --minutes"))
        return 1
    _say("nothing is worse beyond noise")
    return 0


def _show(changes: Mapping[str, Change]) -> None:
    table = Table("figure", "before", "now", "unit", "rounds", "verdict")
    for name, change in changes.items():
        is_marked = change.verdict in (Verdict.WORSE, Verdict.BETTER)
        cells = (f"{change.old:.3g}", render_change(asdict(change)).strip("*"), FIGURES[name].unit, str(change.rounds))
        table.add_row(name, *cells, change.verdict, style="bold" if is_marked else None)
    Console().print(table)
