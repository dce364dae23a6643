"""Skills as the specification of agentskills.io wants them, and manifests that name what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import swarm
from swarm.cli.failures import exit_code
from swarm.errors import SwarmError, error_class
from swarm.skills import Skill, list_skills
from swarm.skills.folders import front_matter

ROOT = Path(__file__).parents[3]
SKILLS = list_skills()
NAMES = {"explore-results", "make-environment", "operate-server", "plan-study", "run-study", "write-program"}
KNOWN_FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
BY_NAME = pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)


def read_json(path: str) -> Any:
    return json.loads((ROOT / path).read_text())


@BY_NAME
def test_the_head_of_the_instructions_follows_the_specification(skill: Skill) -> None:
    head = front_matter(skill.read())
    assert head.keys() <= KNOWN_FIELDS and all(isinstance(value, str) for value in head.values())
    assert head["name"] == skill.folder.name and len(head["name"]) <= 64
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", head["name"])
    assert 1 <= len(head["description"]) <= 1024 and 1 <= len(head["compatibility"]) <= 500


@BY_NAME
def test_files_lie_one_level_deep_and_the_instructions_name_each(skill: Skill) -> None:
    for name in skill.files[1:]:
        folder, _, file = name.partition("/")
        assert folder == "references" and "/" not in file
        assert name in skill.read(), f"{skill.name} never mentions {name}"


@BY_NAME
def test_links_lead_to_files_of_the_same_skill(skill: Skill) -> None:
    for name in skill.files:
        for link in re.findall(r"\]\(([^)]+)\)", skill.read(name)):
            assert link in skill.files, f"{name} of {skill.name} links to {link}"


@BY_NAME
def test_other_skills_are_named_as_they_are(skill: Skill) -> None:
    assert set(re.findall(r"\(skill ([\w-]+)\)", skill.read())) <= NAMES - {skill.name}


@BY_NAME
def test_error_codes_and_exit_codes_are_those_of_the_service(skill: Skill) -> None:
    for number, codes in re.findall(r"^\| (\d+) \| ((?:`\w+`(?:, )?)+) \|", skill.read(), re.MULTILINE):
        for code in re.findall(r"`(\w+)`", codes):
            found = error_class_of(code)
            assert found.code == code, f"{skill.name} names {code}"
            if int(number) < 100:
                assert exit_code(found("")) == int(number), f"{skill.name}: {code} does not end with {number}"


def error_class_of(code: str) -> type[SwarmError]:
    if code == "port_in_use":
        from swarm.server.http import PortInUse

        return PortInUse
    return error_class(code)


def test_a_checkout_shows_the_skills_at_its_root_without_a_copy() -> None:
    assert (ROOT / "skills").is_symlink()
    assert {path.name for path in (ROOT / "skills").iterdir()} == NAMES
    assert (ROOT / "skills").resolve() == SKILLS[0].folder.parent.resolve()


def test_the_plugin_is_the_repository_with_its_skills_folder() -> None:
    plugin = read_json(".claude-plugin/plugin.json")
    assert plugin.keys() == {"name", "version", "description", "author", "license", "keywords"}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", plugin["name"])
    assert plugin["version"] == swarm.__version__
    assert plugin["author"]["name"] and plugin["license"] == "Apache-2.0"
