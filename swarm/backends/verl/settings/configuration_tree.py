"""The tree of all settings that verl has, under its own names, read from its files.

Place in the flow: configuration.py merges a job into this tree and checks its keys here. This module reads verl's YAML
files with hydra, and the source of its configuration classes. It imports nothing of verl, so a server without tensors
can refuse a wrong job at once.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from swarm.errors import EngineFailure

MODEL_ENGINES: Final = ("dp", "megatron", "veomni", "torchtitan")
"""verl's sets of defaults; `dp` is FSDP."""
CLOSE_MATCHES = 3
CLOSE_ENOUGH = 0.6


@dataclass(frozen=True)
class VerlSchema:
    """verl's configuration with its defaults, for one of its model engines."""

    tree: DictConfig

    def knows(self, path: str) -> bool:
        """Return whether verl reads a setting at this dotted path: from files, classes, or as free content."""
        node: Any = self.tree
        parts = path.split(".")
        for depth, part in enumerate(parts):
            if not OmegaConf.is_dict(node):
                return False
            if part in node:
                node = node._get_node(part)
                if _is_free(node) and depth + 1 < len(parts):
                    return True
                continue
            return self._class_has(node, parts[depth:])
        return True

    def default(self, path: str) -> Any:
        """Return the value in verl's files, or None if it has none there or refers to another one."""
        node: Any = self.tree
        for part in path.split("."):
            if not OmegaConf.is_dict(node) or part not in node:
                return None
            node = node._get_node(part)
        if OmegaConf.is_config(node):
            return OmegaConf.to_container(node)
        return None if node._is_interpolation() or node._is_missing() else node._value()

    def holds_settings(self, path: str) -> bool:
        """Return whether the path is a section with its own settings rather than one setting."""
        node = OmegaConf.select(self.tree, path, throw_on_missing=False) if path else self.tree
        return OmegaConf.is_dict(node) and bool(node)

    def close_matches(self, path: str) -> list[str]:
        """Return similar known paths, likeliest first."""
        last = path.rsplit(".", 1)[-1]
        same_name = [known for known in self._paths if known.rsplit(".", 1)[-1] == last]
        similar = difflib.get_close_matches(path, self._paths, CLOSE_MATCHES, CLOSE_ENOUGH)
        return list(dict.fromkeys([*same_name, *similar]))[:CLOSE_MATCHES]

    @cached_property
    def _paths(self) -> list[str]:
        return [path for path in _leaves(self.tree, "") if not path.endswith("_target_")]

    @cached_property
    def _fields(self) -> Mapping[str, frozenset[str]]:
        return _read_dataclass_fields(_package_directory())

    def _class_has(self, node: Any, rest: list[str]) -> bool:
        """Return whether the class that a section is made into has a field of that name."""
        target = OmegaConf.select(node, "_target_", default=None)
        return isinstance(target, str) and rest[0] in self._fields.get(target.rsplit(".", 1)[-1], frozenset())


@cache
def read_schema(model_engine: str) -> VerlSchema:
    """Return the schema of the installed verl. Do not change its tree.

    Raise EngineFailure if verl is not installed.
    """
    directory = _package_directory() / "trainer" / "config"
    with initialize_config_dir(config_dir=str(directory), version_base=None):
        return VerlSchema(compose("ppo_trainer", overrides=[f"model_engine={model_engine}"]))


def _package_directory() -> Path:
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise EngineFailure("engine verl needs the package verl: install the server extra")
    return Path(next(iter(spec.submodule_search_locations)))


def _is_free(node: Any) -> bool:
    """Return whether the node is an empty mapping, or nothing, where verl takes any content."""
    if OmegaConf.is_dict(node):
        return not node
    return not OmegaConf.is_config(node) and node._value() is None


def _leaves(node: Any, prefix: str) -> Iterator[str]:
    for key in node:
        child = node._get_node(key)
        path = f"{prefix}.{key}" if prefix else str(key)
        if OmegaConf.is_dict(child) and child:
            yield from _leaves(child, path)
        else:
            yield path


def _read_dataclass_fields(package: Path) -> dict[str, frozenset[str]]:
    """Return class name -> names of annotated fields, inherited ones too, of verl's configuration classes."""
    own: dict[str, tuple[set[str], list[str]]] = {}
    files = [*sorted((package / "workers" / "config").glob("*.py")), *sorted((package / "trainer/config").glob("*.py"))]
    for file in files:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                fields = {
                    line.target.id
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                }
                own[node.name] = fields, [base.id for base in node.bases if isinstance(base, ast.Name)]

    def with_inherited(name: str) -> set[str]:
        fields, bases = own.get(name, (set[str](), list[str]()))
        return fields.union(*(with_inherited(base) for base in bases))

    return {name: frozenset(with_inherited(name)) for name in own}
