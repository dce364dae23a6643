"""Which extra of this distribution brings a module that is missing, so that a command can say what to install.

Place in the flow: the entry points of the commands, and what turns their failures into one line. It loads nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

DISTRIBUTION = "swarm-researcher"
_DATABASE = ("sqlalchemy", "alembic", "pandas", "filelock", "pyarrow", "numpy")
MODULES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "server": frozenset(
            {
                "fastapi", "starlette", "uvicorn", "httptools", "uvloop", "typer", "rich", "msgspec", "textual",
                "prometheus_client", "numpy", "packaging", "torch", "transformers", "tokenizers", "safetensors", "peft",
                "llguidance", "jinja2", "verl", "tensordict", "omegaconf", "hydra",
            }
        ),
        "verl": frozenset({"ray", "transfer_queue", "vllm"}),
        "environments": frozenset({"reasoning_gym", "math_verify", "pyarrow"}),
        "researcher": frozenset(
            {
                *_DATABASE, "langgraph", "langchain_core", "openai", "scipy", "matplotlib", "jinja2", "markupsafe",
                "markdown_it", "fpdf", "typer", "rich", "ruff",
            }
        ),
        "ui": frozenset({*_DATABASE, "streamlit", "altair"}),
        "postgres": frozenset({"psycopg"}),
    }
)  # fmt: skip
"""By extra, the modules that come with it and are imported."""


def missing_extra(error: ModuleNotFoundError, first: str) -> str | None:
    """What to install, in one line; None for a module that no extra brings. Of several extras that bring it, `first` is
    named if it is one of them: the extra that the command itself is of."""
    module = (error.name or "").partition(".")[0]
    extra = next((name for name in (first, *MODULES) if module in MODULES[name]), None)
    return None if extra is None else f"{module} is not installed: pip install '{DISTRIBUTION}[{extra}]' brings it"


@contextmanager
def named_extras(command: str, first: str) -> Generator[None]:
    """End the command with what to install, in one line, where a module of an extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (advice := missing_extra(error, first)) is None:
            raise
        sys.exit(f"{command}: {advice}")
