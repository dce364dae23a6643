#!/usr/bin/env bash
# Makes an environment with the library verifiers and the package that the tests open with it. The library needs other
# versions of what the service needs too, so it has an interpreter of its own.
# Usage: scripts/install_verifiers.sh [DIRECTORY]      .venv-verifiers by default. Does nothing where it has been done.
# PYTHON names the interpreter to make it with.
set -euo pipefail

directory=${1:-.venv-verifiers}
verifiers=0.4.0
package=tests/verifiers/reverse_words
stamp="$directory/.verifiers-$verifiers"
[ -f "$stamp" ] && [ -z "$(find "$package" -newer "$stamp" -type f -not -path '*/__pycache__/*')" ] && exit 0

"${PYTHON:-python3}" -m venv "$directory"
python="$directory/bin/python"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# The library prepares its agents' programs with uv.
"$python" -m pip install --quiet "verifiers==$verifiers" uv
"$python" -m pip install --quiet --force-reinstall --no-deps "$package"
touch "$stamp"
echo "verifiers $verifiers is in $directory: SWARM_VERIFIERS_PYTHON=$python"
