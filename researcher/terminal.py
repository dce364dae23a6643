"""What a terminal shows of failures, one line each, and the log that has the rest.

Place in the flow: cli.py wraps each command in `failures_in_one_line` and opens the log of a study with `log_to`. This
module knows no command.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from copy import copy
from pathlib import Path

import typer

from researcher.errors import ResearchError

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

logger = logging.getLogger(__name__)


@contextmanager
def failures_in_one_line() -> Generator[None]:
    """Turn a domain error into one line on stderr and its exit code."""
    from experiments_db import LeaseLost, NotFound, StoreError
    from swarm import SwarmError
    from swarm.errors import SandboxUnavailable

    try:
        yield
    except ResearchError as error:
        typer.echo(f"researcher: {error}", err=True)
        raise typer.Exit(error.exit_code) from error
    except (StoreError, SwarmError) as error:
        typer.echo(f"researcher: {error}", err=True)
        codes = {NotFound: 3, LeaseLost: 75, SandboxUnavailable: 6}
        raise typer.Exit(next((code for kind, code in codes.items() if isinstance(error, kind)), 1)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        from researcher.execution.failure_reason import in_one_line

        reason = in_one_line(f"{type(error).__name__}: {error}")
        typer.echo(f"researcher: unexpected failure: {reason} (traceback: {_keep_traceback()})", err=True)
        raise typer.Exit(1) from error


def _keep_traceback() -> str:
    """The traceback of the failure at hand goes to the study's log, or to a file of its own; returns which."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _StudyLogFile):
            logger.critical("unexpected failure", exc_info=True)
            return handler.baseFilename
    with tempfile.NamedTemporaryFile("w", prefix="researcher-", suffix=".log", delete=False) as file:
        file.write(traceback.format_exc())
    return file.name


class _StudyLogFile(logging.FileHandler):
    """The log of the study that this process works on."""


class _OneLine(logging.Formatter):
    """For terminals: of a traceback what was raised; all of it stands in the log file."""

    def format(self, record: logging.LogRecord) -> str:
        shown = copy(record)
        shown.exc_info = shown.exc_text = shown.stack_info = None
        line = super().format(shown)
        if record.exc_info and (error := record.exc_info[1]) is not None:
            line += f": {type(error).__name__}: {' '.join(str(error).split())}"
        return line


def log_to(path: Path) -> None:
    """Everything to the study's log file, warnings to stderr as well unless a live table is drawn there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [_StudyLogFile(path, encoding="utf-8")]
    if not sys.stderr.isatty():
        shown = logging.StreamHandler(sys.stderr)
        shown.setLevel(logging.WARNING)
        shown.setFormatter(_OneLine(LOG_FORMAT))
        handlers.append(shown)
    logging.basicConfig(level=logging.INFO, handlers=handlers, format=LOG_FORMAT, force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
