"""The output of failures in a terminal, one line each, and the log that has the rest."""

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

from researcher.errors import ResearchError, exit_code_of
from swarm.extras import missing_extra

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

logger = logging.getLogger(__name__)


@contextmanager
def failures_in_one_line() -> Generator[None]:
    """Turn a domain error into one line on stderr and its exit code."""
    from experiments_db import StoreError
    from swarm import SwarmError

    try:
        yield
    except (ResearchError, StoreError, SwarmError) as error:
        typer.echo(f"researcher: {error}", err=True)
        raise typer.Exit(exit_code_of(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (typer.Exit, typer.Abort):
        raise
    except _Logged as failure:
        _show_unexpected(failure.error, failure.path)
        raise typer.Exit(1) from failure.error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (advice := missing_extra(error, "researcher")):
            typer.echo(f"researcher: {advice}", err=True)
            raise typer.Exit(1) from error
        with tempfile.NamedTemporaryFile("w", prefix="researcher-", suffix=".log", delete=False) as file:
            file.write(traceback.format_exc())
        _show_unexpected(error, Path(file.name))
        raise typer.Exit(1) from error


class _Logged(Exception):
    """An unexpected failure whose traceback is already in a study's log."""

    def __init__(self, error: Exception, path: Path) -> None:
        super().__init__(str(error))
        self.error = error
        self.path = path


def _show_unexpected(error: Exception, path: Path) -> None:
    from researcher.record.failure_reason import in_one_line

    reason = in_one_line(f"{type(error).__name__}: {error}")
    typer.echo(f"researcher: unexpected failure: {reason} (traceback: {path})", err=True)


class _OneLine(logging.Formatter):
    """A formatter for terminals that shows only the exception of a traceback; the log file has all of it."""

    def format(self, record: logging.LogRecord) -> str:
        shown = copy(record)
        shown.exc_info = shown.exc_text = shown.stack_info = None
        line = super().format(shown)
        if record.exc_info and (error := record.exc_info[1]) is not None:
            line += f": {type(error).__name__}: {' '.join(str(error).split())}"
        return line


class _StudyLogFile(logging.FileHandler):
    """A log file that ignores a full disk: the lines that do not fit are lost."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextmanager
def log_to(path: Path) -> Generator[None]:
    """Write everything to the study's log file meanwhile, and warnings to stderr unless a live table is drawn there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [_StudyLogFile(path, encoding="utf-8")]
    handlers[0].setFormatter(logging.Formatter(LOG_FORMAT))
    if not sys.stderr.isatty():
        shown = logging.StreamHandler(sys.stderr)
        shown.setLevel(logging.WARNING)
        shown.setFormatter(_OneLine(LOG_FORMAT))
        handlers.append(shown)
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        yield
    except Exception as error:
        if _is_foreseen(error):
            raise
        logger.critical("unexpected failure", exc_info=True)
        raise _Logged(error, path) from error
    finally:
        root.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _is_foreseen(error: Exception) -> bool:
    from experiments_db import StoreError
    from swarm import SwarmError

    return isinstance(error, ResearchError | StoreError | SwarmError | typer.Exit | typer.Abort)
