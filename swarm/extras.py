"""The extras of this distribution and their modules, by which a command names the extra of a missing module."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

DISTRIBUTION = "swarm-researcher"
_DATABASE = ("sqlalchemy", "pandas", "filelock", "pyarrow", "numpy")
MODULES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "server": frozenset(
            {
                "fastapi", "starlette", "uvicorn", "httptools", "uvloop", "typer", "rich", "msgspec", "textual",
                "prometheus_client", "numpy", "packaging", "torch", "transformers", "tokenizers", "safetensors", "peft",
                "gguf", "platformdirs", "llguidance", "jinja2", "psutil", "verl", "tensordict", "omegaconf", "hydra",
                "wandb", "tensorboard",
            }
        ),
        "verl": frozenset({"ray", "transfer_queue", "vllm"}),
        "environments": frozenset({"reasoning_gym", "math_verify", "pyarrow"}),
        "researcher": frozenset(
            {
                *_DATABASE, "langgraph", "langchain_core", "openai", "scipy", "matplotlib", "jinja2", "markupsafe",
                "weasyprint", "typer", "rich", "ruff", "mcp", "optuna", "bm25s", "starlette", "uvicorn",
                "markdown_it", "llguidance", "cryptography",
            }
        ),
        "ui": frozenset({*_DATABASE, "streamlit", "altair"}),
        "postgres": frozenset({"psycopg"}),
        "mlflow": frozenset({"mlflow", "pandas"}),
        "trackio": frozenset({"trackio"}),
    }
)  # fmt: skip
"""The modules that each extra installs, as far as the code imports them."""


def missing_extra(error: ModuleNotFoundError, first: str) -> str | None:
    """Return one line with the command that installs the module, or None if no extra does.

    `first` is the extra of the command itself. It is named if it installs the module, even if other extras do too.
    """
    module = (error.name or "").partition(".")[0]
    extra = next((name for name in (first, *MODULES) if module in MODULES.get(name, ())), None)
    return None if extra is None else f"{module} is not installed: run pip install '{DISTRIBUTION}[{extra}]'"


@contextmanager
def named_extras(command: str, first: str) -> Generator[None]:
    """Exit with the line of `missing_extra` if a module of an extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (advice := missing_extra(error, first)) is None:
            raise
        sys.exit(f"{command}: {advice}")
