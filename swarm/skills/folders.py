"""The reader of the skill folders that are shipped with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from swarm.errors import NotFound

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
