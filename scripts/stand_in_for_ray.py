"""A wheel by the name of Ray that holds the one type that verl names when it is imported, and nothing that runs.

Place in the flow: scripts/carry_to_gpu.sh adds it to its folder. The real wheel is larger than all that can be carried,
and the local engine never calls Ray. Engine verl cannot run with it.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

NAME, VERSION = "ray", "0.0.0"
INFO = f"{NAME}-{VERSION}.dist-info"
FILES = {
    f"{NAME}/__init__.py": (
        '"""A stand-in: verl is imported with it, and engine verl cannot run."""\n\n\nclass ObjectRef:\n'
        '    """The type that verl names in its annotations."""\n'
    ),
    f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: swarm\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def main(folder: Path) -> None:
    with zipfile.ZipFile(folder / f"{NAME}-{VERSION}-py3-none-any.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
        record = "".join(f"{name},,\n" for name in [*FILES, f"{INFO}/RECORD"])
        wheel.writestr(f"{INFO}/RECORD", record)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
