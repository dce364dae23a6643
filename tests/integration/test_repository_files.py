"""What people and machines that work on the repository rely on: the wheel, and files that name targets and programs."""

from __future__ import annotations

import email
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import swarm
from swarm.skills import list_skills

ROOT = Path(__file__).parents[2]
TYPED = ("swarm", "researcher", "experiments_db")
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WRITTEN = {"commands.md", "configuration.md", "errors.md", "metrics.md", "routes.md"}
"""Pages of the site that are written from the code when it is built; `make check` follows the links to them."""
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").glob("*.md")]


def read_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    [built] = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_tells_type_checkers_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    marked = {name.removesuffix("/py.typed") for name in wheel.namelist() if name.endswith("py.typed")}
    assert marked == set(TYPED)


def test_the_version_of_the_package_is_that_of_its_source(wheel: zipfile.ZipFile) -> None:
    [metadata] = [name for name in wheel.namelist() if name.endswith(f"{swarm.__version__}.dist-info/METADATA")]
    assert email.message_from_bytes(wheel.read(metadata))["Version"] == swarm.__version__
    assert "version" not in PROJECT["project"]


def test_the_wheel_holds_every_file_of_every_skill_once(wheel: zipfile.ZipFile) -> None:
    folder = "swarm/skills/shipped/"
    shipped = sorted(name.removeprefix(folder) for name in wheel.namelist() if name.startswith(folder))
    assert shipped == sorted(f"{skill.name}/{name}" for skill in list_skills() for name in skill.files)
    assert [name for name in wheel.namelist() if name.endswith("SKILL.md") and not name.startswith(folder)] == []


def test_the_wheel_holds_the_bundled_models_and_not_their_recipes(wheel: zipfile.ZipFile) -> None:
    for model in ("nano", "micro"):
        folder = f"swarm/{model}/"
        shipped = {name.removeprefix(folder) for name in wheel.namelist() if name.startswith(folder)}
        assert "model/model.safetensors" in shipped
        assert [name for name in shipped if not name.startswith("model/")] == ["__init__.py"]
    assert not any(name.startswith("recipes/") for name in wheel.namelist())


def test_every_target_that_a_document_names_is_in_the_makefile() -> None:
    for document in DOCUMENTS:
        code = re.findall(r"`make ([a-z -]+)`", document.read_text())
        code += re.findall(r"^    make ([a-z-]+)", document.read_text(), re.M)
        missing = {name for names in code for name in names.split()} - TARGETS
        assert not missing, f"{document.name} names {missing}"


def test_every_place_that_a_document_links_to_is_there() -> None:
    for document in DOCUMENTS:
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", document.read_text()):
            target = document.parent / link if link else document
            if target.name in WRITTEN and document.is_relative_to(ROOT / "docs"):
                continue
            assert "://" in link or target.exists(), f"{document.name} links to {link}"
            assert not anchor or anchor in anchors(target), f"{document.name} links to {link}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_that_a_text_names_is_there() -> None:
    texts = [
        path
        for folder in (*PACKAGES, "tests", "skills", "examples", "prompts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".toml"} and "node_modules" not in path.parts
    ]
    named = {page for text in (*texts, *DOCUMENTS) for page in re.findall(r"\bdocs/[\w/-]+\.md", text.read_text())}
    assert {page for page in named if not (ROOT / page).exists()} == set()


def test_the_hosted_checks_call_all_that_must_pass_on_every_supported_python() -> None:
    [job] = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    matrix = job["strategy"]["matrix"]
    must_pass = set(re.findall(r"^make (\S+)", (ROOT / ".ci" / "run").read_text(), re.M))
    assert must_pass <= set(matrix["target"]) <= TARGETS
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.13" and matrix["python"] == ["3.11", "3.12"]
    assert job["timeout-minutes"] <= 60
    assert "secrets." not in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


PACKAGES = ("swarm", "researcher", "experiments_db", "ui", "bench", "scripts")
FILES_OF_USERS = {"client.py", "program.py", "tasks.py", "grade.py", "agent.py", "my_agent.py", "make_tasks.py"}
"""What a study writes for its arms, and what a user writes for an environment."""


def test_documents_name_modules_that_there_are() -> None:
    folders = (*PACKAGES, "prompts", "tests", "examples")
    modules = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = {name for document in DOCUMENTS for name in re.findall(r"`([\w/]+\.py)`", document.read_text())}
    missing = {name for name in named if not any(module.endswith(f"/{name}") for module in modules)}
    assert missing <= FILES_OF_USERS | {"train.py"}


def test_a_public_class_name_that_is_defined_twice_is_reported_with_both_places(tmp_path: Path) -> None:
    repeated = runpy.run_path(str(ROOT / "scripts" / "check_names.py"))["repeated"]
    for path in ("swarm/runs.py", "ui/pages/run.py"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("class _Own: ...\nclass Run: ...\n")
    [line] = repeated(tmp_path)
    assert all(word in line for word in ("Run", "swarm/runs.py:2", "ui/pages/run.py:2"))
