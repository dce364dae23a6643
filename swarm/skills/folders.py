"""The skill folders that are shipped with the package: read, and installed into a coding agent's directory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from swarm.errors import BadRequest, NotFound

SHIPPED = Path(__file__).with_name("shipped")
INSTRUCTIONS = "SKILL.md"
FENCE = "---\n"


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill folder. `files` are paths relative to `folder`, sorted, with the instructions first."""

    name: str
    description: str
    folder: Path
    files: tuple[str, ...]

    def read(self, file: str = INSTRUCTIONS) -> str:
        """Return the text of a file. Raises NotFound if the skill has no such file."""
        if file not in self.files:
            raise NotFound(
                f"the skill {self.name} has no file {file!r}: name one of {', '.join(self.files)}", param="file"
            )
        return (self.folder / file).read_text(encoding="utf-8")


def list_skills() -> tuple[Skill, ...]:
    """Return all skills, sorted by name."""
    return tuple(_read_folder(path.parent) for path in sorted(SHIPPED.glob(f"*/{INSTRUCTIONS}")))


def read_skill(name: str) -> Skill:
    """Return the skill with this name. Raises NotFound if there is none."""
    found = {skill.name: skill for skill in list_skills()}
    if name not in found:
        raise NotFound(f"there is no skill {name!r}: name one of {', '.join(found)}", param="name")
    return found[name]


def front_matter(text: str) -> dict[str, Any]:
    """Return the YAML between the two lines of three dashes at the head of the instructions."""
    _, head, _ = text.split(FENCE, 2)
    return yaml.safe_load(head)


def _read_folder(folder: Path) -> Skill:
    head = front_matter((folder / INSTRUCTIONS).read_text(encoding="utf-8"))
    paths = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    files = sorted(
        (path.relative_to(folder).as_posix() for path in paths), key=lambda name: (name != INSTRUCTIONS, name)
    )
    return Skill(head["name"], head["description"], folder, tuple(files))


RECORD = ".swarm-skill.json"


class State(StrEnum):
    """The result for a copy of a skill. A copy is `kept` if a person has changed it."""

    INSTALLED = "installed"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class InstalledSkill:
    """A copy of a skill. `changed` are the files that a person has changed, as paths relative to `folder`."""

    name: str
    folder: Path
    state: State
    changed: tuple[str, ...] = ()


def install_skill(skill: Skill, directory: Path, *, force: bool = False) -> InstalledSkill:
    """Make `directory`/NAME a copy of the skill. With `force`, files that a person has changed are replaced too.

    Other files in the folder stay. Raises BadRequest if the folder cannot be written.
    """
    folder = directory / skill.name
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            return _replace_other(skill, folder, force=force)
        return _install(skill, folder, force=force)
    except OSError as error:
        raise BadRequest(
            f"{folder} cannot be written: {error.strerror or error}; name a directory that you own", param="dir"
        ) from error


def _replace_other(skill: Skill, folder: Path, *, force: bool) -> InstalledSkill:
    """Keep a link or a file at the place of the folder, because it is the person's. With `force`, replace it.

    A write through the link would change the folder that it points to.
    """
    if not force:
        return InstalledSkill(skill.name, folder, State.KEPT, (".",))
    folder.unlink()
    _write(skill, folder, {})
    return InstalledSkill(skill.name, folder, State.UPDATED, (".",))


def _install(skill: Skill, folder: Path, *, force: bool) -> InstalledSkill:
    is_new = not folder.exists()
    recorded = _recorded(folder)
    shipped = {name: _digest(skill.folder / name) for name in skill.files}
    present = {name: _digest(folder / name) for name in shipped.keys() | recorded.keys() if (folder / name).exists()}
    changed = tuple(
        sorted(name for name, digest in present.items() if digest not in (shipped.get(name), recorded.get(name)))
    )
    if changed and not force:
        return InstalledSkill(skill.name, folder, State.KEPT, changed)
    if present == shipped == recorded:
        return InstalledSkill(skill.name, folder, State.UNCHANGED)
    _write(skill, folder, recorded)
    return InstalledSkill(skill.name, folder, State.INSTALLED if is_new else State.UPDATED, changed)


def _write(skill: Skill, folder: Path, recorded: dict[str, str]) -> None:
    """Write the files, and the record last, so that the next installation completes an interrupted one."""
    for name in skill.files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.unfinished")
        shutil.copy(skill.folder / name, unfinished)
        os.replace(unfinished, target)
    for name in recorded.keys() - set(skill.files):
        (folder / name).unlink(missing_ok=True)
    files = {name: _digest(folder / name) for name in skill.files}
    (folder / RECORD).write_text(json.dumps({"files": files}, indent=2) + "\n", encoding="utf-8")


def _recorded(folder: Path) -> dict[str, str]:
    """Return the recorded digests of the original files. A damaged record counts as empty."""
    try:
        record: Any = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files: dict[Any, Any] = record["files"]
        return {name: digest for name, digest in files.items() if _is_inside(str(name), folder)}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_inside(name: str, folder: Path) -> bool:
    return folder.resolve() in (folder / name).resolve().parents


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
